"""Tests of check allocator-growth: planned probes, and findings from recorded results."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpuipc_doctor.api import Finding, Json
from gpuipc_doctor.model import Status
from gpuipc_doctor.report import sentences
from tests.checks.judging import MIB, ONE, conclude, drawn, metered, statuses


def growth(
    used: Sequence[float],
    others: int = 0,
    live: float = 200.0,
    moves: bool = True,
    waited_s: float = 0.1,
    **left: Json,
) -> list[Finding]:
    """``used``: MiB after each round, then after freeing everything, and twice after releasing the cache."""
    samples = {
        "used": [mib * MIB for mib in used],
        "reserved": [mib * MIB for mib in used],
        "allocated": [live * MIB for _ in used],
        "seconds": list(range(len(used))),
    }
    program = {
        "live": live * MIB,
        "rounds": len(used) - 3,
        "samples": samples,
        "call": "MemoryPool.free_all_blocks",
        "release_s": {"idle": 0.001, "beside": 0.052, "kernel": 0.05},
        **metered(moves=moves),
        **left,
    }
    onlooker = metered({"the program ended": {"missing": others * MIB, "waited_s": waited_s}})
    records: dict[str, dict[str, Json]] = {"program": program, "onlooker": onlooker}
    return conclude("allocator-growth", records, ONE, "MemoryPool")


def test_held_memory_is_the_maximum_of_the_later_rounds() -> None:
    (finding,) = growth([200, *[700] * 5, *[500] * 7, *[600] * 7, 600, 0, 0])
    assert (
        sentences.summary(finding) == "MemoryPool: used memory levels off at 3.0 times the allocated memory"
    )


CLIMBING = [200 + 20 * n for n in range(20)]
LEVEL = [200, 300, 400, *[600] * 17]


def test_cache_that_levels_off_and_is_released_passes_and_reports_the_wait() -> None:
    (finding,) = growth([*LEVEL, 600, 0, 0])
    assert finding.status is Status.PASS
    assert (
        sentences.summary(finding) == "MemoryPool: used memory levels off at 3.0 times the allocated memory"
    )
    assert sentences.evidence(finding) == (
        "MemoryPool.free_all_blocks released 600 MiB of 600 MiB",
        "MemoryPool.free_all_blocks waits for kernels: 1 ms on an idle device, "
        "52 ms during a kernel of 50 ms",
    )


@pytest.mark.parametrize(
    ("used", "others", "status"),
    [
        ([*CLIMBING, 580, 0, 0], 0, Status.FAIL),
        ([*CLIMBING, 580, 400, 400], 0, Status.FAIL),
        ([*CLIMBING, 580, 400, 400], 400, Status.ERROR),
        ([*LEVEL, 600, 30, 30], 0, Status.FAIL),
        ([*LEVEL, 600, 30, 30], 30, Status.ERROR),
        ([*LEVEL, 600, 0, 30], 0, Status.FAIL),
        ([*LEVEL, 600, 0, 0], 30, Status.PASS),
        ([*LEVEL, 600, 1, 1], 0, Status.PASS),
        ([200, 900, *[1300] * 18, 1300, 0, 0], 0, Status.WARN),
    ],
)
def test_growth_is_the_programs_only_if_its_exit_releases_it(
    used: Sequence[float], others: int, status: Status
) -> None:
    assert statuses(growth(used, others)) == [status]


def test_late_release_is_reported_with_the_evidence() -> None:
    assert statuses(growth([*LEVEL, 600, 0, 0], waited_s=4.0)) == [Status.PASS, Status.WARN]


def test_counter_that_does_not_move_is_an_error() -> None:
    assert statuses(growth([*CLIMBING, 580, 400, 400], moves=False)) == [Status.ERROR]


def test_samples_are_drawn_with_marks() -> None:
    program = {
        "live": 200 * MIB,
        "samples": {
            **{name: [n * MIB for n in range(3)] for name in ("used", "reserved", "allocated")},
            "seconds": [0.0, 1.0, 2.0],
            "marks": [(1.0, "all freed")],
        },
    }
    (drawing,) = drawn("allocator-growth", {"program": program}, ONE, "MemoryPool")
    assert drawing.title == "MemoryPool: 200.0 MiB allocated throughout, in blocks of changing sizes"
    assert (drawing.at, [mark.text for mark in drawing.marks]) == ((0.0, 1.0, 2.0), ["all freed"])
