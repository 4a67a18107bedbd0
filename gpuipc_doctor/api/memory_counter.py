"""A device's counter of used memory: what it shows, and how it changes by itself while this run does nothing.

Where a GPU is a NUMA node of the host (GH200, GB200), the pages of the host's files count as used, so the
counter follows file I/O. Only mpi-cache-growth subtracts what the counter does while idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from gpuipc_doctor.api.slopes import slope

ODD_BYTES = 37 << 20
"""Bytes of the test allocation: small for a GPU, and a size that other processes are unlikely to allocate."""

NOISE_BYTES = 4 << 20
"""Change of used memory to ignore: one or two of the driver's own blocks."""

PROMPT_S = 0.02
"""Seconds within which used memory is read, unless this process is interrupted."""

LAG_S = 1.0
"""Seconds after which a counter must show an allocation: some are refreshed at intervals."""

Window = Sequence[Sequence[float]]
"""Points (seconds, bytes) of an uninterrupted idle time: first, last, and both sides of each change."""

WIDER = 2.0
"""Factor by which the seen changes are widened: other changes may come than those that were seen."""

MOST_POINTS = 32
"""Maximum points of a window, all of which are compared with each other."""

FEWEST = 4
"""Minimum points of a window that show a rate."""

SPREAD_S = 0.3
"""Seconds over which changes must be spread: another process's start also changes used memory a few times."""


def window_of(points: Sequence[tuple[float, float]]) -> Window:
    """The window of all readings in an idle time."""
    changed = [number for number in range(1, len(points)) if points[number][1] != points[number - 1][1]]
    kept = {0, len(points) - 1, *changed, *(number - 1 for number in changed)}
    step = -(-len(kept) // MOST_POINTS)
    return [points[number] for number in [*sorted(kept)[::step], len(points) - 1]]


@dataclass(frozen=True, slots=True)
class IdleCounter:
    """The idle times in which used memory was watched."""

    windows: Sequence[Window] = ()

    @property
    def moves(self) -> bool:
        """Whether used memory changes by itself, again and again."""
        changes = [
            now[0] for window in self.windows for before, now in pairwise(window) if before[1] != now[1]
        ]
        return bool(changes) and max(changes) - min(changes) >= SPREAD_S

    @property
    def seen(self) -> tuple[float, float]:
        """The largest change in one idle time in bytes, and the seconds of this idle time."""
        return max(
            (max(used) - min(used), window[-1][0] - window[0][0])
            for window in self.windows
            if (used := [point[1] for point in window])
        )

    def change_within(self, seconds: float) -> tuple[float, float]:
        """Change of used memory in bytes to expect within this time, and by how much it may differ.

        Only if used memory does not change by itself, the latter is 0.
        Changes within a shorter time are extrapolated.
        """
        if not self.moves or seconds <= 0:
            return 0.0, 0.0
        longest = max(window[-1][0] - window[0][0] for window in self.windows)
        reach = min(seconds, longest)
        seen = [
            (then[1] - now[1]) * max(1.0, seconds / (then[0] - now[0]))
            for window in self.windows
            for now, then in combinations(window, 2)
            if reach / 2 <= then[0] - now[0] <= seconds
        ]
        expected = (min(seen) + max(seen)) / 2 if seen else 0.0
        # A short window may show that the counter turns, not what it will do: it widens the uncertainty. A
        # process that ends in it does not count.
        for window in self.windows:
            used_at = {point[0]: point[1] for point in window}
            used = [*used_at.values()]
            steps = [abs(then - now) for now, then in pairwise(used)]
            if len(used) >= FEWEST and max(steps) <= (max(used) - min(used)) / 2:
                seen.append(slope([*used_at], used).estimate * seconds)
        return expected, max(WIDER * max((abs(each - expected) for each in seen), default=0.0), 1.0)

    def without(self, used: Sequence[float], at: Sequence[float]) -> list[float]:
        """Readings of used memory, less the change to expect since the first."""
        if not self.moves or len(at) != len(used) or not at:
            return list(used)
        seconds = at[-1] - at[0]
        rate = self.change_within(seconds)[0] / seconds if seconds else 0.0
        return [bytes_ - rate * (time - at[0]) for bytes_, time in zip(used, at, strict=True)]


STILL = IdleCounter()
"""A counter that was not seen to move by itself."""
