"""Known issues that match a job's stacks and versions, and settings without effect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gpuipc_doctor.job.document import Cause, JobReport, MatchedIssue, Rank
from gpuipc_doctor.knownissues import Confidence, KnownIssue, affected, cures, relation
from gpuipc_doctor.knownissues.conditions import NamedFacts
from gpuipc_doctor.knownissues.scanner import Search
from gpuipc_doctor.model import Effect, Fact, Setting
from gpuipc_doctor.node import environment, variables
from gpuipc_doctor.node.environment import SetVariable
from gpuipc_doctor.versions import Verdict

_OF_LIBRARIES = frozenset(
    {
        Cause.ALL_WAIT,
        Cause.DEVICE_BUSY,
        Cause.FINALIZE,
        Cause.GROWS,
        Cause.KERNEL,
        Cause.MESSAGE_LOST,
        Cause.UNKNOWN,
    }
)
"""Verdicts that a library's fault can explain."""


def matching(report: JobReport, known: Iterable[KnownIssue]) -> Iterator[MatchedIssue]:
    """Issues that a stack shows, and issues that are likely for this verdict with the loaded versions.

    A secondary issue names no cause beyond the verdict's, for example that a rank waits for another.
    """
    issues = [one for one in known if not (one.withdrawn or one.suppression or one.secondary)]
    signatures = [
        (issue.id, s) for issue in issues for s in issue.signatures if s.confidence > Confidence.LOW
    ]
    search = Search([signature for _, signature in signatures])
    groups = [
        (facts(ranks[0]), [signatures[n] for n in search.shown(_text(ranks))], ranks)
        for ranks in _alike(report.ranks)
    ]
    kind = "leak" if report.verdict.cause is Cause.GROWS else "hang"
    for issue in issues:
        for found, shown, ranks in groups:
            seen = any(id_ == issue.id and s.applies(found) is Verdict.BAD for id_, s in shown)
            may = report.verdict.cause in _OF_LIBRARIES and issue.kind == kind
            verdict, reason = affected.judge(issue, found)
            related = relation(verdict, seen)
            is_loaded = any(fact.value for fact in found.named(issue.component))
            if related and (seen or (may and is_loaded)):
                yield MatchedIssue(
                    id=issue.id,
                    title=issue.title,
                    relation=related,
                    reason=reason,
                    remedy=cures.remedy(issue, found),
                    checks=issue.checks,
                    ranks=tuple(rank.rank for rank in ranks),
                )
                break


def wrong_settings(ranks: Sequence[Rank]) -> tuple[Setting, ...]:
    """Settings of these ranks that their loaded libraries do not know or do not accept."""
    found: dict[tuple[str, str], Setting] = {}
    for alike in _alike(ranks):
        own = {name: SetVariable(name, value, "a rank") for name, value in alike[0].settings.items()}
        for setting in environment.judge(own, variables.load(), facts(alike[0])):
            if setting.effect in (Effect.DEAD, Effect.INVALID):
                found.setdefault((setting.name, setting.value), setting)
    return tuple(found.values())


def facts(rank: Rank) -> NamedFacts:
    """Versions of a rank's loaded libraries, and its settings, as facts."""
    own = {name: SetVariable(name, value, f"rank {rank.rank}") for name, value in rank.settings.items()}
    loaded = (Fact(name, version, f"loaded by rank {rank.rank}") for name, version in rank.versions.items())
    return NamedFacts((*loaded, *environment.facts(own, variables.load())))


def _alike(ranks: Iterable[Rank]) -> list[list[Rank]]:
    """Groups of ranks with the same stack, versions and settings."""
    groups: dict[tuple[object, ...], list[Rank]] = {}
    for rank in ranks:
        key = (rank.path, tuple(rank.versions.items()), tuple(rank.settings.items()))
        groups.setdefault(key, []).append(rank)
    return list(groups.values())


def _text(ranks: Sequence[Rank]) -> str:
    """A rank's stack in a debugger's format, innermost frame first."""
    return "\n".join(f"#{number} {frame}" for number, frame in enumerate(reversed(ranks[0].path)))
