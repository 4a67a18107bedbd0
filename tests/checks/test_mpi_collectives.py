"""Tests of check mpi-collectives: planned probes, cases, follow-ups, and findings from recorded results."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import MagicMock

import pytest

from gpuipc_doctor.api import Context, Finding, Json, Probe, Tier
from gpuipc_doctor.histories.group_calls import GroupCalls
from gpuipc_doctor.histories.message_memories import DEVICE, KINDS, PINNED, POOL, STRADDLING, VMM
from gpuipc_doctor.histories.mpi_library_limits import unsupported_calls, unsupported_memory
from gpuipc_doctor.histories.used_calls import MEMORIES_OF_MESSAGES, cases_of
from gpuipc_doctor.model import MemoryShare, Status
from gpuipc_doctor.probe_types import Ending, RoleOutcome
from gpuipc_doctor.report import sentences
from gpuipc_doctor.supervise import blame
from tests.checks.judging import check, conclude, gpu, outcome, plan

ID = "mpi-collectives"
WRONG = {
    "call": "MPI_Bcast",
    "case": "MPI_Bcast of 65544 B, int32, memory of a pool",
    "memory": POOL,
    "form": "",
    "nbytes": 65544,
    "says": "1 of 65544 B wrong, first element 16385: 0x1 instead of 0x0",
}
PARAMS: dict[str, Json] = {
    "sizes": [8, 1000],
    "room": 1 << 30,
    "derived": True,
    "untried": "",
    "unsupported": [],
    "on_host": "",
    "soak": False,
    "failed": [],
    "before": [],
}


def module() -> Any:
    """The part of the check that has its cases."""
    return sys.modules[type(check(ID)).__module__.replace(".mpi", "._mpi") + "_cases"]


def rank(wrong: Sequence[Json] = (), **other: Json) -> dict[str, Json]:
    done = {"cases": 2, "compared": 1 << 20, "wrong": list(wrong), "made": {"MPI_Bcast": 2}, "lacks": []}
    return {**done, "too_large": [], "library": "MPICH 5.0.2", **other}


def judged(*ranks: dict[str, Json], **params: Json) -> list[Finding]:
    records = {f"rank {place}": records for place, records in enumerate(ranks)}
    return conclude(ID, records, **{**PARAMS, **params})


def cases(probe: Probe, ranks: int = 4, kinds: Sequence[str] = KINDS, **params: Json) -> list[Any]:
    make = module().cases
    return list(make({**probe.params, **params}, ranks, kinds, 2 << 20))


def test_correct_calls_pass_with_their_number_and_calls() -> None:
    (finding,) = judged(rank(), rank(made={"MPI_Bcast": 3}))
    assert finding.status is Status.PASS
    assert sentences.summary(finding) == (
        "2 collectives and one-sided operations of 2 ranks correct, 2 MiB compared"
    )
    assert sentences.evidence(finding) == ("2 × MPI_Bcast",)


def test_wrong_data_names_call_library_size_element_and_memory() -> None:
    (finding,) = judged(rank(), rank([WRONG]))
    assert (finding.status, finding.key) == (Status.FAIL, "wrong-data")
    assert sentences.summary(finding).startswith("MPI_Bcast delivered wrong data: 1 of 4 results of MPICH")
    lines = sentences.evidence(finding)
    assert lines[0] == f"rank 1: {WRONG['case']}: {WRONG['says']}"
    assert "all wrong results are of calls with memory of a pool" in lines
    assert "ranks with correct data: rank 0" in lines


@pytest.mark.parametrize(("smallest", "told"), [(8, False), (1000, True)])
def test_smallest_wrong_size_is_named_if_smaller_data_was_correct(smallest: int, told: bool) -> None:
    (finding,) = judged(rank([WRONG, {**WRONG, "nbytes": smallest}]), rank())
    says = f"no result of less than {smallest} B is wrong"
    assert [line for line in sentences.evidence(finding) if "no result" in line] == [says] * told


@pytest.mark.parametrize(
    ("records", "params", "says"),
    [
        (
            {},
            {"derived": False},
            "derived types omitted: this library does not support them in device memory",
        ),
        ({"lacks": [VMM]}, {}, f"omitted because this node or library has none: {VMM}"),
        ({"too_large": [VMM]}, {}, f"omitted because the share of memory is too small: {VMM}"),
        (
            {},
            {"sizes": [8, 1 << 25], "room": 1 << 20},
            "sizes omitted because the share of memory is too small: 33554432 B",
        ),
        (
            {},
            {"on_host": "built without CUDA"},
            "simulated device memory is host memory to this library; on a real GPU: built without CUDA",
        ),
    ],
)
def test_what_was_not_tried_is_told(records: dict[str, Json], params: dict[str, Json], says: str) -> None:
    (finding,) = judged(rank(**records), rank(), **params)
    assert sentences.evidence(finding)[1:] == (says,)


def test_wrong_data_of_a_call_that_is_documented_as_unsupported_is_skip() -> None:
    skipped, passed = judged(rank(), rank([WRONG]), unsupported=["MPI_Bcast"])
    assert (skipped.status, skipped.key) == (Status.SKIP, "unsupported")
    assert passed.status is Status.PASS


def test_kinds_of_memory_beyond_the_share_are_omitted() -> None:
    (probe,) = plan(ID, gpu(0))
    assert {case.memory for case in cases(probe, room=1 << 20)} == {DEVICE, POOL, PINNED}
    assert {case.memory for case in cases(probe, room=2 << 20)} == {DEVICE, POOL, PINNED, VMM}


def test_share_too_small_for_any_message_is_skip_and_says_what_is_needed() -> None:
    stack = _stack()
    (finding,) = check(ID).probes(Context((gpu(0),), mpi=stack, memory=MemoryShare(most_gib=0.0001)))
    assert isinstance(finding, Finding)
    assert (finding.status, finding.key) == (Status.SKIP, "share-too-small")
    assert "107374 B of a device; 4 ranks need 786432 B" in sentences.summary(finding)


def test_ranks_use_the_last_four_gpus_and_share_a_single_one() -> None:
    (probe,) = plan(ID, *map(gpu, range(8)))
    assert [device.index for device in probe.devices] == [4, 5, 6, 7]
    (alone,) = plan(ID, gpu(0))
    assert (len(alone.roles), len(alone.devices)) == (4, 1)


def test_a_probe_knows_its_tier_and_why_device_memory_is_host_memory() -> None:
    probes = [
        probe
        for tier in (Tier.ACCEPTANCE, Tier.SOAK)
        for has_gpu_path in (True, False)
        for probe in plan(ID, gpu(0), tier=tier, has_gpu_path=has_gpu_path, why_not="built without CUDA")
    ]
    told = [(probe.params["soak"], probe.params["on_host"]) for probe in probes]
    why = "built without CUDA"
    assert told == [(False, ""), (False, why), (True, ""), (True, why)]


def test_each_call_is_made_in_each_memory_and_every_way() -> None:
    (probe,) = plan(ID, gpu(0))
    made = cases(probe)
    calls = module().calls
    every = {*calls.COLLECTIVES, *calls.NONBLOCKING, *calls.ONE_SIDED, *calls.ATOMIC, calls.SENDRECV}
    every |= {*MEMORIES_OF_MESSAGES}
    rarer = set(module().RARER)
    in_table = {case.call for case in cases_of(soak=False)}
    assert {case.call for case in made if case.memory == DEVICE} == every | rarer | in_table
    for memory in KINDS[1:]:
        assert {case.call for case in made if case.memory == memory} == every - rarer
    of = {(case.call, case.form) for case in made}
    assert of >= {(call, calls.IN_PLACE) for call in calls.CAN_BE_IN_PLACE}
    assert of >= {(call, calls.DERIVED) for call in calls.CAN_BE_DERIVED}
    assert of >= {(call, calls.SPLIT) for call in calls.CAN_BE_SPLIT}
    assert of >= {(call, calls.TO_HOST) for call in calls.CAN_BE_TO_HOST}
    assert of >= {("MPI_Put", calls.DYNAMIC), ("MPI_Get", calls.DYNAMIC)}
    assert {case.call for case in made if not case.nbytes} == set(module().WITHOUT_DATA)
    completions = (calls.FENCE, calls.LOCK, calls.FLUSH)
    assert of >= {(call, form) for call in calls.ONE_SIDED for form in completions}
    assert max(case.nbytes for case in made if case.call == "MPI_Allreduce") > 32 << 20
    assert max(case.nbytes for case in made if case.form == calls.DERIVED) > 64 << 10
    assert {case.root for case in made if case.call == "MPI_Bcast"} == {0, 1, 2, 3}
    assert of >= {(call, calls.AGAIN) for call in calls.CAN_BE_AGAIN}
    assert of >= {(call, calls.FLUSH_LOCAL) for call in calls.CAN_BE_FLUSHED_LOCALLY}
    assert of >= {(call, calls.NEGATIVE) for call in calls.CAN_BE_DERIVED}
    for call in (*calls.COLLECTIVES, *calls.NONBLOCKING):
        assert max(case.nbytes // 8 for case in made if case.call == call) > 65_536


@pytest.mark.parametrize("call", ["MPI_Alltoallv", "MPI_Gatherv", "MPI_Reduce_scatter"])
def test_counts_are_zero_in_some_cases_and_in_others_never(call: str) -> None:
    (probe,) = plan(ID, gpu(0))
    calls = module().calls
    made = [case for case in cases(probe) if case.call == call and case.memory == DEVICE]
    pairs = [(sender, receiver) for sender in range(4) for receiver in range(4)]
    assert {min(calls.segments_between(case, *pair) for pair in pairs) for case in made} == {0, 1}


@pytest.mark.parametrize(("backend", "cannot"), [("hip", (VMM, STRADDLING)), ("cuda", ())])
def test_ucx_does_not_share_vmm_memory_of_amd_gpus(backend: str, cannot: tuple[str, ...]) -> None:
    stack = replace(_stack(), ucx="1.23.0", has_gpu_path=True)
    assert unsupported_memory(stack, backend) == cannot


@pytest.mark.parametrize(
    ("operation", "call", "memory", "gone"),
    [
        ("MPI_Bcast", "MPI_Bcast", DEVICE, lambda case: case.call == "MPI_Bcast"),
        ("MPI_Wait", "MPI_Ibcast", DEVICE, lambda case: case.call == "MPI_Ibcast"),
        ("MPI_Win_fence", "MPI_Put", DEVICE, lambda case: case.form == "MPI_Win_fence"),
        ("MPI_Win_unlock_all", "MPI_Put", DEVICE, lambda case: case.form == "MPI_Win_flush"),
        ("MPI_Win_lock_all", "MPI_Put", DEVICE, lambda case: case.form == "MPI_Win_flush_local"),
        ("MPI_Win_create", "MPI_Put", DEVICE, lambda case: case.call in ("MPI_Get", "MPI_Fetch_and_op")),
        ("MPI_Win_attach", "MPI_Put", DEVICE, lambda case: case.form == "dynamic window"),
        ("MPI_Bcast", "MPI_Bcast", POOL, lambda case: case.memory == POOL),
    ],
)
def test_what_is_like_a_failed_case_is_not_tried_again(
    operation: str, call: str, memory: str, gone: Any
) -> None:
    (probe,) = plan(ID, gpu(0))
    before = cases(probe)
    left = cases(probe, failed=[[operation, call, memory, "…"]])
    assert any(map(gone, before))
    assert not any(map(gone, left))
    assert len(left) > len(before) / 3


@pytest.mark.parametrize(
    ("fails", "operation", "untested"),
    [
        (lambda case: "flush" in case.form, "MPI_Win_lock_all", {"MPI_Win_flush", "MPI_Win_flush_local"}),
        (lambda case: case.form == "MPI_Win_flush_local", "MPI_Win_flush_local", {"MPI_Win_flush_local"}),
        (lambda case: case.form == "dynamic window", "MPI_Win_create_dynamic", {"dynamic window"}),
    ],
)
def test_what_crashes_in_every_launch_leaves_the_other_completions_tested(
    fails: Any, operation: str, untested: set[str]
) -> None:
    """The local flushes came first, and a crash in MPI_Win_lock_all ended them one by one, and all others."""
    (probe,) = plan(ID, gpu(0))
    calls = module().calls
    of_windows = (*calls.ONE_SIDED, *calls.ATOMIC)
    failed: list[Json] = []
    params: dict[str, Json] = {}
    made: set[tuple[str, str]] = set()
    while launch := cases(probe, kinds=[DEVICE], failed=failed, **params):
        for case in launch:
            if case.call in of_windows and fails(case):
                failed.append([operation, case.call, case.memory, "…"])
                params["after"] = case.number
                break
            made.add((case.call, case.form))
        else:
            break
    assert len(failed) == 1
    every = {(case.call, case.form) for case in cases(probe, kinds=[DEVICE])}
    assert {form for _, form in every - made} == untested


class Bytes:
    """Device memory of the test's own."""

    address = 0

    def __init__(self, nbytes: int) -> None:
        self.nbytes, self._data = nbytes, bytearray(nbytes)

    def write(self, data: bytes, offset: int = 0) -> None:
        self._data[offset : offset + len(data)] = data

    def read(self, nbytes: int, offset: int = 0) -> bytes:
        return bytes(self._data[offset : offset + nbytes])


