"""Cut a log that arrives in pieces into lines, and join those of a message that was wrapped.

A terminal, an editor or gdb wraps messages, sometimes inside a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
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


_WIDTHS = {79, 80, 100, 120, 132, LONGEST}
"""Usual widths of terminals, at which one full line counts as wrapped. At other widths two full lines are
needed."""
_NARROWEST = 60
"""Minimum columns of a reader's terminal."""


@dataclass(frozen=True)
class WrappedLines:
    """Consecutive lines that may be one wrapped message."""

    lines: Sequence[bytes]
    index: int
    """Position of the line that is examined."""
    width: int
    """Length in bytes of lines that may be cut inside a word; 0 if no line is."""

    @cached_property
    def readings(self) -> list[tuple[str, int, int]]:
        """Possible original texts, each with the position of the line in it.

        The lines are joined with line ends, which white space in a pattern matches. If the lines look cut at
        a terminal's width, a second text has the broken words joined.
        """
        return [_joined(self.lines, self.index, full) for full in dict.fromkeys((0, self.width))]


def wrapped_lines(lines: Sequence[bytes], index: int) -> WrappedLines | None:
    """The lines that may form one wrapped message with the line at ``index``; None if no neighbour does."""
    reach = 1 if len(lines[index]) >= LONGEST else REACH  # not a terminal's wrapping
    start = max(0, index - reach)
    return _joinable(lines[start : index + reach + 1], index - start)


def find_across(regex: re.Pattern[str], wrapped: WrappedLines) -> re.Match[str] | None:
    """A match that is partly in the examined line and partly in its neighbours."""
    for text, start, end in wrapped.readings:
        for match in regex.finditer(text):
            if match.start() < end and match.end() > start:
                return match
    return None


def _joinable(near: Sequence[bytes], index: int) -> WrappedLines | None:
    longest = max(near, key=len)
    if _is_drawn(longest):
        longest = max((line for line in near if not _is_drawn(line)), key=len, default=b"")
    width = len(longest)
    first = last = index
    while first > 0 and _may_continue(near[first - 1], near[first], width):
        first -= 1
    while last + 1 < len(near) and _may_continue(near[last], near[last + 1], width):
        last += 1
    if first == last:
        return None
    hard = width in _WIDTHS or (width >= _NARROWEST and sum(len(line) == width for line in near) > 1)
    return WrappedLines(near[first : last + 1], index - first, width if hard else 0)


def _is_drawn(line: bytes) -> bool:
    """Whether the line is blank or one character repeated, as around the messages of Open MPI."""
    text = line.strip()
    return not text.strip(text[:1])


def _may_continue(line: bytes, following: bytes, width: int) -> bool:
    """Whether ``following`` may continue ``line``: it is indented, or its first word did not fit on the
    line."""
    word = following.split(maxsplit=1)[:1]
    return bool(word) and (following[:1] in b" \t" or len(line) + len(word[0]) >= max(width, _NARROWEST))


def _joined(lines: Sequence[bytes], index: int, full: int) -> tuple[str, int, int]:
    """``lines`` as one text, and the position of ``lines[index]`` in it. Lines that are ``full`` bytes long
    have no line end, since they may end inside a word."""
    ended = [line if len(line) == full else line + b"\n" for line in lines]
    texts = [text.decode("utf-8", "replace") for text in ended]
    start = sum(map(len, texts[:index]))
    return "".join(texts), start, start + len(texts[index])
