"""The content of a screen or a ticket, as data: a subject's content module yields it, a format draws it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

DO = "Do: "
"""What a remedy begins with."""

Cell = tuple[str, str]
"""Text, and the status (or ``-``) that gives it its colour."""

EMPTY: Cell = ("-", "-")


@dataclass(frozen=True, slots=True)
class Item:
    """A sentence below a heading. An empty one is not drawn."""

    text: str
    lead: str = ""
    hang: int = 2
    """Columns by which its further lines stand to the right of the first, without a ``lead``."""
    depth: int = 0
    """Columns by which it stands to the right of its neighbours."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Frames of a stack or the like, each called by the next."""

    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """A word such as a status, a title, and what belongs to it."""

    word: str
    title: str
    items: tuple[Item | Chain, ...] = ()
    look: str = ""
    """The status whose colour the word has, by default the word itself."""
    columns: int = 6
    """Where the title and the items begin; a longer word keeps ``gap`` columns before the title."""
    gap: int = 2
    hang: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """Columns as wide as they need and the page allows; the first row holds the titles."""

    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a `Grid`: a title and a cell for each row."""

    title: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows with a name and coloured cells."""

    corner: str
    names: tuple[str, ...]
    columns: tuple[Column, ...]
    folded: tuple[Column, ...] = ()
    """Fewer columns with the same content, for a narrow page."""
    entries: tuple[Entry, ...] = ()
    """An entry for each row, in place of columns that do not fit side by side."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Sentences, each on a line of its own."""

    lines: tuple[str, ...]
    hang: int = 2


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence that stands out, in the colour of a status."""

    text: str
    look: str


@dataclass(frozen=True, slots=True)
class Parts:
    """Short texts side by side."""

    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Closing:
    """The last line: short texts, and at its right end the exit code."""

    parts: Sequence[str]
    ending: str
    look: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Blocks without an empty line between them."""

    blocks: tuple[Block, ...]


Block = Entry | Table | Grid | Lines | Notice | Parts | Closing | Group


def do(remedy: str) -> Item:
    return Item(remedy, DO)


def table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[Table]:
    """The table, unless it has no rows."""
    if rows := tuple(rows):
        yield Table((titles, *rows))
