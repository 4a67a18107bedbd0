"""The content of a diagnosis: known issues, gravest first; why; what to do; then unexplained errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpuipc_doctor.diagnose.diagnosis import Diagnosis, RankFiles, Recognised
from gpuipc_doctor.diagnose.occurrences import MOST, Occurrences
from gpuipc_doctor.knownissues import Confidence
from gpuipc_doctor.model import Relation
from gpuipc_doctor.present import markdown, terminal
from gpuipc_doctor.present.blocks import Block, Closing, Entry, Group, Item, Lines, Parts, do, table
from gpuipc_doctor.present.html import page
from gpuipc_doctor.present.text import counted, sanitise, shorten

DO_COLUMNS = 60
"""Of a remedy in the table of issues."""


class Limits(NamedTuple):
    """How much of each is shown; JSON has the rest."""

    signatures: int
    unknown: int
    names: int
    columns: int


BRIEF = Limits(signatures=4, unknown=10, names=6, columns=240)
VERBOSE = Limits(signatures=100, unknown=1000, names=MOST, columns=4096)

_UNITS = ("B", "kB", "MB", "GB", "TB")

_WORTH = {
    Confidence.HIGH: "nothing else is known to leave such lines",
    Confidence.MEDIUM: "of what leaves such lines this is the likeliest",
    Confidence.LOW: "other things leave such lines, too",
}
_TELL = (
    "What is not known of a node is judged when you give its inventory: run `gpuipc-doctor inventory --json` "
    "there, and here `gpuipc-doctor diagnose --inventory FILE LOG`."
)
_RELATION = {
    Relation.CONFIRMED: "the version is known to be bad",
    Relation.NEW: "though the version is not known to be bad",
    Relation.UNKNOWN: "version not known",
}


def screen(
    diagnosis: Diagnosis, *, width: int, color: bool = False, exit_code: int, limits: Limits = BRIEF
) -> str:
    """The whole page, in lines of at most ``width`` columns."""
    closing = Closing(_totals(diagnosis), f"exit {exit_code}")
    return terminal.screen([*_blocks(diagnosis, limits), closing], width=width, color=color)


def ticket(diagnosis: Diagnosis, *, exit_code: int, limits: Limits = BRIEF) -> str:
    """The same as Markdown, ending in a newline."""
    return markdown.render(_title(diagnosis, exit_code), _blocks(diagnosis, limits))


def html(diagnosis: Diagnosis, *, exit_code: int) -> str:
    """The same as a page, ending in a newline, with all that `VERBOSE` shows."""
    title = _title(diagnosis, exit_code)
    return page("diagnosis.html", title=title, simulated="", blocks=list(_blocks(diagnosis, VERBOSE)))


def _title(diagnosis: Diagnosis, exit_code: int) -> str:
    return f"{', '.join(_totals(diagnosis))} (exit {exit_code})"


def _blocks(diagnosis: Diagnosis, limits: Limits) -> Iterator[Block]:
    yield from _head(diagnosis, limits)
    if len(diagnosis.recognised) > 1:
        yield from table(("class", "issue", "do first"), map(_row, diagnosis.recognised))
    yield from (entry(one, limits) for one in diagnosis.recognised)
    if diagnosis.flights:
        items = tuple(Item(f"{_names('rank', one.ranks, limits)}: {one.says}") for one in diagnosis.flights)
        yield Entry("RANKS", "in PyTorch's Flight Recorder", items, "WARN", columns=7)
    yield from (_rank_files(one, limits) for one in diagnosis.rank_files)
    if diagnosis.unknown:
        yield _unknown(diagnosis, limits)
    if any(one.relation is Relation.UNKNOWN for one in diagnosis.recognised):
        yield Lines((_TELL,), hang=0)


def _row(one: Recognised) -> tuple[str, ...]:
    """An issue in a line of the summary."""
    maybe = "maybe " * (one.confidence is Confidence.LOW)
    return f"{maybe}{one.issue.kind}", one.issue.id, shorten(one.remedy.partition("; or ")[0], DO_COLUMNS)


def entry(one: Recognised, limits: Limits = BRIEF) -> Entry:
    """One known issue: where it is, why it is thought to be this one, what to check and what to do."""
    issue = one.issue
    word, look = ("MAYBE", "WARN") if one.confidence is Confidence.LOW else ("FOUND", "FAIL")
    number = "at least " * one.lines.at_least + counted(one.lines.count, "line")
    items = [Item(issue.title, hang=0), Item(f"{number}: {_where(one.lines, limits)}")]
    quoted = list({(seen.first.where, seen.count): seen for seen in one.signatures}.values())
    items += [_quoted(seen, limits) for seen in quoted[: limits.signatures]]
    if (more := len(quoted) - limits.signatures) > 0:
        items.append(Item(f"… and {more} more with -v", hang=0))
    checks = f"gpuipc-doctor check {' '.join(issue.checks)}" if issue.checks else ""
    items += [Item(_why(one), "Why: ")]
    items += [Item(f"{other.id}; to decide: {other.decide}", "Or: ") for other in one.lookalikes]
    items += [Item(checks, "Check: "), do(one.remedy)]
    items.append(Item(f"gpuipc-doctor known-issues show {issue.id}", "More: "))
    about = f"{issue.id} · {one.confidence.label} confidence, {_RELATION[one.relation]}"
    return Entry(word, about, tuple(items), look, columns=7)


def _why(one: Recognised) -> str:
    """One sentence. A contradiction stands in the place of what the lines are worth, not beside it."""
    if one.relation is Relation.NEW:
        return f"the lines look like it, but {one.reason}."
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
        head.append(Lines((f"known of the node: {', '.join(told)}",)))
    yield Group(tuple(head))


def _rank_files(one: RankFiles, limits: Limits) -> Entry:
    """``the same on 510 ranks; rank 17 (nid000004) differs``."""
    alike = f"the same on {counted(one.alike, 'rank')}"
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
    if (more := kinds - limits.unknown) > 0:
        items.append(Item(f"… and {more} more kinds with -v", hang=0, depth=1))
    if diagnosis.unknown_beyond:
        items.append(
            Item(f"… and at least {diagnosis.unknown_beyond} lines of still other kinds", hang=0, depth=1)
        )
    about = f"lines that tell of errors, of no known issue: {counted(kinds, 'kind')}, most telling first"
    return Entry("OTHER", about, tuple(items), gap=1, hang=1)


def _totals(diagnosis: Diagnosis) -> list[str]:
    """How much was recognised."""
    parts = [f"{counted(len(diagnosis.found), 'known issue')} recognised"]
    if diagnosis.hints:
        parts.append(counted(len(diagnosis.hints), "hint"))
    if troubled := sum(bool(log.trouble) for log in diagnosis.logs):
        parts.append(f"{counted(troubled, 'log')} not read to the end")
    return parts + ["interrupted"] * diagnosis.interrupted


def _quoted(seen: Occurrences, limits: Limits, depth: int = 0) -> Item:
    line = shorten(sanitise(seen.first.excerpt), limits.columns)
    return Item(f"{seen.count}{'+' * seen.at_least} × {line}", depth=depth)


def _where(seen: Occurrences, limits: Limits) -> str:
    """``job.out:95 to 171, 2023-12-07T21:47:30Z, host nid001097, ranks 0, 1``."""
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
    """``29.6 kB``, ``1.2 GB``."""
    power = min((len(str(number)) - 1) // 3, len(_UNITS) - 1)
    return f"{number / 1000**power:.{int(power > 0)}f} {_UNITS[power]}"
