"""Tests of check collective-speed: findings from recorded results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuipc_doctor.api import Finding
from gpuipc_doctor.model import Status
from gpuipc_doctor.report.sentences import evidence, summary
from tests.checks.collective_records import FOUR, PARAMS, rank, ranks
from tests.checks.judging import ONE, TWO, conclude, gpu

SPEED = rank()["speed"]


def judged(speed: dict[str, Any], devices: Any = FOUR, **params: Any) -> Finding:
    records = ranks({"speed": speed}, number=len(devices))
    (finding,) = conclude("collective-speed", records, devices, **{**PARAMS, **params})
    return finding


def test_figures_are_measured_for_comparison() -> None:
    finding = judged({**SPEED, "pairs": [*SPEED["pairs"][:-1], [2, 3, 210e9]]})
    assert finding.status is Status.PASS
    assert summary(finding) == "all-reduce of 256 MiB: 336 GB/s bus bandwidth; of 8 B: 34.0 µs"
    assert {each.name: (round(each.value), each.unit) for each in finding.measured} == {
        "latency, 8 B": (34, "µs"),
        "bus bandwidth, 256 MiB": (336, "GB/s"),
        "bandwidth of the slowest pair": (200, "GB/s"),
    }


def test_slow_pair_is_a_warning_that_names_it() -> None:
    pairs = [[a, b, 120e9 if (a, b) == (1, 3) else rate] for a, b, rate in SPEED["pairs"]]
    finding = judged({**SPEED, "pairs": pairs})
    assert (finding.status, finding.key) == (Status.WARN, "slow-pair")
    assert summary(finding) == "cuda:1 and cuda:3: 120 GB/s, the usual pair has 200 GB/s"


def test_two_gpus_have_one_pair() -> None:
    finding = judged({**SPEED, "pairs": [[0, 1, 242e9]]}, TWO)
    assert evidence(finding) == (
        "between the two: 242 GB/s in the slower direction",
        "carried by 24 channels P2P/CUMEM",
    )


def test_one_gpu_has_a_latency_only() -> None:
    finding = judged({"latency": 14e-6}, ONE)
    assert summary(finding) == "all-reduce of 8 B on one GPU: 14.0 µs; bandwidth needs two GPUs"


@pytest.mark.parametrize(
    ("least", "says"),
    [
        ({"bus": 340}, "336 GB/s bus bandwidth; site.yaml:7 demands at least 340 GB/s"),
        ({"pair": 201}, "200 GB/s between cuda:0 and cuda:1; site.yaml:7 demands at least 201 GB/s"),
    ],
)
def test_bandwidth_below_the_sites_limit_fails(least: dict[str, float], says: str) -> None:
    finding = judged(SPEED, least=least, least_where="site.yaml:7")
    assert (finding.status, finding.key, summary(finding)) == (Status.FAIL, "below-site-limit", says)


def test_bandwidth_above_the_sites_limits_passes() -> None:
    assert judged(SPEED, least={"bus": 330, "pair": 199}).status is Status.PASS


H200 = [["NVIDIA H200", "18", True]]


@pytest.mark.parametrize(("ranks_", "rate"), [(2, 296), (4, 336), (8, 344)])
@pytest.mark.parametrize("part", [1.0, 0.6])
def test_bus_bandwidth_is_compared_with_half_of_the_links(ranks_: int, rate: float, part: float) -> None:
    """The rates are those of eight healthy H200."""
    seconds = 2 * (ranks_ - 1) / ranks_ * SPEED["nbytes"] / (rate * part * 1e9)
    found = linked(H200 * ranks_, {**SPEED, "seconds": seconds, "pairs": []}, ranks_)
    assert found == (Status.PASS, "measured") if part == 1.0 else (Status.WARN, "below-reference")


SLOW = {**SPEED, "seconds": 20e-3}


@pytest.mark.parametrize(
    ("gpus", "params"),
    [
        ([["NVIDIA H200", "18", False]] * 4, {}),  # linked directly: two of four have a part of the links
        ([["NVIDIA H200", "17", True]] * 4, {}),  # gpu-health says so
        ([["NVIDIA H200", "18", True]] * 3 + [["NVIDIA H200", "17", True]], {}),
        ([["NVIDIA H200", "18", None]] * 4, {}),
        ([["NVIDIA GH200 120GB", "18", True]] * 4, {}),
        ([["NVIDIA L40S", None, None]] * 4, {}),
        ([["NVIDIA GB300", "18", True]] * 4, {}),  # no source
        ([], {}),
        (H200 * 4, {"least": {"bus": 10}, "least_where": "site.yaml:7"}),
        (H200 * 4, {"room": 16 << 20}),  # a smaller all-reduce says nothing
    ],
)
def test_nothing_is_said_where_no_reference_holds(gpus: list[Any], params: dict[str, Any]) -> None:
    assert linked(gpus, SLOW, 4, **params) == (Status.PASS, "measured")


def test_smaller_all_reduce_counts_if_the_largest_would_take_too_long() -> None:
    slow = {**SPEED, "nbytes": 16 << 20, "seconds": 50e-3}
    found = linked(H200 * 4, slow, 4)
    assert found == (Status.WARN, "below-reference")


def test_slow_pair_is_named_before_the_reference() -> None:
    pairs = [[a, b, 10e9 if (a, b) == (1, 3) else rate] for a, b, rate in SPEED["pairs"]]
    assert linked(H200 * 4, {**SLOW, "pairs": pairs}, 4) == (Status.WARN, "slow-pair")


def linked(gpus: list[Any], speed: dict[str, Any], number: int, **params: Any) -> tuple[Status, str]:
    devices = tuple(gpu(index) for index in range(number))
    records = ranks({"speed": speed, "linked": gpus}, number=number)
    (finding,) = conclude("collective-speed", records, devices, **{**PARAMS, "room": 1 << 30, **params})
    return finding.status, finding.key


PEERS = tuple(
    replace(one, peers=frozenset(other.label for other in FOUR if other is not one)) for one in FOUR
)


def carried(by: str, chosen: dict[str, str], devices: Any = PEERS) -> Finding:
    told = {"speed": SPEED, "channels": {by: 4}, "chosen": chosen}
    (finding,) = conclude("collective-speed", ranks(*[told] * 4), devices, **PARAMS)
    assert f"carried by 4 channels {by}" in evidence(finding)
    return finding


@pytest.mark.parametrize("by", ["SHM/direct/direct", "NET/Socket/0"])
def test_host_between_peers_by_a_setting_warns_with_speed_and_setting(by: str) -> None:
    finding = carried(by, {"NCCL_P2P_DISABLE": "1"})
    assert (finding.status, finding.key) == (Status.WARN, "through-host")
    assert summary(finding) == (
        f"NCCL moves device memory between peers by {by}, with NCCL_P2P_DISABLE=1 set: 336 GB/s bus bandwidth"
    )
    assert finding.remedy == "unset NCCL_P2P_DISABLE"


@pytest.mark.parametrize(
    ("by", "chosen", "devices"),
    [
        ("P2P/CUMEM", {"NCCL_P2P_DISABLE": "0"}, PEERS),
        ("SHM/direct/direct", {}, PEERS),  # NCCL's own choice, as across sockets
        ("SHM/direct/direct", {"NCCL_P2P_DISABLE": "1"}, FOUR),  # no peer access
        ("SHM/direct/direct", {"NCCL_P2P_DISABLE": "1"}, (*PEERS[:3], FOUR[3])),
    ],
)
def test_transport_is_evidence_where_no_setting_keeps_from_a_peer(
    by: str, chosen: dict[str, str], devices: Any
) -> None:
    assert carried(by, chosen, devices).status is Status.PASS
