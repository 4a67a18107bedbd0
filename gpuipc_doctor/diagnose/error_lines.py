"""Lines that report errors, known or not, grouped by their words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

from gpuipc_doctor.diagnose.occurrences import Occurrences, Sighting, Tally
from gpuipc_doctor.files.tables import table

LOG_LINES = Path(__file__).with_name("log_lines.yaml")

MOST_GROUPS = 250
"""Maximum kinds of lines kept per pattern. At this number, the search for the pattern ends."""


def patterns() -> list[str]:
    """Regular expressions of error lines, most relevant first."""
    return list(table(LOG_LINES)["errors"])


class ErrorLines:
    """Counts of error lines by their words."""

    def __init__(self) -> None:
        self._groups: dict[bytes, tuple[Tally, int, set[int]]] = {}
        self._kinds: Counter[int] = Counter()
        self.beyond = 0
        """Lower bound of the number of lines whose kind is not kept."""

    def is_full(self, rank: int) -> bool:
        """Whether the maximum number of kinds of line is kept for this pattern."""
        return self._kinds[rank] >= MOST_GROUPS

    def add(self, seen: Sighting, rank: int, known: Collection[int]) -> None:
        """Count a line. ``rank`` is the number of its error pattern, ``known`` has its signature patterns'
        numbers."""
        group = self._groups.get(seen.kind)
        if group is None:
            if self.is_full(rank):
                self.beyond += seen.lines
                return
            self._kinds[rank] += 1
            group = self._groups[seen.kind] = (Tally(seen.first), rank, set())
        group[0].add(seen)
        group[2].update(known)

    def unexplained(self, explained: Collection[int]) -> Iterator[tuple[bytes, Occurrences]]:
        """Kinds of lines that contain none of the ``explained`` patterns, most relevant first, then in order
        of appearance."""
        left = [
            (rank, kind, tally)
            for kind, (tally, rank, known) in self._groups.items()
            if known.isdisjoint(explained)
        ]
        for _, kind, tally in sorted(left, key=lambda one: one[0]):
            yield kind, tally.occurrences()
