"""Growth of used memory as buffers are sent and freed, and the sizes of these buffers."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import accumulate, pairwise

from gpuipc_doctor.api.memory_counter import NOISE_BYTES
from gpuipc_doctor.api.slopes import (
    BLOCK_BYTES,
    ONCE,
    Slope,
    is_even,
    last_third,
    lasting,
    slope,
    smallest_found,
)
from gpuipc_doctor.model import Evidence, EvidenceKind
from gpuipc_doctor.probe_types import ProbeOutcome

FEWEST = 12
"""Minimum number of buffers: the last third of them must suffice for a slope."""

KEPT = 0.25
"""Buffers count as kept if used memory grows by this fraction of a buffer per iteration."""

TOO_FEW = 24
"""Minimum growing buffers to distinguish a leak from a cache. Each buffer is larger than the last, so a cache
of two buffers grows like a loss of a part of each buffer."""


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


class Outcome(Enum):
    """What used memory did as buffers were sent and freed: exactly one of these."""

    FLAT = "flat"
    BOUNDED = "bounded"
    """It grew until a bounded cache was full or until it stopped, or within the library's own bound."""
    GROWS = "grows"
    """It grew: with each buffer, by a few lost buffers, or by a part of each."""
    UNKNOWN = "cannot tell"
    """It moves by itself so that growth would be hidden or feigned, or too few buffers were sent."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Growth per iteration in the last third, by when a bounded cache is full."""

    growth: Slope
    without_messages: float
    """Bytes per iteration in the control: growth that depends on time, not messages."""
    unsuspicious: float
    """Bytes of growth per iteration to ignore: the control's growth or the noise, whichever is larger."""
    large: float
    """Bytes per iteration from which growth is large: a driver block per message, or a large part of the
    buffer, more than in the control."""

    @property
    def grows(self) -> bool:
        return self.growth.low > self.unsuspicious

    @property
    def is_large(self) -> bool:
        return self.grows and self.growth.low >= self.large


@dataclass(frozen=True, slots=True)
class Rises:
    """Permanent rises of used memory: after each of them, it was never as low again."""

    steps: int
    late: float
    """Bytes by which used memory permanently rose after the first third."""
    climb: float
    """Bytes per iteration by which used memory permanently rose; 0 unless it rose in each third.

    This finds libraries that lose only a few buffers, which the slope does not show. If all buffers of the
    second third were kept, a cache is not yet full, and the result is 0.
    """

    @property
    def rose_often(self) -> bool:
        """Whether used memory rose for good more than `ONCE` times, which initialisation does not explain."""
        return self.steps > ONCE


@dataclass(frozen=True, slots=True)
class Displacement:
    """What used memory did as small buffers followed, which displace the large ones in a bounded cache."""

    releases: bool
    """Whether used memory fell as small buffers were sent."""
    level: float = 0.0
    """Maximum of used memory soon after the large buffers were displaced."""
    levels_off: bool = False
    """Whether neither the minimum nor the maximum of used memory rises after the large buffers were
    displaced."""
    creep: float = 0.0
    """Bytes lost with each small buffer; 0 if no loss was detected.

    This finds libraries that lose some whole buffers, or a little per buffer. A cache's usage fluctuates
    and hides such losses, so minima and maxima are compared over as many buffers as possible.
    """
    counts_bytes: bool = False
    """Whether the cache limits bytes: when it was full, it evicted other buffers for the large one."""
    bound: float | None = None
    """Bytes kept by a bounded cache; None if no bound was seen. A cache is bounded if it evicted large
    buffers to store small ones until used memory levelled off. A library without a bound also releases a
    mapping if a later buffer has its address, so small buffers must not reuse freed addresses."""
    stops: bool = False
    """Whether used memory stops growing at the end, although no buffer was released."""


