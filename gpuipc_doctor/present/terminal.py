"""Render blocks as lines for a terminal, with a width and optional colours. All text is sanitised."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from gpuipc_doctor.present.blocks import (
    Block,
    Chain,
    Closing,
    Column,
    Entry,
    Grid,
    Group,
    Lines,
    Notice,
    Parts,
    Table,
    Verbatim,
)
from gpuipc_doctor.present.text import columns, sanitise, shorten, wrap

MIN_WIDTH, MAX_WIDTH = 60, 120
"""Limits of the line width: narrower terminals get the minimum; longer lines are hard to read."""

COLUMNS = 80
"""Width of output that does not depend on the terminal."""

_GAP = 2
_LEAST, _LEAST_WRAPPED = 6, 20
"""Minimum width of a table's column, and of the column that gets the remaining width."""

_NAMES_AND_COUNTS = 30
"""Columns of the page that a grid leaves for long row names."""

_COLOURS = {"PASS": "32", "WARN": "33", "LATENT": "33", "FAIL": "31;1", "ERROR": "35", "SKIP": "2", "-": "2"}
"""Status → parameters of its colour's control sequence (SGR, ECMA-48 8.3.117)."""


@dataclass(frozen=True)
class Page:
    """Lays out text in at most ``width`` columns."""

    width: int
    color: bool = False

    def paint(self, text: str, look: str) -> str:
        """``text`` in the colour of a status; layout never depends on colour."""
        code = _COLOURS.get(look)
        return f"\x1b[{code}m{text}\x1b[0m" if self.color and code else text

    def fill(self, text: str, first: str = "", rest: str | None = None) -> list[str]:
        """Wrap ``text``: the first line starts with ``first``, all others with ``rest`` (see `text.wrap`)."""
        return wrap(sanitise(text), self.width, first, rest)

    def join(self, parts: Iterable[str], mark: str = "·", first: str = "", rest: str = "  ") -> list[str]:
        """The parts with a mark between them; lines end after a mark rather than inside a part."""
        lines: list[str] = []
        for part in filter(None, map(sanitise, parts)):
            if lines and columns(f"{lines[-1]} {mark} {part} {mark}") <= self.width:
                lines[-1] += f" {mark} {part}"
                continue
            if lines:
                lines[-1] += f" {mark}"
            lines += wrap(part, self.width - 2, rest if lines else first, rest)
        return lines


def screen(
    blocks: Iterable[Block], *, width: int = COLUMNS, most: int = MAX_WIDTH, color: bool = False
) -> str:
    """The blocks in lines of at most ``width`` columns, an empty line between them, ending in a newline."""
    page = Page(min(max(width, MIN_WIDTH), most), color)
    drawn = (list(draw(block, page)) for block in blocks)
    return "\n\n".join("\n".join(lines) for lines in drawn if lines) + "\n"


def draw(block: Block, page: Page) -> Iterator[str]:
    """The lines of a block."""
    match block:
        case Group(blocks):
            for part in blocks:
                yield from draw(part, page)
        case Entry():
            yield from _entry(block, page)
        case Table(rows):
            yield from _table(rows, page)
        case Grid():
            yield from _grid(block, page)
        case Lines(lines, hang):
            for line in lines:
                yield from page.fill(line, rest=" " * hang)
        case Verbatim(lines):
            for line in lines:
                indent = " " * (2 + len(line) - len(line.lstrip(" ")))
                yield from wrap(sanitise(line), page.width, indent, to_copy=True) or [""]
        case Notice(text, look):
            yield from (page.paint(line, look) for line in page.fill(text, rest="  "))
        case Parts(parts):
            yield from page.join(parts)
        case Closing(parts, ending, look):
            *before, last = page.join(parts)
            if columns(last) + 2 + columns(ending) > page.width:
                before, last = [*before, last], ""
            yield from before
            yield last + " " * (page.width - columns(last) - columns(ending)) + page.paint(ending, look)


def _entry(entry: Entry, page: Page) -> Iterator[str]:
    word, indent = entry.word, " " * entry.columns
    lead = word.ljust(entry.columns - entry.gap) + " " * entry.gap
    first, *rest = page.fill(entry.title, lead, indent + " " * entry.hang)
    yield page.paint(word, entry.look or word) + first.removeprefix(word)
    yield from rest
    for item in entry.items:
        if isinstance(item, Chain):
            yield from page.join(item.parts, "<", indent, indent + "  ")
        else:
            begin = indent + " " * item.depth + item.lead
            yield from page.fill(item.text, begin, " " * (len(begin) + (0 if item.lead else item.hang)))


