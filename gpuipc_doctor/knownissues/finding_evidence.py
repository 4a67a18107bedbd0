"""Whether a finding shows a known issue, or is evidence against it."""

from __future__ import annotations

from collections.abc import Sequence

from gpuipc_doctor.knownissues.affected import describe_env
from gpuipc_doctor.knownissues.entry import KnownIssue
from gpuipc_doctor.model import Evidence, EvidenceKind, Finding, Json, Trial
from gpuipc_doctor.report_types import Result


def shows(issue: KnownIssue, result: Result) -> bool:
    """Whether this result shows the issue: ``detected_by`` names its check or its key."""
    is_named = result.check in issue.detected_by or result.key in issue.detected_by
    did = result.finding.values.get("did")
    return is_named and (not issue.history or not isinstance(did, list) or _is_history(issue, did))


def _is_history(issue: KnownIssue, did: Sequence[Json]) -> bool:
    left = iter(did)
    return did[-1:] == [issue.history[-1]] and all(operation in left for operation in issue.history)


def contradiction(issue: KnownIssue, finding: Finding) -> str:
    """Evidence against this issue as the cause; empty if there is none.

    The evidence is a workaround that did not help, or a control that also failed.
    """
    if is_cured(issue, finding):
        return ""
    for item in _trials(issue, finding):
        env, do = item.values.get("env"), item.values.get("do")
        if item.values.get("outcome") == Trial.DOES_NOT_HELP.value and isinstance(env, dict):
            return f"but {do or describe_env(env)} does not help"
    cures = [workaround.env for workaround in issue.workarounds if workaround.env]
    for item in finding.evidence:
        if item.kind is EvidenceKind.CONTROL and item.values.get("failed"):
            env = item.values.get("env")
            if env is None:
                return "but the probe's control also failed"
            if any(cure.items() <= env.items() for cure in cures):
                return f"but the result with {describe_env(env)} is the same"
    return ""


def is_cured(issue: KnownIssue, finding: Finding) -> bool:
    """Whether a workaround of this issue was tried on the finding, and helps."""
    return any(item.values.get("outcome") == Trial.HELPS.value for item in _trials(issue, finding))


def _trials(issue: KnownIssue, finding: Finding) -> list[Evidence]:
    return [item for item in finding.evidence if _is_trial(issue, item)]


def _is_trial(issue: KnownIssue, item: Evidence) -> bool:
    """Whether the evidence is the result of a trial of one of the issue's workarounds."""
    if item.kind is not EvidenceKind.TRIAL:
        return False
    env, without = item.values.get("env"), item.values.get("without")
    return any(
        (workaround.env and workaround.env == env)
        or (workaround.without and list(workaround.without) == without)
        for workaround in issue.workarounds
    )
