"""Content of a fleet's screen: groups of nodes, findings, drift, slow nodes; for a terminal and a ticket."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from gpuipc_doctor.fleet.fold import (
    Drift,
    FactValue,
    Fleet,
    Group,
    IssueOnNodes,
    MissingReports,
    Outlier,
    Problem,
)
from gpuipc_doctor.fleet.summary import MatchedIssue, State
from gpuipc_doctor.grouping import by_key
from gpuipc_doctor.model import Status
from gpuipc_doctor.present import blocks, markdown, terminal
from gpuipc_doctor.present.blocks import (
    Block,
    Closing,
    Column,
    Entry,
    Grid,
    Item,
    Lines,
    Notice,
    Parts,
    do,
    table,
)
from gpuipc_doctor.present.text import counted, quantity, shorten
from gpuipc_doctor.report import first_aid
from gpuipc_doctor.report.acceptance import Verdict
from gpuipc_doctor.vendors import VENDORS, untried

T = TypeVar("T")

SHOWN = 12
"""Maximum groups, findings, reasons, facts or figures; more are only counted, but are in the JSON."""

MAX_LINES = 60
"""Maximum lines of the screen before its last line."""

SHARE = 0.5
"""Fraction of the remaining lines that each section may use."""

SHOWN_ISSUES = 3
"""Maximum known issues listed for a version."""

SHORT = {"PASS": "pass", "SKIP": "skip", "WARN": "WARN", "ERROR": "ERR", "FAIL": "FAIL", "": "-"}


def screen(fleet: Fleet, *, width: int = 80, color: bool = False) -> str:
    """The screen, in lines of at most ``width`` columns, ending in a newline."""
    return terminal.screen(_screen(fleet, width), width=width, color=color)


def _screen(fleet: Fleet, width: int) -> Iterator[Block]:
    counts = [(status, len(fleet.nodes(status))) for status in reversed(Status)]
    words = [f"{count} {status.value}" for status, count in counts if count]
    worst = next((status for status, count in counts if count), Status.SKIP)
    head = blocks.Group(tuple(_header(fleet)))
    yield head
    hint = Lines(("to see all, run `fleet report DIR` with --format html, --format markdown or --json",))
    left = MAX_LINES - _height([head], width) - _height([hint], width)
    is_cut = False
    for section in (_matrix, _problems, _first_aid, _silence_entries, _drifts, _slow, _skipped):
        for shown in range(SHOWN, -1, -1):
            drawn, is_whole = section(fleet, shown)
            if (height := _height(drawn, width)) <= SHARE * left:
                break
        yield from drawn
        left -= height
        is_cut |= not is_whole
    if is_cut:
        yield hint
    yield Closing(words or ["no nodes"], f"exit {fleet.exit_code}", worst.value)


def _height(drawn: Sequence[Block], width: int) -> int:
    """Lines of blocks, including the empty lines after them."""
    return sum(terminal.screen([block], width=width).count("\n") + 1 for block in drawn)


Section = tuple[list[Block], bool]
"""(blocks, whether they are complete)."""


def _cut(drawn: Iterable[Block], rest: str, *, apart: bool = True) -> Section:
    """Blocks, then a line about the omitted ones, if any. With ``apart``, empty lines separate the blocks."""
    entries = [*drawn, *([Lines((f"… and {rest}",))] if rest else [])]
    return entries if apart or not entries else [blocks.Group(tuple(entries))], not rest


def _numbers(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items())


def _entry(word: str, title: str, *items: Item, hang: int = 0) -> Entry:
    return Entry(word, title, items, gap=1, hang=hang)


def verdict(fleet: Fleet) -> str:
    """Which nodes to accept and to reject, in one line: also the subject of a mail."""
    sets = {Verdict.REJECT: "fail", Verdict.CANNOT_TELL: "unknown", Verdict.ACCEPT: "pass"}
    parts = []
    for word, name in sets.items():
        if nodes := fleet.sets[name]:
            where = f" ({fleet.folder.brief(nodes)})" if word is not Verdict.ACCEPT else ""
            parts.append(f"{word.value} {len(nodes)}{where}")
    return ", ".join(parts) or "no nodes"


def experimental(fleet: Fleet) -> str:
    """What every rendering says of nodes with GPUs whose backend was never run on one."""
    names = {name for report in fleet.reports for name in report.devices}
    return untried(vendor.backend for vendor in VENDORS if any(vendor.name in name for name in names))


def _header(fleet: Fleet) -> Iterator[Block]:
    if untested := experimental(fleet):
        yield Notice(untested, "WARN")
    if simulated := fleet.simulated:
        yield Notice(f"SIMULATED: no real GPU was tested on {fleet.folder.brief(simulated)}", "WARN")
    yield Lines((verdict(fleet),))
    answered = fleet.answered
    parts = [counted(len(fleet.reports), "node"), counted(len(answered), "report")]
    if answered:
        longest = max(answered, key=lambda one: one.elapsed_s)
        began = sorted(report.started for report in answered)
        parts.append(f"the longest took {longest.elapsed_s:.1f} s, on {longest.node}")
        parts.append(f"{began[0][:16].replace('T', ' ')} to {began[-1][11:16]}")
    yield Parts(tuple(parts))


def _matrix(fleet: Fleet, most: int) -> Section:
    """A table of groups of nodes with equal results, worst first, by checks that are not PASS."""
    groups = [group for group in fleet.groups if group.state is State.REPORTED]
    shown, more = groups[:most], groups[most:]
    telling = fleet.telling_checks
    columns = [Column("", tuple((str(len(group.nodes)), "") for group in shown))]
    for check in telling:
        statuses = [group.checks.get(check, "") for group in shown]
        columns.append(Column(check, tuple((SHORT[status], status or "-") for status in statuses)))
    if not telling:
        columns.append(Column("", tuple((group.status.value, group.status.value) for group in shown)))
    names = tuple(fleet.folder.fold(group.nodes) for group in shown)
    entries = tuple(_group(group, fleet.folder.brief(group.nodes)) for group in shown)
    rows = [Grid("nodes", names, tuple(columns), entries=entries)] if shown else []
    number = counted(sum(len(group.nodes) for group in more), "node")
    return _cut(rows, f"{number} in {counted(len(more), 'more group')}" if more else "", apart=False)


def _group(group: Group, nodes: str) -> Entry:
    bad = [check for check, status in group.checks.items() if status not in ("PASS", "SKIP")]
    title = f"{nodes} ({len(group.nodes)}): {', '.join(bad) or 'all passed'}"
    return _entry(group.status.value, title, hang=2)


def _problems(fleet: Fleet, most: int) -> Section:
    found = list(judged(fleet))
    more = Counter(explained.problem.status.value for explained in found[most:])
    what = f"{counted(len(found) - most, 'more finding')} ({_numbers(more)})" if more else ""
    return _cut((_problem(fleet, explained) for explained in found[:most]), what)


def _problem(fleet: Fleet, one: ExplainedProblem) -> Entry:
    problem = one.problem
    place = f" ({problem.where})" if problem.where else ""
    items = [Item(f"{problem.example}{place}: {problem.says}", hang=0)]
    if len(problem.nodes) > 1:
        more = counted(len(problem.nodes) - 1, "more node")
        items.append(Item(f"and {more}; for the figures, see each node's report"))
    where = f"{problem.check} on {fleet.folder.brief(problem.nodes)}"
    return _entry(problem.status.value, where, *items, *one.known_issues, do(one.remedy))


def _first_aid(fleet: Fleet, _: int) -> Section:
    """First aid for the nodes on which a call hung; never cut."""
    hung = {
        node
        for problem in fleet.findings
        if problem.status is Status.FAIL and problem.key in first_aid.KEYS
        for node in problem.nodes
    }
    return ([first_aid.of_nodes(fleet.folder.fold(sorted(hung)))] if hung else []), True


def _silence_entries(fleet: Fleet, most: int) -> Section:
    more = fleet.silent[most:]
    states = Counter(missing.state.value for missing in more for _ in missing.nodes)
    nodes, reasons = counted(states.total(), "more node"), counted(len(more), "other reason")
    what = f"{nodes} without a report, for {reasons} ({_numbers(states)})" if more else ""
    return _cut((_silence(fleet, missing) for missing in fleet.silent[:most]), what)


def _silence(fleet: Fleet, silence: MissingReports) -> Entry:
    said = f"{silence.nodes[0]}: {silence.reason}" if silence.reason else ""
    where = fleet.folder.brief(silence.nodes)
    return _entry(Status.ERROR.value, silence.about(where), Item(said), do(silence.remedy))


def _listed(
    word: str, found: Sequence[T], title: Callable[[T], str], most: int, more: str, rest: str
) -> Section:
    """One entry per item, at most ``most``; then a line with the number of omitted items."""
    left = len(found) - most
    drawn = (_entry(word, title(explained)) for explained in found[:most])
    return _cut(drawn, f"{counted(left, more)} {rest}" if left > 0 else "", apart=False)


def _drifts(fleet: Fleet, most: int) -> Section:
    """What is known bad comes first, and is never left out."""
    rest = "not the same everywhere"
    most = max(most, sum(drift.is_known_bad for drift in fleet.drift))
    return _listed("DRIFT", fleet.drift, partial(_drift, fleet), most, "more fact", rest)


def _drift(fleet: Fleet, drift: Drift) -> str:
    common, *rare = drift.values
    parts = [(held, fleet.folder.brief(held.nodes)) for held in rare]
    parts.append((common, f"the other {len(common.nodes)}"))
    told = (f"{shorten(held.value, 60) or 'not found'} on {where}{known_bad(held)}" for held, where in parts)
    return f"{drift.name}: {'; '.join(told)}"


def known_bad(held: FactValue) -> str:
    """Known issues of a version as text; empty without any."""
    issues = held.known_bad
    more = f" and {len(issues) - SHOWN_ISSUES} more" if len(issues) > SHOWN_ISSUES else ""
    return f", known bad ({', '.join(issues[:SHOWN_ISSUES])}{more})" if issues else ""


def _slow(fleet: Fleet, most: int) -> Section:
    return _listed("SLOW", fleet.slow, outlier, most, "more figure", "far from the median")


def outlier(one: Outlier, nodes: str = "nodes with the same GPUs") -> str:
    value, median = quantity(one.value, one.unit), quantity(one.median, one.unit)
    return f"{one.node}, {one.name}: {value}; median of {one.peers} {nodes}: {median}"


def _skipped(fleet: Fleet, most: int) -> Section:
    """Checks that were skipped on the same nodes for the same reason, in one line."""
    says = "{0[0]} on {0[1]}: {0[2]}".format
    together = list(skipped_together(fleet))
    return _listed("SKIP", together, says, most, "more reason", "why checks were skipped")


def skipped_together(fleet: Fleet) -> Iterator[tuple[str, str, str]]:
    """(checks, nodes that skipped them, reason), by number of nodes."""
    together = by_key(((skip.nodes, skip.says), skip.check) for skip in fleet.skipped)
    for (nodes, says), checks in together.items():
        everywhere = len(nodes) == len(fleet.answered) > 1
        yield ", ".join(checks), f"all {len(nodes)}" if everywhere else fleet.folder.brief(nodes), says


# -- a ticket -----------------------------------------------------------------------------------------------


def ticket(fleet: Fleet) -> str:
    """Markdown, ending in a newline."""
    counts = [f"{n} {status.value}" for status in reversed(Status) if (n := len(fleet.nodes(status)))]
    head = f"{counted(len(fleet.reports), 'node')}: {', '.join(counts)} (exit {fleet.exit_code})"
    return markdown.render(head, _ticket(fleet))


def _ticket(fleet: Fleet) -> Iterator[Block]:
    brief, checks = fleet.folder.brief, fleet.telling_checks
    if fleet.simulated:
        yield Lines((f"SIMULATED: no real GPU was tested on {brief(fleet.simulated)}",))
    groups = (
        (brief(g.nodes), str(len(g.nodes)), g.status.value, *(g.checks.get(check, "-") for check in checks))
        for g in fleet.groups
        if g.state is State.REPORTED
    )
    yield from table(("nodes", "", "worst", *checks), groups)
    for explained in judged(fleet):
        problem = explained.problem
        said = Item(f"{problem.example}: {problem.says}")
        title = f"{problem.check} on {brief(problem.nodes)}"
        yield _entry(problem.status.value, title, said, *explained.known_issues, do(explained.remedy))
    yield from _first_aid(fleet, 0)[0]
    yield from (_silence(fleet, missing) for missing in fleet.silent)
    facts = (
        (
            "" if number else drift.name,
            (held.value or "not found") + known_bad(held),
            str(len(held.nodes)),
            brief(held.nodes),
        )
        for drift in fleet.drift
        for number, held in enumerate(drift.values)
    )
    yield from table(("fact", "value", "nodes", ""), facts)
    slow = ((s.node, s.name, quantity(s.value, s.unit), quantity(s.median, s.unit)) for s in fleet.slow)
    yield from table(("slow", "figure", "value", "median of its peers"), slow)
    yield from table(("skipped", "nodes", "why"), skipped_together(fleet))


# -- known issues: each is described once, with the worst finding -------------------------------------


@dataclass(frozen=True, slots=True)
class ExplainedProblem:
    """A problem with its known issues and its own remedy."""

    problem: Problem
    known_issues: tuple[Item, ...]
    remedy: str


def judged(fleet: Fleet) -> Iterator[ExplainedProblem]:
    """Each problem, in order, with its issues and remedy."""
    told: set[tuple[str, str]] = set()
    for problem in fleet.findings:
        causes = problem.known_issues
        items = tuple(item for cause in causes for item in _cause(fleet, problem, cause, told))
        is_told = any((cause.issue, problem.remedy) in told for cause in causes)
        yield ExplainedProblem(problem, items, "" if is_told else problem.remedy)


def _cause(
    fleet: Fleet, problem: Problem, cause: IssueOnNodes, told: set[tuple[str, str]]
) -> tuple[Item, Item]:
    """A known issue and its remedy, without the texts in ``told``. The issue's texts are added to
    ``told``."""
    before = {text for issue, text in told if issue == cause.issue}
    told.update((cause.issue, text) for text in (cause.title, cause.reason, cause.remedy))
    on = f" on {fleet.folder.brief(cause.nodes)}" if len(cause.nodes) < len(problem.nodes) else ""
    news = [text for text in (cause.title, cause.reason) if text not in before and text not in problem.says]
    ending = f": {'; '.join(news)}" if news else ", see above" if before else ""
    return Item(head(cause) + on + ending), do("" if cause.remedy in before else cause.remedy)


def head(known: IssueOnNodes | MatchedIssue) -> str:
    return f"Known issue {known.issue} {known.relation.value.upper()}"
