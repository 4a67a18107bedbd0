"""Cut a log that arrives in pieces into blocks of whole lines, and blocks into lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

REACH = 6
"""Number of neighbouring lines on each side that are joined with a line."""
LONGEST = 4096
"""Maximum bytes of a line; a longer line is treated as several lines."""
BLOCK = 1 << 18
"""Bytes read at a time: few enough for the processor's cache, enough for many equal lines. A line that is
longer than this is examined in parts."""

_ESCAPE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[ -/]*[0-Z\\^-~])")
"""Colours and other ECMA-48 sequences, which may occur inside a message."""

_TYPESET = re.compile(rb"\xe2\x80[\x90-\x95\x98-\x9f]")
"""Dashes and quotation marks in UTF-8 that web pages and word processors put in place of ``-``, ``'`` and
``"``."""


class Block(NamedTuple):
    """Lines to examine, with the lines on each side that they may continue or be continued by."""

    before: bytes
    new: bytes
    after: bytes
    first: int
    """Number of the first new line, from 1."""


class Blocks:
    """The blocks of one log. The last `REACH` lines are held back until more lines arrive."""

    def __init__(self) -> None:
        self._before = b""
        """The last examined lines, in case new lines continue them."""
        self._waiting = b""
        """Lines held back until following lines arrive, and an unfinished line."""
        self._ended = 0
        """Number of finished lines."""
        self._open = False
        """Whether the last line is unfinished."""

    @property
    def lines(self) -> int:
        """Number of lines given out."""
        return self._ended + self._open

    def feed(self, data: bytes) -> Block | None:
        """The lines that can be examined now that ``data`` has arrived; None if they are too few."""
        self._waiting += data
        end = self._waiting.rfind(b"\n") + 1
        if len(self._waiting) - end >= BLOCK:
            end = len(self._waiting)
        upto = _lines_back(self._waiting, end, REACH)
        return self._take(upto or end, end) if upto or end >= BLOCK else None

    def flush(self) -> Block | None:
        """The lines held back, because no more lines arrive soon."""
        return self._take(len(self._waiting), len(self._waiting)) if self._waiting else None

    def _take(self, upto: int, end: int) -> Block:
        """Give out ``waiting[:upto]``, with neighbours up to ``end``."""
        before, new, after = self._before, self._waiting[:upto], self._waiting[upto:end]
        first = self._ended + 1
        self._waiting = self._waiting[upto:]
        done = before[-REACH * LONGEST :] + new[-REACH * LONGEST :]
        self._before = done[_lines_back(done, len(done), REACH) :]
        self._ended += new.count(b"\n")
        self._open = not new.endswith(b"\n")
        return Block(_plain(before), _plain(new), _plain(after), first)


def _plain(text: bytes) -> bytes:
    """The text without escape sequences and typeset marks."""
    if b"\x1b" in text:
        text = _ESCAPE.sub(b"", text)
    return _TYPESET.sub(_typewritten, text) if b"\xe2\x80" in text else text


def _typewritten(typeset: re.Match[bytes]) -> bytes:
    last = typeset[0][-1]
    return b"-" if last < 0x98 else b"'" if last < 0x9C else b'"'


def _lines_back(text: bytes, end: int, count: int) -> int:
    """Start of the last ``count`` lines before ``end``; 0 if there are fewer."""
    for _ in range(count + (text[end - 1 : end] == b"\n")):
        end = text.rfind(b"\n", 0, end)
        if end < 0:
            return 0
    return end + 1


def split(block: bytes) -> list[bytes]:
    """The lines of a block; the last one may be unfinished."""
    lines = block.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def split_rows(block: bytes, first: int = 1) -> tuple[Sequence[int], list[bytes]]:
    """(line, number) of each line of a block; a line that is too long or overwritten by carriage returns
    becomes several."""
    lines = split(block)
    numbers: Sequence[int] = range(first, first + len(lines))
    if b"\r" in block or max(map(len, lines), default=0) > LONGEST:
        parts = [(number, part) for number, line in zip(numbers, lines, strict=True) for part in _parts(line)]
        numbers, lines = [number for number, _ in parts], [part for _, part in parts]
    return numbers, lines


def _parts(line: bytes) -> Iterator[bytes]:
    for part in line.rstrip(b"\r").split(b"\r"):
        yield from [part[at : at + LONGEST] for at in range(0, len(part), LONGEST)] or [part]
