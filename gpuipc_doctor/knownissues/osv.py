"""The database in OSV's words, for other programs. ``osv.schema.json`` describes the document.

OSV knows no version of which nobody has said whether it is bad: a range with such a bound is left out, the
versions that are known to be bad stand by name, and what was said of the bound is in ``database_specific``.
Unlike OSV asks, no day of the last change is given: ``edition`` says whether anything changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from gpuipc_doctor.knownissues.entry import KnownIssue
from gpuipc_doctor.model import Json
from gpuipc_doctor.versions import UNKNOWN, Range

SCHEMA = "gpuipc-doctor/known-issues/1"
ECOSYSTEM = "gpuipc-doctor"
"""Whose names of components these are."""

_ELSEWHERE = frozenset(["id", "title", "component", "symptom", "affected", "references", "kind", "where"])
"""The fields of an issue that OSV has words for, and the place of the file that it was read from."""


def document(issues: Iterable[KnownIssue], edition: str) -> dict[str, Json]:
    """All of these issues."""
    return {"schema": SCHEMA, "edition": edition, "issues": [_issue(issue) for issue in issues]}


def _issue(issue: KnownIssue) -> Json:
    own = {name: value for name, value in asdict(issue).items() if value and name not in _ELSEWHERE}
    for signature in own.get("signatures", ()):
        signature["confidence"] = signature["confidence"].label
    return {
        "id": issue.id,
        "summary": issue.title,
        "details": issue.symptom,
        "affected": [_affected(issue, one) for one in issue.affected] or [_affected(issue)],
        "references": [{"type": one.type.upper(), "url": one.url} for one in issue.references],
        "database_specific": {"class": issue.kind, **own},
    }


def _affected(issue: KnownIssue, range_: Range | None = None) -> Json:
    """One range; without one, versions do not decide."""
    affected: dict[str, Json] = {"package": {"ecosystem": ECOSYSTEM, "name": issue.component}}
    if range_ is None:
        return affected
    bounds = {
        name: value
        for name in ("introduced", "fixed", "last_affected")
        if (value := str(getattr(range_, name)))
    }
    if UNKNOWN not in bounds.values():
        affected["ranges"] = [{"type": "ECOSYSTEM", "events": [{name: bounds[name]} for name in bounds]}]
    if range_.known_bad:
        affected["versions"] = list(range_.known_bad)
    affected["database_specific"] = {**bounds, "known_good": list(range_.known_good)}
    return affected
