"""Test data: words that encode the write they come from and their offset; and what memory holds in parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from struct import pack, unpack_from
from typing import NamedTuple

PERIOD = 4099
"""Period of the data in bytes. A prime, so that data shifted by whole pages never matches."""

PIECE = 1 << 20
"""Bytes per copy."""

_LINES = (b"", *(pack("<I", line) for line in range(PERIOD // 8)))


@lru_cache(maxsize=512)
def _block(stamp: int) -> bytes:
    word = pack("<I", stamp)
    return word.join(_LINES) + word[:3]


def contents(stamp: int, nbytes: int, offset: int = 0) -> bytes:
    """Bytes ``offset`` to ``offset + nbytes`` of memory that the write ``stamp`` has filled."""
    begin, block = offset % PERIOD, _block(stamp)
    turned = (block[begin:] + block[:begin]) * min(64, nbytes // PERIOD + 1)
    whole, rest = divmod(nbytes, len(turned))
    return b"".join([turned] * whole + [turned[:rest]])  # new memory costs more than what is written to it


class Part(NamedTuple):
    """Bytes ``begin`` to ``end`` of memory, as the write or fill ``stamp`` left them.

    ``shift``: how much further they lie here than where they were written, after a copy to another offset;
    of a fill, where it began. ``width``: bytes of a fill's unit, 0 for `contents`.
    """

    begin: int
    end: int
    stamp: int
    shift: int = 0
    width: int = 0

    def data(self, begin: int, end: int) -> bytes:
        """Its bytes from offset ``begin`` to ``end`` of the memory."""
        if not self.width:
            return contents(self.stamp, end - begin, begin - self.shift)
        unit, phase = unit_of(self.stamp, self.width), (begin - self.shift) % self.width
        return (unit * ((end - begin) // self.width + 2))[phase : phase + end - begin]


def unit_of(stamp: int, width: int) -> bytes:
    """The bytes that a fill repeats; as a number not negative, since HIP takes a signed one."""
    return (stamp * 0x9E3779B1 & 0x7FFFFFFF | 1).to_bytes(4, "little")[:width]


def within(parts: Iterable[Part], begin: int, end: int) -> tuple[Part, ...]:
    """What of the parts lies between two offsets."""
    return tuple(
        part._replace(begin=max(part.begin, begin), end=min(part.end, end))
        for part in parts
        if part.begin < end and begin < part.end
    )


def overlaid(parts: Sequence[Part], begin: int, end: int, new: Iterable[Part] = ()) -> tuple[Part, ...]:
    """The parts after ``new`` replaced all between two offsets."""
    size = max([end, *(part.end for part in parts)])
    return (*within(parts, 0, begin), *new, *within(parts, end, size))


FULL_BYTES = 256 << 10
"""So many bytes are read in full, of more only both ends, the middle, and where parts meet."""

GLANCE = 16 << 10
"""Bytes read at each end and in the middle."""

WHOLE_BYTES = 64 << 20
"""Memory above this size is written only where it is read."""

BOUNDARIES = (2 << 30, 4 << 30)
"""Offsets around which huge memory is also written and read."""

EDGE = 256
"""Bytes read on either side of where two parts meet."""


def glances(begin: int, end: int) -> list[tuple[int, int]]:
    """(begin, end) of the pieces of this range that are read."""
    if end - begin <= FULL_BYTES:
        return [(begin, end)]
    middle = begin + (end - begin) // 2 - PERIOD
    at = [begin, middle, *(edge - PERIOD for edge in BOUNDARIES if begin + PERIOD < edge < end - GLANCE)]
    return [*((one, one + GLANCE) for one in at), (end - GLANCE, end)]


def looks(begin: int, end: int, parts: Sequence[Part]) -> list[tuple[int, int]]:
    """Those, and where parts meet."""
    edges = {part.begin for part in parts if begin < part.begin} if end - begin > FULL_BYTES else set[int]()
    return [*glances(begin, end), *((max(begin, at - EDGE), min(end, at + EDGE)) for at in sorted(edges))]


def first_difference(found: bytes, expected: bytes) -> int:
    """Offset of the first difference between two byte strings of equal length."""
    low, high = 0, len(expected)
    while high - low > 1:
        middle = (low + high) // 2
        if found[low:middle] == expected[low:middle]:
            low = middle
        else:
            high = middle
    return low


def stamp_at(found: bytes, at: int, offset: int) -> int:
    """The stamp in the word around ``found[at]``, or 0 if the word is cut. ``offset`` is the offset of
    ``found[0]``."""
    place = (offset + at) % PERIOD
    begin = at - place % 8
    if place >= PERIOD - 3 or begin < 0 or begin + 4 > len(found):
        return 0
    return int(unpack_from("<I", found, begin)[0])
