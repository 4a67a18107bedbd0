"""One paragraph for each thing that is not PASS: what failed, at which call, which bug it is, what to do."""

from __future__ import annotations

from collections.abc import Container, Iterator
from itertools import takewhile

from gpuipc_doctor.log_lines import most_telling
from gpuipc_doctor.model import Report, Result, RoleOutcome, Status
from gpuipc_doctor.report import sentences
from gpuipc_doctor.report.blocks import Verdict
from gpuipc_doctor.report.digest import Paragraph, culprits, loose_joins, paragraphs
from gpuipc_doctor.report.page import Page
from gpuipc_doctor.report.text import sanitise, shorten

# How much of each is shown; the JSON report holds the rest.
FRAMES = 6
PROCESSES = 2
LOG_LINES = 4
LOG_COLUMNS = 240
EVIDENCE_LINES = 8

OUTERMOST = ("_call (running.py:", "run_role (worker.py:")
"""The frame that calls the role function, now and in older reports; what is further out is the same."""

_INDENT = " " * 6
_HANG = " " * 8


def blocks(report: Report, page: Page) -> Iterator[list[str]]:
    """Paragraphs as lines, worst first; then known issues without a paragraph; then what was skipped."""
    shown = paragraphs(report)
    skips: list[str] = []
    told: set[str] = set()
    for paragraph in shown:
        word, heading = paragraph.status.value, title(report, paragraph)
        if paragraph.status is Status.SKIP:
            others = ", and so on" if paragraph.figures_differ else ""
            skips += _heading(word, f"{heading}: {sentences.summary(paragraph.finding)}{others}", page)
            skips += _remedy(paragraph.finding.remedy, page)
        else:
            yield [*_heading(word, heading, page), *_body(paragraph, told, page)]
            told.update(join.issue for join in paragraph.joins)
    for join in loose_joins(report, shown):
        yield [
            *_heading(join.relation.value.upper(), join.issue, page),
            *page.fill("; ".join(filter(None, (join.title, join.reason))), _INDENT),
            *_remedy(join.remedy, page),
        ]
    if skips:
        yield skips


def _heading(word: str, title: str, page: Page) -> list[str]:
    first, *rest = page.fill(title, f"{word:<4}  ", _INDENT)
    return [page.paint(word, word) + first.removeprefix(word), *rest]


def title(report: Report, paragraph: Paragraph) -> str:
    """``ipc-reopen (destroy-context) on cuda:0-3``: the probes are named when others ended differently."""
    names = []
    for check in paragraph.checks:
        here = paragraph.probes(check)
        everywhere = {r.probe for r in report.results if r.check == check and r.probe}
        names.append(f"{check} ({', '.join(here)})" if here and set(here) != everywhere else check)
    where = f" on {paragraph.where}" if paragraph.where else ""
    probes = {(result.check, result.probe) for result in paragraph.results}
    ran = {result.repetition for result in report.results if (result.check, result.probe) in probes}
    how_often = f", {paragraph.times} of {len(ran)} times" if paragraph.times < len(ran) else ""
    return ", ".join(names) + where + how_often


def _body(paragraph: Paragraph, told: set[str], page: Page) -> Iterator[str]:
    """``told``: ids of the known issues that a paragraph above has told of; they are not told again."""
    first, lines = paragraph.results[0], evidence(paragraph, told)
    yield from page.fill(sentences.summary(paragraph.finding), _INDENT)
    for line in lines[:EVIDENCE_LINES]:
        yield from _item(line, page)
    if len(lines) > EVIDENCE_LINES:
        yield from _item(f"… and {len(lines) - EVIDENCE_LINES} more in the JSON report", page)
    if paragraph.figures_differ:
        yield from _item(f"(figures of {first.subject}; those of the others are in the JSON report)", page)
    for role in culprits(first):
        yield from _remains(role, first, page)
    if paragraph.passed_beside:
        yield from _item(f"Passed here: {', '.join(paragraph.passed_beside)}.", page)
    for verdict in verdicts(paragraph, told):
        yield from _item(verdict.text, page)
        yield from _remedy(verdict.remedy, page)
    yield from _remedy(remedy(paragraph, told), page)
    logs = tuple(dict.fromkeys(result.logs for result in paragraph.results if result.logs))
    if logs:
        yield from _item(f"Logs: {logs[0]}" + (f" (and {len(logs) - 1} more)" if logs[1:] else ""), page)


def _remains(role: RoleOutcome, result: Result, page: Page) -> Iterator[str]:
    """What a role left: its stacks, innermost frame first, and the end of what it printed."""
    python = tuple(takewhile(lambda frame: not frame.startswith(OUTERMOST), role.python_stack))
    for kind, frames in (("python", python), ("native", role.native_stack)):
        if frames:
            innermost = f"{kind} stack of {role.role}: {frames[0]}"
            more = ["…"] if len(frames) > FRAMES else []
            yield from page.join([innermost, *frames[1:FRAMES], *more], "<", _INDENT, _HANG)
    said = "\n".join((sentences.summary(result.finding), *sentences.evidence(result.finding)))
    if not role.native_stack:
        for line in role.kernel[:PROCESSES]:
            if line not in said:
                yield from _item(f"kernel: {line}", page)
    log = [line for line in role.log_tail if line.strip()]
    half = LOG_LINES // 2
    before, end = log[:-half], log[-half:]
    log = [*(most_telling(before, half) or before[:half]), *end]
    if log and log[-1] not in said:
        yield from _item(f"{role.role} printed, among other lines:", page)
        for line in log:
            yield from page.fill(shorten(sanitise(line), LOG_COLUMNS), _HANG, _HANG + "  ")


def evidence(paragraph: Paragraph, told: Container[str]) -> list[str]:
    """Its lines, without what was told with a known issue above. ``told``: the ids of those."""
    titles = {join.title for join in paragraph.joins if join.issue in told}
    return [line for line in sentences.evidence(paragraph.finding) if line not in titles]


def remedy(paragraph: Paragraph, told: Container[str]) -> str:
    """What to do, unless that was told with a known issue above."""
    stale = {join.remedy for join in paragraph.joins if join.issue in told}
    return "" if paragraph.finding.remedy in stale else paragraph.finding.remedy


def verdicts(paragraph: Paragraph, told: Container[str]) -> Iterator[Verdict]:
    """Those on its known issues, without what the finding says already."""
    finding = paragraph.finding
    said = "\n".join((sentences.summary(finding), *sentences.evidence(finding)))
    for join in paragraph.joins:
        head = f"Known issue {join.issue} {join.relation.value.upper()}"
        if join.issue in told:
            yield Verdict(f"{head}, see above.", "")
            continue
        news = "; ".join(text for text in (join.title, join.reason) if text not in said)
        yield Verdict(
            f"{head}: {news}" if news else head, "" if join.remedy == finding.remedy else join.remedy
        )


def _remedy(remedy: str, page: Page) -> list[str]:
    return page.fill(remedy, _INDENT + "Do: ", _INDENT + "    ")


def _item(text: str, page: Page) -> list[str]:
    return page.fill(text, _INDENT, _HANG)
