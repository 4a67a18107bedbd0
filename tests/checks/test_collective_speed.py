"""Tests of check collective-speed: findings from recorded results."""

from __future__ import annotations

from typing import Any

import pytest

from gpuipc_doctor.api import Finding
from gpuipc_doctor.model import Status
from gpuipc_doctor.report.sentences import evidence, summary
from tests.checks.collective_records import FOUR, PARAMS, rank, ranks
from tests.checks.judging import ONE, TWO, conclude

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
    assert evidence(finding) == ("between the two: 242 GB/s in the slower direction",)


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
