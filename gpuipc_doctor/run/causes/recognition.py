"""Look up what a failure printed among the known issues and messages, as `diagnose` does with logs.

`knownissues.joining` joins the known issues that name the check; this asks all others, and all messages, of
the tail of a log, a library's own words, a call and its code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpuipc_doctor import knownissues
from gpuipc_doctor.knownissues import Confidence, KnownIssue, Message
from gpuipc_doctor.knownissues.signatures import result_text
from gpuipc_doctor.model import Evidence, EvidenceKind, Fact, Status
from gpuipc_doctor.report_types import Join, Relation, Result
from gpuipc_doctor.run.results import Explanation, kind_of_failure

if TYPE_CHECKING:
    from gpuipc_doctor.diagnose.diagnosis import Recognised
    from gpuipc_doctor.diagnose.examination import Examination

MOST = 3
"""Maximum entries named for a failure, most severe first."""

MOST_TEXTS = 32
"""Maximum different failures that are looked up, each in 0.1 s."""


def recognise(
    results: Iterable[Result],
    joins: Sequence[Join],
    facts: Sequence[Fact],
    issues: Iterable[KnownIssue],
    dirs: Iterable[Path] = (),
) -> dict[object, Explanation]:
    """`kind_of_failure` → what its texts show. Equal failures are looked up together.

    ``dirs``: a site's directories of messages, which are read only if something failed.
    """
    failed: dict[object, list[Result]] = {}
    for result in results:
        if result.finding.status in (Status.FAIL, Status.ERROR):
            failed.setdefault(kind_of_failure(result), []).append(result)
    if not failed:
        return {}
    from gpuipc_doctor.diagnose.examination import Examination  # a healthy node needs no search

    first = Examination((*issues, *knownissues.load_messages(dirs)))
    shown: dict[object, Explanation] = {}
    for kind, equal in list(failed.items())[:MOST_TEXTS]:
        shown_by = [join for join in joins if any(result.ref in join.findings for result in equal)]
        if any(join.relation is Relation.CONFIRMED for join in shown_by):
            continue  # it is explained
        joined = {join.issue for join in shown_by}
        found = [one for one in _found(first.anew(), equal, facts) if one.issue.id not in joined][:MOST]
        sure = [one for one in found if one.confidence > Confidence.LOW]
        remedy = next((one.remedies[0] for one in sure if one.remedies), "")
        shown[kind] = Explanation(remedy=remedy, evidence=tuple(map(_evidence, found)))
    return shown


def _found(examination: Examination, equal: Iterable[Result], facts: Sequence[Fact]) -> Sequence[Recognised]:
    """What the texts show; hints, if they show nothing else."""
    for text in dict.fromkeys(map(result_text, equal)):
        log = examination.log("")
        log.feed(text.encode("utf-8", "replace"))
        log.flush()
    diagnosis = examination.conclude((), facts)
    return diagnosis.found or diagnosis.hints[:1]


def _evidence(one: Recognised) -> Evidence:
    values = {
        "kind": "message" if isinstance(one.issue, Message) else "known issue",
        "entry": one.issue.id,
        "confidence": one.confidence.label,
        "title": one.issue.title,
    }
    return Evidence(EvidenceKind.RECOGNISED, "{kind} {entry} ({confidence} confidence): {title}", values)
