"""The change of each check on each subject."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuipc_doctor.grouping import by_key
from gpuipc_doctor.model import Finding, Status
from gpuipc_doctor.report import merged_results
from gpuipc_doctor.report_types import Result

Subject = tuple[str, ...]
"""The labels of no device (for the node), of one device, or of a pair."""

TESTED = {Status.PASS, Status.WARN, Status.FAIL}
"""Statuses of checks that reached a result; with any other status the node's state is unknown."""


class ChangeKind(enum.Enum):
    """The change of a check on a subject."""

    WORSE = "worse"
    NO_LONGER_TESTED = "no longer tested"
    FAILS_OTHERWISE = "fails otherwise"
    BETTER = "better"
    NEWLY_TESTED = "newly tested"
    SAME = "same"


@dataclass(frozen=True, slots=True)
class CheckChange:
    """The worst status of a check in each report, on some subjects; None if the check did not run."""

    check: str
    subjects: tuple[Subject, ...]
    before: Status | None
    after: Status | None
    turn: ChangeKind
    finding: Finding | None
    """A finding with the worst status of the later report, or of the earlier one if the later has none."""


def verdicts(before: Sequence[Result], after: Sequence[Result]) -> list[CheckChange]:
    """The changes of all checks; subjects with the same change of status share one entry.

    The subjects of ``before`` must already have the labels of ``after``.
    """
    old, new = _cells(before), _cells(after)
    groups: dict[object, list[CheckChange]] = {}
    for place in dict.fromkeys((*new, *old)):
        one = _verdict(place, old.get(place, ()), new.get(place, ()))
        says = one.finding.identity if one.finding and one.turn is not ChangeKind.SAME else None
        groups.setdefault((one.check, one.before, one.after, one.turn, says), []).append(one)
    return [
        replace(group[0], subjects=tuple(subject for change in group for subject in change.subjects))
        for group in groups.values()
    ]


Place = tuple[str, Subject]
"""A cell of the matrix: (check id, subject)."""


def _cells(results: Sequence[Result]) -> dict[Place, list[Result]]:
    return by_key(((result.check, result.devices), result) for result in results)


def _verdict(place: Place, before: Sequence[Result], after: Sequence[Result]) -> CheckChange:
    before, after = _not_skipped(before), _not_skipped(after)
    was, now = merged_results.worst(before), merged_results.worst(after)
    turn = _turn_of_failures(before, after) if was is now is Status.FAIL else turn_of(was, now)
    telling = next(_telling(after, before), None)
    return CheckChange(place[0], (place[1],), was, now, turn, telling)


def _not_skipped(results: Sequence[Result]) -> Sequence[Result]:
    """Results without SKIPs, or all results if all are SKIPs."""
    return [result for result in results if result.finding.status is not Status.SKIP] or results


def turn_of(was: Status | None, now: Status | None) -> ChangeKind:
    """The change of a check from its worst status before to that after; None if the check did not run."""
    if was is now:
        return ChangeKind.SAME
    if now in (Status.FAIL, Status.WARN) and was is not Status.FAIL:
        return ChangeKind.WORSE
    if now in TESTED:
        return ChangeKind.BETTER if was in TESTED else ChangeKind.NEWLY_TESTED
    return ChangeKind.NO_LONGER_TESTED if was in TESTED or now is Status.ERROR else ChangeKind.SAME


def _turn_of_failures(before: Sequence[Result], after: Sequence[Result]) -> ChangeKind:
    """The change of a check that fails in both reports: worse if a probe fails that did not fail before."""
    failed = {result.probe for result in before if result.finding.status is Status.FAIL}
    was_fine = {result.probe for result in before if result.finding.status in TESTED} - failed
    if any(result.probe in was_fine for result in after if result.finding.status is Status.FAIL):
        return ChangeKind.WORSE
    return (
        ChangeKind.SAME if _failures(before).keys() == _failures(after).keys() else ChangeKind.FAILS_OTHERWISE
    )


def _failures(results: Sequence[Result]) -> Mapping[object, Finding]:
    """The FAILs by probe and identity. The identity of a finding leaves out figures."""
    failed = [(result.probe, result.finding) for result in results if result.finding.status is Status.FAIL]
    return {(probe, finding.identity): finding for probe, finding in failed}


def _telling(after: Sequence[Result], before: Sequence[Result]) -> Iterator[Finding]:
    """New failures, then the worst findings of the later report, then those of the earlier report."""
    known = _failures(before)
    yield from (finding for kind, finding in _failures(after).items() if kind not in known)
    for results in (after, before):
        yield from (
            result.finding for result in results if result.finding.status is merged_results.worst(results)
        )