def test_no_call_of_windows_holds_more_buffers_than_the_share_is_divided_by() -> None:
    """MPI_Get_accumulate held a fourth, which it did not use, and so did MPI_Put when it was read back."""
    calls, held = module().calls, sys.modules[type(check(ID)).__module__].BUFFERS  # type: ignore[attr-defined]
    worker, memories, world = MagicMock(), MagicMock(), MagicMock()
    worker.mpi.call = lambda name, function, *arguments: function(*arguments)
    world.Get_rank.return_value, world.Get_size.return_value = 0, 1
    memories.alloc.side_effect = lambda memory, nbytes, resources: Bytes(nbytes)
    group = GroupCalls(worker, memories, world)
    most = {}
    for call in (*calls.ONE_SIDED, *calls.ATOMIC):
        for form in (calls.FENCE, calls.LOCK, calls.FLUSH, calls.FLUSH_LOCAL):
            memories.alloc.reset_mock()
            group.perform(calls.Case(2, call, 1000, "int32", form=form))
            most[call, form] = memories.alloc.call_count
    assert max(most.values()) == held, most


def crashed(case: Any, **records: Json) -> Any:
    where = {"number": case.number, "call": case.call, "memory": case.memory, "case": str(case)}
    done = outcome({"rank 0": rank(), "rank 1": rank([WRONG], **where, **records)}, (gpu(0),), "", **PARAMS)
    role = replace(done.roles["rank 1"], ending=Ending.CRASHED, operation=case.call, signal="SIGSEGV")
    return replace(done, roles={**done.roles, "rank 1": role}, blamed="rank 1")