@dataclass(frozen=True)
class BufferGrowth:
    """Used memory in bytes after each buffer was sent and freed; the control sends none.

    Three measurements decide the `Outcome`: the `Rate` in the last third, by when a bounded cache is full;
    permanent `Rises`; and, if small buffers follow (most caches limit the number of buffers) and then a large
    one, the `Displacement` of the large buffers.
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

    def outcome(self, planned: int = 0, allowed: int = 0, *, decides: bool = True) -> Outcome:
        """What happened.

        ``planned``: number of small buffers that were to follow. ``allowed``: number of buffers that the
        library may keep by its own bound. ``decides``: whether the run is long enough to tell a leak from a
        cache; a bound must then be passed twice.
        """
        if self.is_hidden or self.is_uneven or self.has_too_few(planned):
            return Outcome.UNKNOWN
        if not (self.rate.grows or self.is_slow):
            return Outcome.FLAT
        bound, half = self.displacement.bound, (len(self.used) + len(self.small)) / 2
        stopped = self.displacement.stops or (bound and self.was_passed(bound, 2 if decides else 1))
        is_allowed = allowed >= self.at_least > half and not self.is_slow
        is_bounded = self.rate.grows and self.is_complete(planned) and (stopped or is_allowed)
        return Outcome.BOUNDED if is_bounded else Outcome.GROWS

    # -- the measurements ---------------------------------------------------------------------------------

    @cached_property
    def rate(self) -> Rate:
        """Growth per iteration. The noise is two driver blocks plus 25 %, and what used memory does by
        itself, divided by the iterations in the last third."""
        iterations, without_messages = len(last_third(self.used)), self._rate_without_messages()
        noise = 1.25 * NOISE_BYTES / iterations
        mean_size = sum(self.sizes) / len(self.sizes)
        return Rate(
            growth=lasting(self.used),
            without_messages=without_messages,
            unsuspicious=max(without_messages, noise) + self.doubt / iterations,
            large=max(without_messages, 0.0) + min(BLOCK_BYTES, KEPT * mean_size),
        )

    def _rate_without_messages(self) -> float:
        if self.doubt:
            return 0.0
        control = slope(range(len(self.control)), self.control)
        return control.high * self.pace if control.low > 0 else control.high

    @cached_property
    def rises(self) -> Rises:
        """The permanent rises, from the minimum of used memory between each buffer and the last."""
        minima = [*accumulate(reversed(self.used), min)][::-1]
        third = len(self.used) // 3
        first, second, last = (
            minima[end] - minima[start]
            for start, end in pairwise((0, third - 1, 2 * third - 1, 3 * third - 1))
        )
        steps = len(set(minima)) - 1
        least = NOISE_BYTES + self.doubt + max(self.rate.without_messages, 0.0) * third
        fills_a_cache = second >= KEPT * sum(self.sizes[third : 2 * third])
        climbs = steps > ONCE and min(first, second, last) > least and not fills_a_cache
        return Rises(steps, minima[-1] - minima[third], (second + last) / (2 * third) if climbs else 0.0)

    @cached_property
    def displacement(self) -> Displacement:
        """The displacement, from two parts of the series after it, whose extremes are compared."""
        seen = [self.used[-1], *self.small]
        releases = any(
            most - now > NOISE_BYTES for most, now in zip(accumulate(seen, max), seen, strict=True)
        )
        if len(self.small) < FEWEST:
            return Displacement(releases)
        displaced = self._displaced_after()
        then = self.small[displaced:]
        part = min(max(displaced, len(then) // 3), len(then) // 2)
        first, last = then[:part], then[-part:]
        noise = min(NOISE_BYTES, self.each * part / 2) + self.doubt
        rises = max(last) - max(first), min(last) - min(first)
        steps = len(set(accumulate(reversed(then), min))) - 1
        creeps = min(rises) > noise and part >= displaced and steps >= ONCE
        level, late = max(first), self.late[-1] if self.late else None
        levels_off = self.apart and all(abs(rise) <= noise for rise in rises)
        stayed_full = level - min(last_third(self.small)) <= NOISE_BYTES
        stopped = self.rate.is_large and late is not None and late - level < self.rate.growth.low / 2
        return Displacement(
            releases,
            level,
            levels_off,
            creep=min(rises) / (len(then) - part) if creeps else 0.0,
            counts_bytes=stayed_full and late is not None and late < level + KEPT * self.sizes[-1],
            bound=self._since_before_the_first(level) if levels_off and releases else None,
            stops=levels_off and not releases and stopped,
        )

    def _displaced_after(self) -> int:
        """Number of small buffers after which a cache limited to a number of buffers holds only small ones:
        at most two thirds of them, or one third if the large buffers had already filled the cache."""
        kept = self._since_before_the_first(max(last_third(self.small))) / self.each
        return min(max(FEWEST, math.ceil(kept)), (2 if self.rate.grows else 1) * len(self.small) // 3)

    def _since_before_the_first(self, used: float) -> float:
        """Growth in bytes since before the first buffer, whose size is rounded up to whole driver blocks."""
        return used - self.used[0] + -(-self.sizes[0] // self.each) * self.each

    # -- what follows from them ---------------------------------------------------------------------------

    @property
    def is_hidden(self) -> bool:
        """Whether what used memory does by itself may hide growth, or feign a small one."""
        return self.doubt > NOISE_BYTES and not self.rate.is_large

    @property
    def is_uneven(self) -> bool:
        """Whether it grew in bursts, while used memory also moves by itself."""
        return self.doubt > 0 and not self.is_even

    def has_too_few(self, planned: int) -> bool:
        """Whether it grew with too few growing buffers to tell a cache from a leak, and no small ones
        followed."""
        are_few = self.sizes[0] < self.sizes[-1] and not planned and len(self.used) < TOO_FEW
        return are_few and (self.rate.grows or self.rises.rose_often)

    @property
    def is_slow(self) -> bool:
        """Whether a few buffers are lost, or a small part of each: small buffers or permanent rises show it,
        not the slope."""
        creep = self.displacement.creep
        if self.rate.grows:
            return self.apart and self.displacement.releases and 0 < creep < KEPT * self.each
        return creep > 0 or self.rises.climb > 0

    @property
    def loses_buffers(self) -> float:
        """Bytes of growth with each buffer, if so many are lost that this is a small buffer or more; else
        0."""
        lost = self.beyond_the_first / (len(self.used) - 1)
        is_lost = not self.rate.grows and self.displacement.creep > 0 and lost >= self.each
        return lost if is_lost else 0.0

    @property
    def is_even(self) -> bool:
        """Whether the growth, if any, goes on in all parts of its series: see `slopes.is_even`. What a
        library keeps may depend on the buffers' sizes, so the growth relative to the sizes may be even."""
        if self.rate.grows or self.rises.climb > 0:
            return is_even(self.used) or is_even(self._used_if_sizes_were_equal())
        return self.displacement.creep == 0 or is_even(self.small[self._displaced_after() :])

    def _used_if_sizes_were_equal(self) -> list[float]:
        mean_size = sum(self.sizes) / len(self.sizes)
        rises = (after - before for before, after in pairwise(self.used))
        relative = (rise / size for rise, size in zip(rises, self.sizes[1:], strict=True))
        return [each * mean_size for each in accumulate(relative, initial=0.0)]

    @property
    def may_grow(self) -> bool:
        """Whether used memory grows, or is higher than after the first buffer. If so, small buffers are
        sent."""
        return self.rate.grows or self.beyond_the_first > NOISE_BYTES

    @property
    def may_creep(self) -> bool:
        """Whether used memory rose permanently after the first third, but by too little to count as growth.
        If so, more buffers of the same size are sent."""
        return not self.rate.grows and self.rises.late > self.doubt

    def is_complete(self, planned: int) -> bool:
        """Whether the ``planned`` small buffers and the large one were sent, or none was planned. The memory
        limit may end a run."""
        return not planned or len(self.small) + len(self.late) > planned

    def was_passed(self, bound: float, times: int) -> bool:
        """Whether the sent buffers would fill a cache of ``bound`` bytes this many ``times``."""
        large = sum(self.sizes) if self.displacement.counts_bytes else 0
        return len(self.small) * self.each + large >= times * bound

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
        seen = [self.used[-1], *self.small]
        to_the_peak = seen[: seen.index(max(seen)) + 1]
        rise = sum(max(0.0, after - before) for before, after in pairwise(to_the_peak))
        small = min(round(rise / self.each), len(self.small))
        large = self._since_before_the_first(to_the_peak[-1]) - small * self.each + NOISE_BYTES
        return small + sum(total <= large for total in accumulate(reversed(self.sizes)))

    def plateau(self, whose: str, block: int) -> Evidence:
        """Evidence of a PASS: the observed use and the smallest growth that would have been detected.
        ``block``: see `smallest_found`."""
        last = last_third(self.used)
        return Evidence.seen(
            "{role}: {more:mib} more in use than at the start; growth of {least:bytes} or more per iteration "
            "would have been detected",
            role=whose,
            more=self.beyond_the_first,
            least=smallest_found(range(len(last)), last, self.rate.unsuspicious, block),
        )


