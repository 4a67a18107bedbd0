"""A diagnosis as JSON for programs.

``diagnosis.schema.json`` describes the document (JSON Schema, draft 2020-12); any change of what may stand
in it raises the number at the end of `SCHEMA`.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from gpuipc_doctor.diagnose.diagnosis import Diagnosis, Recognised
from gpuipc_doctor.diagnose.occurrences import Occurrences, Place
from gpuipc_doctor.model import Json

SCHEMA = "gpuipc-doctor/diagnosis/2"


def dumps(diagnosis: Diagnosis, *, exit_code: int, edition: str) -> str:
    """``diagnosis``, made with this edition of the known issues, as JSON in ASCII, ending in a newline."""
    document = {
        "schema": SCHEMA,
        "known_issues": edition,
        "exit_code": exit_code,
        "interrupted": diagnosis.interrupted,
        "logs": [asdict(log) for log in diagnosis.logs],
        "facts": [asdict(fact) for fact in diagnosis.facts],
        "recognised": [_recognised(one) for one in diagnosis.recognised],
        "unknown": [_occurrences(one) for one in diagnosis.unknown],
        "unknown_beyond": diagnosis.unknown_beyond,
    }
    return json.dumps(_encodable(document), indent=2) + "\n"


def _recognised(one: Recognised) -> Json:
    issue = one.issue
    return {
        "issue": issue.id,
        "title": issue.title,
        "component": issue.component,
        "class": issue.kind,
        "confidence": one.confidence.label,
        "relation": one.relation.value,
        "reason": one.reason,
        "checks": list(issue.checks),
        "remedy": one.remedy,
        "references": [reference.url for reference in issue.references],
        "lines": _occurrences(one.lines),
        "signatures": [_occurrences(lines) for lines in one.signatures],
    }


def _occurrences(lines: Occurrences) -> Json:
    return {
        "count": lines.count,
        "at_least": lines.at_least,
        "first": _place(lines.first),
        "last": _place(lines.last),
        "hosts": list(lines.hosts),
        "ranks": list(lines.ranks),
    }


def _place(place: Place) -> Json:
    return {
        "log": place.log,
        "line": place.line,
        "time": place.time,
        "host": place.host,
        "rank": place.rank,
        "text": place.excerpt,
    }


def _encodable(value: Any) -> Json:
    """``value`` with a question mark for each byte of a file's name that is no text."""
    if isinstance(value, dict):
        return {key: _encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(item) for item in value]
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
