"""Tests of check driver-pool-reuse: findings from recorded results."""

from __future__ import annotations

import pytest

from gpuipc_doctor.api import Finding
from gpuipc_doctor.model import Status
from gpuipc_doctor.report import sentences
from tests.checks.judging import GOOD, conclude, statuses


def reuse(case: str, given: bool = False, busy: bool = True, wrong: str = "") -> list[Finding]:
    tries = [{"case": case, "given": given, "busy": busy, "wrong": ["", wrong]}] * 4
    return conclude("driver-pool-reuse", {"allocator": {"tries": tries}})


@pytest.mark.parametrize(
    ("case", "busy", "allowed"),
    [
        ("no reuse allowed", False, False),
        ("no reuse allowed, with an event", False, False),
        ("event dependencies, without an event", True, False),
        ("event dependencies, with an event", True, True),
        ("opportunistic reuse", True, False),
        ("opportunistic reuse", False, True),
        ("internal dependencies", True, True),
        ("all reuse allowed", True, True),
    ],
)
def test_reuse_by_another_stream_must_match_the_pools_attributes(
    case: str, busy: bool, allowed: bool
) -> None:
    status = Status.PASS if allowed else Status.WARN
    assert statuses(reuse(case, given=True, busy=busy))[0] is status
    assert statuses(reuse(case, given=False, busy=busy))[0] is Status.PASS


def test_wrong_data_fails_with_and_without_reuse() -> None:
    (finding,) = reuse("all reuse allowed", wrong="3 B wrong")
    assert finding.status is Status.FAIL
    assert sentences.evidence(finding) == ("all reuse allowed, second stream, in 4 of 4 tries: 3 B wrong",)


def test_idle_stream_shows_no_race_and_the_finding_says_so() -> None:
    assert statuses(reuse("all reuse allowed", busy=False)) == [Status.PASS, Status.SKIP]
    assert statuses(reuse("all reuse allowed", busy=True)) == GOOD
    tries = [
        {"case": "all reuse allowed", "given": True, "busy": n == 3, "wrong": ["", ""]} for n in range(4)
    ]
    assert statuses(conclude("driver-pool-reuse", {"allocator": {"tries": tries}})) == GOOD