# -- tables -----------------------------------------------------------------------------------------------


def table(rows: Sequence[Sequence[str]], titles: Sequence[str], *, wrapped: int) -> str:
    """A table 80 columns wide; the column with index ``wrapped`` gets the remaining width."""
    rows = [[sanitise(cell) for cell in row] for row in rows]
    padded = [title + " " * _GAP for title in titles]  # as tabulate does
    widths = [max(map(columns, cells)) for cells in zip(padded, *rows, strict=True)]
    room = max(COLUMNS - sum(widths) + widths[wrapped] - _GAP * (len(widths) - 1), _LEAST_WRAPPED)
    return ruled(
        [[wrap(cell, room) if n == wrapped else [cell] for n, cell in enumerate(row)] for row in rows], titles
    )


def ruled(rows: Sequence[Sequence[Sequence[str]]], titles: Sequence[str]) -> str:
    """A table with a rule below its titles; a cell is a list of lines."""
    from tabulate import tabulate

    cells = [["\n".join(lines) for lines in row] for row in rows]
    return tabulate(cells, titles, "simple", disable_numparse=True)


def laid_out(
    cells: Sequence[Sequence[str]], widths: Sequence[int], page: Page | None = None
) -> Iterator[str]:
    """The lines of a row with multi-line cells; with a ``page``, statuses are coloured."""
    for parts in zip_longest(*cells, fillvalue=""):
        filled = (
            (page.paint(part, part) if page else part) + " " * (width - columns(part))
            for part, width in zip(parts, widths, strict=True)
        )
        yield (" " * _GAP).join(filled).rstrip()


def _table(rows: Sequence[Sequence[str]], page: Page) -> Iterator[str]:
    """Reduce the widest columns until all fit; text that does not fit continues below."""
    cells = [[sanitise(cell) for cell in row] for row in rows]
    widths = [max(map(columns, column)) for column in zip(*cells, strict=True)]
    while sum(widths) + _GAP * (len(widths) - 1) > page.width and max(widths) > _LEAST:
        widths[widths.index(max(widths))] -= 1
    for each in cells:
        wrapped = [wrap(cell, width) for cell, width in zip(each, widths, strict=True)]
        yield from laid_out(wrapped, widths, page)


# -- grids ------------------------------------------------------------------------------------------------


def _grid(grid: Grid, page: Page) -> Iterator[str]:
    """Several grids, one below the other, if the columns do not fit side by side."""
    wanted = sum(map(_width, grid.columns))
    names = [
        shorten(sanitise(name), max(page.width // 3, page.width - wanted))
        for name in (grid.corner, *grid.names)
    ]
    if grid.entries and wanted > page.width - _NAMES_AND_COUNTS:
        for entry in grid.entries:
            yield from _entry(entry, page)
        return
    room = page.width - max(map(columns, names))
    line_up = grid.folded if grid.folded and wanted > room else grid.columns
    for number, block in enumerate(_break(line_up, room)):
        if number:
            yield ""
        yield from _cells(names, block, page)


def _cells(names: Sequence[str], line_up: Sequence[Column], page: Page) -> Iterator[str]:
    from tabulate import tabulate

    titles = (names[0], *(sanitise(column.title) for column in line_up))  # tabulate pads headers: a row
    rows = [(name, *(page.paint(*block.cells[n]) for block in line_up)) for n, name in enumerate(names[1:])]
    aligned = ("left", *("right" for _ in line_up))
    drawn = tabulate([titles, *rows], tablefmt="plain", colalign=aligned, disable_numparse=True)
    yield from (line.rstrip() for line in drawn.splitlines())


def _width(column: Column) -> int:
    """Width in terminal columns, with the gap to the left."""
    return _GAP + max(columns(sanitise(column.title)), *(len(text) for text, _ in column.cells))


def _break(line_up: Sequence[Column], room: int) -> list[list[Column]]:
    """Split the columns into as few blocks as ``room`` allows, of about equal width."""
    fewest = len(_greedy(line_up, room))
    return next(blocks for r in range(room + 1) if len(blocks := _greedy(line_up, r)) == fewest)


def _greedy(line_up: Sequence[Column], room: int) -> list[list[Column]]:
    blocks: list[list[Column]] = [[]]
    for column in line_up:
        if blocks[-1] and sum(map(_width, (*blocks[-1], column))) > room:
            blocks.append([])
        blocks[-1].append(column)
    return blocks
