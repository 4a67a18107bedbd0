"""The verdict on a node after all checks of a tier: may it go into service, and why not?"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

from gpuipc_doctor.model import Status, Subject, Tier
from gpuipc_doctor.present.blocks import Entry
from gpuipc_doctor.present.text import counted
from gpuipc_doctor.report import merged_results, sentences
from gpuipc_doctor.report_types import CheckInfo, Relation, Report, Result


class Verdict(enum.Enum):
    """The verdict. A WARN does not reject a node; what it lacks by design neither."""

    ACCEPT = "ACCEPT"
    REJECT = "REJECT"
    CANNOT_TELL = "CANNOT TELL"


LOOKS = {Verdict.ACCEPT: "PASS", Verdict.REJECT: "FAIL", Verdict.CANNOT_TELL: "ERROR"}
"""Verdict → the status whose colour it has."""


def applies(report: Report) -> bool:
    """Whether the report has the checks that accepting a node takes: `check --all`, above tier prolog."""
    return report.whole and report.tier > Tier.PROLOG


def verdict(report: Report) -> Verdict:
    """The verdict on the node of a report."""
    if report.worst() is Status.FAIL:
        return Verdict.REJECT
    unknown = report.worst() is Status.ERROR or report.interrupted or report.nothing_tested
    return Verdict.CANNOT_TELL if unknown or cut_off(report) else Verdict.ACCEPT


def heading(found: Verdict, why: str) -> Entry:
    """The first line of a screen: the verdict and its reason."""
    return Entry(f"{found.value}:", why, look=LOOKS[found], gap=1)


def cut_off(report: Report) -> list[str]:
    """The checks that the run's end left untested, in part or as a whole."""
    stopped = dict.fromkeys(result.check for result in report.results if result.stopped)
    return [*stopped, *(check for check in merged_results.not_reached(report) if check not in stopped)]


def untested(checks: Iterable[CheckInfo], results: Iterable[Result]) -> Mapping[Subject, str]:
    """Subject that no result is about → why: what its first skipped check says."""
    about = {check.id: check.subject for check in checks}
    why = dict.fromkeys(Subject, "none of its checks ran")
    skipped = set[Subject]()
    for result in results:
        subject = about.get(result.check)
        if subject is None or subject not in why:
            continue
        if result.finding.status not in (Status.SKIP, Status.ERROR):
            del why[subject]
        elif subject not in skipped:
            skipped.add(subject)
            why[subject] = sentences.summary(result.finding)
    return why


def reason(report: Report) -> str:
    """The worst finding and its place; why nothing is known; or what was tested and what was not."""
    worst = report.worst()
    if worst in (Status.FAIL, Status.ERROR):
        found = [paragraph for paragraph in merged_results.paragraphs(report) if paragraph.status is worst]
        told = next((each for each in found if each.joins or each.finding.key == "no-room"), found[0])
        where = f" on {told.where}" if told.where else ""
        known = told.joins[0] if told.joins else None
        says = sentences.headline(told.finding)
        if known:
            shown = worst is Status.FAIL and known.relation is Relation.CONFIRMED
            says = f"{known.title if shown else says} (known issue {known.issue})"
        more = f"; {counted(len(found) - 1, 'more finding')}" if len(found) > 1 else ""
        return f"{', '.join(told.checks)}{where}: {says}{more}"
    if report.interrupted:
        return "the run was interrupted"
    if report.nothing_tested:
        return "no probe ran on a GPU"
    if left := cut_off(report):
        return f"the time budget ended before {counted(len(left), 'check')}: give the run a longer --budget"
    counts, lacking = merged_results.totals(report), dict(untested(report.checks, report.results))
    about = ", ".join(subject.title for subject in Subject if subject not in lacking)
    passed = f"{counted(counts[Status.PASS], 'check')} passed"
    if counts[Status.WARN]:
        passed += f", {counts[Status.WARN]} with a warning"
    if any(result.finding.key == "no-fabric" for result in report.results):
        lacking.pop(Subject.FABRIC, None)  # there is none to test
    left_out = ", ".join(f"{subject.title} ({why})" for subject, why in lacking.items())
    return f"{about or 'each GPU within one process'} ({passed})" + (
        f". Not tested: {left_out}" if left_out else ""
    )
