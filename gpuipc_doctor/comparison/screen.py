"""A comparison as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuipc_doctor.comparison import content
from gpuipc_doctor.comparison.comparison import Comparison
from gpuipc_doctor.comparison.content import Block, Lines, Paragraph, Table
from gpuipc_doctor.report.page import MAX_WIDTH, MIN_WIDTH, Page
from gpuipc_doctor.report.text import columns, sanitise, wrap

_GAP = 2
_LEAST = 6
"""Columns that a column of a table keeps, however narrow the terminal."""

_INDENT = " " * 6


def render(comparison: Comparison, *, width: int = 80, color: bool = False) -> str:
    """The screen, in lines of at most ``width`` columns, ending in a newline."""
    page = Page(min(max(width, MIN_WIDTH), MAX_WIDTH), color)
    drawn = ["\n".join(_draw(block, page)) for block in content.blocks(comparison)]
    return "\n\n".join([*drawn, "\n".join(_totals(comparison, page))]) + "\n"


def _draw(block: Block, page: Page) -> Iterator[str]:
    match block:
        case Table(rows):
            yield from _table(rows, page)
        case Paragraph(status, title, text, remedy):
            first, *rest = page.fill(title, f"{status:<4}  ", _INDENT)
            yield page.paint(status, status) + first.removeprefix(status)
            yield from [*rest, *page.fill(text, _INDENT)]
            yield from page.fill(remedy, _INDENT + "Do: ", _INDENT + "    ")
        case Lines(lines):
            for line in lines:
                yield from page.fill(line, rest="  ")


def _table(rows: Sequence[Sequence[str]], page: Page) -> Iterator[str]:
    """The widest columns give way until all fit; what does not fit its column goes on below."""
    cells = [[sanitise(cell) for cell in row] for row in rows]
    widths = [max(map(columns, column)) for column in zip(*cells, strict=True)]
    while sum(widths) + _GAP * (len(widths) - 1) > page.width and max(widths) > _LEAST:
        widths[widths.index(max(widths))] -= 1
    for row in cells:
        wrapped = [wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
        for number in range(max(map(len, wrapped))):
            parts = [lines[number] if number < len(lines) else "" for lines in wrapped]
            filled = (
                page.paint(part, part) + " " * (width - columns(part))
                for part, width in zip(parts, widths, strict=True)
            )
            yield (" " * _GAP).join(filled).rstrip()


def _totals(comparison: Comparison, page: Page) -> Iterator[str]:
    simulated = dict.fromkeys(filter(None, (comparison.before.simulated, comparison.after.simulated)))
    words = [f"SIMULATED ({', '.join(simulated)})"] if simulated else []
    yield from page.close(
        [*words, *content.totals(comparison)], f"exit {comparison.exit_code}", comparison.exit_code.name
    )
