"""A diagnosis as JSON for programs; ``diagnosis.schema.json`` describes it."""

from __future__ import annotations

from typing import Literal, TypedDict

from gpuipc_doctor.diagnose.diagnosis import Diagnosis, Difference, LogRead, RankFiles, Recognised
from gpuipc_doctor.diagnose.exits import MEANINGS
from gpuipc_doctor.diagnose.occurrences import Occurrences, Place
from gpuipc_doctor.knownissues.entry import Lookalike
from gpuipc_doctor.model import Fact, Json, Relation
from gpuipc_doctor.report import documents

SCHEMA = "gpuipc-doctor/diagnosis/3"
"""Any change of what may stand in the document raises the number."""


class LogLine(TypedDict):
    log: str
    line: int
    time: str
    host: str
    rank: str
    text: str


class LogLines(TypedDict):
    count: int
    at_least: bool
    first: LogLine
    last: LogLine
    hosts: tuple[str, ...]
    ranks: tuple[str, ...]


KnownIssue = TypedDict(
    "KnownIssue",
    {
        "issue": str,
        "title": str,
        "component": str,
        "class": str,
        "confidence": Literal["high", "medium", "low"],
        "relation": Relation,
        "reason": str,
        "checks": tuple[str, ...],
        "remedy": str,
        "references": list[str],
        "lines": LogLines,
        "lookalikes": tuple[Lookalike, ...],
        "signatures": list[LogLines],
    },
)


class Document(TypedDict):
    """The edition is that of the database of known issues; `Diagnosis` explains the rest."""

    known_issues: str
    exit_code: int
    interrupted: bool
    logs: tuple[LogRead, ...]
    facts: tuple[Fact, ...]
    recognised: list[KnownIssue]
    unknown: list[LogLines]
    unknown_beyond: int
    rank_files: tuple[RankFiles, ...]
    flights: tuple[Difference, ...]


def schema() -> Json:
    about = "What gpuipc-doctor diagnose --json prints."
    codes = documents.codes(MEANINGS)
    return documents.schema(SCHEMA, Document, about, known_issues=str, exit_code=codes)


def dumps(diagnosis: Diagnosis, *, exit_code: int, edition: str) -> str:
    """``diagnosis``, made with this edition of the known issues, as JSON in ASCII, ending in a newline."""
    document: Document = {
        "known_issues": edition,
        "exit_code": exit_code,
        "interrupted": diagnosis.interrupted,
        "logs": diagnosis.logs,
        "facts": diagnosis.facts,
        "recognised": [_known_issue(one) for one in diagnosis.recognised],
        "unknown": [_lines(one) for one in diagnosis.unknown],
        "unknown_beyond": diagnosis.unknown_beyond,
        "rank_files": diagnosis.rank_files,
        "flights": diagnosis.flights,
    }
    return documents.dumps({"schema": SCHEMA, **document})


def _known_issue(one: Recognised) -> KnownIssue:
    issue = one.issue
    return {
        "issue": issue.id,
        "title": issue.title,
        "component": issue.component,
        "class": issue.kind,
        "confidence": one.confidence.label,  # type: ignore[typeddict-item]
        "relation": one.relation,
        "reason": one.reason,
        "checks": issue.checks,
        "remedy": one.remedy,
        "references": [reference.url for reference in issue.references],
        "lines": _lines(one.lines),
        "lookalikes": one.lookalikes,
        "signatures": [_lines(lines) for lines in one.signatures],
    }


def _lines(lines: Occurrences) -> LogLines:
    return {
        "count": lines.count,
        "at_least": lines.at_least,
        "first": _line(lines.first),
        "last": _line(lines.last),
        "hosts": lines.hosts,
        "ranks": lines.ranks,
    }


def _line(place: Place) -> LogLine:
    return {
        "log": place.log,
        "line": place.line,
        "time": place.time,
        "host": place.host,
        "rank": place.rank,
        "text": place.excerpt,
    }
