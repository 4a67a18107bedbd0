"""Every signature on the samples of all other entries: high confidence is for one issue only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from gpuipc_doctor import knownissues
from gpuipc_doctor.diagnose.diagnosis_content import screen
from gpuipc_doctor.diagnose.examination import Examination
from gpuipc_doctor.diagnose.readers import diagnose
from gpuipc_doctor.knownissues import Confidence, KnownIssue, Signature

ISSUES = [issue for issue in knownissues.load() if not issue.withdrawn]
NO_FALLBACKS = [issue for issue in ISSUES if not issue.fallback]
Part = tuple[KnownIssue, Signature]


def overlaps(issues: Iterable[KnownIssue]) -> Iterator[tuple[Part, Part]]:
    """Pairs of an entry's signature and another entry's signature whose sample it matches."""
    signatures = [(issue, signature) for issue in issues for signature in issue.signatures]
    for finder in signatures:
        for sampled in signatures:
            if finder[0] is not sampled[0] and sampled[1].sample and finder[1].found_in(sampled[1].sample):
                yield finder, sampled


def too_sure(issues: Iterable[KnownIssue]) -> list[str]:
    return sorted(
        f"{issue.id} is sure of {signature.match}, and {other.id} leaves it also"
        for pair in overlaps(issues)
        for (issue, signature), (other, _) in (pair, pair[::-1])
        if signature.confidence is Confidence.HIGH
    )


def undecided(issues: Iterable[KnownIssue]) -> set[tuple[str, str]]:
    """Pairs of issues that leave the same lines, if neither entry says how to distinguish them."""
    return {
        (min(one.id, other.id), max(one.id, other.id))
        for (one, _), (other, _) in overlaps(issues)
        if other.id not in {lookalike.id for lookalike in one.resembles}
        and one.id not in {lookalike.id for lookalike in other.resembles}
    }


def test_high_confidence_is_for_lines_of_one_entry_only() -> None:
    assert too_sure(NO_FALLBACKS) == []


def test_issues_with_the_same_lines_say_how_to_distinguish_them() -> None:
    assert undecided(NO_FALLBACKS) == set()


def test_entry_that_matches_anothers_lines_is_found() -> None:
    first = next(issue for issue in ISSUES if issue.id == "nvidia-gpu-lost")
    copy = replace(first, id="copy")
    assert undecided([first, copy]) == {("copy", "nvidia-gpu-lost")}
    assert any(text.startswith("copy is sure of") for text in too_sure([first, copy]))
    assert any(text.startswith("nvidia-gpu-lost is sure of") for text in too_sure([first, copy]))


def test_two_matching_issues_are_shown_with_the_difference(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    line = "UCX  ERROR cuIpcOpenMemHandle() failed: invalid device context"
    log.write_text(f"UCX  INFO  Version 1.21.0 (loaded)\ncuda_ipc_cache.c:284  {line}\n", encoding="utf-8")
    diagnosis = diagnose([str(log)], Examination(ISSUES))
    shown = {issue_.issue.id: issue_.lookalikes for issue_ in diagnosis.recognised}
    ((one,), (other,)) = shown["cuda-ipc-api-rules"], shown["ucx-same-process-other-gpu"]
    assert (one.id, other.id) == ("ucx-same-process-other-gpu", "cuda-ipc-api-rules")
    page = screen(diagnosis, width=120, exit_code=12)
    assert page.count("; to decide: whether UCX prints the message and one process uses") == 2


def test_fallback_is_never_more_than_a_hint() -> None:
    fallbacks = [issue for issue in ISSUES if issue.fallback]
    assert fallbacks
    assert {signature.confidence for issue in fallbacks for signature in issue.signatures} == {Confidence.LOW}


def test_fallback_is_shown_only_without_a_definite_issue(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("a.c:1 UCX  ERROR something new failed\n", encoding="utf-8")
    (only,) = diagnose([str(log)], Examination(ISSUES)).recognised
    assert only.issue.id == "ucx-reports-an-error"
    with log.open("a", encoding="utf-8") as more:
        more.write("b.c:2 UCX  ERROR multi-node NVLINK support is requested but not supported\n")
    shown = [issue_.issue.id for issue_ in diagnose([str(log)], Examination(ISSUES)).recognised]
    assert "ucx-mnnvl-not-supported" in shown
    assert "ucx-reports-an-error" not in shown
