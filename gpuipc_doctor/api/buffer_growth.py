"""Growth of used memory as buffers are sent and freed, and the sizes of these buffers."""

from __future__ import annotations

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
        return self._since_before_the_first(self._level) if self._levels_off and self._releases else None

    @property
    def counts_bytes(self) -> bool:
        """Whether a cache that stayed full had no room for the large buffer, but gave up others for it."""
        stayed_full = self._level - min(last_third(self.small), default=0) <= NOISE_BYTES
        return stayed_full and bool(self.late) and self.late[-1] < self._level + KEPT * self.sizes[-1]

    @property
    def stops(self) -> bool:
        """Whether growth was seen to stop, with small and with large buffers, though nothing was released."""
        if not self.is_large or not self.late or not self._levels_off or self._releases:
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
    def _levels_off(self) -> bool:
        """Whether both halves of the last third of the small buffers went as high and as low.

        A cache that is emptied when it is full goes in saw teeth; so does a leak, but these rise.
        """
        last = last_third(self.small)
        first, second = last[: len(last) // 2], last[len(last) // 2 :]
        noise = min(NOISE_BYTES, self.each * len(last) / 4)
        return self.apart and len(last) > 1 and all(abs(of(second) - of(first)) <= noise for of in (max, min))

    @property
    def _level(self) -> float:
        """Used memory at most over the last third of the small buffers."""
        return max(last_third(self.small), default=0)

    @property
    def _releases(self) -> bool:
        went = [self.used[-1], *self.small]
        return any(most - now > NOISE_BYTES for most, now in zip(accumulate(went, max), went, strict=True))

    def _since_before_the_first(self, used: float) -> float:
        """Bytes in use beyond what was before the first buffer, if that was kept, in a driver's blocks."""
        return used - self.used[0] + -(-self.sizes[0] // self.each) * self.each

    @property
    def _without_messages(self) -> float:
        return slope(range(len(self.control)), self.control).high

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


def share_no_address(buffers: Sequence[Sequence[int]], freed: Sequence[Sequence[int]]) -> bool:
    """Whether none of ``buffers`` overlaps another or one of ``freed``: ``(address, bytes)`` each."""
    pairs = chain(combinations(buffers, 2), product(buffers, freed))
    return not any(a < b + b_bytes and b < a + a_bytes for (a, a_bytes), (b, b_bytes) in pairs)
