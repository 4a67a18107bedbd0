"""Tests of check mpi-small-message: planned probes, and findings from recorded results."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from gpuipc_doctor.api import Device, Finding, Json, ProbeOutcome, loader
from gpuipc_doctor.model import Status
from gpuipc_doctor.probe_types import Ending, Launch, RoleOutcome
from gpuipc_doctor.report import sentences
from tests.checks.judging import GOOD, ONE, TWO, check, conclude, gpu, plan, statuses

SMALL = loader.module(loader.built_in_dir() / "mpi_small_message.py")
Message, given_up = SMALL.Message, SMALL.given_up

LATENCIES = {0: 1.3, 8: 9.0, 64: 9.5, 1024: 10.0, 65536: 14.0}
HUNG = [[16, "device", "device", "blocking", 0], "rank 1 hung in MPI_Recv"]


def small_message(
    failed: Sequence[Json] = (),
    wrong: Sequence[str] = (),
    repeated: Sequence[str] = (),
    medians: Mapping[int, float] = LATENCIES,
    nodes: tuple[str, str] = ("n1", "n1"),
    probe: str = "",
) -> list[Finding]:
    latencies = [[size, us * 0.9e-6, us * 1e-6] for size, us in medians.items()]
    same: dict[str, Json] = {"messages": 120, "latencies": latencies}
    records: dict[str, dict[str, Json]] = {
        "rank 0": {"node": nodes[0], "wrong": [], "wrong_repeated": [], **same},
        "rank 1": {"node": nodes[1], "wrong": wrong, "wrong_repeated": repeated, **same},
    }
    return conclude("mpi-small-message", records, probe=probe, failed=failed, sizes=list(medians))


def test_small_messages_that_arrive_pass_with_their_latency() -> None:
    (finding,) = small_message()
    assert finding.status is Status.PASS
    assert sentences.summary(finding) == "120 kinds of message correct"
    assert sentences.evidence(finding)[0] == "0 B: median 1.3 µs, fastest 1.2 µs"
    assert sentences.evidence(finding)[-1] == "65536 B: median 14.0 µs, fastest 12.6 µs, 4.68 GB/s"


def test_latency_and_bandwidth_are_measured() -> None:
    """The fleet's page and `compare` use these figures to find slow nodes and changes over time."""
    (finding,) = small_message(medians=LATENCIES | {16 << 20: 400.0})
    told = [
        (figure.name, round(figure.value, 1), figure.unit, figure.more_is_better)
        for figure in finding.measured
    ]
    first, last = (size for size in (min(filter(None, LATENCIES)), max(LATENCIES)))
    assert told == [
        (f"latency, {first} B", LATENCIES[first], "µs", False),
        (f"latency, {last} B", LATENCIES[last], "µs", False),
        ("bandwidth, 16 MiB", 41.9, "GB/s", True),
    ]


def test_probe_between_nodes_needs_ranks_on_two_nodes() -> None:
    (finding,) = small_message(nodes=("n1", "n2"), probe="between nodes")
    assert (finding.status, sentences.summary(finding)) == (
        Status.PASS,
        "120 kinds of message correct from n1 to n2",
    )
    (finding,) = small_message(nodes=("n1", "n1"), probe="between nodes")
    assert finding.status is Status.ERROR
    assert sentences.summary(finding) == "the launcher did not put the ranks on two nodes: they ran on n1"
    (finding,) = small_message(nodes=("n1", "n2"))
    assert sentences.summary(finding) == "the launcher did not put the ranks on one node: they ran on n1, n2"


def test_first_device_of_each_backend_sends_to_another_node_on_request() -> None:
    across = Launch(("srun", "-N2", "-n{ranks}"), nodes=2)
    planned = plan("mpi-small-message", *TWO, gpu(0, "hip"), across=across)
    between = [probe for probe in planned if probe.launch == across]
    assert [(probe.name, probe.devices[0].label) for probe in between] == [
        ("between nodes", "cuda:0"),
        ("between nodes", "hip:0"),
    ]
    assert "between nodes" not in [probe.name for probe in plan("mpi-small-message", *TWO)]


def test_message_with_wrong_data_at_either_rank_fails() -> None:
    (finding,) = small_message(wrong=["64 B, device to device: 1 of 128 B wrong"])
    assert finding.status is Status.FAIL
    assert sentences.evidence(finding) == ("64 B, device to device: 1 of 128 B wrong",)


