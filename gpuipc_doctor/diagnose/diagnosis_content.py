"""Content of a diagnosis: known issues, most severe first, with reason and remedy; then unknown errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, TypedDict

from gpuipc_doctor.collective import logs
from gpuipc_doctor.diagnose.diagnosis import Diagnosis, Difference, LogRead, RankFiles, Recognised
from gpuipc_doctor.diagnose.exits import MEANINGS
from gpuipc_doctor.diagnose.occurrences import MOST, Occurrences, Place
from gpuipc_doctor.knownissues import Confidence, Message
from gpuipc_doctor.knownissues import KnownIssue as Issue
from gpuipc_doctor.knownissues.entry import Lookalike
from gpuipc_doctor.model import Fact
from gpuipc_doctor.present import markdown, terminal
from gpuipc_doctor.present.blocks import Block, Closing, Entry, Group, Item, Lines, Parts, actions, table
from gpuipc_doctor.present.html import page
from gpuipc_doctor.present.text import counted, sanitise, shorten
from gpuipc_doctor.report import json_documents
from gpuipc_doctor.report_types import Relation

DO_COLUMNS = 60
"""Columns of a remedy in the table of issues."""


class Limits(NamedTuple):
    """Maximum items shown; the JSON has all."""

    signatures: int
    unknown: int
    names: int
    columns: int
    config: str = ""
    """The option that printed commands need, with a space before it."""


BRIEF = Limits(signatures=4, unknown=10, names=6, columns=240)
VERBOSE = Limits(signatures=100, unknown=1000, names=MOST, columns=4096)

_UNITS = ("B", "kB", "MB", "GB", "TB")

_WORTH = {
    Confidence.HIGH: "no other cause of the matched lines is known",
    Confidence.MEDIUM: "the likeliest of several known causes",
    Confidence.LOW: "the matched lines also have other causes",
}
_TELL = (
    "To judge unknown versions, run `gpuipc-doctor inventory --json > FILE` on the node, then `gpuipc-doctor "
    "diagnose --inventory FILE LOG`."
)
_RELATION = {
    Relation.CONFIRMED: "the version is affected",
    Relation.NEW: "although the version is not known to be affected",
    Relation.UNKNOWN: "version not known",
}


def screen(
    diagnosis: Diagnosis, *, width: int, color: bool = False, exit_code: int, limits: Limits = BRIEF
) -> str:
    """The whole page, in lines of at most ``width`` columns."""
    closing = Closing(_totals(diagnosis), f"exit {exit_code}")
    return terminal.screen([*_blocks(diagnosis, limits), closing], width=width, color=color)


def ticket(diagnosis: Diagnosis, *, exit_code: int, limits: Limits = BRIEF) -> str:
    """The diagnosis as Markdown, ending in a newline."""
    return markdown.render(_title(diagnosis, exit_code), _blocks(diagnosis, limits))


def html(diagnosis: Diagnosis, *, exit_code: int, limits: Limits = VERBOSE) -> str:
    """The page as HTML, ending in a newline, by default with everything that `VERBOSE` shows."""
    title = _title(diagnosis, exit_code)
    return page("diagnosis.html", title=title, simulated="", blocks=list(_blocks(diagnosis, limits)))


def _title(diagnosis: Diagnosis, exit_code: int) -> str:
    return f"{', '.join(_totals(diagnosis))} (exit {exit_code})"


def _blocks(diagnosis: Diagnosis, limits: Limits) -> Iterator[Block]:
    yield from _head(diagnosis, limits)
    if diagnosis.flights:
        yield _at_fault(diagnosis.flights, limits)
    if len(diagnosis.recognised) > 1:
        yield from table(("class", "issue", "do first"), map(_row, diagnosis.recognised))
    named = any(difference.quote for difference in diagnosis.flights)
    yield from (
        entry(_without_needless_advice(seen) if named else seen, limits) for seen in diagnosis.recognised
    )
    yield from (
        _rank_files(files, limits) for files in diagnosis.rank_files if files.differences or not named
    )
    if diagnosis.unknown:
        yield _unknown(diagnosis, limits)
    yield from _unread(diagnosis.logs, limits)
    if any(
        seen.relation is Relation.UNKNOWN and isinstance(seen.issue, Issue) for seen in diagnosis.recognised
    ):
        yield Lines((_TELL,), hang=0)


def _at_fault(found: Sequence[Difference], limits: Limits) -> Entry:
    """The ranks that differ from the others in their collectives, each with the line that shows it."""
    items: list[Item] = []
    for difference in found[: limits.unknown]:
        subject = "" if difference.quote else f"{_names('rank', difference.ranks, limits)}: "
        items.append(Item(f"{subject}{difference.says}", hang=2))
        items.append(Item(shorten(sanitise(difference.quote), limits.columns), depth=1))
        items += actions((difference.do,) if difference.do else ())
    items += _rest(len(found) - limits.unknown, "more with -v")
    look = "FAIL" if any(difference.blames for difference in found) else "WARN"
    return Entry("RANKS", "that differ in their collectives", tuple(items), look, columns=7)


def _without_needless_advice(one: Recognised) -> Recognised:
    """The issue without advice on how to find a rank, if the collectives in its lines have named the rank."""
    return replace(one, remedies=()) if logs.is_read(one.lines.first.excerpt) else one


def _row(one: Recognised) -> tuple[str, ...]:
    maybe = "maybe " * (one.confidence is Confidence.LOW)
    return (
        f"{maybe}{one.issue.kind}",
        one.issue.id,
        shorten(next(iter(one.remedies), ""), DO_COLUMNS),
    )


def entry(one: Recognised, limits: Limits = BRIEF) -> Entry:
    """An entry: places; of an issue the reason, checks and remedies, of a message what to do."""
    issue = one.issue
    word, look = ("MAYBE", "WARN") if one.confidence is Confidence.LOW else ("FOUND", "FAIL")
    number = "at least " * one.lines.at_least + counted(one.lines.count, "line")
    items = [Item(issue.title, hang=0), Item(f"{number}: {_where(one.lines, limits)}")]
    quoted = list({(seen.first.where, seen.count): seen for seen in one.signatures}.values())
    items += [_quoted(seen, limits) for seen in quoted[: limits.signatures]]
    items += _rest(len(quoted) - limits.signatures, "more with -v")
    sure = f"{issue.id} · {one.confidence.label} confidence"
    if isinstance(issue, Message):
        items += actions(issue.look)
        items.append(Item(f"gpuipc-doctor explain {issue.id}{limits.config}", "More: "))
        return Entry(word, sure, tuple(items), look, columns=7)
    checks = f"gpuipc-doctor check {' '.join(issue.checks)}{limits.config}" if issue.checks else ""
    items += [Item(_why(one), "Why: ")]
    items += [Item(f"{other.id}; to decide: {other.decide}", "Or: ") for other in one.lookalikes]
    items += [Item(checks, "Check: "), *actions(one.remedies)]
    items.append(Item(f"gpuipc-doctor known-issues show {issue.id}{limits.config}", "More: "))
    return Entry(word, f"{sure}, {_RELATION[one.relation]}", tuple(items), look, columns=7)


def _why(one: Recognised) -> str:
    """One sentence: the evidence for the issue and the version, or the version that contradicts it."""
    if one.relation is Relation.NEW:
        return f"the lines match, but {one.reason}."
    return f"{_WORTH[one.signature]}{', and' if one.relation is Relation.CONFIRMED else ';'} {one.reason}."


def _head(diagnosis: Diagnosis, limits: Limits) -> Iterator[Block]:
    read = [log for log in diagnosis.logs if log.bytes]
    names = [log.name for log in read[: limits.names]]
    names += [f"{len(read) - limits.names} more"] * (len(read) > limits.names)
    total = counted(sum(log.lines for log in read), "line")
    head: list[Block] = [
        Parts((", ".join(names) or "nothing", total, _size(sum(log.bytes for log in read)))),
    ]
    if diagnosis.facts:
        told = (f"{fact.name.removeprefix('env:')} {fact.value}" for fact in diagnosis.facts if fact.value)
        head.append(Lines((f"node: {', '.join(told)}",)))
    yield Group(tuple(head))


def _rank_files(one: RankFiles, limits: Limits) -> Entry:
    alike = f"the error lines are the same on {counted(one.alike, 'rank')}"
    some = [
        f"{_names('', seen.ranks, limits).strip()} differ{'s' * (len(seen.ranks) == 1)}"
        for seen in one.differences
    ]
    items = [Item(", ".join(one.issues), "Same: ")]
    items += [
        Item(f"{said}: {seen.says}; see {seen.log}") for said, seen in zip(some, one.differences, strict=True)
    ]
    title = "; ".join([alike, *some[: limits.names]])
    return Entry("RANKS", title, tuple(items[: limits.unknown + 1]), "-", columns=7)


def _unknown(diagnosis: Diagnosis, limits: Limits) -> Entry:
    kinds = len(diagnosis.unknown)
    items = []
    for seen in diagnosis.unknown[: limits.unknown]:
        items += [_quoted(seen, limits, depth=1), Item(_where(seen, limits), hang=0, depth=3)]
    items += _rest(kinds - limits.unknown, "more kinds with -v", depth=1)
    items += _rest(diagnosis.unknown_beyond, "error lines of kinds not listed", "at least ", depth=1)
    about = f"error lines that match no known issue: {counted(kinds, 'kind')}, most relevant first"
    return Entry("OTHER", about, tuple(items), gap=1, hang=1)


def _unread(logs: Iterable[LogRead], limits: Limits) -> Iterator[Entry]:
    """Why logs, or parts of them, were not searched."""
    said = [f"{log.name}: {text}" for log in logs for text in (log.trouble, *log.notes) if text]
    items = [Item(text, depth=1) for text in said[: limits.unknown]]
    items += _rest(len(said) - limits.unknown, "more with -v", depth=1)
    if said:
        yield Entry("UNREAD", "not searched, or not searched to the end", tuple(items), "WARN", gap=1, hang=1)


def _rest(number: int, what: str, how: str = "", depth: int = 0) -> list[Item]:
    return [Item(f"… and {how}{number} {what}", hang=0, depth=depth)] if number > 0 else []


def _totals(diagnosis: Diagnosis) -> list[str]:
    messages = sum(isinstance(one.issue, Message) for one in diagnosis.found)
    issues = len(diagnosis.found) - messages
    what = [counted(issues, "known issue")] * bool(issues or not messages)
    what += [counted(messages, "message")] * bool(messages)
    parts = [f"{' and '.join(what)} recognised"]
    if diagnosis.hints:
        parts.append(counted(len(diagnosis.hints), "hint"))
    if troubled := sum(bool(log.trouble) for log in diagnosis.logs):
        parts.append(f"{counted(troubled, 'log')} not read to the end")
    return parts + ["interrupted"] * diagnosis.interrupted


def _quoted(seen: Occurrences, limits: Limits, depth: int = 0) -> Item:
    line = shorten(sanitise(seen.first.excerpt), limits.columns)
    return Item(f"{seen.count}{'+' * seen.at_least} × {line}", depth=depth)


def _where(seen: Occurrences, limits: Limits) -> str:
    first, last = seen.first, seen.last
    end = str(last.line) if last.log == first.log and last.line != first.line else last.where
    parts = [_span(first.where, end), _span(first.time, last.time)]
    parts += [_names("host", seen.hosts, limits), _names("rank", seen.ranks, limits)]
    return ", ".join(filter(None, parts))


def _span(first: str, last: str) -> str:
    return f"{first} to {last}" if first and last and first != last else first or last


def _names(word: str, names: Sequence[str], limits: Limits) -> str:
    if not names:
        return ""
    more = len(names) - limits.names
    rest = f" and {more}{'+' * (len(names) == MOST)} more" if more > 0 else ""
    return f"{word}{'s' * (len(names) > 1 and bool(word))} {', '.join(names[: limits.names])}{rest}"


def _size(number: int) -> str:
    power = min((len(str(number)) - 1) // 3, len(_UNITS) - 1)
    return f"{number / 1000**power:.{int(power > 0)}f} {_UNITS[power]}"


# -- JSON --------------------------------------------------------------------------------------------------


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


class Content:
    """A diagnosis as JSON; `Diagnosis` documents the fields."""

    interrupted: bool
    logs: tuple[LogRead, ...]
    facts: tuple[Fact, ...]
    recognised: list[KnownIssue]
    unknown: list[LogLines]
    unknown_beyond: int
    rank_files: tuple[RankFiles, ...]
    flights: tuple[Difference, ...]


KIND = json_documents.Kind(
    "gpuipc-doctor/diagnosis/4",
    Content,
    "What gpuipc-doctor diagnose --json prints.",
    {"known_issues": str, "exit_code": json_documents.codes(MEANINGS)},
)


def dumps(diagnosis: Diagnosis, *, exit_code: int, edition: str) -> str:
    """A diagnosis made with this edition of the known issues, as JSON in ASCII, ending in a newline."""
    return KIND.dumps(
        diagnosis,
        known_issues=edition,
        exit_code=exit_code,
        recognised=[_known_issue(seen) for seen in diagnosis.recognised],
        unknown=[_lines(lines) for lines in diagnosis.unknown],
    )


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
        "checks": () if isinstance(issue, Message) else issue.checks,
        "remedy": "; or ".join(one.remedies),
        "references": [] if isinstance(issue, Message) else [ref.url for ref in issue.references],
        "lines": _lines(one.lines),
        "lookalikes": one.lookalikes,
        "signatures": [_lines(lines) for lines in one.signatures],
    }


def _lines(lines: Occurrences) -> LogLines:
    return LogLines(
        count=lines.count, at_least=lines.at_least, first=_line(lines.first), last=_line(lines.last),
        hosts=lines.hosts, ranks=lines.ranks,
    )  # fmt: skip


def _line(at: Place) -> LogLine:
    return LogLine(log=at.log, line=at.line, time=at.time, host=at.host, rank=at.rank, text=at.excerpt)
