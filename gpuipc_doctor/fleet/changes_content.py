"""What a terminal and a ticket show of a comparison of two fleet runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypedDict

from gpuipc_doctor.fleet.changes import (
    MEANINGS,
    Changes,
    CheckTransition,
    FactChange,
    SpeedChange,
)
from gpuipc_doctor.fleet.fleet_content import outlier
from gpuipc_doctor.fleet.fold import Outlier
from gpuipc_doctor.fleet.summary import State
from gpuipc_doctor.model import Exit, Status
from gpuipc_doctor.present import markdown, terminal
from gpuipc_doctor.present.blocks import Block, Closing, Entry, Item, Lines, Table, do, table
from gpuipc_doctor.present.text import counted, quantity, shorten
from gpuipc_doctor.report import json_documents
from gpuipc_doctor.report.check_changes import ChangeKind
from gpuipc_doctor.report.comparison_content import DESCRIBED, NOT_RUN, statuses, was

LONGEST_VALUE = 60
"""Maximum columns of a fact's value."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs: its nodes, number of reports, start time, and simulated nodes."""

    nodes: int
    reports: int
    started: str
    simulated: str


@dataclass(frozen=True, slots=True)
class Lost:
    """Nodes, as a set, that answered only in the earlier run, and the reason."""

    state: State
    reason: str
    nodes: str


class Content:
    """The comparison as JSON; node sets are folded and counted."""

    before: Side
    after: Side
    nodes: dict[str, str]
    """Result → node set."""
    findings: tuple[CheckTransition, ...]
    lost: tuple[Lost, ...]
    facts: tuple[FactChange, ...]
    drift: dict[str, tuple[str, ...]]
    """For the earlier and the later run: the facts that differ between nodes."""
    figures: tuple[SpeedChange, ...]
    slow: tuple[Outlier, ...]


def nodeset(changes: Changes) -> str:
    """The node sets, one per line."""
    return "".join(f"{name}: {changes.folder.fold(nodes)}\n" for name, nodes in changes.nodes.items())


_SETS = TypedDict("Sets", {"lost": str, "new": str, **{turn.value: str for turn in ChangeKind}})  # type: ignore[misc]
_ABOUT = "Comparison of two runs over a fleet."
_HEAD = {"exit_code": json_documents.codes(MEANINGS), "nodes": _SETS}
KIND = json_documents.Kind("gpuipc-doctor/fleet-changes/2", Content, _ABOUT, _HEAD)


def dumps(changes: Changes) -> str:
    """The JSON document, ending in a newline."""
    fold = changes.folder.fold
    sides = {"before": changes.before, "after": changes.after}
    return KIND.dumps(
        changes,
        fold,
        **{
            name: Side(len(fleet.reports), len(fleet.answered), fleet.started, fold(fleet.simulated))
            for name, fleet in sides.items()
        },
        nodes={name: fold(nodes) for name, nodes in changes.nodes.items()},
        lost=[Lost(missing.state, missing.reason, fold(missing.nodes)) for missing in changes.lost],
        drift={name: [fact.name for fact in fleet.drift] for name, fleet in sides.items()},
    )


def screen(changes: Changes, *, width: int = 80, color: bool = False) -> str:
    """The screen, in lines of at most ``width`` columns, ending in a newline. The verdict may have
    more than `terminal.MAX_WIDTH`: it is a mail's subject."""
    code = changes.exit_code
    closing = Closing(_totals(changes), f"exit {code}", code.name)
    lead = terminal.screen(_lead(changes), width=width, most=max(width, terminal.MAX_WIDTH), color=color)
    return lead + "\n" + terminal.screen([*_rest(changes), closing], width=width, color=color)


def ticket(changes: Changes) -> str:
    """The same as Markdown, ending in a newline."""
    return markdown.render(f"{', '.join(_totals(changes))} (exit {changes.exit_code})", _blocks(changes))


def _totals(changes: Changes) -> list[str]:
    words = [f"{len(nodes)} {name}" for name, nodes in changes.nodes.items() if nodes]
    simulated = changes.before.simulated or changes.after.simulated
    return ["SIMULATED"] * bool(simulated) + (words or ["no node to compare"])


def _blocks(changes: Changes) -> Iterator[Block]:
    yield from _lead(changes)
    yield from _rest(changes)


def _lead(changes: Changes) -> Iterator[Block]:
    if simulated := sorted({*changes.before.simulated, *changes.after.simulated}):
        yield Lines((f"SIMULATED: no real GPU was tested on {changes.folder.brief(simulated)}",))
    yield _verdict(changes)


