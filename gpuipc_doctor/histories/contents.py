"""Test data: words that encode the write they come from and their offset."""

from __future__ import annotations

from functools import lru_cache
from struct import pack, unpack_from

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
    begin = offset % PERIOD
    return (_block(stamp) * ((begin + nbytes) // PERIOD + 1))[begin : begin + nbytes]


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
