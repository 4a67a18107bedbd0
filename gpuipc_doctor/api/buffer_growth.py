"""Whether memory that is freed comes back: used memory, as one buffer after the other is freed.

Which sizes they have, when all may come to be held together, is planned here, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from gpuipc_doctor.api.ledger import NOISE_BYTES
from gpuipc_doctor.api.trend import Slope, last_third, lasting, slope, smallest_found
from gpuipc_doctor.model import Evidence, EvidenceKind, ProbeOutcome

FEWEST = 12
"""Buffers: a third of them is enough for a slope."""

KEPT = 0.25
"""Growth by more than this fraction of a buffer each time is that of buffers which are kept."""


def growing_sizes(room: float, first: int, step: int, most: int) -> list[int]:
    """Sizes of buffers that fit into ``room``, each larger than the last by ``step``, or less of each."""
    sizes = range(first, first + step * most, step)
    fitting = sum(total <= room for total in accumulate(sizes))
    sizes = sizes[: max(fitting, FEWEST)]
    scale = min(1.0, room / sum(sizes))
    return [int(size * scale) for size in sizes]


def equal_sizes(room: int, least: int, largest: int, most: int) -> list[int]:
    """As many of one size as fit into ``room``, of ``least`` bytes or more each, or `FEWEST` smaller ones."""
    number = max(FEWEST, min(most, room // least))
    return [min(largest, room // number)] * number


def how_many(room: float, size: int, most: int) -> int:
    """How many buffers of ``size`` fit into ``room``, up to ``most``; 0 where they are too few to tell by."""
    number = min(most, int(room / size))
    return number if number >= FEWEST else 0


@dataclass(frozen=True, slots=True)
class BufferGrowth:
    """Used memory after each of these buffers was freed, and of as many that nobody has a reason to keep.

    What counts is how the last third goes: by then, a cache that has a bound is full. ``then`` is used memory
    after each of those that followed, which all have a size of ``each``: a cache counts buffers.
    """

    sizes: Sequence[int]
    used: Sequence[float]
    control: Sequence[float]
    then: Sequence[float] = ()
    each: int = 1

    @property
    def growth(self) -> Slope:
        """Bytes by which used memory goes on growing each time."""
        return lasting(self.used)

    @property
    def unsuspicious(self) -> float:
        """Bytes by which it may grow each time: as in the control, or noise over the last third.

        Two blocks of a driver's own, where they come worst, are a slope of up to 1.2 times what they come to.
        """
        noise = 1.25 * NOISE_BYTES / len(last_third(self.used))
        return max(slope(range(len(self.control)), self.control).high, noise)

    @property
    def grows(self) -> bool:
        return self.growth.low > self.unsuspicious

    @property
    def are_kept(self) -> bool:
        """Whether it grows as if the buffers were kept, and not a little for each."""
        return self.grows and self.growth.low > KEPT * self._mean

    @property
    def beyond_the_first(self) -> float:
        """Bytes in use beyond what was after the first buffer."""
        return self.used[-1] - self.used[0]

    @property
    def since_the_first(self) -> tuple[float, ...]:
        """Bytes in use beyond what was after the first buffer, after each."""
        return tuple(used - self.used[0] for used in (*self.used, *self.then))

    @property
    def at_least(self) -> float:
        """How many buffers are kept, where used memory went like ``then``.

        Some may have been given up for those that lie over them now. What else is lost counts as large ones.
        """
        went = [self.used[-1], *self.then]
        rises = sum(max(0.0, after - before) for before, after in pairwise(went))
        small = min(rises / self.each, len(self.then))
        return small + max(0.0, (went[-1] - self.used[0] - small * self.each) / self._mean)

    @property
    def bound(self) -> float | None:
        """How many are kept, where the first ones were given up for the later ones until it levelled off.

        That is a cache with a bound. What keeps some and gives up none is not known to be one.
        """
        if not self.then or self.then[-1] >= self.used[-1] - NOISE_BYTES:
            return None
        if BufferGrowth([self.each] * len(self.then), self.then, self.control).grows:
            return None
        return (self.beyond_the_first + self.then[-1] - self.used[-1] + self.sizes[0]) / self.each

    def plateau(self, whose: str, block: int) -> Evidence:
        """What was seen where nothing is kept, and which growth would have been, counted in such blocks."""
        last = last_third(self.used)
        return Evidence.seen(
            "{role}: {more:mib} more in use than at the start; growth by {least:bytes} or more each "
            "iteration would have been found",
            role=whose,
            more=self.beyond_the_first,
            least=smallest_found(range(len(last)), last, self.unsuspicious, block),
        )

    @property
    def _mean(self) -> float:
        return sum(self.sizes) / len(self.sizes)


def held_by(done: ProbeOutcome, place: int, growth: Slope) -> list[Evidence]:
    """Whose processes growth of the device at this place is in, where it is known what each ``held`` of it.

    A driver counts memory that its owner has freed for those who still map it.
    """
    says = "the {role}'s process holds it: {growth:mib} more each iteration"
    found = []
    for role, record in done.records.items():
        held = record["held"][place]
        is_told = None not in held[len(held) // 2 :]
        if is_told and (theirs := lasting(held)).low > growth.low / 2:
            found.append(Evidence(EvidenceKind.HOLDER, says, {"role": role, "growth": theirs.estimate}))
    return found
