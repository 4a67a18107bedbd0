"""Join the known issues with the versions of a node and with what the probes saw there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gpuipc_doctor.knownissues.entry import KnownIssue
from gpuipc_doctor.knownissues.signatures import Confidence
from gpuipc_doctor.knownissues.versions import Verdict
from gpuipc_doctor.model import Fact, Join, Relation, Result, Status

_AGAINST = {Verdict.FINE: Relation.NEW, Verdict.UNKNOWN: Relation.UNKNOWN}


def match_versions(issues: Iterable[KnownIssue], facts: Sequence[Fact]) -> tuple[Join, ...]:
    """The known issues to be expected of the versions alone, before any probe ran: all `Relation.LATENT`."""
    return join(issues, facts, ())


def join(issues: Iterable[KnownIssue], facts: Sequence[Fact], results: Sequence[Result]) -> tuple[Join, ...]:
    """What each known issue has to do with this node; one that has nothing to do with it is left out."""
    return tuple(one for issue in issues if not issue.withdrawn for one in _join(issue, facts, results))


def _join(issue: KnownIssue, facts: Sequence[Fact], results: Sequence[Result]) -> Iterator[Join]:
    verdict, reason = issue.judge(facts)
    asked = [result for result in results if result.check in issue.detected_by]
    failed = [result for result in asked if result.finding.status is Status.FAIL]
    least = Confidence.LOW if verdict is Verdict.BAD else Confidence.MEDIUM
    telling = [result for result in failed if (issue.recognises(result, facts) or 0) >= least]
    if verdict is Verdict.BAD:
        guilty = telling if issue.signatures else failed
        relation = Relation.CONFIRMED if guilty else Relation.LATENT
        speaking = guilty or asked
        if not guilty and asked:
            reason += f"; {_not_seen(asked)}"
    elif telling:
        relation, speaking = _AGAINST[verdict], telling
    else:
        return
    yield Join(
        issue=issue.id,
        title=issue.title,
        relation=relation,
        reason=reason,
        remedy=issue.remedy(facts),
        checks=tuple(dict.fromkeys(result.check for result in speaking)),
        subjects=tuple(dict.fromkeys(result.subject for result in speaking)),
    )


def _not_seen(asked: Sequence[Result]) -> str:
    """What the checks that look for an issue said, when none of them saw it."""
    said = {
        Status.FAIL: "failed in another way",
        Status.ERROR: "could not tell",
        Status.SKIP: "did not run",
    }
    worst = max((result.finding.status for result in asked), key=lambda status: status.severity)
    if worst is Status.SKIP and any(r.finding.status is not Status.SKIP for r in asked):
        worst = Status.PASS
    checks = ", ".join(dict.fromkeys(result.check for result in asked))
    return f"{checks} {said.get(worst, 'did not see it here')}"