def test_other_calls_are_made_in_fresh_ranks_after_a_crash_and_earlier_results_are_kept() -> None:
    (planned,) = plan(ID, gpu(0))
    all_cases = cases(planned, **PARAMS)
    case = next(case for case in all_cases if case.call == "MPI_Scan")
    (rest,) = check(ID).again(crashed(case))
    assert rest.name == "the rest"
    later = cases(rest)
    assert all(other.number > case.number and other.call != "MPI_Scan" for other in later)
    found = judged(rank(), rank(), **{name: rest.params[name] for name in ("failed", "before")})
    assert [finding.key for finding in found] == ["wrong-data", "some-failed"]
    assert f"{case}: rank 1 crashed in MPI_Scan" in sentences.evidence(found[1])


@pytest.mark.parametrize(("operation", "number"), [("MPI_Init", None), ("", 3)])
def test_failure_outside_of_a_case_ends_the_check(operation: str, number: int | None) -> None:
    (planned,) = plan(ID, gpu(0))
    ended = crashed(cases(planned)[0])
    records = {**rank(), "case": "MPI_Bcast", "call": "MPI_Bcast", "memory": DEVICE}
    role = RoleOutcome("rank 1", Ending.CRASHED, operation=operation, records=records)
    if number is not None:
        records["number"] = number
    assert not [*check(ID).again(replace(ended, roles={**ended.roles, "rank 1": role}))]


