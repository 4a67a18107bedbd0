"""What the checks conclude from a probe that completed, given what its roles recorded: good and bad.

That the records themselves are right is for the tests of the whole command, on simulated faults. Of
`mpi-gpu-aware`, see test_mpi_gpu_aware.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest.mock import MagicMock

import pytest

from gpuipc_doctor import loader
from gpuipc_doctor.api import (
    Check,
    Context,
    Device,
    DriverError,
    Finding,
    Json,
    MemoryShare,
    MpiStack,
    Probe,
    ProbeOutcome,
    pattern,
)
from gpuipc_doctor.model import DriverFault, Ending, Launch, RoleOutcome, Status

MIB = 1 << 20
GOOD = [Status.PASS]

Records = Mapping[str, Mapping[str, Json]]


def check(id_: str) -> Check:
    loaded = loader.load_file(loader.built_in_dir() / f"{id_.replace('-', '_')}.py")
    assert isinstance(loaded, loader.LoadedCheck), loaded.reason
    return loaded.check


def gpu(index: int, backend: str = "cuda", total_bytes: int = 139 << 30) -> Device:
    return Device(backend, index, f"GPU-{backend}-{index}", f"0000:0{index}:00.0", "GPU", total_bytes)


ONE, TWO = (gpu(0),), (gpu(0), gpu(1))


def conclude(
    id_: str, records: Records, devices: tuple[Device, ...] = ONE, probe: str = "", **params: Json
) -> list[Finding]:
    roles = {role: RoleOutcome(role, Ending.COMPLETED, records=facts) for role, facts in records.items()}
    return list(check(id_).judge(ProbeOutcome(probe, devices, params, roles, None, 1.0)))


def statuses(findings: list[Finding]) -> list[Status]:
    return [finding.status for finding in findings]


def plan(id_: str, *devices: Device, **mpi: Any) -> list[Probe]:
    stack = MpiStack("mpich", "5.0.2", "/opt/libmpi.so", Launch(("mpiexec", "-n", "{ranks}")), **mpi)
    planned = list(check(id_).probes(Context(devices, mpi=stack)))
    return [probe for probe in planned if isinstance(probe, Probe)]


# -- ipc-reopen, ipc-handles, ipc-peer, ipc-stale ---------------------------------------------------------


def test_reopen_passes_when_nothing_is_wrong_and_says_that_the_control_was_made() -> None:
    records: Records = {"exporter": {}, "importer": {"control": "with the context kept, fine", "wrong": []}}
    (finding,) = conclude("ipc-reopen", records, probe="reset-primary")
    assert finding.status is Status.PASS
    assert finding.summary == "3 segments opened again (reset-primary)"
    assert finding.evidence == ("with the context kept, fine",)


def test_reopen_fails_on_wrong_data() -> None:
    records: Records = {"exporter": {}, "importer": {"control": "fine", "wrong": ["segment 2: 1 B wrong"]}}
    (finding,) = conclude("ipc-reopen", records)
    assert (finding.status, finding.evidence) == (Status.FAIL, ("segment 2: 1 B wrong",))


def handles(
    answers: dict[str, Json] | None = None, collisions: Sequence[str] = (), wrong: Sequence[str] = ()
) -> list[Finding]:
    exporter = {"answers": answers or {}, "collisions": collisions}
    return conclude("ipc-handles", {"exporter": exporter, "importer": {"answers": {}, "wrong": wrong}})


@pytest.mark.parametrize("documented", ["refused", "unspecified"])
def test_handles_that_do_what_is_documented_or_what_is_left_open_pass(documented: str) -> None:
    assert statuses(handles({"export-managed": ("refused", documented)})) == GOOD


def test_a_handle_that_does_otherwise_than_documented_is_a_warning_that_names_both() -> None:
    (finding,) = handles({"export-managed": ("succeeds", "refused")})
    assert finding.status is Status.WARN
    assert finding.evidence == ("export-managed: succeeds, where refused is documented",)


def test_handles_that_collide_or_lead_astray_fail_each_for_itself() -> None:
    found = handles(collisions=["segments 1 and 2"], wrong=["segment 2: 5 B wrong"])
    assert statuses(found) == [Status.FAIL, Status.FAIL]
    assert [finding.evidence for finding in found] == [("segments 1 and 2",), ("segment 2: 5 B wrong",)]


HANDLES = loader.module(loader.built_in_dir() / "ipc_handles.py")


def answers(name: str) -> Mapping[str, Callable[[], str]]:
    """What ipc-handles makes of a driver that answers every export and every opening with ``name``."""
    w, error = MagicMock(), DriverError(DriverFault("call", 1, name))
    w.gpu.open_ipc.side_effect = error
    w.gpu.alloc_unexportable.return_value.__enter__.return_value.ipc_handle.side_effect = error
    return {
        "export": lambda: str(HANDLES.export_unexportable(w, "managed")),
        "open": lambda: str(HANDLES.open_again(w, b"handle")),
    }


@pytest.mark.parametrize("call", ["export", "open"])
@pytest.mark.parametrize(
    "name", ["CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_INVALID_HANDLE", "hipErrorInvalidDevicePointer"]
)
def test_a_documented_refusal_is_taken_as_one(call: str, name: str) -> None:
    assert answers(name)[call]() == "refused"


@pytest.mark.parametrize("call", ["export", "open"])
@pytest.mark.parametrize("name", ["CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_OUT_OF_MEMORY", "hipErrorUnknown"])
def test_any_other_error_is_left_to_the_engine_to_blame(call: str, name: str) -> None:
    with pytest.raises(DriverError):
        answers(name)[call]()


def test_bytes_tell_where_a_handle_leads_and_no_bytes_tell_nothing() -> None:
    segment = pattern(HANDLES.SIZES[-1], len(HANDLES.SIZES) - 1)
    assert HANDLES.landing(segment[:4096]) == "base"
    assert HANDLES.landing(segment[HANDLES.INTERIOR :][:4096]) == "interior"
    assert HANDLES.landing(bytes(4096)) == "nowhere"
    assert HANDLES.landing(b"") == "nowhere"


@pytest.mark.parametrize(
    ("importer", "exporter", "status"),
    [
        ({"wrong": ""}, {"wrong": ""}, Status.PASS),
        ({"wrong": "read: 1 B wrong"}, {"wrong": ""}, Status.FAIL),
        ({"wrong": ""}, {"wrong": "written: 1 B wrong"}, Status.FAIL),
    ],
)
def test_peers(importer: dict[str, Json], exporter: dict[str, Json], status: Status) -> None:
    (finding,) = conclude("ipc-peer", {"exporter": exporter, "importer": importer}, TWO)
    assert finding.status is status
    if status is not Status.PASS:
        assert "cuda:0 and cuda:1" in finding.summary


def ipc_stale(**seen: Json) -> list[Finding]:
    exporter: dict[str, Json] = {
        "same_handles": [],
        "expected": "differs",
        "reused": 6,
        "rounds": ["round"] * 6,
    }
    importer: dict[str, Json] = {"stale": [], "overlap": []}
    for record in (exporter, importer):
        record.update({name: value for name, value in seen.items() if name in record})
    return conclude("ipc-stale", {"exporter": exporter, "importer": importer})


def test_a_new_handle_that_shows_new_data_passes_and_says_how_often_it_was_tested() -> None:
    (finding,) = ipc_stale()
    assert finding.status is Status.PASS
    assert finding.evidence == ("6 of 6 rounds got the old address",)


def test_a_new_handle_at_a_new_address_proves_nothing() -> None:
    (finding,) = ipc_stale(reused=0)
    assert finding.status is Status.SKIP
    assert finding.summary == "no address was reused, so nothing was tested"


@pytest.mark.parametrize("seen", ["stale", "overlap"])
def test_a_new_handle_that_shows_old_data_or_cannot_be_opened_fails(seen: str) -> None:
    (finding,) = ipc_stale(**{seen: ["new segment (larger), old mapping open"]})
    assert finding.status is Status.FAIL
    assert finding.evidence == ("new segment (larger), old mapping open",)


@pytest.mark.parametrize(("expected", "status"), [("differs", Status.WARN), ("same", Status.PASS)])
def test_a_handle_that_comes_again_is_odd_where_it_should_differ(expected: str, status: Status) -> None:
    assert statuses(ipc_stale(same_handles=["larger"], expected=expected))[0] is status


# -- ipc-release ------------------------------------------------------------------------------------------


ROUNDS = range(8, 264, 8)
IDLE = 666 * MIB  # without the segment, which takes 38 MiB in blocks of 2 MiB: 704 MiB, a multiple of 64
LEVEL = [IDLE + 38 * MIB for _ in ROUNDS]


def release(
    missing: int = 0,
    opening: Sequence[int] = LEVEL,
    control: Sequence[int] = LEVEL,
    wrong: Sequence[str] = (),
    importers: Sequence[int] = LEVEL,
    devices: tuple[Device, ...] = ONE,
) -> list[Finding]:
    exporter = {
        "missing": {"the importer closed it": missing},
        "loops": {"opening": opening, "control": control, "otherwise": IDLE},
    }
    importer = {"wrong": wrong, "loops": {"opening": importers, "control": LEVEL, "otherwise": IDLE}}
    return conclude("ipc-release", {"exporter": exporter, "importer": importer}, devices)


@pytest.mark.parametrize(
    ("missing", "status"),
    [
        (0, Status.PASS),
        (4 * MIB, Status.PASS),
        (-4 * MIB, Status.PASS),
        (37 * MIB, Status.FAIL),
        (38 * MIB, Status.FAIL),  # in blocks of 2 MiB
        (33 * MIB, Status.FAIL),
        (41 * MIB, Status.FAIL),
        (8 * MIB, Status.ERROR),
        (32 * MIB, Status.ERROR),
        (42 * MIB, Status.ERROR),
        (64 * MIB, Status.ERROR),
        (500 * MIB, Status.ERROR),
        (-37 * MIB, Status.ERROR),
    ],
)
def test_memory_of_our_size_that_stays_away_fails_and_any_other_is_somebody_elses(
    missing: int, status: Status
) -> None:
    assert statuses(release(missing)) == [status]


CREEPS = [IDLE + 38 * MIB + 2 * MIB * done for done in ROUNDS]
STEADY = [IDLE + 38 * MIB + (done % 16) * 1024 for done in ROUNDS]


def test_a_loop_that_creeps_fails_with_its_rate() -> None:
    (finding,) = release(opening=CREEPS)
    assert finding.status is Status.FAIL
    assert finding.summary == "used memory of cuda:0 grows by 2097152 B with each open and close"


def test_over_a_pair_either_device_may_creep() -> None:
    (finding,) = release(importers=CREEPS, devices=TWO)
    assert finding.status is Status.FAIL
    assert "used memory of cuda:1 grows" in finding.summary
    both = release(opening=CREEPS, importers=CREEPS, devices=TWO)
    assert statuses(both) == [Status.FAIL, Status.FAIL]


def test_on_one_device_a_creep_that_both_saw_is_told_once() -> None:
    assert statuses(release(opening=CREEPS, importers=CREEPS)) == [Status.FAIL]


def test_what_crept_away_and_is_missing_is_one_finding_beside_nobody_elses() -> None:
    assert statuses(release(missing=512 * MIB, opening=CREEPS)) == [Status.FAIL]


def test_a_loop_that_wavers_does_not_creep() -> None:
    assert statuses(release(opening=STEADY)) == GOOD


def test_what_grows_as_fast_while_nothing_is_opened_is_no_creep() -> None:
    assert statuses(release(opening=CREEPS, control=CREEPS)) == GOOD


def test_what_grows_faster_than_while_nothing_is_opened_is_creep() -> None:
    half = [IDLE + 38 * MIB + MIB * done for done in ROUNDS]
    assert statuses(release(opening=CREEPS, control=half)) == [Status.FAIL]


def in_blocks(grown: int, phase: int = 0) -> list[int]:
    """A loop that keeps ``grown`` bytes in all, as a counter of 2 MiB blocks shows it."""
    return [IDLE + 38 * MIB + (grown * done // 256 + phase) // (2 * MIB) * 2 * MIB for done in ROUNDS]


def test_a_pass_says_which_growth_would_have_been_found() -> None:
    (finding,) = release()
    assert finding.evidence[-1] == (
        "256 opens that keep 6291456 B or more of cuda:0 would have been found: its used memory was seen "
        "in multiples of 2097152 B"
    )
    found = 6291456
    assert statuses(release(opening=in_blocks(found - 2 * MIB))) == GOOD
    for phase in range(0, 2 * MIB, MIB // 4):  # of the loop's first byte in its block
        assert statuses(release(opening=in_blocks(found, phase))) == [Status.FAIL]


def test_a_probe_without_a_loop_claims_nothing_about_growth() -> None:
    exporter = {"missing": {"the importer was killed with it open": 0}}
    (finding,) = conclude("ipc-release", {"exporter": exporter, "importer": {"wrong": []}})
    assert finding.evidence == ("after the importer was killed with it open",)


def test_wrong_data_fails_though_all_memory_came_back() -> None:
    assert statuses(release(wrong=["opened to close it: 1 B wrong"])) == [Status.FAIL]


# -- mpi-small-message ------------------------------------------------------------------------------------

LATENCIES = {0: 1.3, 8: 9.0, 64: 9.5, 1024: 10.0, 65536: 14.0}
HUNG = [[16, "device", "device", "blocking", 0], "rank 1 hung in MPI_Recv"]


def small_message(
    failed: Sequence[Json] = (),
    wrong: Sequence[str] = (),
    medians: Mapping[int, float] = LATENCIES,
    nodes: tuple[str, str] = ("n1", "n1"),
    probe: str = "",
) -> list[Finding]:
    latency = {str(size): {"min": us * 0.9, "median": us} for size, us in medians.items()}
    records: dict[str, dict[str, Json]] = {
        "rank 0": {"node": nodes[0], "wrong": [], "messages": 120, "latency_us": latency},
        "rank 1": {"node": nodes[1], "wrong": wrong, "messages": 120, "latency_us": latency},
    }
    return conclude("mpi-small-message", records, probe=probe, failed=failed, sizes=list(medians))


def test_small_messages_that_arrive_pass_with_their_latency() -> None:
    (finding,) = small_message()
    assert finding.status is Status.PASS
    assert finding.summary == "120 kinds of message right"
    assert finding.evidence[0] == "0 B: median 1.3 µs, fastest 1.2 µs"
    assert finding.evidence[-1] == "65536 B: median 14.0 µs, fastest 12.6 µs, 4.68 GB/s"


def test_between_nodes_are_messages_of_ranks_on_two_of_them() -> None:
    (finding,) = small_message(nodes=("n1", "n2"), probe="between nodes")
    assert (finding.status, finding.summary) == (Status.PASS, "120 kinds of message right from n1 to n2")
    (finding,) = small_message(nodes=("n1", "n1"), probe="between nodes")
    assert finding.status is Status.ERROR
    assert finding.summary == "the launcher did not put the ranks on two nodes: they ran on n1"
    (finding,) = small_message(nodes=("n1", "n2"))
    assert finding.summary == "the launcher did not put the ranks on one node: they ran on n1 and n2"


def test_the_first_device_of_each_backend_sends_to_another_node_where_that_is_asked() -> None:
    across = Launch(("srun", "-N2", "-n{ranks}"), nodes=2)
    planned = plan("mpi-small-message", *TWO, gpu(0, "hip"), across=across)
    between = [probe for probe in planned if probe.launch == across]
    assert [(probe.name, probe.devices[0].label) for probe in between] == [
        ("between nodes", "cuda:0"),
        ("between nodes", "hip:0"),
    ]
    assert "between nodes" not in [probe.name for probe in plan("mpi-small-message", *TWO)]


def test_a_message_that_either_rank_saw_arrive_wrong_fails() -> None:
    (finding,) = small_message(wrong=["64 B, device to device: 1 of 128 B wrong"])
    assert finding.status is Status.FAIL
    assert finding.evidence == ("64 B, device to device: 1 of 128 B wrong",)


def test_what_failed_is_told_as_a_map_when_the_rest_is_done() -> None:
    (finding,) = small_message(failed=[HUNG])
    assert finding.status is Status.FAIL
    (line,) = finding.evidence
    for word in ("16 B", "device to device, blocking, rank 0 to rank 1", "rank 1 hung in MPI_Recv"):
        assert word in line


@pytest.mark.parametrize(("us", "status"), [(190.0, Status.PASS), (210.0, Status.WARN)])
def test_a_size_out_of_line_with_both_its_neighbours_is_pointed_out(us: float, status: Status) -> None:
    (finding,) = small_message(medians={**LATENCIES, 64: us})
    assert finding.status is status


def test_a_step_in_latency_is_not_out_of_line() -> None:
    assert statuses(small_message(medians={0: 1.0, 8: 1.1, 16: 150.0, 64: 151.0, 256: 152.0})) == GOOD


# -- mpi-cache-growth -------------------------------------------------------------------------------------

LARGE = [(16 + 2 * number) * MIB for number in range(24)]


def total(sizes: list[int]) -> list[int]:
    return [sum(sizes[: number + 1]) for number in range(len(sizes))]


def memory(used: list[int], *held: list[int] | list[None]) -> dict[str, Json]:
    nobody_tells = [[None] * len(used)] * 2
    return {"used": used, "held": held or nobody_tells, "large": LARGE, "free": 100 << 30}


LEAK, FLAT = memory(total(LARGE)), memory([600 * MIB] * 24)
BOUNDED = memory(total([2 * size for size in LARGE[:12]] + [0] * 12))  # both ranks' caches fill up
CREEPING = memory([600 * MIB + number * MIB for number in range(24)])


def growth(sender: dict[str, Json], receiver: dict[str, Json], devices: tuple[Device, ...]) -> list[Finding]:
    return conclude("mpi-cache-growth", {"sender": sender, "receiver": receiver}, devices, "growing")


def test_growth_is_blamed_on_the_rank_whose_device_fills_with_rate_and_reach() -> None:
    (finding,) = growth(LEAK, FLAT, TWO)
    assert finding.status is Status.FAIL
    assert "on the sender's device" in finding.summary
    assert "(growing)" in finding.summary
    assert "95 % interval" in finding.evidence[0]
    assert "more iterations" in finding.evidence[1]


def test_who_holds_it_is_told_where_the_driver_tells() -> None:
    """As on two H200s: what the sender has freed is held by the receiver, which still maps it."""
    few = [2 * MIB * number for number in range(24)]
    sender, receiver = memory(total(LARGE), few, [0] * 24), memory([600 * MIB] * 24, total(LARGE), few)
    (finding,) = growth(sender, receiver, TWO)
    assert finding.evidence[2:] == ("the receiver's process holds it: 52.0 MiB more each iteration",)
    (finding,) = growth(LEAK, FLAT, TWO)
    assert len(finding.evidence) == 2


def test_ranks_that_share_a_device_see_one_growth() -> None:
    (finding,) = growth(LEAK, LEAK, ONE)
    assert "on the device of both ranks" in finding.summary


def test_a_receiver_that_keeps_is_blamed_too() -> None:
    (finding,) = growth(FLAT, LEAK, TWO)
    assert "on the receiver's device" in finding.summary


@pytest.mark.parametrize("sender", [FLAT, BOUNDED, CREEPING], ids=["flat", "bounded cache", "small change"])
def test_what_levels_off_or_is_small_beside_the_buffers_passes(sender: dict[str, Json]) -> None:
    (finding,) = growth(sender, FLAT, TWO)
    assert finding.status is Status.PASS
    used = (sender["used"][-1] - sender["used"][0]) / MIB
    assert finding.evidence[0] == f"sender: {used:.1f} MiB more in use than at the start"


# -- mpi-stale-buffer -------------------------------------------------------------------------------------


def stale_buffer(reused: int = 63, stale: Sequence[str] = (), wrong: Sequence[str] = ()) -> list[Finding]:
    records: dict[str, dict[str, Json]] = {
        "sender": {"reused": reused, "stale": [], "wrong": []},
        "receiver": {"reused": 60, "stale": stale, "wrong": wrong},
    }
    return conclude("mpi-stale-buffer", records)


def test_right_messages_from_addresses_that_came_again_pass_and_say_how_many() -> None:
    (finding,) = stale_buffer()
    assert finding.status is Status.PASS
    assert finding.evidence == (
        "at an address used before: 63 of the sender's buffers, 60 of the receiver's",
    )


def test_right_messages_prove_nothing_when_no_address_came_again() -> None:
    (finding,) = stale_buffer(reused=0)
    assert finding.status is Status.SKIP
    assert "no address was reused" in finding.summary


def test_a_message_of_an_earlier_round_is_called_stale_with_its_rounds_and_sizes() -> None:
    shown = [f"round {number}, 65536 B after 4194304 B: shows what round 3 sent" for number in range(4, 24)]
    (finding,) = stale_buffer(stale=shown)
    assert finding.status is Status.FAIL
    assert finding.summary.startswith("20 of 64 messages show")
    assert finding.evidence[0] == shown[0]
    assert "63 of the sender's" in finding.evidence[-1]
    assert "cache of IPC mappings" in finding.remedy


def test_other_wrong_data_fails_as_what_it_is_even_from_new_addresses() -> None:
    (finding,) = stale_buffer(reused=0, wrong=["round 1, 65536 B: 1 of 65536 B wrong"])
    assert finding.status is Status.FAIL
    assert finding.summary == "1 of 64 messages arrived wrong"


def test_stale_buffers_are_looked_for_on_one_device_and_one_pair_of_each_backend() -> None:
    probes = plan("mpi-stale-buffer", *(gpu(n, backend) for backend in ("cuda", "hip") for n in range(3)))
    assert {probe.subject for probe in probes} == {"cuda:0", "hip:0", "cuda:0 > cuda:1", "hip:0 > hip:1"}
    assert len(probes) == 4


def test_buffers_shrink_and_grow_between_any_two_sizes_and_follow_their_own() -> None:
    module = loader.module(loader.built_in_dir() / "mpi_stale_buffer.py")
    followed = set(zip(module.ROUNDS, module.ROUNDS[1:], strict=False))
    assert followed >= {(one, other) for one in module.SIZES for other in module.SIZES}


def test_an_address_is_used_before_when_any_part_of_it_was() -> None:
    overlaps = loader.module(loader.built_in_dir() / "mpi_stale_buffer.py").overlaps
    past = [(1000, 100)]
    assert overlaps(past, 1000, 1)
    assert overlaps(past, 900, 101)
    assert overlaps(past, 1099, 500)
    assert not overlaps(past, 900, 100)
    assert not overlaps(past, 1100, 500)


def test_the_round_that_a_stale_page_is_from_is_told_and_zeroes_are_from_none() -> None:
    round_shown = loader.module(loader.built_in_dir() / "mpi_stale_buffer.py").round_shown
    new, old = pattern(65536, 9), pattern(65536, 4)
    assert round_shown(new[:8192] + old[8192:12288] + new[12288:], 9) == 4
    assert round_shown(bytes(65536), 9) is None


# -- mpi-first-touch --------------------------------------------------------------------------------------


def first_touch(
    odd: list[float], whole: list[float], wrong: Sequence[str] = (), longest_later: float = 0.02
) -> Finding:
    """Given milliseconds: of the first messages, and of the longest of the later ones."""
    times = {
        kind: {"first": [ms / 1e3 for ms in first], "later": [20e-6] * 7 + [longest_later / 1e3]}
        for kind, first in (("whole pages", whole), ("one byte more", odd))
    }
    (finding,) = conclude(
        "mpi-first-touch", {"sender": {"times": times}, "receiver": {"wrong": wrong}}, nbytes=128 * MIB
    )
    return finding


def test_a_slow_first_message_from_an_odd_size_is_a_warning_with_the_ratios() -> None:
    finding = first_touch(odd=[454, 456, 454, 458, 462], whole=[3.4, 3.6, 3.4, 3.4, 3.5])
    assert finding.status is Status.WARN
    assert "134217729 B takes 134 times as long" in finding.summary
    assert finding.evidence == (
        "whole pages: first message 3.4 ms (median 3.4 ms), later ones 0.02 ms; 170.0 to 1",
        "one byte more: first message 454 ms (median 456 ms), later ones 0.02 ms; 22800.0 to 1",
    )
    assert "2097152 B" in finding.remedy


@pytest.mark.parametrize(
    ("odd", "whole"),
    [
        ([5.6, 6.0, 7.6, 6.1, 6.2], [8.8, 9.0, 11.0, 9.9, 9.1]),  # two H200, Intel MPI 2021.17
        ([0.2, 9.0, 45.0, 30.0, 12.0], [0.2, 0.2, 0.3, 0.2, 0.2]),  # four of five waited for a processor
        ([4.2, 4.3, 4.2, 4.2, 4.2], [0.2, 0.2, 0.2, 0.2, 0.2]),  # all did: too short to matter
        ([90.0, 91.0, 95.0, 90.0, 92.0], [9.1, 9.2, 9.9, 9.4, 9.1]),  # not out of proportion
    ],
)
def test_first_messages_in_proportion_or_unlucky_pass_with_figures(
    odd: list[float], whole: list[float]
) -> None:
    finding = first_touch(odd, whole)
    assert finding.status is Status.PASS
    assert len(finding.evidence) == 2


def test_a_node_so_busy_that_later_messages_wait_as_long_passes() -> None:
    """Seen once in 15 runs with 20 processes for 2 processors: all five waited, 80 times as long."""
    assert first_touch([16.0] * 5, [0.2] * 5, longest_later=15.0).status is Status.WARN
    assert first_touch([16.0] * 5, [0.2] * 5, longest_later=24.0).status is Status.PASS


def test_wrong_data_outweighs_the_time() -> None:
    assert first_touch([500.0] * 5, [1.0] * 5, wrong=["from buffer 1: 1 B wrong"]).status is Status.FAIL


def test_first_messages_are_timed_on_a_pair_alone_where_there_is_one() -> None:
    probes = plan("mpi-first-touch", gpu(0), gpu(1), gpu(0, "hip"))
    assert {probe.subject for probe in probes} == {"cuda:0 > cuda:1", "hip:0"}
    assert all(probe.exclusive for probe in probes)


@pytest.mark.parametrize("total_gib", [10, 24, 80, 139])
def test_the_buffers_stay_within_the_bound_even_if_none_is_given_back(total_gib: int) -> None:
    (probe,) = plan("mpi-first-touch", gpu(0, total_bytes=total_gib << 30))
    page, buffers, message = 2 * MIB, 12, 2 * MIB
    taken = buffers * (probe.params["nbytes"] + page) + message
    assert probe.params["nbytes"] % page == 0
    assert probe.params["nbytes"] > 0
    assert taken <= min(0.05 * (total_gib << 30), 2 << 30) + message


# -- driver-async-pool ------------------------------------------------------------------------------------


TRY = {"case": "all reuse allowed", "given": True, "busy": True, "wrong": ["", ""]}


def pool(tries: Sequence[Json] = (TRY,), **seen: Json) -> list[Finding]:
    nbytes = 96 * MIB
    healthy = {
        "room": 2 << 30,
        "nbytes": nbytes,
        "unheld": had(),
        "held": had(reserved=nbytes, missing=nbytes),
        "half": had(reserved=nbytes, missing=nbytes),
        "wrong": "",
        "trimmed": had(),
        "growing": [IDLE] * 48,
        "wrong_in_rounds": [],
        "control": [IDLE] * 48,
        "destroyed": 0,
        "tries": tries,
    }
    return conclude("driver-async-pool", {"allocator": {**healthy, **seen}})


def had(reserved: int = 0, used: int = 0, missing: int = 0) -> dict[str, int]:
    return {"reserved": reserved, "used": used, "missing": missing}


@pytest.mark.parametrize(
    ("seen", "status"),
    [
        ({}, Status.PASS),
        ({"trimmed": had(reserved=96 * MIB, missing=96 * MIB)}, Status.FAIL),
        ({"trimmed": had(missing=96 * MIB)}, Status.FAIL),  # and yet the pool says that it has nothing
        ({"trimmed": had(used=96 * MIB)}, Status.FAIL),
        ({"trimmed": had(missing=50 * MIB)}, Status.ERROR),
        ({"trimmed": had(missing=-96 * MIB)}, Status.ERROR),
        ({"trimmed": had(missing=6 << 30)}, Status.ERROR),  # 64 times 96 MiB, and more than it has allocated
        ({"destroyed": 193 * MIB}, Status.FAIL),
        ({"destroyed": 4 * MIB}, Status.PASS),
        ({"wrong": "3 B wrong"}, Status.FAIL),
        ({"wrong_in_rounds": ["round 2: 3 B wrong"]}, Status.FAIL),
        ({"unheld": had(reserved=96 * MIB)}, Status.WARN),
        ({"held": had()}, Status.WARN),
    ],
)
def test_what_a_pool_gives_back(seen: dict[str, Json], status: Status) -> None:
    assert statuses(pool(**seen)) == [status, Status.PASS]


def test_what_a_pool_lost_round_after_round_is_one_finding_with_its_rate() -> None:
    growing = [IDLE + 2 * MIB * number for number in range(48)]
    finding, _ = pool(growing=growing, trimmed=had(missing=10 * MIB), destroyed=106 * MIB)
    assert finding.status is Status.FAIL
    assert "by 2.0 MiB with each allocation" in finding.summary
    assert (
        statuses(pool(growing=growing, control=growing)) == GOOD * 2
    )  # it grows without our allocations, too


def reuse(case: str, given: bool = False, busy: bool = True, wrong: str = "") -> list[Finding]:
    tries = [{"case": case, "given": given, "busy": busy, "wrong": ["", wrong]}] * 4
    return pool(tries)[1:]


@pytest.mark.parametrize(
    ("case", "busy", "allowed"),
    [
        ("no reuse allowed", False, False),
        ("no reuse allowed, after an event", False, False),
        ("reuse after events, without an event", True, False),
        ("reuse after events, after an event", True, True),
        ("reuse of what is freed and done", True, False),
        ("reuse of what is freed and done", False, True),
        ("reuse with a dependency put in", True, True),
        ("all reuse allowed", True, True),
    ],
)
def test_who_is_given_memory_is_a_matter_of_the_pools_attributes(
    case: str, busy: bool, allowed: bool
) -> None:
    status = Status.PASS if allowed else Status.WARN
    assert statuses(reuse(case, given=True, busy=busy))[0] is status
    assert statuses(reuse(case, given=False, busy=busy))[0] is Status.PASS


def test_wrong_data_fails_whoever_was_given_the_memory() -> None:
    (finding,) = reuse("all reuse allowed", wrong="3 B wrong")
    assert finding.status is Status.FAIL
    assert finding.evidence == ("all reuse allowed, second stream, in 4 of 4 tries: 3 B wrong",)


def test_a_stream_that_was_never_busy_shows_no_race_and_that_is_said() -> None:
    assert statuses(reuse("all reuse allowed", busy=False)) == [Status.PASS, Status.SKIP]
    assert statuses(reuse("all reuse allowed", busy=True)) == GOOD


def test_a_pool_keeps_to_the_memory_that_the_site_allows() -> None:
    small = gpu(0, total_bytes=1 << 30)
    (skipped,) = check("driver-async-pool").probes(Context((small,)))
    assert isinstance(skipped, Finding)
    assert skipped.status is Status.SKIP
    allowed = Context((small,), memory=MemoryShare(fraction=0.25))
    (probe,) = check("driver-async-pool").probes(allowed)
    assert isinstance(probe, Probe)
    assert MemoryShare(**probe.params["share"]) == allowed.memory
    assert statuses(pool(room=40 * MIB)) == [Status.ERROR]
