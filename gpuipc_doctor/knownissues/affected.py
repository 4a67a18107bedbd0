"""Whether a known issue is to be expected on a node: by its versions, conditions and set workarounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date

from gpuipc_doctor.knownissues import cures
from gpuipc_doctor.knownissues.conditions import ENV, NamedFacts, is_same_setting
from gpuipc_doctor.knownissues.entry import KnownIssue
from gpuipc_doctor.knownissues.releases import LONG, released
from gpuipc_doctor.model import Fact
from gpuipc_doctor.versions import Verdict, all_of, any_of, parse


def judge(issue: KnownIssue, facts: Iterable[Fact]) -> tuple[Verdict, str]:
    """Whether the fault is to be expected on this node, and why."""
    facts = NamedFacts.of(facts)
    verdict, reason = _judge_versions(issue, facts)
    if verdict is Verdict.BAD and (setting := _find_set_workaround(issue, facts)):
        verdict, reason = Verdict.FINE, f"{reason}, but its workaround {setting} is set"
    held, lacking = [], ""
    for need in issue.needs:
        holds = need.judge(facts)
        verdict = all_of((verdict, holds))
        if holds is not Verdict.BAD:
            why = "not met" if holds is Verdict.FINE else "unknown"
            lacking += f"; the issue also needs {need}: {why}"
        elif not need.is_mere_presence:
            held.append(need.found(facts))
    shown = ", ".join(filter(None, dict.fromkeys(held)))
    conditions = f" with {shown}" if shown else ""
    return verdict, reason + conditions + lacking


def _find_set_workaround(issue: KnownIssue, facts: NamedFacts) -> str:
    """The environment of a workaround for this version that is set on the node; empty if none is."""
    for workaround in cures.settings(issue, facts):
        found = {name: _value(facts, name) for name in workaround.env}
        if all(is_same_setting(found[name], value) for name, value in workaround.env.items()):
            return describe_env(found)
    return ""


def _value(facts: NamedFacts, name: str) -> str:
    return next((fact.value for fact in facts.named(f"{ENV}{name}") if fact.value is not None), "")


def describe_env(env: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in env.items())


def _judge_versions(issue: KnownIssue, facts: NamedFacts) -> tuple[Verdict, str]:
    named = facts.named(issue.component)
    versions = [fact.value for fact in named if fact.value is not None]
    if not versions:
        places = "; ".join(fact.source for fact in named)
        looked = f" ({places})" if places else ""
        return Verdict.UNKNOWN, f"the version of {issue.component} is not known{looked}"
    verdicts = [(version, _judge_version(issue, version)) for version in versions]
    worst = any_of(verdict for _, verdict in verdicts)
    reasons = (_reason(issue, version, verdict) for version, verdict in verdicts if verdict is worst)
    return worst, "; ".join(dict.fromkeys(reasons))


def _judge_version(issue: KnownIssue, version: str) -> Verdict:
    if issue.affected:
        return any_of(range_.judge(version) for range_ in issue.affected)
    # Every node has this component: the other conditions must be met, or the issue is not reported.
    return Verdict.BAD if issue.needs else Verdict.UNKNOWN


def _reason(issue: KnownIssue, version: str, verdict: Verdict) -> str:
    what = f"{issue.component} {version}"
    if not issue.affected:
        return f"{what} (any version)"
    if verdict is Verdict.BAD:
        bad = (range_ for range_ in issue.affected if range_.judge(version) is Verdict.BAD)
        return f"{what} is affected ({', '.join(map(str, bad))})"
    if verdict is Verdict.FINE:
        return f"{what} is not affected; affected: {issue.bad_versions}"
    if parse(issue.component, version) is None:
        return f"{what} is not a comparable version; affected: {issue.bad_versions}"
    if fixes := [range_.fixed for range_ in issue.affected if range_.lacks_cure(version)]:
        return f"{what} is older than {fixes[0]}, which fixes the issue; first affected version unknown"
    return f"unknown whether {what} is affected; affected: {issue.bad_versions}"


def fixed_long_before(issue: KnownIssue, day: date) -> str:
    """The release that fixed the issue, and its date, if that date is at least `LONG` before ``day``.

    Empty unless every affected range has such a release.
    """
    days = released().get(issue.component, {})
    fixes = [(days.get(range_.fixed or ""), range_.fixed) for range_ in issue.affected]
    dated = [(when, version) for when, version in fixes if when]
    if not dated or len(dated) < len(fixes) or day - max(dated)[0] < LONG:
        return ""
    when, version = max(dated)
    return f"{issue.component} {version}, which fixes the issue, was released in {when:%Y-%m}"
