"""Growth of used memory as buffers are sent and freed, and the sizes of these buffers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, combinations, pairwise, product

from gpuipc_doctor.api.ledger import NOISE_BYTES
from gpuipc_doctor.api.trend import BLOCK_BYTES, ONCE, Slope, last_third, lasting, slope, smallest_found
from gpuipc_doctor.model import Evidence, EvidenceKind, ProbeOutcome

FEWEST = 12
"""Minimum number of buffers: the last third of them must suffice for a slope."""

KEPT = 0.25
"""Buffers count as kept if used memory grows by this fraction of a buffer per iteration."""


def growing_sizes(room: float, first: int, step: int, most: int) -> list[int]:
    """Sizes that fit into ``room`` bytes, each larger than the one before by up to ``step``."""
    sizes = range(first, first + step * most, step)
    fitting = sum(total <= room for total in accumulate(sizes))
    sizes = sizes[: max(fitting, FEWEST)]
    scale = min(1.0, room / sum(sizes))
    return [int(size * scale) for size in sizes]


def equal_sizes(room: int, least: int, largest: int, most: int) -> list[int]:
    """Equal sizes that together fit into ``room``, each at most ``largest``. Their number is ``room`` divided
    by ``least``, but at least `FEWEST` and at most ``most``."""
    number = max(FEWEST, min(most, room // least))
    return [min(largest, room // number)] * number


def how_many(room: float, size: int, most: int) -> int:
    """Number of buffers of ``size`` that fit into ``room``, up to ``most``; 0 if that is too few to judge."""
    number = min(most, int(room / size))
    return number if number >= FEWEST else 0


@dataclass(frozen=True, slots=True)
class BufferGrowth:
    """Used memory in bytes after each buffer was sent and freed; the control sends none.

    Only the last third is judged: by then a bounded cache is full. If used memory still grows, small buffers
    follow (most caches limit the number of buffers), and then a large buffer.
    """

    sizes: Sequence[int]
    used: Sequence[float]
    control: Sequence[float]
    small: Sequence[float] = ()
    """Used memory after each small buffer."""
    each: int = 1
    """Bytes of a small buffer: one driver block or more."""
    late: Sequence[float] = ()
    """Used memory after the large buffer that follows the small ones."""
    apart: bool = False
    """Whether no small or late buffer shares an address with a buffer freed before it."""
    pace: float = 1.0
    """Duration of an iteration with a message, relative to one without."""
    doubt: float = 0.0
    """Bytes by which used memory may change by itself in the last third; see `IdleCounter`."""

    @property
    def growth(self) -> Slope:
        """Bytes by which used memory grows per iteration in the last third."""
        return lasting(self.used)

    @property
    def unsuspicious(self) -> float:
        """Bytes of growth per iteration to ignore: the control's growth or the noise, whichever is larger.

        The noise is two driver blocks plus 25 %, and what used memory does by itself, divided by the
        iterations in the last third.
        """
        iterations = len(last_third(self.used))
        return max(self._without_messages, 1.25 * NOISE_BYTES / iterations) + self.doubt / iterations

    @property
    def is_hidden(self) -> bool:
        """Whether what used memory does by itself may hide growth, or feign a small one."""
        return self.doubt > NOISE_BYTES and not self.is_large

    @property
    def grows(self) -> bool:
        return self.growth.low > self.unsuspicious

    @property
    def may_grow(self) -> bool:
        """Whether used memory grows, or is higher than after the first buffer. If so, small buffers are
        sent."""
        return self.grows or self.beyond_the_first > NOISE_BYTES

    @property
    def may_creep(self) -> bool:
        """Whether used memory rose permanently after the first third, but by too little to count as growth.
        If so, more buffers of the same size are sent."""
        for_good = self._for_good
        return not self.grows and for_good[-1] - for_good[len(for_good) // 3] > self.doubt

    @property
    def creep(self) -> float:
        """Bytes lost with each small buffer; 0 if no loss was detected.

        This finds libraries that lose some whole buffers, or a little per buffer. A cache's usage fluctuates
        and hides such losses, so minima and maxima are compared over as many buffers as possible.
        """
        rises, between = self._rises
        if min(rises, default=0) <= self._noise or len(self._ends[0]) < self._displaced_after:
            return 0.0
        for_good = accumulate(reversed(self.small[self._displaced_after :]), min)
        return min(rises) / between if len(set(for_good)) > ONCE else 0.0

    @property
    def climb(self) -> float:
        """Bytes per iteration by which used memory permanently rose; 0 unless it rose in each third.

        This finds libraries that lose only a few buffers, which the slope does not show. If all buffers of
        the second third were kept, a cache is not yet full, and the result is 0.
        """
        third = len(self.used) // 3
        for_good = self._for_good
        rises = [for_good[(part + 1) * third - 1] - for_good[max(part * third - 1, 0)] for part in range(3)]
        least = NOISE_BYTES + self.doubt + max(self._without_messages, 0.0) * third
        if (
            not self.rose_often
            or min(rises) <= least
            or rises[1] >= KEPT * sum(self.sizes[third : 2 * third])
        ):
            return 0.0
        return sum(rises[1:]) / (2 * third)

    @property
    def steps(self) -> int:
        """Number of permanent rises of used memory."""
        return len(set(self._for_good)) - 1

    @property
    def rose_often(self) -> bool:
        """Whether used memory rose for good more than `ONCE` times, which initialisation does not explain."""
        return self.steps > ONCE

    @property
    def is_large(self) -> bool:
        """Whether used memory grows by a driver block per message, or by a large part of the buffer."""
        least = min(BLOCK_BYTES, KEPT * self._mean)
        return self.grows and self.growth.low >= max(self._without_messages, 0.0) + least

    @property
    def beyond_the_first(self) -> float:
        """Growth in bytes from the first buffer to the last."""
        return self.used[-1] - self.used[0]

    @property
    def since_the_first(self) -> tuple[float, ...]:
        """Growth in bytes since the first buffer, as measured after each buffer."""
        return tuple(used - self.used[0] for used in (*self.used, *self.small, *self.late))

    @property
    def rose_until(self) -> int:
        """Number of the iteration after which used memory rose no more, except for noise."""
        levels = self.since_the_first
        near = max(levels) - min(NOISE_BYTES, 0.05 * max(levels))
        return next(number for number, level in enumerate(levels, 1) if level >= near)

    @property
    def at_least(self) -> int:
        """The fewest buffers, small and large, that were kept at the peak of used memory."""
        went = [self.used[-1], *self.small]
        went = went[: went.index(max(went)) + 1]
        rises = sum(max(0.0, after - before) for before, after in pairwise(went))
        small = min(round(rises / self.each), len(self.small))
        large = self._since_before_the_first(went[-1]) - small * self.each + NOISE_BYTES
        return small + sum(total <= large for total in accumulate(reversed(self.sizes)))

    @property
    def bound(self) -> float | None:
        """Bytes kept by a bounded cache; None if no bound was seen. A cache is bounded if it evicted large
        buffers to store small ones until used memory levelled off. A library without a bound also releases a
        mapping if a later buffer has its address, so small buffers must not reuse freed addresses.
        """
        return self._since_before_the_first(self._level) if self._levels_off and self.releases else None

    @property
    def counts_bytes(self) -> bool:
        """Whether the cache limits bytes: when it was full, it evicted other buffers for the large one."""
        stayed_full = self._level - min(last_third(self.small), default=0) <= NOISE_BYTES
        return stayed_full and bool(self.late) and self.late[-1] < self._level + KEPT * self.sizes[-1]

    @property
    def stops(self) -> bool:
        """Whether used memory stops growing at the end, although no buffer was released."""
        if not self.is_large or not self.late or not self._levels_off or self.releases:
            return False
        return self.late[-1] - self._level < self.growth.low / 2

    def was_passed(self, bound: float, times: int) -> bool:
        """Whether the sent buffers would fill a cache of ``bound`` bytes this many ``times``."""
        sent = len(self.small) * self.each + (sum(self.sizes) if self.counts_bytes else 0)
        return sent >= times * bound

    def plateau(self, whose: str, block: int) -> Evidence:
        """Evidence of a PASS: the observed use and the smallest growth that would have been detected.
        ``block``: see `smallest_found`."""
        last = last_third(self.used)
        return Evidence.seen(
            "{role}: {more:mib} more in use than at the start; growth of {least:bytes} or more per iteration "
            "would have been detected",
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
    def _for_good(self) -> list[float]:
        """For each buffer, the minimum of used memory from this buffer to the last."""
        return [*accumulate(reversed(self.used), min)][::-1]

    @property
    def _levels_off(self) -> bool:
        """Whether neither the minimum nor the maximum of used memory rises after small buffers have displaced
        large ones."""
        rises, _ = self._rises
        return self.apart and bool(rises) and all(abs(rise) <= self._noise for rise in rises)

    @property
    def _displaced_after(self) -> int:
        """Number of small buffers after which a cache limited to a number of buffers holds only small ones:
        at most two thirds of them, or one third if the large buffers had already filled the cache."""
        kept = self._since_before_the_first(max(last_third(self.small))) / self.each
        return min(max(FEWEST, math.ceil(kept)), (2 if self.grows else 1) * len(self.small) // 3)

    @property
    def _ends(self) -> tuple[Sequence[float], Sequence[float]]:
        if len(self.small) < FEWEST:
            return (), ()
        then = self.small[self._displaced_after :]
        part = min(max(self._displaced_after, len(then) // 3), len(then) // 2)
        return then[:part], then[-part:]

    @property
    def _rises(self) -> tuple[tuple[float, ...], int]:
        """Rise of the maximum and of the minimum of used memory between the `_ends`, and the number of
        buffers between them."""
        first, last = self._ends
        if not first:
            return (), 1
        between = len(self.small) - self._displaced_after - len(last)
        return tuple(of(last) - of(first) for of in (max, min)), between

    @property
    def _noise(self) -> float:
        return min(NOISE_BYTES, self.each * len(self._ends[0]) / 2) + self.doubt

    @property
    def _level(self) -> float:
        return max(self._ends[0], default=0)

    def _since_before_the_first(self, used: float) -> float:
        """Growth in bytes since before the first buffer, whose size is rounded up to whole driver blocks."""
        return used - self.used[0] + -(-self.sizes[0] // self.each) * self.each

    @property
    def _without_messages(self) -> float:
        """Bytes per iteration in the control: growth that depends on time, not messages."""
        if self.doubt:
            return 0.0
        control = slope(range(len(self.control)), self.control)
        return control.high * self.pace if control.low > 0 else control.high

    @property
    def _mean(self) -> float:
        return sum(self.sizes) / len(self.sizes)


def held_by(done: ProbeOutcome, place: int, growth: Slope) -> list[Evidence]:
    """Evidence: which roles' processes hold the growth, if usage by process is known.

    If the exporter has freed memory, the driver attributes it to the processes that still map it.
    """
    says = "the {role}'s process holds {growth:mib} more after each iteration"
    found = []
    for role, record in done.records.items():
        held = record["held"][place]
        is_told = None not in held[len(held) // 2 :]
        if is_told and (theirs := lasting(held)).low > growth.low / 2:
            found.append(Evidence(EvidenceKind.HOLDER, says, {"role": role, "growth": theirs.estimate}))
    return found


def share_no_address(buffers: Sequence[Sequence[int]], freed: Sequence[Sequence[int]]) -> bool:
    """Whether all ``buffers`` have addresses of their own, which no buffer in ``freed`` had. A buffer is
    ``(address, bytes)``."""
    pairs = chain(combinations(buffers, 2), product(buffers, freed))
    return not any(a < b + b_bytes and b < a + a_bytes for (a, a_bytes), (b, b_bytes) in pairs)
