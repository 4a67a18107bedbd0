"""A fleet's findings with what is known of them, in words; a known issue is told once, with the worst."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpuipc_doctor.fleet.fold import Cause, Fleet, Problem
from gpuipc_doctor.fleet.summary import Known, NodeReport, Told
from gpuipc_doctor.report.blocks import Verdict


@dataclass(frozen=True, slots=True)
class Judged:
    """A problem, its known issues, and what to do beside what those say."""

    problem: Problem
    verdicts: tuple[Verdict, ...]
    remedy: str


def judged(fleet: Fleet) -> Iterator[Judged]:
    """Each problem, in their order."""
    told: set[tuple[str, str]] = set()
    for problem in fleet.problems:
        verdicts = tuple(_verdict(fleet, problem, cause, told) for cause in problem.causes)
        remedy = problem.example.remedy
        is_told = any((cause.known.issue, remedy) in told for cause in problem.causes)
        yield Judged(problem, verdicts, "" if is_told else remedy)


def _verdict(fleet: Fleet, problem: Problem, cause: Cause, told: set[tuple[str, str]]) -> Verdict:
    """``told``: what was said so far of which issue, to which this is added."""
    known = cause.known
    before = {text for issue, text in told if issue == known.issue}
    told.update((known.issue, text) for text in (known.title, known.reason, known.remedy))
    on = f" on {fleet.folder.brief(cause.nodes)}" if len(cause.nodes) < len(problem.nodes) else ""
    news = [
        text
        for text in (known.title, known.reason)
        if text not in before and text not in problem.example.says
    ]
    ending = f": {'; '.join(news)}" if news else ", see above" if before else ""
    return Verdict(_head(known) + on + ending, "" if known.remedy in before else known.remedy)


def of_a_node(report: NodeReport, found: Iterable[Told]) -> Iterator[Verdict]:
    """What is known of some of its findings."""
    issues = {issue for told in found for issue in told.issues}
    for known in report.known:
        if known.issue in issues:
            yield Verdict(f"{_head(known)}: {known.title}; {known.reason}", known.remedy)


def _head(known: Known) -> str:
    return f"Known issue {known.issue} {known.relation.value.upper()}"
