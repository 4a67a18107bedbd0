"""The content of a fleet, for a terminal and for a ticket: groups of nodes, findings, drift, slow nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

SHOWN_GROUPS, SHOWN_SILENCES, SHOWN_DRIFTS, SHOWN_SLOW = 12, 12, 12, 12
"""More of them are counted; the JSON has all."""

SHOWN_ISSUES = 3
"""Of one version."""

SHORT = {"PASS": "pass", "SKIP": "skip", "WARN": "WARN", "ERROR": "ERR", "FAIL": "FAIL", "": "-"}


def screen(fleet: Fleet, *, width: int = 80, color: bool = False) -> str:
    """The screen, in lines of at most ``width`` columns, ending in a newline."""
    return terminal.screen(_screen(fleet), width=width, color=color)


def _screen(fleet: Fleet) -> Iterator[Block]:
    counts = [(status, len(fleet.nodes(status))) for status in reversed(Status)]
    words = [f"{count} {status.value}" for status, count in counts if count]
    worst = next((status for status, count in counts if count), Status.SKIP)
    yield blocks.Group(tuple(_header(fleet)))
    yield blocks.Group(tuple(_matrix(fleet)))
    yield from (_problem(fleet, one) for one in judged(fleet))
    yield from (_silence(fleet, one) for one in fleet.silences[:SHOWN_SILENCES])
    if more := fleet.silences[SHOWN_SILENCES:]:
        nodes = counted(sum(len(one.nodes) for one in more), "more node")
        yield Lines((f"… and {nodes} without a report, for {counted(len(more), 'other reason')}",))
    yield blocks.Group(tuple(_drifts(fleet)))
    yield blocks.Group(tuple(_slow(fleet.slow)))
    yield Closing(words or ["no nodes"], f"exit {fleet.exit_code}", worst.value)


def _entry(word: str, title: str, *items: Item, hang: int = 0) -> Entry:
    return Entry(word, title, items, gap=1, hang=hang)


def _header(fleet: Fleet) -> Iterator[Block]:
    if simulated := fleet.simulated:
        yield Notice(f"SIMULATED: no real GPU was tested on {fleet.folder.fold(simulated)}", "WARN")
    answered = fleet.answered
    parts = [counted(len(fleet.reports), "node"), counted(len(answered), "report")]
    if answered:
        longest = max(answered, key=lambda one: one.elapsed_s)
        began = sorted(one.started for one in answered)
        parts.append(f"the longest took {longest.elapsed_s:.1f} s, on {longest.node}")
        parts.append(f"{began[0][:16].replace('T', ' ')} to {began[-1][11:16]}")
    yield Parts(tuple(parts))


def _matrix(fleet: Fleet) -> Iterator[Block]:
    """Rows are groups of nodes with the same answer, worst first; columns the checks that are not PASS
    there."""
    groups = [group for group in fleet.groups if group.state is State.REPORTED]
    shown, more = groups[:SHOWN_GROUPS], groups[SHOWN_GROUPS:]
    telling = fleet.telling_checks
    if not shown:
        return
    columns = [Column("", tuple((str(len(group.nodes)), "") for group in shown))]
    for check in telling:
        statuses = [group.checks.get(check, "") for group in shown]
        columns.append(Column(check, tuple((SHORT[status], status or "-") for status in statuses)))
    if not telling:
        columns.append(Column("", tuple((group.status.value, group.status.value) for group in shown)))
    names = tuple(fleet.folder.fold(group.nodes) for group in shown)
    entries = tuple(_group(group, name) for group, name in zip(shown, names, strict=True))
    yield Grid("nodes", names, tuple(columns), entries=entries)
    if more:
        number = sum(len(group.nodes) for group in more)
        yield Lines((f"… and {counted(number, 'node')} in {counted(len(more), 'more group')}",))


def _group(group: Group, nodes: str) -> Entry:
    bad = [check for check, status in group.checks.items() if status not in ("PASS", "SKIP")]
    title = f"{nodes} ({len(group.nodes)}): {', '.join(bad) or 'all passed'}"
    return _entry(group.status.value, title, hang=2)


def _problem(fleet: Fleet, one: ExplainedProblem) -> Entry:
    problem = one.problem
    place = f" ({problem.where})" if problem.where else ""
    items = [Item(f"{problem.example}{place}: {problem.says}", hang=0)]
    if len(problem.nodes) > 1:
        items.append(Item(f"and {len(problem.nodes) - 1} more; each node's report has its own"))
    where = f"{problem.check} on {fleet.folder.brief(problem.nodes)}"
    return _entry(problem.status.value, where, *items, *one.known_issues, do(one.remedy))


def _silence(fleet: Fleet, silence: MissingReports) -> Entry:
    said = f"{silence.nodes[0]}: {silence.reason}" if silence.reason else ""
    where = fleet.folder.brief(silence.nodes)
    return _entry(Status.ERROR.value, silence.about(where), Item(said), do(silence.remedy))


def _drifts(fleet: Fleet) -> Iterator[Block]:
    yield from (_entry("DRIFT", _drift(fleet, drift)) for drift in fleet.drifts[:SHOWN_DRIFTS])
    if len(fleet.drifts) > SHOWN_DRIFTS:
        more = counted(len(fleet.drifts) - SHOWN_DRIFTS, "more fact")
        yield Lines((f"… and {more} not the same everywhere",))


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


def _slow(slow: Sequence[Outlier]) -> Iterator[Block]:
    for one in slow[:SHOWN_SLOW]:
        text = (
            f"{one.node}, {one.name}: {one.value:.3g} {one.unit}; the median of {one.peers} nodes with the "
            f"same GPUs is {one.median:.3g} {one.unit}"
        )
        yield _entry("SLOW", text)
    if len(slow) > SHOWN_SLOW:
        yield Lines((f"… and {counted(len(slow) - SHOWN_SLOW, 'more figure')} out of line",))


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
    for silence in fleet.silences:
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
            for drift in fleet.drifts
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
    for problem in fleet.problems:
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
