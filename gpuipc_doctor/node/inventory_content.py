"""What ``inventory`` shows: facts with sources, environment variables, and changes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from gpuipc_doctor.grouping import by_key
from gpuipc_doctor.model import Fact, Setting
from gpuipc_doctor.present import terminal
from gpuipc_doctor.present.terminal import COLUMNS
from gpuipc_doctor.present.text import sanitise, wrap
from gpuipc_doctor.report.inventory_changes import changes

_VALUE_COLUMNS = 26


def page(facts: Iterable[Fact], settings: Iterable[Setting]) -> str:
    """Facts, environment variables, then facts not found and where they were searched."""
    shown = [fact for fact in facts if not fact.name.startswith("env:")]
    found = [(fact.name, fact.value, fact.source) for fact in shown if fact.value is not None]
    sought = by_key((fact.source, fact.name) for fact in shown if fact.value is None)
    missing = [(", ".join(names), source) for source, names in sought.items()]
    blocks = [_table(found, ("name", "value", "source"))]
    if lines := [line for setting in settings for line in _setting(setting)]:
        blocks.append("\n".join(["environment", *lines]))
    if missing:
        blocks.append(_table(missing, ("not found", "searched")))
    return "\n\n".join(blocks)


def _setting(one: Setting) -> Iterator[str]:
    mark = f"{one.effect.value}: " if one.effect.is_mistake else ""
    where = "" if one.where == "environment" else f" ({one.where})"
    yield f"  {sanitise(f'{one.name}={one.value}')}{where}"
    yield from wrap(sanitise(f"{mark}{one.says}"), COLUMNS, " " * 6, to_copy=True)
    if one.effect.is_mistake and one.instead:
        yield from wrap(sanitise(f"instead: {one.instead}"), COLUMNS, " " * 6, to_copy=True)


def _table(rows: Sequence[tuple[str, ...]], headers: tuple[str, ...]) -> str:
    """A table of at most 80 columns: names in full; the last column gets the remaining width."""
    value = max(len(row[1]) for row in (*rows, headers))
    name = max(len(word) for row in (*rows, headers) for word in row[0].split())
    widths = [name, min(value, _VALUE_COLUMNS)] if len(headers) == 3 else [name]
    widths.append(COLUMNS - sum(widths) - 2 * len(widths))
    wrapped = [[_wrapped(cell, width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    return terminal.ruled(wrapped, headers)


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of whole words; a too long word, such as a path, is broken before a slash if possible."""
    lines: list[str] = []
    for word in sanitise(text).split():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
            continue
        lines.append("")
        for part in re.findall(rf"/?[^/]{{1,{width - 1}}}|/", word):
            if len(lines[-1]) + len(part) > width:
                lines.append("")
            lines[-1] += part
    return lines


def page_of_changes(before: Iterable[Fact], after: Iterable[Fact]) -> str:
    """The facts whose values differ, as a table."""
    found = [(change.name, change.before or "-", change.after or "-") for change in changes(before, after)]
    return _table(found, ("name", "before", "after")) if found else "nothing has changed"
