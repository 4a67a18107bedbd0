"""Test data that encodes its offset, and descriptions of wrong data."""

from __future__ import annotations

from collections.abc import Callable

from gpuipc_doctor.api.gpu import Memory
from gpuipc_doctor.api.worker import Worker

PAGE = 4096
"""Granularity, in bytes, in which wrong data is counted."""

PERIOD = 4099
"""Bytes after which a pattern repeats."""

PIECE = 128 * PERIOD
"""Bytes per read or write of large memory. The host buffer is reused: allocating a new one takes longer than
the copy."""

SPAN = 16 * PAGE
"""Bytes compared at a time to find wrong data."""

GLANCE = 16 << 10
"""Bytes sampled at each end of a segment and around each power of two in it. A power of two is the first
boundary of a page size, and the first offset that needs one more bit."""

TURNS = 3
"""Rounds in which all parts of a segment are sampled, if they take turns."""

BOUNDARIES = (2 << 30, 4 << 30)
"""Smallest offsets that do not fit into 31 and into 32 bits."""


def pattern(nbytes: int, *key: int) -> bytes:
    """``nbytes`` bytes that differ by offset and by ``key`` (rank, round, segment …).

    The `PERIOD` is a prime, so no shift by a page or a power of two maps it onto itself.
    """
    from random import Random

    block = Random(repr(key)).randbytes(PERIOD) * min(256, nbytes // PERIOD + 1)
    whole, rest = divmod(nbytes, len(block))
    return b"".join([block] * whole + [block[:rest]])  # every byte of a large segment is written once


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
    """How memory differs from a `pattern` of ``nbytes`` bytes from ``offset`` on; empty if equal."""
    piece = pattern(min(nbytes, PIECE), *key)
    wrong = _Wrong()
    for at in range(0, nbytes, PIECE):
        expected = piece[: nbytes - at]
        found = memory.read(len(expected), offset + at)
        if found != expected:
            wrong.count(found, expected, at)
    return wrong.in_words(nbytes)


def wrong_pattern(what: str, memory: Memory, nbytes: int, *key: int, offset: int = 0) -> list[str]:
    """A list with the line ``{what}: {unlike_pattern}``, or an empty list if all data is correct."""
    wrong = unlike_pattern(memory, nbytes, *key, offset=offset)
    return [f"{what}: {wrong}"] if wrong else []


def read_unless_pattern(memory: Memory, nbytes: int, *key: int) -> bytes | None:
    """The first ``nbytes`` bytes if they differ from the `pattern`, else None; each piece is read once."""
    piece = pattern(min(nbytes, PIECE), *key)
    for offset in range(0, nbytes, PIECE):
        seen = memory.read(min(PIECE, nbytes - offset), offset)
        if seen != piece[: nbytes - offset]:
            read = offset + len(seen)
            return pattern(nbytes, *key)[:offset] + seen + memory.read(nbytes - read, read)
    return None


def mib(nbytes: float) -> str:
    """Bytes as text: ``37.5 MiB``."""
    return f"{nbytes / 2**20:.1f} MiB"


def difference(found: bytes, expected: bytes) -> str:
    """Where ``found`` differs from ``expected``, in words; empty if equal."""
    if found == expected:
        return ""
    if len(found) != len(expected):
        return f"{len(found)} B instead of {len(expected)} B"
    wrong = _Wrong()
    wrong.count(found, expected, 0)
    return wrong.in_words(len(expected))


class _Wrong:
    """Counts wrong data in a large segment, piece by piece from its start."""

    def __init__(self) -> None:
        self._nbytes = self._pages = 0
        self._page = -1
        self._first = ""

    def count(self, found: bytes, expected: bytes, offset: int) -> None:
        """Count the differences between two byte strings that start at ``offset`` in the segment."""
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
        """Description of the wrong data in ``nbytes`` bytes; empty if all were correct."""
        if not self._nbytes:
            return ""
        return (
            f"{self._nbytes} of {nbytes} B wrong on {self._pages} of {-(-nbytes // PAGE)} pages, "
            f"first at offset {self._first}"
        )


def differences(what: str, found: bytes, expected: bytes) -> list[str]:
    """A list with the line ``{what}: {difference}``, or an empty list if both are equal."""
    wrong = difference(found, expected)
    return [f"{what}: {wrong}"] if wrong else []


def write_glances(memory: Memory, nbytes: int, *key: int, offset: int = 0, turn: int | None = None) -> None:
    """Write the sampled parts of ``nbytes`` bytes from ``offset`` on; the data depends on the offset.

    ``turn``: number of a round, of which each samples both ends and one in `TURNS` of the other parts: a copy
    waits for milliseconds on a busy GPU.
    """
    for at, data in _glances(nbytes, key, turn):
        memory.write(data, offset + at)


def wrong_glances(
    what: str, memory: Memory, nbytes: int, *key: int, offset: int = 0, turn: int | None = None
) -> list[str]:
    """The `differences` between the data of `write_glances` and the memory."""
    return _unlike(what, memory, _glances(nbytes, key, turn), offset)


def reader_of(w: Worker, what: str, memory: Memory, nbytes: int, *key: int) -> Callable[[str], list[str]]:
    """A function that returns the `differences` between memory and the data of `write_glances`. The memory
    stays open while other memory is opened and closed. The function's argument names the operation before the
    read."""
    written = _glances(nbytes, key)

    def read(after: str) -> list[str]:
        with w.step(f"read {what}, after {after}"):
            return _unlike(f"{what}, after {after}", memory, written)

    return read


def _unlike(what: str, memory: Memory, written: list[tuple[int, bytes]], offset: int = 0) -> list[str]:
    return [
        wrong
        for at, data in written
        for wrong in differences(f"{what}, at {at}", memory.read(len(data), offset + at), data)
    ]


def glanced_at(nbytes: int, turn: int | None = None) -> int:
    """Number of bytes that `write_glances` writes to a segment of this size."""
    return sum(len(data) for _, data in _glances(nbytes, (), turn))


def _glances(nbytes: int, key: tuple[int, ...], turn: int | None = None) -> list[tuple[int, bytes]]:
    """(offset, data) of the sampled parts of a segment: one `pattern`, shifted by a byte per part."""
    if nbytes <= 2 * GLANCE:
        return [(0, pattern(nbytes, *key))]
    powers = (1 << bits for bits in range(GLANCE.bit_length(), nbytes.bit_length()))
    inner = [power - GLANCE // 2 for power in powers if power + GLANCE // 2 <= nbytes - GLANCE]
    offsets = [0, *(inner if turn is None else inner[turn % TURNS :: TURNS]), nbytes - GLANCE]
    data = pattern(GLANCE + len(offsets), *key)
    return [(offset, data[number : number + GLANCE]) for number, offset in enumerate(offsets)]
