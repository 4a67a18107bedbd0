"""Join the lines of a message that a terminal, an editor or gdb wrapped, sometimes inside a word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from gpuipc_doctor.knownissues.lines import LONGEST, REACH

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
