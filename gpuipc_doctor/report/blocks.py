"""What is told in tables, paragraphs and lines, whatever they are drawn with; and how a screen shows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpuipc_doctor.report.page import Page
from gpuipc_doctor.report.text import columns, sanitise, wrap

_GAP = 2
_LEAST = 6
"""Columns that a column of a table keeps, however narrow the terminal."""

_INDENT = " " * 6


@dataclass(frozen=True, slots=True)
class Table:
    """The first row holds the titles."""

    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of it that was seen, and what to do for that reason."""

    text: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A status, what it is about, what was seen, what is known of that, and what to do."""

    status: str
    title: str
    text: str
    remedy: str
    verdicts: tuple[Verdict, ...] = ()


@dataclass(frozen=True, slots=True)
class Lines:
    """Sentences, a line each at least."""

    lines: tuple[str, ...]


Block = Table | Paragraph | Lines


def table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[Table]:
    """The table, unless it has no rows."""
    if rows := tuple(rows):
        yield Table((titles, *rows))


def draw(blocks: Iterable[Block], page: Page) -> list[str]:
    """Each block in lines for a terminal."""
    return ["\n".join(_draw(block, page)) for block in blocks]


def _draw(block: Block, page: Page) -> Iterator[str]:
    match block:
        case Table(rows):
            yield from _table(rows, page)
        case Paragraph(status, title, text, remedy, verdicts):
            first, *rest = page.fill(title, f"{status:<4}  ", _INDENT)
            yield page.paint(status, status) + first.removeprefix(status)
            yield from [*rest, *page.fill(text, _INDENT)]
            for verdict in verdicts:
                yield from page.fill(verdict.text, _INDENT, _INDENT + "  ")
                yield from _remedy(verdict.remedy, page)
            yield from _remedy(remedy, page)
        case Lines(lines):
            for line in lines:
                yield from page.fill(line, rest="  ")


def _remedy(remedy: str, page: Page) -> list[str]:
    return page.fill(remedy, _INDENT + "Do: ", _INDENT + "    ")


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