def test_only_calls_that_delivered_wrong_data_are_replayed() -> None:
    replay = check(ID).replay(outcome({"rank 0": rank(), "rank 1": rank([WRONG])}, (gpu(0),), "", **PARAMS))
    assert replay is not None
    assert replay.params["only"] == ["MPI_Bcast"]
    assert check(ID).replay(outcome({"rank 0": rank()}, (gpu(0),), "", **PARAMS)) is None


@pytest.mark.parametrize("ending", [Ending.CRASHED, Ending.HUNG])
def test_failure_in_a_call_that_its_library_documents_as_unsupported_is_skip(ending: Ending) -> None:
    (planned,) = plan(ID, gpu(0))
    ended = crashed(cases(planned)[0])
    gap = "MPI_Bcast on device memory"
    role: RoleOutcome = replace(ended.roles["rank 1"], ending=ending, unsupported=gap)
    finding = blame.conclude(replace(ended, roles={**ended.roles, "rank 1": role}))
    assert (finding.status, finding.key) == (Status.SKIP, "unsupported")


def test_unsupported_calls_cost_two_launches() -> None:
    """Each of seven such calls had a launch of its own on two H200s: 22 s."""
    (planned,) = plan(ID, gpu(0))
    unsupported = ["MPI_Scan", "MPI_Put", "MPI_Iallreduce"]
    failed = [[call, call, "device memory", "…"] for call in unsupported[:2]]

    def calls_left(failed: Sequence[Json]) -> set[str]:
        return {case.call for case in cases(planned, unsupported=unsupported, failed=failed)}

    assert calls_left(failed[:1]) & set(unsupported) == {"MPI_Put", "MPI_Iallreduce"}
    assert calls_left(failed) == calls_left([]) - set(unsupported)