def held_by(done: ProbeOutcome, place: int, growth: Slope) -> list[Evidence]:
    """Evidence: which roles' processes hold the growth, or that none does, if usage by process is known.

    If the exporter has freed memory, the driver attributes it to the processes that still map it, and to none
    if a descriptor of it is open.
    """
    says = "the {role}'s process holds {growth:mib} more after each iteration"
    series = [(says, role, record["held"][place]) for role, record in done.records.items()]
    _, own = list(done.records.items())[place]
    if len(own["held"]) > len(done.devices):
        series.append(("no process holds {growth:mib} more after each iteration", "", own["held"][-1]))
    return [
        Evidence(EvidenceKind.HOLDER, says, {"role": role, "growth": theirs.estimate})
        for says, role, held in series
        if None not in held[len(held) // 2 :] and (theirs := lasting(held)).low > growth.low / 2
    ]


def share_no_address(buffers: Sequence[Sequence[int]], freed: Sequence[Sequence[int]]) -> bool:
    """Whether all ``buffers`` have addresses of their own, which no buffer in ``freed`` had. A buffer is
    ``(address, bytes)``."""
    own = sorted((address, address + nbytes) for address, nbytes in buffers)
    if any(end > begin for (_, end), (begin, _) in pairwise(own)):
        return False
    begins = [begin for begin, _ in own]
    for address, nbytes in freed:
        begun = bisect_left(begins, address + nbytes)
        if begun and own[begun - 1][1] > address:
            return False
    return True
