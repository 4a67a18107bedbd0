"""A diagnosis as text: what was recognised, surest first; why; what to do; then what nobody knows."""

from __future__ import annotations

from collections.abc import Sequence

from gpuipc_doctor.diagnose.diagnosis import Diagnosis, Recognised
from gpuipc_doctor.diagnose.occurrences import MOST, Occurrences
from gpuipc_doctor.knownissues import Confidence
from gpuipc_doctor.model import Relation
from gpuipc_doctor.report.page import MAX_WIDTH, MIN_WIDTH, Page
from gpuipc_doctor.report.text import columns, counted, sanitise, shorten

# How much of each is shown; --json has the rest.
SIGNATURES = 4
UNKNOWN = 10
NAMES = 6
LINE_COLUMNS = 240

_INDENT = " " * 7
_HANG = " " * 9

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


def render(diagnosis: Diagnosis, *, width: int, color: bool = False, exit_code: int) -> str:
    """The whole page, in lines of at most ``width`` columns."""
    page = Page(min(max(width, MIN_WIDTH), MAX_WIDTH), color)
    blocks = [_head(diagnosis, page)]
    blocks += [paragraph(one, page) for one in diagnosis.recognised]
    if diagnosis.unknown:
        blocks.append(_unknown(diagnosis, page))
    if any(one.relation is Relation.UNKNOWN for one in diagnosis.recognised):
        blocks.append(page.fill(_TELL))
    blocks.append(_ending(diagnosis, page, f"exit {exit_code}"))
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def paragraph(one: Recognised, page: Page) -> list[str]:
    """One known issue: where it is, why it is thought to be this one, what to check and what to do."""
    issue = one.issue
    word, look = ("MAYBE", "WARN") if one.confidence is Confidence.LOW else ("FOUND", "FAIL")
    about = f"{issue.id} · {one.confidence.label} confidence, {_RELATION[one.relation]}"
    first, *rest = page.fill(about, f"{word:<5}  ", _INDENT)
    checks = " ".join(issue.checks)
    lines = [page.paint(word, look) + first.removeprefix(word), *rest, *page.fill(issue.title, _INDENT)]
    number = "at least " * one.lines.at_least + counted(one.lines.count, "line")
    lines += page.fill(f"{number}: {_where(one.lines)}", _INDENT, _HANG)
    for seen in one.signatures[:SIGNATURES]:
        lines += _quoted(seen, page)
    if len(one.signatures) > SIGNATURES:
        lines += page.fill(f"… and {len(one.signatures) - SIGNATURES} more with --json", _INDENT)
    lines += _labelled("Why", _why(one), page)
    lines += _labelled("Check", f"gpuipc-doctor check {checks}" if checks else "", page)
    lines += _labelled("Do", one.remedy, page)
    return lines + _labelled("More", f"gpuipc-doctor known-issues show {issue.id}", page)


def _why(one: Recognised) -> str:
    """One sentence. What contradicts the lines is said in the place of what they are worth, not beside it."""
    if one.relation is Relation.NEW:
        return f"the lines look like it, but {one.reason}."
    return f"{_WORTH[one.signature]}{', and' if one.relation is Relation.CONFIRMED else ';'} {one.reason}."


def _head(diagnosis: Diagnosis, page: Page) -> list[str]:
    read = [log for log in diagnosis.logs if log.bytes]
    names = [log.name for log in read[:NAMES]] + [f"{len(read) - NAMES} more"] * (len(read) > NAMES)
    total = counted(sum(log.lines for log in read), "line")
    lines = page.join([", ".join(names) or "nothing", total, _size(sum(log.bytes for log in read))])
    if diagnosis.facts:
        told = (f"{fact.name.removeprefix('env:')} {fact.value}" for fact in diagnosis.facts if fact.value)
        lines += page.fill(f"known of the node: {', '.join(told)}", rest="  ")
    return lines


def _unknown(diagnosis: Diagnosis, page: Page) -> list[str]:
    kinds = len(diagnosis.unknown)
    title = (
        f"OTHER  lines that tell of errors, of no known issue: {counted(kinds, 'kind')}, most telling first"
    )
    lines = page.fill(title, rest=_INDENT)
    for seen in diagnosis.unknown[:UNKNOWN]:
        lines += _quoted(seen, page)
        lines += page.fill(_where(seen), _HANG, _HANG)
    if kinds > UNKNOWN:
        lines += page.fill(f"… and {kinds - UNKNOWN} more kinds with --json", _INDENT)
    if diagnosis.unknown_beyond:
        lines += page.fill(f"… and {diagnosis.unknown_beyond} lines of still other kinds", _INDENT)
    return lines


def _ending(diagnosis: Diagnosis, page: Page, code: str) -> list[str]:
    """How much was recognised, with the exit code at the last line's right end."""
    parts = [f"{counted(len(diagnosis.found), 'known issue')} recognised"]
    if diagnosis.hints:
        parts.append(counted(len(diagnosis.hints), "hint"))
    if troubled := sum(bool(log.trouble) for log in diagnosis.logs):
        parts.append(f"{counted(troubled, 'log')} not read to the end")
    if diagnosis.interrupted:
        parts.append("interrupted")
    *lines, last = page.join(parts)
    if columns(last) + 2 + len(code) > page.width:
        lines, last = [*lines, last], ""
    return [*lines, last + code.rjust(page.width - columns(last))]


def _quoted(seen: Occurrences, page: Page) -> list[str]:
    line = shorten(sanitise(seen.first.excerpt), LINE_COLUMNS)
    return page.fill(f"{seen.count}{'+' * seen.at_least} × {line}", _INDENT, _HANG)


def _labelled(label: str, text: str, page: Page) -> list[str]:
    return page.fill(text, f"{_INDENT}{label}: ", " " * (len(_INDENT) + len(label) + 2)) if text else []


def _where(seen: Occurrences) -> str:
    """``job.out:95 to 171, 2023-12-07T21:47:30Z, host nid001097, ranks 0, 1``."""
    first, last = seen.first, seen.last
    end = str(last.line) if last.log == first.log and last.line != first.line else last.where
    parts = [_span(first.where, end), _span(first.time, last.time)]
    parts += [_names("host", seen.hosts), _names("rank", seen.ranks)]
    return ", ".join(filter(None, parts))


def _span(first: str, last: str) -> str:
    return f"{first} to {last}" if first and last and first != last else first or last


def _names(word: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - NAMES}{'+' * (len(names) == MOST)} more" if len(names) > NAMES else ""
    return f"{word}{'s' * (len(names) > 1)} {', '.join(names[:NAMES])}{more}"


def _size(number: int) -> str:
    """``29.6 kB``, ``1.2 GB``."""
    power = min((len(str(number)) - 1) // 3, len(_UNITS) - 1)
    return f"{number / 1000**power:.{int(power > 0)}f} {_UNITS[power]}"
