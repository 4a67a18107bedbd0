"""Lines that say the same: how many, the first and the last of them, and who wrote them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gpuipc_doctor.diagnose.origin import time

MOST = 1024
"""Hosts, and ranks, that are remembered by name; of a larger job these are enough."""

_AROUND = 200
"""Characters shown before and after what was found in a very long line."""


class Place(NamedTuple):
    """A line of a log, and where in it something was found."""

    log: str
    line: int
    text: str
    start: int
    end: int
    kind: bytes
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
        """The line; of a very long one what is near."""
        begin, end = max(0, self.start - _AROUND), min(self.end, self.start + _AROUND) + _AROUND
        return "…" * (begin > 0) + self.text[begin:end] + "…" * (end < len(self.text))


@dataclass(frozen=True, slots=True)
class Evidence:
    """Lines that say the same. ``count`` is at least 1; first and last are in the order of reading."""

    count: int
    at_least: bool
    """There may be more of them than were counted."""
    first: Place
    last: Place
    hosts: tuple[str, ...]
    ranks: tuple[str, ...]


class Tally:
    """Counts lines that say the same, in bounded memory."""

    def __init__(self, first: Place) -> None:
        self._count = 0
        self._at_least = False
        self._first = self._last = first
        self._hosts: set[str] = set()
        self._ranks: set[str] = set()

    def add(self, place: Place) -> None:
        self._count += 1
        self._last = place
        if place.host and len(self._hosts) < MOST:
            self._hosts.add(place.host)
        if place.rank and len(self._ranks) < MOST:
            self._ranks.add(place.rank)

    def lose_count(self) -> None:
        self._at_least = True

    def evidence(self) -> Evidence:
        hosts, ranks = tuple(sorted(self._hosts)), tuple(sorted(self._ranks, key=int))
        return Evidence(self._count, self._at_least, self._first, self._last, hosts, ranks)
