"""Tests of check driver-pool-release: planned probes, and findings from recorded results."""

from __future__ import annotations

import pytest

from gpuipc_doctor.api import Context, Finding, Json, Probe
from gpuipc_doctor.model import EvidenceKind, MemoryShare, Status
from gpuipc_doctor.report import sentences
from tests.checks.judging import MIB, check, conclude, drawn, gpu, metered, statuses

NBYTES = 96 * MIB
ROUNDS = list(range(1, 49))
LEVEL, LOSES = [666 * MIB for _ in ROUNDS], [666 * MIB + 2 * MIB * number for number in ROUNDS]
EMPTY = {"reserved": 0, "used": 0}


def pool(
    trimmed: int = 0, destroyed: int = 0, growing: list[int] = LEVEL, moves: bool = True, **seen: Json
) -> list[Finding]:
    ends = {"the pool was trimmed": trimmed, "the pool was destroyed": destroyed}
    loop = {"rounds": ROUNDS, "used": growing, "control": LEVEL}
    healthy = {
        "room": 2 << 30,
        "nbytes": NBYTES,
        "holders": [],
        "unheld": 0,
        "held": NBYTES,
        "wrong": [],
        "trimmed": EMPTY,
        **metered(ends, {"allocation that is freed and trimmed": loop}, moves=moves),
    }
    return conclude("driver-pool-release", {"allocator": {**healthy, **seen}})


@pytest.mark.parametrize(
    ("found", "key", "status"),
    [
        (pool(), "returned", Status.PASS),
        (pool(trimmed=NBYTES), "not-returned", Status.FAIL),  # although the pool reports nothing reserved
        (pool(trimmed=50 * MIB), "unexplained-change", Status.ERROR),
        (pool(trimmed=-NBYTES), "unexplained-change", Status.ERROR),
        (
            pool(trimmed=6 << 30),
            "unexplained-change",
            Status.ERROR,
        ),  # 64 times 96 MiB: more than the pool allocated
        (pool(destroyed=193 * MIB), "not-returned", Status.FAIL),
        (pool(destroyed=4 * MIB), "returned", Status.PASS),
        (pool(**{"trimmed": 0}, moves=False), "counter-does-not-follow", Status.ERROR),
        (pool(wrong=["3 B wrong"]), "wrong-data", Status.FAIL),
        (pool(unheld=NBYTES), "held-below-threshold", Status.WARN),
        (pool(held=NBYTES - 1), "not-held", Status.WARN),
        (pool(room=40 * MIB), "too-little-free", Status.ERROR),
    ],
)
def test_memory_not_released_by_a_pool_is_a_finding(found: list[Finding], key: str, status: Status) -> None:
    assert [(finding.key, finding.status) for finding in found] == [(key, status)]


@pytest.mark.parametrize(
    ("trimmed", "key"),
    [({"reserved": NBYTES, "used": 0}, "trim-keeps"), ({"reserved": 0, "used": NBYTES}, "counts-freed")],
)
def test_trimmed_pool_must_report_no_reserved_memory(trimmed: Json, key: str) -> None:
    seen = {"room": 2 << 30, "nbytes": NBYTES, "unheld": 0, "held": NBYTES, "wrong": [], "trimmed": trimmed}
    (finding,) = conclude("driver-pool-release", {"allocator": {**seen, **metered()}})
    assert (finding.status, finding.key) == (Status.FAIL, key)


def test_loop_is_drawn_if_there_was_room_for_one() -> None:
    loop = {"rounds": ROUNDS, "used": LEVEL, "control": LEVEL}
    (series,) = drawn("driver-pool-release", {"allocator": metered(loops={"allocation": loop})})
    assert series.at == tuple(ROUNDS)
    assert drawn("driver-pool-release", {"allocator": {"room": 40 * MIB}}) == []


def test_holders_of_the_memory_are_reported_if_too_little_is_free() -> None:
    holder = {"pid": 4711, "name": "train", "held": 9 << 30, "whose": "not part of this run"}
    (finding,) = pool(room=40 * MIB, holders=[holder])
    assert [item.kind for item in finding.evidence] == [EvidenceKind.HOLDER]
    assert sentences.evidence(finding)[0].startswith("process 4711 (train)")


def test_a_pool_keeps_to_the_memory_that_the_site_allows() -> None:
    small = gpu(0, total_bytes=1 << 30)
    (skipped,) = check("driver-pool-release").probes(Context((small,)))
    assert isinstance(skipped, Finding)
    assert skipped.status is Status.SKIP
    allowed = Context((small,), memory=MemoryShare(fraction=0.25))
    (probe,) = check("driver-pool-release").probes(allowed)
    assert isinstance(probe, Probe)
    assert MemoryShare(**probe.params["share"]) == allowed.memory
    assert statuses(pool(room=64 * MIB)) == [Status.PASS]
