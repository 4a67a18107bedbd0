"""Tests of check ipc-histories: planned probes, and findings from recorded results."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from gpuipc_doctor.api import Context, Device, Finding, Json
from gpuipc_doctor.histories import results
from gpuipc_doctor.histories.composed_case import FLOOR
from gpuipc_doctor.histories.composed_cases import SIZES
from gpuipc_doctor.histories.explore import Explored
from gpuipc_doctor.histories.generator import Generator
from gpuipc_doctor.histories.memory_draft import Limits
from gpuipc_doctor.histories.memory_operations import (
    RARE,
    TYPES,
    unavailable,
    without_room,
)
from gpuipc_doctor.histories.operations import Disagreement, History, Operation, ProcessPlan
from gpuipc_doctor.model import MemoryShare, Status, Tier
from gpuipc_doctor.probe_types import Probe
from gpuipc_doctor.report import sentences
from tests.checks.judging import MIB, Kept, check, conclude, drifting, gpu, metered, outcome, plan

NOT_ON_EACH = {
    *("open-in-thread", "close-in-thread", "free-in-thread", "write-in-thread", "use-context"),
    *("export", "free-open", "create-fabric", "import-fabric"),
}
"""Operations that the acceptance history need not perform on each of several devices."""

REOPEN = History(
    "cuda",
    {1: ProcessPlan(), 2: ProcessPlan(primary=False)},
    (
        Operation("allocate", 1, makes=1, nbytes=4096),
        Operation("open", 2, on=1, makes=2),
        Operation("end-context", 2),
        Operation("open", 2, on=1, makes=3),
    ),
)
REFUSED = Disagreement(
    3, "error", "open", "CUDA_ERROR_INVALID_HANDLE", "cuIpcOpenMemHandle", "it returned 400"
)
WELL = Explored(27, 1500, 1556, 10 * MIB, 7.3, {"open": 126})

FAILED = replace(WELL, first=REFUSED, history=REOPEN, shortest=REOPEN, again=REFUSED)


def concluded(explored: Explored, missing: int = 0, left_out: Json = ()) -> list[Finding]:
    records = {
        "watch": metered({"the program ended": missing}),
        "crew": {"explored": results.to_json(explored)},
    }
    return conclude("ipc-histories", records, left_out=left_out)


@pytest.mark.parametrize(
    ("figure", "idle", "status"),
    [
        ("device", [], Status.FAIL),
        ("device", drifting(2), Status.ERROR),
        ("descriptors", drifting(2), Status.FAIL),
    ],
)
def test_leak_is_not_blamed_on_a_driver_whose_count_moves_by_itself(
    figure: str, idle: Json, status: Status
) -> None:
    leak = Disagreement(3, "leak", "", figure, "", "it grows")
    explored = replace(WELL, first=leak, history=REOPEN, shortest=REOPEN, again=leak)
    watch = metered({"the program ended": 0}, idle=idle)
    records = {"watch": watch, "crew": {"explored": results.to_json(explored)}}
    (finding,) = conclude("ipc-histories", records, left_out=())
    assert finding.status is status
    assert (finding.key == "counter-moves") is (status is Status.ERROR)


def test_pass_says_operations_and_bytes() -> None:
    (finding,) = concluded(WELL)
    assert finding.status is Status.PASS
    assert (finding.values["operations"], finding.values["compared"]) == (1556, 10 * MIB)


def test_shortfall_of_time_is_reported() -> None:
    (finding,) = concluded(replace(WELL, operations=900))
    assert finding.status is Status.PASS
    assert "of {wanted}" in finding.says


def test_operations_left_out_are_named() -> None:
    (finding,) = concluded(WELL, left_out=["kill"])
    assert finding.evidence[-1].values["left_out"] == ["kill"]


def test_families_are_listed_with_those_skipped_for_lack_of_memory() -> None:
    explored = replace(WELL, done={"open": 126, "trim": 3})
    records = {
        "watch": metered({"the program ended": 0}),
        "crew": {
            "explored": results.to_json(explored),
            "little": {
                "room": 4 * MIB,
                "no_room": without_room(4 * MIB, unavailable({"vmm-ipc", "pool-ipc"})),
            },
        },
    }
    (finding,) = conclude("ipc-histories", records, left_out=[])
    summary = "1556 random operations of 2 kinds (126 legacy-ipc, 3 pool-ipc): all 10 MiB are as expected"
    assert sentences.summary(finding) == summary
    assert sentences.evidence(finding)[1] == "fewer than 8 times: trim 3"
    says = "omitted because the limit of device memory is only 4 MiB: vmm-ipc, pool-ipc"
    assert sentences.evidence(finding)[-1] == says


def test_history_that_fails_again_is_a_failure_with_its_steps() -> None:
    (finding,) = concluded(FAILED)
    assert (finding.status, finding.key) == (Status.FAIL, "error")
    assert finding.values["steps"] == 4
    assert "3. process 2 destroys its context and creates another" in [item.says for item in finding.evidence]
    assert results.history_from_json(finding.values["history"]) == replace(REOPEN, labels=("cuda:0",))


@pytest.mark.parametrize(
    ("times", "step", "did"), [(1, 2, ["open"]), (9, 4, ["open", "end-context", "open"])]
)
def test_failure_names_its_step_and_what_that_process_did(times: int, step: int, did: list[str]) -> None:
    """Which step failed is known if the history ran once; a history that is repeated fails as a whole."""
    shortest = replace(REOPEN, times=times)
    (finding,) = concluded(replace(FAILED, shortest=shortest, again=replace(REFUSED, at=1)))
    assert (finding.values["steps"], finding.values["did"]) == (step, did)


@pytest.mark.parametrize("do", ["free-open", "free"])
def test_history_that_no_vendor_allows_says_so(do: str) -> None:
    frees = replace(REOPEN, operations=(*REOPEN.operations[:2], Operation(do, 1, on=1)))
    (finding,) = concluded(replace(FAILED, shortest=frees))
    assert any("manuals forbid this" in item.says for item in finding.evidence) is (do == "free-open")


def test_history_that_does_not_fail_again_is_a_warning_with_the_whole_history() -> None:
    (finding,) = concluded(replace(WELL, first=REFUSED, history=REOPEN))
    assert (finding.status, finding.key) == (Status.WARN, "seen-once")
    assert results.history_from_json(finding.values["history"]) == replace(REOPEN, labels=("cuda:0",))


def test_vanished_device_is_an_error_with_known_results() -> None:
    (finding,) = concluded(replace(WELL, first=REFUSED, history=REOPEN, unusable="no device"))
    assert (finding.status, finding.key) == (Status.ERROR, "device-gone")
    assert finding.values["operations"] == 1556


def test_unreleased_memory_is_a_warning() -> None:
    assert [finding.key for finding in concluded(WELL, missing=38 * MIB)] == ["as-modelled", "not-returned"]


def watched(*missing: int) -> dict[str, Json]:
    """The watcher's records, with the bytes missing on each device at the end."""
    of = {
        f"cuda:{number}" if number else "": metered({"the program ended": nbytes})["meters"][""]
        for number, nbytes in enumerate(missing)
    }
    return {Kept("meters"): of}


