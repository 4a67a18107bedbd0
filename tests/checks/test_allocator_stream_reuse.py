"""Tests of check allocator-stream-reuse: findings from recorded results."""

from __future__ import annotations

from collections.abc import Mapping

from gpuipc_doctor.api import Finding
from gpuipc_doctor.model import Status
from gpuipc_doctor.report import sentences
from tests.checks.judging import ONE, conclude

RACED = {"65536": ["1 B wrong"] * 4, "4194304": ["1 B wrong"] * 3, "12582912": ["1 B wrong"]}
HELD: dict[str, list[str]] = {size: [] for size in RACED}


def reuse(unguarded: Mapping[str, list[str]] = RACED, guarded: Mapping[str, list[str]] = HELD) -> Finding:
    program = {"unguarded": unguarded, "guarded": {"event wait": HELD, "pool per stream": guarded}}
    (finding,) = conclude("allocator-stream-reuse", {"program": program}, ONE, "MemoryPool")
    return finding


def test_working_guards_pass_if_a_race_was_seen_without_them() -> None:
    finding = reuse()
    assert finding.status is Status.PASS
    assert (
        sentences.summary(finding)
        == "MemoryPool: data correct with event wait, pool per stream, in 4 rounds for each of 3 sizes"
    )
    assert sentences.evidence(finding) == (
        "without a guard, the stream read the next block's data in 8 of 12 rounds",
    )


def test_a_guard_that_fails_once_fails_and_is_named_with_its_size() -> None:
    finding = reuse(guarded={**HELD, "4194304": ["7 B wrong", "8 B wrong"]})
    assert finding.status is Status.FAIL
    assert sentences.evidence(finding) == (
        "with pool per stream, 2 of 4 copies of 4194304 B are wrong: 7 B wrong",
    )


def test_race_not_seen_at_one_size_proves_nothing() -> None:
    finding = reuse(unguarded={**RACED, "65536": []})
    assert finding.status is Status.SKIP
    assert "blocks of 65536 B" in sentences.summary(finding)


def test_a_failing_guard_outweighs_a_race_that_was_not_seen() -> None:
    finding = reuse(unguarded=HELD, guarded={**HELD, "65536": ["1 B wrong"]})
    assert finding.status is Status.FAIL
