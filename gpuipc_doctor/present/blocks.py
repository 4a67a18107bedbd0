"""Content of a screen or ticket as data: a content module yields blocks, a format renders them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

DO = "Do: "
"""Prefix of a remedy."""
ALSO = "  - "
"""Prefix of each further remedy for the same fault."""

Cell = tuple[str, str]
"""(text, status or ``-`` for its colour)."""

EMPTY: Cell = ("-", "-")


@dataclass(frozen=True, slots=True)
class Item:
    """A sentence below a heading; not shown if empty."""

    text: str
    lead: str = ""
    hang: int = 2
    """Hanging indent in columns; not used if there is a ``lead``."""
    depth: int = 0
    """Indent in columns."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Frames of a stack, each called by the next."""

    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """A heading (a word such as a status, and a title) with its content."""

    word: str
    title: str
    items: tuple[Item | Chain, ...] = ()
    look: str = ""
    """Status whose colour the word gets; if empty, the word is itself a status."""
    columns: int = 6
    """Column of the title and the items. A longer word moves the title to ``gap`` columns after it."""
    gap: int = 2
    hang: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """Columns as wide as needed and as the page allows; the first row holds the titles."""

    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a `Grid`: a title and a cell for each row."""

    title: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """A table whose rows have a name and coloured cells."""

    corner: str
    names: tuple[str, ...]
    columns: tuple[Column, ...]
    folded: tuple[Column, ...] = ()
    """Fewer columns with the same content, for a narrow page."""
    entries: tuple[Entry, ...] = ()
    """One entry per row, used if the columns do not fit side by side."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Sentences, each on its own line; not shown if empty."""

    lines: tuple[str, ...]
    hang: int = 2


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Lines to be copied unchanged: a command, a stack, a program."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Notice:
    """A highlighted sentence, in the colour of a status."""

    text: str
    look: str


@dataclass(frozen=True, slots=True)
class Parts:
    """Short texts side by side."""

    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Closing:
    """The last line: short texts, and the exit code at its right end."""

    parts: Sequence[str]
    ending: str
    look: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Blocks without an empty line between them."""

    blocks: tuple[Block, ...]


Block = Entry | Table | Grid | Lines | Verbatim | Notice | Parts | Closing | Group


def do(remedy: str) -> Item:
    return Item(remedy, DO)


def actions(remedies: Iterable[str]) -> Iterator[Item]:
    """Remedies, each on a line of its own."""
    for number, remedy in enumerate(remedies):
        yield Item(remedy, ALSO if number else DO)


def table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[Table]:
    """The table, unless it has no rows."""
    if rows := tuple(rows):
        yield Table((titles, *rows))
