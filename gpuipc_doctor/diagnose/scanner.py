"""Find patterns in a log that comes in blocks: linear in its length, bounded in memory, whole at block edges.

A pattern is searched in one line. Where it is not in the line that holds its fixed text, the line is read
together with its neighbours: messages are wrapped by terminals, editors and gdb, sometimes inside a word.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from gpuipc_doctor.diagnose.finder import Finder, finder
from gpuipc_doctor.diagnose.literals import fixed_text, squeeze, squeeze_lines

REACH = 6
"""Lines before and after that a line is read with."""
LONGEST = 4096
"""Bytes. A longer line is taken for several that belong together."""
BLOCK = 1 << 16
"""Bytes read at a time: what a pipe holds, and little enough to stay in the cache. A line that does not end
within as many is read in parts."""

_VAIN = 10_000
"""Useless places after which a search without them pays; it takes some tens of milliseconds to prepare."""
_MOST_SEARCHES = 16

_WIDTHS = {79, 80, 100, 120, 132, LONGEST}
"""Columns at which one full line is enough to think that it was wrapped; at others it takes two."""
_NARROWEST = 60
"""Bytes. Whoever reads logs has at least as many columns."""
_ESCAPE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[ -/]*[0-Z\\^-~])")
"""Colours and the like, ECMA-48; they may stand inside a message."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """``wrapped``: also look for it across line ends."""

    regex: re.Pattern[str]
    wrapped: bool = False


@dataclass(frozen=True, slots=True)
class Hit:
    """A line, or the lines that a wrapped one takes, and the patterns in it."""

    number: int
    """Of the first line, counted from 1."""
    text: str
    matches: tuple[tuple[int, re.Match[str]], ...]
    """Number of the pattern and what it matched, in ``text`` or in more than it."""


@dataclass(frozen=True, slots=True)
class _Lines:
    lines: list[bytes]
    numbers: Sequence[int]
    ends: list[int]
    """Offset of each line's end in the squeezed block."""

    def text(self, index: int) -> str:
        return self.lines[index].decode("utf-8", "replace")


class Patterns:
    """What to look for, prepared once and shared by the scanners of all logs."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        """Raises `ValueError` for a pattern without fixed text: each line would have to be tried."""
        self.patterns = patterns
        self._texts = [fixed_text(pattern.regex.pattern) for pattern in patterns]
        for pattern, texts in zip(patterns, self._texts, strict=True):
            if not texts:
                raise ValueError(f"{pattern.regex.pattern!r} has no fixed text to look for")
        self._searches: dict[frozenset[int], Search] = {}

    def search(self, resting: Iterable[int] = ()) -> Search:
        """A search for the fixed texts of all patterns but those that are ``resting``."""
        key = frozenset(resting)
        if key not in self._searches:
            if len(self._searches) >= _MOST_SEARCHES:
                self._searches.clear()
            wanted = {n: texts for n, texts in enumerate(self._texts) if n not in key}
            self._searches[key] = Search(wanted)
        return self._searches[key]


class Search:
    """Finds the places where patterns may be. ``engine``: what does it, ``hyperscan`` or ``re``."""

    def __init__(self, texts: Mapping[int, Iterable[bytes]]) -> None:
        numbers: dict[bytes, list[int]] = {}
        for number, some in texts.items():
            for text in some:
                numbers.setdefault(text, []).append(number)
        self._of_text = list(numbers.values())
        self._finder: Finder | None = finder(list(numbers)) if numbers else None
        self.engine = self._finder.name if self._finder else ""

    def candidates(self, squeezed: bytes) -> list[tuple[int, list[int]]]:
        """Offsets of fixed texts' ends, and the patterns that may be there."""
        if self._finder is None:
            return []
        return [(end, self._of_text[text]) for text, end in self._finder.find(squeezed)]