def _rest(changes: Changes) -> Iterator[Block]:
    brief = changes.folder.brief
    yield _sides(changes)
    nodes = ((name, str(len(nodes)), brief(nodes)) for name, nodes in changes.nodes.items() if nodes)
    yield from table(("", "nodes", ""), nodes)
    findings = (
        (_name(move), *statuses(move.before, move.after), move.turn.value, brief(move.nodes))
        for move in changes.findings
    )
    yield from table(("finding", "before", "after", "", "on"), findings)
    yield from _entries(changes)
    facts = (
        ("" if number else shift.name, *_values(row.before, row.after), brief(row.nodes))
        for shift in changes.facts
        for number, row in enumerate(shift.changes)
    )
    yield from table(("fact", "before", "after", "on"), facts)
    yield Lines(tuple(_drifts(changes)))
    yield from table(("figure", "before", "after", "", "median of"), map(_speed, changes.figures))
    yield Lines(tuple(f"Newly slow: {outlier(figure, 'nodes')}" for figure in changes.slow))


_WORDS = {
    Exit.OK: ("NOT WORSE", Status.PASS),
    Exit.WARN: ("WORSE", Status.WARN),
    Exit.FAIL: ("WORSE", Status.FAIL),
    Exit.ERROR: ("CANNOT TELL", Status.ERROR),
    Exit.NOTHING: ("CANNOT TELL", Status.ERROR),
}


def _verdict(changes: Changes) -> Entry:
    """The first line: the verdict, its reason, and what else changed: the subject of a mail."""
    word, status = _WORDS[changes.exit_code]
    moves = [move for move in changes.turned(ChangeKind.WORSE) if move.after is Status.FAIL]
    moves = moves or changes.turned(ChangeKind.WORSE) or changes.turned(ChangeKind.NO_LONGER_TESTED)
    why = [
        f"{_name(move)} is {move.after.value if move.after else 'no longer tested'} on "
        f"{changes.folder.brief(move.nodes)}"
        for move in moves[:2]
    ]
    if lost := [node for gone in changes.lost for node in gone.nodes]:
        why.append(f"no report from {changes.folder.brief(lost)}")
    why += [f"{pace.name} is slower" for pace in changes.figures[:1] if pace.is_slower]
    changed = [f"{shift.name} changed on {counted(_changed(shift), 'node')}" for shift in changes.facts]
    why += changed[:3] + [f"{len(changed) - 3} more facts changed"] * (len(changed) > 3)
    compared = f"{counted(changes.both, 'node')} compared"
    return Entry(f"{word}:", "; ".join([*why, compared]), look=status.value, gap=1)


def _changed(shift: FactChange) -> int:
    """Number of nodes on which the fact changed."""
    return sum(len(row.nodes) for row in shift.changes if row.before != row.after)


def _sides(changes: Changes) -> Table:
    fleets = (changes.before, changes.after)
    tools = (", ".join(sorted({report.tool for report in fleet.answered})) for fleet in fleets)
    return Table(
        (
            ("", "before", "after"),
            ("nodes", *(str(len(fleet.reports)) for fleet in fleets)),
            ("reports", *(str(len(fleet.answered)) for fleet in fleets)),
            ("run at", *(fleet.started[:16].replace("T", " ") or NOT_RUN for fleet in fleets)),
            ("gpuipc-doctor", *tools),
        )
    )


def _name(move: CheckTransition) -> str:
    return f"{move.check}.{move.key}" if move.key else move.check


def _values(before: str, after: str) -> Iterator[str]:
    yield shorten(before, LONGEST_VALUE) or "not found"
    yield "unchanged" if before == after else shorten(after, LONGEST_VALUE) or "not found"


def _speed(speed: SpeedChange) -> tuple[str, ...]:
    times = f"{'slower' if speed.is_slower else 'faster'}, {max(speed.ratio, 1 / speed.ratio):.3g} times"
    figures = (quantity(value, speed.unit) for value in (speed.before, speed.after))
    return speed.name, *figures, times, f"{speed.nodes} nodes"


def _entries(changes: Changes) -> Iterator[Entry]:
    for move in changes.findings:
        if move.turn in DESCRIBED and move.after and move.says:
            title = f"{_name(move)} on {changes.folder.brief(move.nodes)}, {was(move.before)}"
            said = Item(f"{move.nodes[0]}: {move.says}", hang=0)
            yield Entry(move.after.value, title, (said, do(move.remedy)))
    for silence in changes.lost:
        title = silence.about(changes.folder.brief(silence.nodes))
        why = f"{silence.nodes[0]}: {silence.reason}" if silence.reason else ""
        yield Entry(Status.ERROR.value, title, (Item(why, hang=0),))


def _drifts(changes: Changes) -> Iterator[str]:
    before, after = ({drift.name for drift in fleet.drift} for fleet in (changes.before, changes.after))
    for words, names in (("Newly differs", after - before), ("No longer differs", before - after)):
        if names:
            yield f"{words} between nodes: {', '.join(sorted(names))}"