def test_devices_with_peer_access_have_one_crew() -> None:
    reached = [{1, 2, 4}, {0, 2}, {0, 1}, set(), {0}]
    devices = [
        replace(gpu(number), peers=frozenset(f"cuda:{other}" for other in others))
        for number, others in enumerate(reached)
    ]
    probes = plan("ipc-histories", *devices)
    assert [probe.subject for probe in probes] == ["cuda:0,1,2", "cuda:3", "cuda:4"]
    assert all(probe.exclusive and probe.params["seed"] == 99 for probe in probes)
    assert list(probes[0].roles) == ["watch", "crew"]


def test_failure_names_the_devices_of_its_shortest_history() -> None:
    devices = tuple(map(gpu, range(3)))
    of_crew = {1: ProcessPlan(2), 2: ProcessPlan(1)}
    other = replace(FAILED, shortest=replace(REOPEN, processes=of_crew))
    watch = watched(0, 0, 0)
    for explored, labels in ((FAILED, "cuda:0"), (other, "cuda:2, cuda:1")):
        crew = {"explored": results.to_json(explored)}
        (finding,) = conclude("ipc-histories", {"watch": watch, "crew": crew}, devices, left_out=[])
        assert finding.values["device"] == labels


def test_warning_names_the_device_with_unreleased_memory() -> None:
    records = {"watch": watched(0, 9 * MIB), "crew": {"explored": results.to_json(WELL)}}
    _, finding = conclude("ipc-histories", records, (gpu(0), gpu(1)), left_out=[])
    assert (finding.key, finding.values["device"]) == ("not-returned", "cuda:1")