class Scanner:
    """Reads one log."""

    def __init__(self, patterns: Patterns) -> None:
        self._patterns = patterns
        self._before = b""
        """The last lines that were looked at: what comes may belong to them."""
        self._waiting = b""
        """Lines that wait for what comes after them, and a line that has not ended."""
        self.resting: set[int] = set()
        """Patterns that are not looked for; whoever takes the hits may change it between any two of them."""
        self._search = patterns.search()
        self._left_out: frozenset[int] = frozenset()
        self._vain = 0
        """Places found of patterns that are resting; many of them are worth another search."""
        self._ended = 0
        """Lines that have ended."""
        self._open = False
        """Whether the last one has begun only."""

    @property
    def lines(self) -> int:
        """How many have been looked at."""
        return self._ended + self._open

    def feed(self, data: bytes) -> Iterator[Hit]:
        """Look at what has come; the last `REACH` lines of it wait for what follows."""
        self._waiting += data
        end = self._waiting.rfind(b"\n") + 1
        if len(self._waiting) - end >= BLOCK:
            end = len(self._waiting)
        upto = _lines_back(self._waiting, end, REACH)
        if upto or end >= BLOCK:
            yield from self._scan(upto or end, end)

    def flush(self) -> Iterator[Hit]:
        """Look at what is waiting as well: nothing follows, or not soon."""
        if self._waiting:
            yield from self._scan(len(self._waiting), len(self._waiting))

    def _scan(self, upto: int, end: int) -> Iterator[Hit]:
        """Look at ``waiting[:upto]``, with what is known of its surroundings up to ``end``."""
        before, new, after = self._before, self._waiting[:upto], self._waiting[upto:end]
        first = self._ended + 1 - before.count(b"\n")
        self._waiting = self._waiting[upto:]
        done = before[-REACH * LONGEST :] + new[-REACH * LONGEST :]
        self._before = done[_lines_back(done, len(done), REACH) :]
        self._ended += new.count(b"\n")
        self._open = not new.endswith(b"\n")
        if b"\x1b" in new or b"\x1b" in before or b"\x1b" in after:
            before, new, after = (_ESCAPE.sub(b"", part) for part in (before, new, after))
        block = before + new + after
        squeezed = squeeze(block)
        low, high = len(squeeze(before)), len(squeezed) - len(squeeze(after))
        candidates = [one for one in self._search_now().candidates(squeezed) if low < one[0] <= high]
        vain = sum(self.resting.issuperset(which) for _, which in candidates) if self.resting else 0
        self._vain += vain
        if len(candidates) > vain:
            yield from self._verify(_split(block, first), candidates)

    def _search_now(self) -> Search:
        """Without what is resting, once that is worth while."""
        if self._vain > _VAIN or not self._left_out <= self.resting:
            self._left_out, self._vain = frozenset(self.resting), 0
            self._search = self._patterns.search(self._left_out)
        return self._search

    def _verify(self, lines: _Lines, candidates: Iterable[tuple[int, list[int]]]) -> Iterator[Hit]:
        wanted: dict[int, dict[int, None]] = {}
        for end, which in candidates:
            wanted.setdefault(bisect_right(lines.ends, end - 1), {}).update(dict.fromkeys(which))
        patterns = self._patterns.patterns
        for index in sorted(wanted):
            text = lines.text(index)
            readings: list[tuple[str, int, int]] | None = None
            matches = []
            for number in sorted(wanted[index].keys() - self.resting):
                match = patterns[number].regex.search(text)
                if match is None and patterns[number].wrapped:
                    readings = _readings(lines, index) if readings is None else readings
                    match = _across(patterns[number].regex, readings)
                if match:
                    matches.append((number, match))
            if matches:
                yield Hit(lines.numbers[index], text, tuple(matches))


def _lines_back(text: bytes, end: int, count: int) -> int:
    """Where the last ``count`` lines before ``end`` begin; 0 when there are not as many."""
    for _ in range(count + (text[end - 1 : end] == b"\n")):
        end = text.rfind(b"\n", 0, end)
        if end < 0:
            return 0
    return end + 1


def _split(block: bytes, first: int) -> _Lines:
    """The lines of a block; one that is too long, or was overwritten by carriage returns, is several."""
    lines = block.split(b"\n")
    numbers: Sequence[int] = range(first, first + len(lines))
    if b"\r" in block or max(map(len, lines)) > LONGEST:
        parts = [(number, part) for number, line in zip(numbers, lines, strict=True) for part in _parts(line)]
        numbers, lines = [number for number, _ in parts], [part for _, part in parts]
    lengths = map(len, squeeze_lines(b"\n".join(lines)).split(b"\n"))
    return _Lines(lines, numbers, list(accumulate(lengths)))


def _parts(line: bytes) -> Iterator[bytes]:
    for part in line.rstrip(b"\r").split(b"\r"):
        yield from [part[at : at + LONGEST] for at in range(0, len(part), LONGEST)] or [part]


def _readings(lines: _Lines, index: int) -> list[tuple[str, int, int]]:
    """A line with those that it was wrapped into, if it was: the text, and where in it the line is.

    Twice where lines are as long as a terminal is wide: as they stand, so that white space in a pattern
    matches a line's end, and with the words put together that the terminal broke.
    """
    low = max(0, index - REACH)
    near = lines.lines[low : index + REACH + 1]
    width = max(map(len, near))
    first = last = index - low
    while first > 0 and _goes_on(near[first - 1], near[first], width):
        first -= 1
    while last + 1 < len(near) and _goes_on(near[last], near[last + 1], width):
        last += 1
    if first == last:
        return []
    hard = width in _WIDTHS or (width >= _NARROWEST and sum(len(line) == width for line in near) > 1)
    run, own = near[first : last + 1], index - low - first
    return [_joined(run, own, full) for full in ([0, width] if hard else [0])]


def _goes_on(line: bytes, following: bytes, width: int) -> bool:
    """Whether a line may go on in the next: that is indented, or its first word had no room before it."""
    word = following.split(maxsplit=1)[:1]
    return bool(word) and (following[:1] in b" \t" or len(line) + len(word[0]) >= max(width, _NARROWEST))


def _joined(lines: Sequence[bytes], index: int, full: int) -> tuple[str, int, int]:
    """``lines`` with a line end after each that is not ``full`` bytes long, and where ``lines[index]`` is."""
    ended = [line if len(line) == full else line + b"\n" for line in lines]
    texts = [text.decode("utf-8", "replace") for text in ended]
    start = sum(map(len, texts[:index]))
    return "".join(texts), start, start + len(texts[index])


def _across(regex: re.Pattern[str], readings: Iterable[tuple[str, int, int]]) -> re.Match[str] | None:
    """A match that is partly in the line itself and partly in its neighbours."""
    for text, start, end in readings:
        for match in regex.finditer(text):
            if match.start() < end and match.end() > start:
                return match
    return None
