"""The merged results of a run: verdicts, cells of the matrix, paragraphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from gpuipc_doctor.model import Finding, Status
from gpuipc_doctor.present.text import fold_subjects
from gpuipc_doctor.probe_types import Ending, RoleOutcome
from gpuipc_doctor.report import sentences
from gpuipc_doctor.report_types import Join, Relation, Report, Result

NOT_BEGUN = "not-begun"
"""Key of the SKIP of a check for which no GPU has free memory."""

_CASUALTIES = {Ending.COMPLETED, Ending.PEER_LOST, Ending.STOPPED}


def worst(results: Iterable[Result]) -> Status | None:
    """The worst status of ``results``; None if empty."""
    return max((result.finding.status for result in results), key=lambda s: s.severity, default=None)


def by_check(report: Report) -> dict[str, list[Result]]:
    """Check → its results, in report order; empty for checks that were not reached."""
    checks: dict[str, list[Result]] = {check.id: [] for check in report.checks}
    for result in report.results:
        checks.setdefault(result.check, []).append(result)
    return checks


def totals(report: Report) -> Counter[Status]:
    """Number of checks by worst status. Checks that were not reached do not count."""
    return Counter(status for status in map(worst, by_check(report).values()) if status)


def not_reached(report: Report) -> list[str]:
    """Requested checks that have no finding because the run ended before them."""
    return [check for check, results in by_check(report).items() if not results]


def repetitions(report: Report) -> int:
    """Number of runs of each probe."""
    return max((result.repetition for result in report.results), default=1)


def culprits(result: Result) -> list[RoleOutcome]:
    """The roles at fault: the failed role and those that hung with it, or a stopped role that the finding
    names."""
    blamed = [role for role in result.roles if role.role == result.finding.values.get("role")]
    if blamed and blamed[0].ending is Ending.STOPPED:
        return blamed
    bad = [role for role in result.roles if role.ending not in _CASUALTIES]
    return [role for role in bad if role is bad[0] or role.ending is bad[0].ending is Ending.HUNG]


@dataclass(frozen=True)
class Paragraph:
    """Findings that are equal except for place and figures."""

    results: tuple[Result, ...]
    """The results, at least one; the paragraph shows the figures of the first."""
    passed_beside: tuple[str, ...] = ()
    """Probes of the same check that passed on the same subjects: the controls."""
    joins: tuple[Join, ...] = ()

    @property
    def finding(self) -> Finding:
        return self.results[0].finding

    @property
    def status(self) -> Status:
        return self.finding.status

    @cached_property
    def checks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(result.check for result in self.results))

    def probes(self, check: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(r.probe for r in self.results if r.check == check and r.probe))

    @property
    def where(self) -> str:
        """The subjects, as ``cuda:0-3`` or ``cuda:0 > cuda:1`` or both; empty for findings about the node."""
        return fold_subjects(result.devices for result in self.results)

    @property
    def times(self) -> int:
        """Number of repetitions with this finding."""
        return len({result.repetition for result in self.results})

    @property
    def figures_differ(self) -> bool:
        """Whether the figures differ between the findings."""
        said = {(sentences.summary(r.finding), sentences.evidence(r.finding)) for r in self.results}
        return len(said) > 1


def paragraphs(report: Report) -> list[Paragraph]:
    """One paragraph for each finding that is not PASS, worst first, then in check order."""
    checks = by_check(report)
    return [
        Paragraph(
            group,
            passed_beside=_passed_beside(group, checks),
            joins=joins_of(report.joins, group),
        )
        for group in grouped(result for results in checks.values() for result in results)
    ]


def joins_of(joins: Iterable[Join], group: Sequence[Result]) -> tuple[Join, ...]:
    """Known issues that some of these results show, or that their finding names."""
    named = group[0].finding.issues
    return tuple(join for join in joins if join.issue in named or showing(join, group))


def showing(join: Join, results: Iterable[Result]) -> tuple[Result, ...]:
    """The results that show a known issue."""
    return tuple(result for result in results if result.ref in join.findings)


def loose_joins(report: Report, shown: Sequence[Paragraph]) -> list[Join]:
    """Known issues that no paragraph names. Latent ones are omitted, since known-versions reports them."""
    carried = {join.issue for paragraph in shown for join in paragraph.joins}
    return [
        join for join in report.joins if join.issue not in carried and join.relation is not Relation.LATENT
    ]


def grouped(results: Iterable[Result]) -> list[tuple[Result, ...]]:
    """Results other than PASS, with equal ones merged, worst first.

    First, equal findings of one probe on many subjects are merged, then those of many probes on the same
    subjects.
    """
    on_subjects: dict[object, list[Result]] = {}
    for result in results:
        if result.finding.status is not Status.PASS:
            key = (result.check, result.probe, bool(result.devices), result.finding.identity)
            on_subjects.setdefault(key, []).append(result)
    of_probes: dict[object, list[Result]] = {}
    for group in on_subjects.values():
        subjects = frozenset(result.devices for result in group)
        of_probes.setdefault((subjects, group[0].finding.identity), []).extend(group)
    groups = [tuple(group) for group in of_probes.values()]
    return sorted(groups, key=lambda group: -group[0].finding.status.severity)


def _passed_beside(group: Sequence[Result], checks: Mapping[str, Sequence[Result]]) -> tuple[str, ...]:
    if len({result.check for result in group}) > 1:
        return ()
    subjects = {result.devices for result in group}
    beside: dict[str, list[Result]] = {}
    for result in checks[group[0].check]:
        if result.devices in subjects and result.probe:
            beside.setdefault(result.probe, []).append(result)
    return tuple(
        probe
        for probe, results in beside.items()
        if worst(results) is Status.PASS and {result.devices for result in results} == subjects
    )