def test_replay_runs_the_shortest_history_without_some_operations() -> None:
    records = {"watch": metered({}), "crew": {"explored": results.to_json(FAILED)}}
    failed = outcome(records, (gpu(0),), "", left_out=[])
    again = check("ipc-histories").replay(failed, ["end-context"])
    assert again is not None
    assert [one["do"] for one in again.params["history"]["operations"]] == ["allocate", "open", "open"]
    assert check("ipc-histories").replay(failed, ["open"]) is None


@pytest.mark.parametrize(
    ("tier", "operations", "seconds", "seed", "room"),
    [(Tier.ACCEPTANCE, 2800, 20.0, 99, 512 * MIB), (Tier.SOAK, 10**9, 600.0, None, 9 << 30)],
)
def test_each_tier_has_its_work(
    tier: Tier, operations: int, seconds: float, seed: int | None, room: int
) -> None:
    memory = MemoryShare(0.5, most_gib=20.0)
    (planned,) = check("ipc-histories").probes(Context((gpu(0),), tier=tier, memory=memory))
    assert isinstance(planned, Probe)
    assert (planned.params["room"], planned.params["wide"]) == (room, tier is Tier.SOAK)
    assert [planned.params[name] for name in ("operations", "time_s", "seed")] == [operations, seconds, seed]
    asked = Context((gpu(0),), tier=tier, options={"seed": 9, "operations": 5})
    (planned,) = check("ipc-histories").probes(asked)
    assert isinstance(planned, Probe)
    assert [planned.params[name] for name in ("operations", "seed")] == [5, 9]


def test_history_of_more_devices_than_there_are_is_an_error() -> None:
    history = results.history_to_json(replace(REOPEN, processes={1: ProcessPlan(), 2: ProcessPlan(1)}))
    (finding,) = check("ipc-histories").probes(Context((gpu(0),), options={"history": history}))
    assert isinstance(finding, Finding)
    assert finding.status is Status.ERROR


def test_history_is_repeated_where_it_was_found() -> None:
    history = {**results.history_to_json(REOPEN), "labels": ["cuda:1"]}
    (probe,) = plan("ipc-histories", gpu(0), gpu(1), options={"history": history})
    assert probe.subject == "cuda:1"


@pytest.mark.parametrize(("devices", "processes", "contexts"), [(1, 5, 9), (2, 5, 18), (8, 9, 20)])
def test_acceptance_history_meets_its_floors_with_few_processes_and_contexts(
    devices: int, processes: int, contexts: int
) -> None:
    """A GPU's driver needs half a second for a process, and a quarter for a context (H200)."""
    (probe,) = plan("ipc-histories", *(linked(number, devices) for number in range(devices)))
    peers = tuple((memory, device) for memory, device in probe.params["peers"])
    limits = Limits(probe.params["room"], composed=True)
    generator = Generator("cuda", devices, probe.params["seed"], limits, peers=peers)
    made, sizes, on_each = Counter[str](), set[int](), [set[str]() for _ in range(devices)]
    at_once = 0
    while made.total() < probe.params["operations"]:
        for operation, _ in generator.phase():
            made[operation.do] += 1
            at_once += operation.beside
            sizes.add(operation.nbytes)
            on_each[generator.plans[operation.by].device].add(operation.do)
    assert len(generator.plans) <= processes
    assert len(generator.plans) + made["create-context"] + made["end-context"] <= contexts
    assert min(made["kill"], made["create-context"], made["end-context"]) > 0
    assert at_once >= 50
    usual = TYPES.keys() - RARE.keys()
    assert {do: made[do] for do in usual if made[do] < FLOOR} == {}
    assert set(SIZES.values()) <= sizes
    assert [usual - NOT_ON_EACH - done for done in on_each] == [set()] * devices


def linked(number: int, devices: int) -> Device:
    others = frozenset(f"cuda:{other}" for other in range(devices) if other != number)
    return replace(gpu(number), peers=others)
