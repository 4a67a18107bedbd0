"""Growth of used memory as buffers are sent and freed, and the sizes of these buffers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, combinations, pairwise, product

from gpuipc_doctor.api.ledger import NOISE_BYTES
from gpuipc_doctor.api.trend import BLOCK_BYTES, Slope, last_third, lasting, slope, smallest_found
from gpuipc_doctor.model import Evidence, EvidenceKind, ProbeOutcome

FEWEST = 12
"""Buffers: a third of them is enough for a slope."""

KEPT = 0.25
"""Growth by this fraction of a buffer each time is that of buffers which are kept."""

ONCE = 3
"""Levels of used memory that are not growth yet: a library may set something up, and once more."""


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
    """Used memory in bytes after each of these buffers was sent and freed; in the control none was sent.

    Only the last third counts: by then, a cache that has a bound is full. If used memory still grows, small
    buffers follow, because a cache counts buffers, and then a large one.
    """

    sizes: Sequence[int]
    used: Sequence[float]
    control: Sequence[float]
    small: Sequence[float] = ()
    """Used memory after each small buffer."""
    each: int = 1
    """Bytes of a small buffer; a driver takes as many for a smaller one."""
    late: Sequence[float] = ()
    """Used memory after the large buffer at the end."""
    apart: bool = False
    """Whether the small and late buffers share no address with a buffer that was freed before them."""
    pace: float = 1.0
    """How much longer an iteration took with a message than without."""

    @property
    def growth(self) -> Slope:
        """Bytes by which used memory goes on growing each time."""
        return lasting(self.used)

    @property
    def unsuspicious(self) -> float:
        """Bytes by which it may grow each time: as in the control, or noise over the last third.

        Two blocks of a driver's own, where they come worst, are a slope of up to 1.2 times what they come to.
        """
        return max(self._without_messages, 1.25 * NOISE_BYTES / len(last_third(self.used)))

    @property
    def grows(self) -> bool:
        return self.growth.low > self.unsuspicious

    @property
    def may_grow(self) -> bool:
        """Whether more is in use than after the first buffer: small ones show whether that goes on."""
        return self.grows or self.beyond_the_first > NOISE_BYTES

    @property
    def creep(self) -> float:
        """Bytes by which each small buffer raised used memory for good, beside a cache or none; 0: not seen.

        For a library that loses few of its buffers, or a little with each. What a cache keeps goes up and
        down and hides that, so the highest and the lowest figures are compared, as far apart as possible.
        """
        rises, between = self._rises
        if min(rises, default=0) <= self._noise or len(self._ends[0]) < self._displaced_after:
            return 0.0
        for_good = accumulate(reversed(self.small[self._displaced_after :]), min)
        return min(rises) / between if len(set(for_good)) > ONCE else 0.0

    @property
    def is_large(self) -> bool:
        """Whether each message costs a driver's block or more, or a good part of its buffer."""
        least = min(BLOCK_BYTES, KEPT * self._mean)
        return self.grows and self.growth.low >= max(self._without_messages, 0.0) + least

    @property
    def beyond_the_first(self) -> float:
        """Bytes in use beyond what was after the first buffer."""
        return self.used[-1] - self.used[0]

    @property
    def since_the_first(self) -> tuple[float, ...]:
        """Bytes in use beyond what was after the first buffer, after each."""
        return tuple(used - self.used[0] for used in (*self.used, *self.small, *self.late))

    @property
    def at_least(self) -> int:
        """The fewest buffers that held what was used at most: small ones as it rose, and the largest ones."""
        went = [self.used[-1], *self.small]
        went = went[: went.index(max(went)) + 1]
        rises = sum(max(0.0, after - before) for before, after in pairwise(went))
        small = min(round(rises / self.each), len(self.small))
        large = self._since_before_the_first(went[-1]) - small * self.each + NOISE_BYTES
        return small + sum(total <= large for total in accumulate(reversed(self.sizes)))

    @property
    def bound(self) -> float | None:
        """Bytes that a cache keeps; None if it was not seen to have a bound.

        It has one if it released buffers for small ones until used memory levelled off. A library without a
        bound also releases a mapping if a later buffer has its address, so no small buffer may lie where a
        freed one was.
        """
        return self._since_before_the_first(self._level) if self._levels_off and self.releases else None

    @property
    def counts_bytes(self) -> bool:
        """Whether a cache that stayed full had no room for the large buffer, but gave up others for it."""
        stayed_full = self._level - min(last_third(self.small), default=0) <= NOISE_BYTES
        return stayed_full and bool(self.late) and self.late[-1] < self._level + KEPT * self.sizes[-1]

    @property
    def stops(self) -> bool:
        """Whether growth was seen to stop, with small and with large buffers, though nothing was released."""
        if not self.is_large or not self.late or not self._levels_off or self.releases:
            return False
        return self.late[-1] - self._level < self.growth.low / 2

    def was_passed(self, bound: float, times: int) -> bool:
        """Whether enough was sent to fill a cache with this bound so often: small buffers, or bytes."""
        sent = len(self.small) * self.each + (sum(self.sizes) if self.counts_bytes else 0)
        return sent >= times * bound

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
    def releases(self) -> bool:
        """Whether used memory fell as small buffers were sent."""
        went = [self.used[-1], *self.small]
        return any(most - now > NOISE_BYTES for most, now in zip(accumulate(went, max), went, strict=True))

    @property
    def _levels_off(self) -> bool:
        """Whether used memory went as high and as low at the end as where the large buffers were displaced.

        A cache that is emptied when it is full goes in saw teeth; so does a leak, but these rise.
        """
        rises, _ = self._rises
        return self.apart and bool(rises) and all(abs(rise) <= self._noise for rise in rises)

    @property
    def _displaced_after(self) -> int:
        """Small buffers after which a cache that counts buffers is full of small ones.

        At most two thirds of them; one third if the large ones have filled it, which are fewer than these.
        """
        kept = self._since_before_the_first(max(last_third(self.small))) / self.each
        return min(max(FEWEST, math.ceil(kept)), (2 if self.grows else 1) * len(self.small) // 3)

    @property
    def _ends(self) -> tuple[Sequence[float], Sequence[float]]:
        """The first and the last figures since then: of a third each, or of as many as a cache may have."""
        if len(self.small) < FEWEST:
            return (), ()
        then = self.small[self._displaced_after :]
        part = min(max(self._displaced_after, len(then) // 3), len(then) // 2)
        return then[:part], then[-part:]

    @property
    def _rises(self) -> tuple[tuple[float, ...], int]:
        """By how much the highest and lowest figures rose from end to end, and the buffers between."""
        first, last = self._ends
        if not first:
            return (), 1
        between = len(self.small) - self._displaced_after - len(last)
        return tuple(of(last) - of(first) for of in (max, min)), between

    @property
    def _noise(self) -> float:
        return min(NOISE_BYTES, self.each * len(self._ends[0]) / 2)

    @property
    def _level(self) -> float:
        """Used memory at most once a cache is full of small buffers."""
        return max(self._ends[0], default=0)

    def _since_before_the_first(self, used: float) -> float:
        """Bytes in use beyond what was before the first buffer, if that was kept, in a driver's blocks."""
        return used - self.used[0] + -(-self.sizes[0] // self.each) * self.each

    @property
    def _without_messages(self) -> float:
        """Bytes each time by the control; what certainly grows there grows with time."""
        control = slope(range(len(self.control)), self.control)
        return control.high * self.pace if control.low > 0 else control.high

    @property
    def _mean(self) -> float:
        return sum(self.sizes) / len(self.sizes)


def held_by(done: ProbeOutcome, place: int, growth: Slope) -> list[Evidence]:
    """Evidence of which roles' processes hold the growth, if per-process usage is known.

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


def share_no_address(buffers: Sequence[Sequence[int]], freed: Sequence[Sequence[int]]) -> bool:
    """Whether none of ``buffers`` overlaps another or one of ``freed``: ``(address, bytes)`` each."""
    pairs = chain(combinations(buffers, 2), product(buffers, freed))
    return not any(a < b + b_bytes and b < a + a_bytes for (a, a_bytes), (b, b_bytes) in pairs)