def test_message_that_is_wrong_only_when_repeated_fails() -> None:
    (finding,) = small_message(repeated=["64 B, at rank 1: 1 of 64 B wrong"])
    assert (finding.status, finding.key) == (Status.FAIL, "wrong-when-repeated")
    assert sentences.evidence(finding) == ("64 B, at rank 1: 1 of 64 B wrong",)


def test_sizes_are_powers_of_two_neighbours_of_thresholds_and_large_ones() -> None:
    (probe,) = plan("mpi-small-message", gpu(0), edges=(8192, 100_000, 1 << 30))
    sizes = probe.params["sizes"]
    assert sizes == sorted(set(sizes))
    assert {0, *(2**n for n in range(17)), 4 << 20, 16 << 20} <= set(sizes)
    assert {8191, 8192, 8193, 99_999, 100_000, 100_001} <= set(sizes)
    assert max(sizes) == 16 << 20


def test_failures_are_reported_as_a_map_after_the_rest() -> None:
    (finding,) = small_message(failed=[HUNG])
    assert finding.status is Status.FAIL
    (line,) = sentences.evidence(finding)
    for word in ("16 B", "device to device, blocking, rank 0 to rank 1", "rank 1 hung in MPI_Recv"):
        assert word in line


def test_map_says_that_a_kind_with_several_failed_sizes_is_not_continued() -> None:
    three = [[[size, *HUNG[0][1:]], HUNG[1]] for size in (8, 16, 32)]
    (two,) = sentences.evidence(*small_message(failed=three[:2]))
    (more,) = sentences.evidence(*small_message(failed=three))
    way = "device to device, blocking, rank 0 to rank 1"
    assert two == f"{way}: 8 B, 16 B: rank 1 hung in MPI_Recv"
    assert more == f"{way}: 8 B, 16 B, 32 B: rank 1 hung in MPI_Recv; further sizes were not tried"


@pytest.mark.parametrize("size", [0, 1, 63, 64, 4031, 4032, 4033, 4096, 65536])
def test_guard_behind_a_message_reaches_to_the_end_of_a_page(size: int) -> None:
    guarded = SMALL.guarded(size)
    assert guarded >= 64
    assert (size + guarded) % 4096 == 0
    assert guarded < 64 + 4096


def failures_by_count() -> int:
    """The number of reruns after a hang that comes by count, whichever message is then sent."""
    small = check("mpi-small-message")
    (probe,) = plan("mpi-small-message", gpu(0))
    for number in itertools.count():
        failed = [(Message(*message), ending) for message, ending in probe.params["failed"]]
        left = [message for message in SMALL.messages(probe.params["sizes"]) if not given_up(message, failed)]
        role = RoleOutcome("rank 0", Ending.HUNG, operation="MPI_Send", records={"message": left[20]})
        hung = ProbeOutcome("", (gpu(0),), probe.params, {"rank 0": role}, "rank 0", 1.0)
        if not (more := list(small.again(hung))):
            return number
        (probe,) = more
    raise AssertionError


def test_hang_that_comes_by_count_is_rerun_a_few_times() -> None:
    assert failures_by_count() == 9


def test_after_many_failures_each_way_and_size_that_failed_is_left_out() -> None:
    many = [(Message(size, "device", "host", "blocking", 0), "hung") for size in range(9)]
    assert not given_up(Message(9, "device", "host", "blocking", 0), many[:2])
    assert given_up(Message(9, "device", "host", "blocking", 0), many)
    assert given_up(Message(3, "host", "device", "blocking", 0), many)
    assert not given_up(Message(9, "host", "device", "blocking", 0), many)


@pytest.mark.parametrize(("us", "status"), [(190.0, Status.PASS), (210.0, Status.WARN)])
def test_size_much_slower_than_both_neighbours_is_a_finding(us: float, status: Status) -> None:
    (finding,) = small_message(medians={**LATENCIES, 64: us})
    assert finding.status is status


def test_step_in_latency_passes() -> None:
    assert statuses(small_message(medians={0: 1.0, 8: 1.1, 16: 150.0, 64: 151.0, 256: 152.0})) == GOOD


