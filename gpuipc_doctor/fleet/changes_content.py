"""The content of a comparison of two runs over a fleet, for a terminal and for a ticket."""

from __future__ import annotations

from collections.abc import Iterator

from gpuipc_doctor.comparison.check_changes import Turn
from gpuipc_doctor.fleet.changes import Changes, Move
from gpuipc_doctor.model import Status
from gpuipc_doctor.present import markdown, terminal
from gpuipc_doctor.present.blocks import Block, Closing, Entry, Item, Lines, Table, do, table
from gpuipc_doctor.present.text import shorten

NOT_RUN = "-"

TOLD = (Turn.WORSE, Turn.NO_LONGER_TESTED, Turn.FAILS_OTHERWISE)
"""Of these there is a paragraph."""

LONGEST_VALUE = 60
"""Columns of a fact's value."""


def screen(changes: Changes, *, width: int = 80, color: bool = False) -> str:
    """The screen, in lines of at most ``width`` columns, ending in a newline."""
    code = changes.exit_code
    closing = Closing(_totals(changes), f"exit {code}", code.name)
    return terminal.screen([*_blocks(changes), closing], width=width, color=color)


def ticket(changes: Changes) -> str:
    """The same as Markdown, ending in a newline."""
    return markdown.render(f"{', '.join(_totals(changes))} (exit {changes.exit_code})", _blocks(changes))


def _totals(changes: Changes) -> list[str]:
    words = [f"{len(nodes)} {name}" for name, nodes in changes.nodes.items() if nodes]
    simulated = changes.before.simulated or changes.after.simulated
    return ["SIMULATED"] * bool(simulated) + (words or ["no node to compare"])


def _blocks(changes: Changes) -> Iterator[Block]:
    brief = changes.folder.brief
    if simulated := sorted({*changes.before.simulated, *changes.after.simulated}):
        yield Lines((f"SIMULATED: no real GPU was tested on {brief(simulated)}",))
    yield _sides(changes)
    yield from table(
        ("", "nodes", ""),
        ((name, str(len(nodes)), brief(nodes)) for name, nodes in changes.nodes.items() if nodes),
    )
    yield from table(
        ("finding", "before", "after", "", "on"),
        ((_name(move), *_statuses(move), move.turn.value, brief(move.nodes)) for move in changes.moves),
    )
    yield from _entries(changes)
    yield from table(
        ("fact", "before", "after", "on"),
        (
            (
                "" if number else shift.name,
                _value(before),
                "unchanged" if before == after else _value(after),
                brief(nodes),
            )
            for shift in changes.shifts
            for number, (before, after, nodes) in enumerate(shift.rows)
        ),
    )
    if drifts := list(_drifts(changes)):
        yield Lines(tuple(drifts))
    yield from table(
        ("figure", "before", "after", "", "median of"),
        (
            (
                pace.name,
                f"{pace.before:.3g} {pace.unit}",
                f"{pace.after:.3g} {pace.unit}",
                f"{'slower' if pace.is_slower else 'faster'}, {max(pace.ratio, 1 / pace.ratio):.3g} times",
                f"{pace.nodes} nodes",
            )
            for pace in changes.paces
        ),
    )
    if changes.slow:
        yield Lines(
            tuple(
                f"Newly slow: {one.node}, {one.name}: {one.value:.3g} {one.unit}; the median of {one.peers} "
                f"nodes is {one.median:.3g} {one.unit}"
                for one in changes.slow
            )
        )


def _sides(changes: Changes) -> Table:
    fleets = (changes.before, changes.after)
    return Table(
        (
            ("", "before", "after"),
            ("nodes", *(str(len(fleet.reports)) for fleet in fleets)),
            ("reports", *(str(len(fleet.answered)) for fleet in fleets)),
            ("run at", *(fleet.started[:16].replace("T", " ") or NOT_RUN for fleet in fleets)),
            ("gpuipc-doctor", *(", ".join(sorted({one.tool for one in fleet.answered})) for fleet in fleets)),
        )
    )


def _name(move: Move) -> str:
    return f"{move.check}.{move.told.key}" if move.told and move.told.key else move.check


def _statuses(move: Move) -> tuple[str, str]:
    before, after = (status.value if status else NOT_RUN for status in (move.before, move.after))
    return before, after


def _value(value: str) -> str:
    return shorten(value, LONGEST_VALUE) or "not found"


def _entries(changes: Changes) -> Iterator[Entry]:
    for move in changes.moves:
        if move.turn in TOLD and move.after and move.told:
            was = f"was {move.before.value}" if move.before else "had not run"
            title = f"{_name(move)} on {changes.folder.brief(move.nodes)}, {was}"
            said = Item(f"{move.nodes[0]}: {move.told.says}", hang=0)
            yield Entry(move.after.value, title, (said, do(move.told.remedy)))
    for silence in changes.lost:
        title = silence.about(changes.folder.brief(silence.nodes))
        why = f"{silence.nodes[0]}: {silence.reason}" if silence.reason else ""
        yield Entry(Status.ERROR.value, title, (Item(why, hang=0),))


def _drifts(changes: Changes) -> Iterator[str]:
    before, after = ({drift.name for drift in fleet.drifts} for fleet in (changes.before, changes.after))
    if names := sorted(after - before):
        yield f"Differs from node to node, and did not before: {', '.join(names)}"
    if names := sorted(before - after):
        yield f"No longer differs from node to node: {', '.join(names)}"
