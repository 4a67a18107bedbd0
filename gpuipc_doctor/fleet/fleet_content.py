"""The content of a fleet, for a terminal and for a ticket: groups of nodes, findings, drift, slow nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

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
from gpuipc_doctor.present.text import counted, shorten

SHOWN = 12
"""Groups, findings, reasons, facts or figures at most; more of them are counted, and the JSON has all."""

MAX_LINES = 60
"""Lines of the screen before its last, whatever the fleet looks like."""

SHARE = 0.5
"""Each section may have this part of the lines that those before it have left."""

SHOWN_ISSUES = 3
"""Of one version."""

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
    hint = Lines(("`fleet report DIR` with --format html or markdown, or --json, shows the rest",))
    left = MAX_LINES - _height([head], width) - _height([hint], width)
    is_cut = False
    for section in (_matrix, _problems, _silence_entries, _drifts, _slow):
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
    """Lines of blocks, and the empty ones behind them."""
    return sum(terminal.screen([block], width=width).count("\n") + 1 for block in drawn)


Section = tuple[list[Block], bool]
"""Blocks, and whether nothing is left out."""


def _cut(drawn: Iterable[Block], rest: str, *, apart: bool = True) -> Section:
    """Blocks with a line for the rest, if there is one; ``apart``: with empty lines between them."""
    entries = [*drawn, *([Lines((f"… and {rest}",))] if rest else [])]
    return entries if apart or not entries else [blocks.Group(tuple(entries))], not rest


def _entry(word: str, title: str, *items: Item, hang: int = 0) -> Entry:
    return Entry(word, title, items, gap=1, hang=hang)


def _header(fleet: Fleet) -> Iterator[Block]:
    if simulated := fleet.simulated:
        yield Notice(f"SIMULATED: no real GPU was tested on {fleet.folder.brief(simulated)}", "WARN")
    answered = fleet.answered
    parts = [counted(len(fleet.reports), "node"), counted(len(answered), "report")]
    if answered:
        longest = max(answered, key=lambda one: one.elapsed_s)
        began = sorted(one.started for one in answered)
        parts.append(f"the longest took {longest.elapsed_s:.1f} s, on {longest.node}")
        parts.append(f"{began[0][:16].replace('T', ' ')} to {began[-1][11:16]}")
    yield Parts(tuple(parts))


def _matrix(fleet: Fleet, most: int) -> Section:
    """Rows are groups of nodes with the same answer, worst first; columns the checks that are not PASS
    there."""
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
    more = Counter(one.problem.status.value for one in found[most:])
    rest = ", ".join(f"{number} {status}" for status, number in more.items())
    what = f"{counted(len(found) - most, 'more finding')} ({rest})" if rest else ""
    return _cut((_problem(fleet, one) for one in found[:most]), what)


def _problem(fleet: Fleet, one: ExplainedProblem) -> Entry:
    problem = one.problem
    place = f" ({problem.where})" if problem.where else ""
    items = [Item(f"{problem.example}{place}: {problem.says}", hang=0)]
    if len(problem.nodes) > 1:
        items.append(Item(f"and {len(problem.nodes) - 1} more; each node's report has its own"))
    where = f"{problem.check} on {fleet.folder.brief(problem.nodes)}"
    return _entry(problem.status.value, where, *items, *one.known_issues, do(one.remedy))


def _silence_entries(fleet: Fleet, most: int) -> Section:
    more = fleet.silent[most:]
    nodes = counted(sum(len(one.nodes) for one in more), "more node")
    what = f"{nodes} without a report, for {counted(len(more), 'other reason')}" if more else ""
    return _cut((_silence(fleet, one) for one in fleet.silent[:most]), what)


def _silence(fleet: Fleet, silence: MissingReports) -> Entry:
    said = f"{silence.nodes[0]}: {silence.reason}" if silence.reason else ""
    where = fleet.folder.brief(silence.nodes)
    return _entry(Status.ERROR.value, silence.about(where), Item(said), do(silence.remedy))


def _drifts(fleet: Fleet, most: int) -> Section:
    more = len(fleet.drift) - most
    what = f"{counted(more, 'more fact')} not the same everywhere" if more > 0 else ""
    return _cut((_entry("DRIFT", _drift(fleet, one)) for one in fleet.drift[:most]), what, apart=False)


def _drift(fleet: Fleet, drift: Drift) -> str:
    """``nvidia-driver: 570.86 on nid[17,420], known bad (nvidia-…); 580.95.05 on the other 1998``"""
    common, *rare = drift.values
    parts = [(held, fleet.folder.brief(held.nodes)) for held in rare]
    parts.append((common, f"the other {len(common.nodes)}"))
    told = (f"{shorten(held.value, 60) or 'not found'} on {where}{known_bad(held)}" for held, where in parts)
    return f"{drift.name}: {'; '.join(told)}"


def known_bad(held: FactValue) -> str:
    """The known issues of a version, in words; empty without any."""
    issues = held.known_bad
    more = f" and {len(issues) - SHOWN_ISSUES} more" if len(issues) > SHOWN_ISSUES else ""
    return f", known bad ({', '.join(issues[:SHOWN_ISSUES])}{more})" if issues else ""


def _slow(fleet: Fleet, most: int) -> Section:
    more = len(fleet.slow) - most
    what = f"{counted(more, 'more figure')} out of line" if more > 0 else ""
    return _cut((_outlier(one) for one in fleet.slow[:most]), what, apart=False)


def _outlier(one: Outlier) -> Entry:
    text = (
        f"{one.node}, {one.name}: {one.value:.3g} {one.unit}; the median of {one.peers} nodes with the "
        f"same GPUs is {one.median:.3g} {one.unit}"
    )
    return _entry("SLOW", text)


# -- a ticket -----------------------------------------------------------------------------------------------


def ticket(fleet: Fleet) -> str:
    """Markdown, ending in a newline."""
    counts = [f"{n} {status.value}" for status in reversed(Status) if (n := len(fleet.nodes(status)))]
    head = f"{counted(len(fleet.reports), 'node')}: {', '.join(counts)} (exit {fleet.exit_code})"
    return markdown.render(head, _ticket(fleet))


def _ticket(fleet: Fleet) -> Iterator[Block]:
    brief = fleet.folder.brief
    if fleet.simulated:
        yield Lines((f"SIMULATED: no real GPU was tested on {brief(fleet.simulated)}",))
    checks = fleet.telling_checks
    yield from table(
        ("nodes", "", "worst", *checks),
        (
            (
                brief(group.nodes),
                str(len(group.nodes)),
                group.status.value,
                *(group.checks.get(check, "-") for check in checks),
            )
            for group in fleet.groups
            if group.state is State.REPORTED
        ),
    )
    for one in judged(fleet):
        problem = one.problem
        said = Item(f"{problem.example}: {problem.says}")
        title = f"{problem.check} on {brief(problem.nodes)}"
        yield _entry(problem.status.value, title, said, *one.known_issues, do(one.remedy))
    for silence in fleet.silent:
        said = Item(f"{silence.nodes[0]}: {silence.reason}")
        yield _entry(Status.ERROR.value, silence.about(brief(silence.nodes)), said, do(silence.remedy))
    yield from table(
        ("fact", "value", "nodes", ""),
        (
            (
                "" if number else drift.name,
                (held.value or "not found") + known_bad(held),
                str(len(held.nodes)),
                brief(held.nodes),
            )
            for drift in fleet.drift
            for number, held in enumerate(drift.values)
        ),
    )
    yield from table(
        ("slow", "figure", "value", "median of its peers"),
        (
            (one.node, one.name, f"{one.value:.3g} {one.unit}", f"{one.median:.3g} {one.unit}")
            for one in fleet.slow
        ),
    )


# -- known issues: each is described once, with the worst finding -------------------------------------


@dataclass(frozen=True, slots=True)
class ExplainedProblem:
    """A problem, its known issues, and the remedy that is none of theirs."""

    problem: Problem
    known_issues: tuple[Item, ...]
    remedy: str


def judged(fleet: Fleet) -> Iterator[ExplainedProblem]:
    """Each problem, in their order."""
    told: set[tuple[str, str]] = set()
    for problem in fleet.findings:
        causes = problem.known_issues
        items = tuple(item for cause in causes for item in _cause(fleet, problem, cause, told))
        is_told = any((cause.issue, problem.remedy) in told for cause in causes)
        yield ExplainedProblem(problem, items, "" if is_told else problem.remedy)


def _cause(
    fleet: Fleet, problem: Problem, cause: IssueOnNodes, told: set[tuple[str, str]]
) -> tuple[Item, Item]:
    """``told``: known issues with the texts that an entry above has; this entry's are added."""
    before = {text for issue, text in told if issue == cause.issue}
    told.update((cause.issue, text) for text in (cause.title, cause.reason, cause.remedy))
    on = f" on {fleet.folder.brief(cause.nodes)}" if len(cause.nodes) < len(problem.nodes) else ""
    news = [text for text in (cause.title, cause.reason) if text not in before and text not in problem.says]
    ending = f": {'; '.join(news)}" if news else ", see above" if before else ""
    return Item(head(cause) + on + ending), do("" if cause.remedy in before else cause.remedy)


def head(known: IssueOnNodes | MatchedIssue) -> str:
    return f"Known issue {known.issue} {known.relation.value.upper()}"