@pytest.mark.parametrize(
    ("probe", "operation", "name", "ending"),
    [
        ("", "MPI_Recv", "the rest", "rank 1 hung in MPI_Recv"),
        ("between nodes", "", "between nodes, the rest", "rank 1 hung in no call"),
    ],
)
def test_rerun_leaves_out_the_failed_message(probe: str, operation: str, name: str, ending: str) -> None:
    roles = {
        "rank 0": RoleOutcome("rank 0", Ending.STOPPED),
        "rank 1": RoleOutcome("rank 1", Ending.HUNG, operation=operation, records={"message": [16, 0]}),
    }
    failed = ProbeOutcome(probe, ONE, {"failed": []}, roles, "rank 1", 1.0)
    (rest,) = check("mpi-small-message").again(failed)
    assert (rest.name, rest.params["failed"]) == (name, [[[16, 0], ending]])
    assert list(check("mpi-small-message").again(replace(failed, blamed=None))) == []
    assert list(check("mpi-small-message").again(replace(failed, blamed="rank 0"))) == []


PEERS = tuple(replace(one, peers=frozenset({"cuda:0", "cuda:1"}) - {one.label}) for one in TWO)


def carried(
    kind: str, *hows: str, devices: tuple[Device, ...] = PEERS, wrong: str = "", mover: str = ""
) -> Finding:
    """The finding if the ranks' memory was carried so: ``host`` or ``peer``, or nothing is known."""
    said = {"mover": [mover]} if mover else {}
    by = {"host": "tcp", "peer": "cuda_ipc"}
    records: dict[str, dict[str, Json]] = {
        f"rank {number}": {
            "node": "n1",
            "wrong": wrong,
            "carried": {"message": [how, by[how]], **said} if how else {},
            "chosen": {},
            "speed": 0.5,
            **({"copied": 40.0} if how == "host" else {}),
        }
        for number, how in enumerate(hows)
    }
    (finding,) = conclude("mpi-small-message", records, devices, kind, kind=kind)
    return finding


def test_memory_through_the_host_between_peers_warns_with_both_speeds() -> None:
    finding = carried("VMM memory", "host", "host")
    assert (finding.status, finding.key) == (Status.WARN, "through-host")
    said = "UCX moves VMM memory between peers by tcp: 0.5 GB/s; the driver's copy: 40 GB/s"
    assert sentences.summary(finding) == said
    assert "plain allocations" in finding.remedy


@pytest.mark.parametrize("kind", ["VMM memory", "device memory"])
@pytest.mark.parametrize(
    ("hows", "devices"),
    [(("peer", "peer"), PEERS), (("host", "peer"), PEERS), (("", ""), PEERS), (("host", "host"), TWO)],
)
def test_no_warning_unless_a_better_path_is_granted_and_refused(
    kind: str, hows: tuple[str, str], devices: tuple[Device, ...]
) -> None:
    finding = carried(kind, *hows, devices=devices)
    assert (finding.status, finding.key) == (Status.PASS, "carried")


def test_open_mpi_by_tcp_between_peers_warns_as_its_first_rank_says() -> None:
    finding = carried("device memory", "host", "", mover="Open MPI")
    assert (finding.status, finding.key) == (Status.WARN, "through-host")
    assert sentences.summary(finding).startswith("Open MPI moves device memory between peers by tcp: ")
    assert "openmpi-mca-params.conf" in finding.remedy
    assert carried("device memory", "host", "").status is Status.PASS  # UCX: one rank alone is not believed


def test_wrong_data_of_a_kind_of_memory_fail() -> None:
    assert carried("VMM memory", "peer", "peer", wrong="byte 7").key == "wrong-data"


def test_kinds_of_memory_are_sent_over_ucx_between_two_gpus_only() -> None:
    able = tuple(replace(one, capabilities=frozenset({"memory-pools", "vmm-ipc"})) for one in PEERS)
    kinds = ["device memory", "memory of a pool", "VMM memory"]
    ucx = {"ucx": "1.22.0", "has_gpu_path": True}
    assert [probe.name for probe in plan("mpi-small-message", *able, **ucx) if probe.name] == kinds
    for other in ({}, {"has_gpu_path": True}, {"ucx": "1.22.0", "has_gpu_path": False}):
        assert not [probe.name for probe in plan("mpi-small-message", *able, **other) if probe.name]
    assert not [probe.name for probe in plan("mpi-small-message", able[0], **ucx) if probe.name]
