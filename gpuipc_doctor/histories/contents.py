"""What memory holds: words that tell the write they are from, and their place."""

from __future__ import annotations

from functools import lru_cache
from struct import pack, unpack_from

PERIOD = 4099
"""Bytes after which contents repeat. A prime, so that no shift by a page maps contents onto themselves."""

PIECE = 1 << 20
"""Bytes that are written and read by one copy."""

_LINES = (b"", *(pack("<I", line) for line in range(PERIOD // 8)))


@lru_cache(maxsize=512)
def _block(stamp: int) -> bytes:
    word = pack("<I", stamp)
    return word.join(_LINES) + word[:3]


def contents(stamp: int, nbytes: int, offset: int = 0) -> bytes:
    """The bytes from ``offset`` on of memory that was filled by the write ``stamp``."""
    begin = offset % PERIOD
    return (_block(stamp) * ((begin + nbytes) // PERIOD + 1))[begin : begin + nbytes]


def first_difference(found: bytes, expected: bytes) -> int:
    """Offset of the first byte in which two strings of one length differ."""
    low, high = 0, len(expected)
    while high - low > 1:
        middle = (low + high) // 2
        if found[low:middle] == expected[low:middle]:
            low = middle
        else:
            high = middle
    return low


def stamp_at(found: bytes, at: int, offset: int) -> int:
    """The stamp that the word around ``found[at]`` shows, where ``found`` is read from ``offset``."""
    place = (offset + at) % PERIOD
    begin = at - place % 8
    if place >= PERIOD - 3 or begin < 0 or begin + 4 > len(found):
        return 0
    return int(unpack_from("<I", found, begin)[0])
