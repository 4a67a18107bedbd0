"""Test data that shows where it belongs, and words for data that is wrong."""

from __future__ import annotations

from gpuipc_doctor.api.gpu import Memory

PAGE = 4096
"""Granularity, in bytes, in which wrong data is counted."""

PERIOD = 4099
"""Bytes after which a pattern repeats."""

PIECE = 128 * PERIOD
"""Bytes that much memory is written and read by. The host's memory for them is had again each time; to get
fresh memory costs more than the copies do."""

SPAN = 16 * PAGE
"""Bytes of it that are compared as a number where something is wrong. Most of much memory may be right."""

GLANCE = 16 << 10
"""Bytes that are written and read at each end of a segment, and around each power of two in it: so around the
first edge of every page size, and where an offset needs one more bit."""

BOUNDARIES = (2 << 30, 4 << 30)
"""Bytes from which on an offset does not fit into 31 and into 32 bits."""


def pattern(nbytes: int, *key: int) -> bytes:
    """``nbytes`` bytes that differ by offset and by ``key`` (rank, round, segment …).

    The `PERIOD` is a prime, so no shift by a page or a power of two maps it onto itself.
    """
    from random import Random

    block = Random(repr(key)).randbytes(PERIOD) * min(256, nbytes // PERIOD + 1)
    whole, rest = divmod(nbytes, len(block))
    return b"".join([block] * whole + [block[:rest]])  # every byte of a large one is written once


def write_pattern(memory: Memory, nbytes: int, *key: int, offset: int = 0) -> None:
    """Write a `pattern` to ``nbytes`` bytes from ``offset`` on, in pieces."""
    piece = pattern(min(nbytes, PIECE), *key)
    for at in range(0, nbytes, PIECE):
        memory.write(piece[: nbytes - at], offset + at)


def write_zeros(memory: Memory, nbytes: int) -> None:
    """Write zeros to the first ``nbytes`` bytes, in pieces."""
    piece = bytes(min(nbytes, PIECE))
    for offset in range(0, nbytes, PIECE):
        memory.write(piece[: nbytes - offset], offset)


def unlike_pattern(memory: Memory, nbytes: int, *key: int, offset: int = 0) -> str:
    """The `difference` of ``nbytes`` bytes from ``offset`` on, read in pieces, from a `pattern`."""
    piece = pattern(min(nbytes, PIECE), *key)
    wrong = _Wrong()
    for at in range(0, nbytes, PIECE):
        expected = piece[: nbytes - at]
        found = memory.read(len(expected), offset + at)
        if found != expected:
            wrong.count(found, expected, at)
    return wrong.in_words(nbytes)


def wrong_pattern(what: str, memory: Memory, nbytes: int, *key: int, offset: int = 0) -> list[str]:
    """What `unlike_pattern` finds, behind ``what`` it is of, for a list of all that is wrong; or nothing."""
    wrong = unlike_pattern(memory, nbytes, *key, offset=offset)
    return [f"{what}: {wrong}"] if wrong else []


def read_unless_pattern(memory: Memory, nbytes: int, *key: int) -> bytes | None:
    """The first ``nbytes`` bytes, read in pieces, where they are not a `pattern`. None is read twice."""
    piece = pattern(min(nbytes, PIECE), *key)
    for offset in range(0, nbytes, PIECE):
        seen = memory.read(min(PIECE, nbytes - offset), offset)
        if seen != piece[: nbytes - offset]:
            read = offset + len(seen)
            return pattern(nbytes, *key)[:offset] + seen + memory.read(nbytes - read, read)
    return None


def mib(nbytes: float) -> str:
    """A number of bytes as a person reads it: ``37.5 MiB``."""
    return f"{nbytes / 2**20:.1f} MiB"


def difference(found: bytes, expected: bytes) -> str:
    """Where ``found`` is not what was ``expected``, in a few words; empty when it is."""
    if found == expected:
        return ""
    if len(found) != len(expected):
        return f"{len(found)} B instead of {len(expected)} B"
    wrong = _Wrong()
    wrong.count(found, expected, 0)
    return wrong.in_words(len(expected))


class _Wrong:
    """Counts what is wrong of much memory, part by part, from the beginning on."""

    def __init__(self) -> None:
        self._nbytes = self._pages = 0
        self._page = -1
        self._first = ""

    def count(self, found: bytes, expected: bytes, offset: int) -> None:
        """Look at as many bytes of both, from ``offset`` on."""
        at = 0
        while at < len(expected):
            end = at + SPAN - (offset + at) % PAGE
            if found[at:end] != expected[at:end]:
                self._count(found[at:end], expected[at:end], offset + at)
            at = end

    def _count(self, found: bytes, expected: bytes, offset: int) -> None:
        number = int.from_bytes(found, "little") ^ int.from_bytes(expected, "little")
        changed = number.to_bytes(len(expected), "little")
        if not self._nbytes:
            first = len(changed) - len(changed.lstrip(b"\0"))
            self._first = f"{offset + first} (0x{found[first]:02x} instead of 0x{expected[first]:02x})"
        self._nbytes += len(changed) - changed.count(0)
        for page in range(offset // PAGE, -(-(offset + len(changed)) // PAGE)):
            begin = page * PAGE - offset
            if page != self._page and changed[max(begin, 0) : begin + PAGE].strip(b"\0"):
                self._page = page
                self._pages += 1

    def in_words(self, nbytes: int) -> str:
        """Of so many bytes in all; empty where nothing was wrong."""
        if not self._nbytes:
            return ""
        return (
            f"{self._nbytes} of {nbytes} B wrong on {self._pages} of {-(-nbytes // PAGE)} pages, "
            f"first at offset {self._first}"
        )


def differences(what: str, found: bytes, expected: bytes) -> list[str]:
    """Their `difference`, behind ``what`` it is of, for a list of all that is wrong; or nothing."""
    wrong = difference(found, expected)
    return [f"{what}: {wrong}"] if wrong else []


def write_glances(memory: Memory, nbytes: int, *key: int, offset: int = 0) -> None:
    """Write where a segment of so many bytes, from ``offset`` on, is looked at; by offset, data differ."""
    for at, length in _glances(nbytes):
        memory.write(pattern(length, *key, at), offset + at)


def wrong_glances(what: str, memory: Memory, nbytes: int, *key: int, offset: int = 0) -> list[str]:
    """The `differences` of what `write_glances` wrote from what is there now."""
    return [
        wrong
        for at, length in _glances(nbytes)
        for wrong in differences(
            f"{what}, at {at}", memory.read(length, offset + at), pattern(length, *key, at)
        )
    ]


def glanced_at(nbytes: int) -> int:
    """How many bytes `write_glances` writes of a segment of so many."""
    return sum(length for _, length in _glances(nbytes))


def _glances(nbytes: int) -> list[tuple[int, int]]:
    """(offset, bytes) of what is looked at in a segment."""
    if nbytes <= 2 * GLANCE:
        return [(0, nbytes)]
    powers = (1 << bits for bits in range(GLANCE.bit_length(), nbytes.bit_length()))
    inner = [power - GLANCE // 2 for power in powers if power + GLANCE // 2 <= nbytes - GLANCE]
    return [(offset, GLANCE) for offset in (0, *inner, nbytes - GLANCE)]
