"""Groups of equal lines: their number, first and last line, and who wrote them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from gpuipc_doctor.diagnose.origin import time

MOST = 1024
"""Maximum hosts and ranks kept by name."""

_AROUND = 200
"""Characters shown before and after a match in a very long line."""


class Place(NamedTuple):
    """A line of a log, and the position of a match in it."""

    log: str
    line: int
    text: str
    start: int
    end: int
    host: str
    rank: str

    @property
    def where(self) -> str:
        return f"{self.log}:{self.line}"

    @property
    def time(self) -> str:
        return time(self.text)

    @property
    def excerpt(self) -> str:
        """The line; if it is very long, only the match and its surroundings."""
        begin, end = max(0, self.start - _AROUND), min(self.end, self.start + _AROUND) + _AROUND
        return "…" * (begin > 0) + self.text[begin:end] + "…" * (end < len(self.text))


class Sighting(NamedTuple):
    """One line, or several equal lines, from the first to the last."""

    kind: bytes
    """The part of a line that is the same in all equal lines."""
    lines: int
    first: Place
    last: Place
    hosts: Collection[str]
    ranks: Collection[str]

    @property
    def once(self) -> Sighting:
        """The first line alone, as a sighting."""
        first = self.first
        return Sighting(self.kind, 1, first, first, {first.host} - {""}, {first.rank} - {""})


@dataclass(frozen=True, slots=True)
class Occurrences:
    """Equal lines. ``count`` is at least 1; first and last are in reading order."""

    count: int
    at_least: bool
    """Whether there may be more lines than counted."""
    first: Place
    last: Place
    hosts: tuple[str, ...]
    ranks: tuple[str, ...]


class Tally:
    """Counts equal lines in bounded memory."""

    def __init__(self, first: Place) -> None:
        self._count = 0
        self._at_least = False
        self._first = self._last = first
        self._hosts: set[str] = set()
        self._ranks: set[str] = set()

    def add(self, seen: Sighting) -> None:
        self._count += seen.lines
        if seen.first.log == self._first.log and seen.first.line < self._first.line:
            self._first = seen.first
        if seen.last.log != self._last.log or seen.last.line > self._last.line:
            self._last = seen.last
        for names, more in ((self._hosts, seen.hosts), (self._ranks, seen.ranks)):
            if room := MOST - len(names):
                names.update(more if len(more) <= room else sorted({*more} - names)[:room])

    @property
    def last(self) -> Place:
        return self._last

    def lose_count(self) -> None:
        self._at_least = True

    def occurrences(self) -> Occurrences:
        hosts, ranks = tuple(sorted(self._hosts)), tuple(sorted(self._ranks, key=int))
        return Occurrences(self._count, self._at_least, self._first, self._last, hosts, ranks)
