"""Tests of check collective-start: findings from recorded results."""

from __future__ import annotations

from typing import Any

import pytest

from gpuipc_doctor.model import Status
from gpuipc_doctor.report.sentences import summary
from tests.checks.collective_records import FOUR, PARAMS, rank, ranks
from tests.checks.judging import conclude


def judged(*changed: dict[str, Any]) -> list[tuple[Status, str, str]]:
    findings = conclude("collective-start", ranks(*changed), FOUR, **PARAMS)
    return [(finding.status, finding.key, summary(finding)) for finding in findings]


def test_starts_without_a_loss_pass_with_their_seconds() -> None:
    ((status, _, says),) = judged()
    assert status is Status.PASS
    assert says == (
        "4 communicators of 4 ranks made and destroyed, nothing left; "
        "first communicator 0.6 s, its first all-reduce 0.3 s; a later one 0.37 s"
    )


@pytest.mark.parametrize(
    ("figure", "samples", "key", "says"),
    [
        (
            "device",
            [0, 8 << 20, 16 << 20, 24 << 20],
            "device-left",
            "8 MiB of device memory behind on rank 1",
        ),
        ("descriptors", [7, 9, 11, 13], "descriptors-left", "2 descriptors behind on rank 1"),
        ("threads", [7, 8, 9, 10], "threads-left", "1 threads behind on rank 1"),
        ("shared", [0, 1, 2, 3], "shared-left", "1 files in /dev/shm behind on rank 1"),
    ],
)
def test_growth_with_each_communicator_fails(figure: str, samples: list[int], key: str, says: str) -> None:
    usage = {**rank()["usage"], figure: samples}
    ((status, found, told),) = judged({}, {"usage": usage})
    assert (status, found) == (Status.FAIL, key)
    assert f"each communicator left {says} (cuda:1)" == told


def test_wrong_sums_fail() -> None:
    found = judged({"wrong_starts": 1}, {"registered": "wrong sum in a registered buffer"})
    assert [key for _, key, _ in found] == ["wrong-first-sum", "wrong-when-registered"]


def test_start_of_a_minute_is_a_warning() -> None:
    ((status, key, says),) = judged({"first": [60.0, 0.5]})
    assert (status, key) == (Status.WARN, "slow-start")
    assert says.startswith("starting is slow: first communicator 60 s, ")


def after_kill(*changed: dict[str, Any]) -> list[tuple[Status, str, str]]:
    same: dict[str, Any] = {"abort_s": 0.012, "start_s": 0.5, "wrong": False, "left": {}}
    of_ranks = {f"rank {n}": {**same, **(changed[n] if n < len(changed) else {})} for n in range(4)}
    records = {**of_ranks, "killed rank 0": {}}
    findings = conclude("collective-start", records, FOUR, "killed rank", **PARAMS)
    return [(finding.status, finding.key, summary(finding)) for finding in findings]


def test_start_after_a_killed_rank_passes_with_its_seconds() -> None:
    says = (
        "a rank of 4 was killed in an all-reduce: the others aborted in 0.012 s, "
        "the next communicator of all started in 0.5 s, nothing left"
    )
    assert after_kill({"abort_s": 0.011}, {"start_s": 0.4}) == [(Status.PASS, "outlived", says)]


@pytest.mark.parametrize(
    ("changed", "key", "says"),
    [
        ({"wrong": True}, "wrong-first-sum", "after a rank was killed was wrong on rank 1 (cuda:1)"),
        (
            {"left": {"device": 32 << 20}},
            "device-left",
            "left 32 MiB of device memory behind on rank 1 (cuda:1)",
        ),
        ({"left": {"shared": 2}}, "shared-left", "left 2 files in /dev/shm behind on rank 1 (cuda:1)"),
        ({"left": {"descriptors": 3}}, "descriptors-left", "left 3 descriptors behind"),
        ({"left": {"threads": 1}}, "threads-left", "left 1 threads behind"),
    ],
)
def test_what_a_killed_rank_leaves_fails(changed: dict[str, Any], key: str, says: str) -> None:
    ((status, found, told),) = after_kill({}, changed)
    assert (status, found) == (Status.FAIL, key)
    assert says in told


def test_the_most_that_a_killed_rank_leaves_is_told() -> None:
    ((_, _, told),) = after_kill({"left": {"shared": 2}}, {"left": {"shared": 1}})
    assert "left 2 files in /dev/shm behind on rank 0" in told
