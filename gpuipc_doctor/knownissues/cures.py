"""The workarounds of a known issue that apply to the version found on a node."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from gpuipc_doctor.knownissues import relevance
from gpuipc_doctor.knownissues.conditions import NamedFacts
from gpuipc_doctor.knownissues.entry import KnownIssue, Workaround
from gpuipc_doctor.model import Fact
from gpuipc_doctor.versions import Range, Verdict, any_of


def remedies(issue: KnownIssue, facts: Iterable[Fact]) -> tuple[str, ...]:
    """The workarounds for the version found, harmful ones last with a warning.

    If the version is unknown, each workaround is followed by the versions that it is for.
    """
    texts = []
    for workaround, is_certain in _fitting(issue, facts):
        unsure = "" if is_certain else f" ({issue.component} {workaround.when})"
        risk = f" (can cause {workaround.risk})" if workaround.risk else ""
        texts.append(f"{workaround.do}{unsure}{risk}")
    return tuple(texts)


def remedy(issue: KnownIssue, facts: Iterable[Fact]) -> str:
    """The `remedies` in one sentence."""
    return "; or ".join(remedies(issue, facts))


def settings(issue: KnownIssue, facts: Iterable[Fact]) -> tuple[Workaround, ...]:
    """Workarounds that set environment variables, and that are known to apply to the version found."""
    return tuple(workaround for workaround in _certain(issue, facts) if workaround.env)


def omissions(issue: KnownIssue, facts: Iterable[Fact]) -> tuple[Workaround, ...]:
    """Workarounds that leave out operations, and that are known to apply to the version found."""
    return tuple(workaround for workaround in _certain(issue, facts) if workaround.without)


def _certain(issue: KnownIssue, facts: Iterable[Fact]) -> Iterator[Workaround]:
    return (workaround for workaround, is_certain in _fitting(issue, facts) if is_certain)


def _fitting(issue: KnownIssue, facts: Iterable[Fact]) -> Iterator[tuple[Workaround, bool]]:
    """(workaround, whether it certainly applies) for each workaround that may apply to the version found."""
    facts = NamedFacts.of(facts)
    versions = [fact.value for fact in facts.named(issue.component) if fact.value is not None]
    for workaround in issue.harmless_first:
        if relevance.is_for_another(workaround.env, facts) or _is_done(workaround, issue.component, versions):
            continue
        when = workaround.when
        if when is None:
            yield workaround, True
            continue
        applies = any_of(when.judge(version) for version in versions) if versions else Verdict.UNKNOWN
        if applies is not Verdict.FINE:
            yield workaround, applies is Verdict.BAD


def _is_done(workaround: Workaround, component: str, versions: Collection[str]) -> bool:
    """Whether the workaround is an upgrade that has already been installed."""
    if not workaround.upgrade:
        return False
    older = Range(component, introduced="0", fixed=workaround.upgrade)
    return bool(versions) and all(older.judge(version) is Verdict.FINE for version in versions)