@pytest.mark.parametrize(
    ("family", "version", "ucx", "backend", "unsupported", "supported"),
    [
        ("openmpi", "5.0.11", "", "cuda", "MPI_Iallreduce", "MPI_Put"),
        ("openmpi", "5.0.11", "1.22.0", "cuda", "MPI_Put", "MPI_Bcast"),
        ("openmpi", "5.0.11", "1.22.0", "cuda", "MPI_Sendrecv_replace", "MPI_Sendrecv"),
        ("mpich", "3.4.3", "", "hip", "MPI_Allreduce", "MPI_Bcast"),
        ("mpich", "3.4.3", "", "hip", "MPI_Ireduce", "MPI_Ibcast"),
        ("mpich", "3.4.3", "", "hip", "MPI_Exscan", "MPI_Scatterv"),
        ("mpich", "3.4.3", "", "cuda", "", "MPI_Allreduce"),
        ("mpich", "5.0.2", "", "hip", "", "MPI_Put"),
        ("intel-mpi", "2021.17", "", "cuda", "", "MPI_Put"),
    ],
)
def test_unsupported_calls_follow_library_version_and_transport(
    family: str, version: str, ucx: str, backend: str, unsupported: str, supported: str
) -> None:
    stack = replace(_stack(), family=family, version=version, ucx=ucx, has_gpu_path=True)
    listed = unsupported_calls(stack, backend)
    assert not unsupported or unsupported in listed
    assert supported not in listed


@pytest.mark.parametrize(("family", "backend", "kinds"), [("intel-mpi", "cuda", 3), ("openmpi", "cuda", 0)])
def test_memory_that_a_library_cannot_share_is_tried_last_and_its_wrong_data_is_skip(
    family: str, backend: str, kinds: int
) -> None:
    stack = replace(_stack(), family=family, has_gpu_path=True)
    cannot = unsupported_memory(stack, backend)
    assert len(cannot) == kinds
    (probe,) = plan(ID, gpu(0))
    in_turn = [case.memory in cannot for case in cases(probe, unsupported=list(cannot))]
    assert in_turn == sorted(in_turn)
    found = judged(rank(), rank([WRONG]), unsupported=list(cannot))
    assert found[0].status is (Status.SKIP if kinds else Status.FAIL)


def _stack() -> Any:
    from gpuipc_doctor.probe_types import Launch, MpiStack

    return MpiStack("mpich", "5.0.2", "/opt/libmpi.so", Launch(("mpiexec", "-n", "{ranks}")))
