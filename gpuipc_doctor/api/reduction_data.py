"""Elements whose sum is exact in every type and in every order of summation."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import NamedTuple

from gpuipc_doctor.api.gpu import Memory

PERIOD = 1021
"""Elements after which data repeats: a prime, so that no shift by a power of two maps it onto itself."""

REPEATS = 128
"""Periods per copy to or from a device."""

FILL = b"\xa5"
"""Content of result buffers before an operation."""

GUARD = 64
"""Bytes behind each result that must not change."""


class Kind(NamedTuple):
    """A type of elements. ``most``: the largest value for which sums of eight ranks are exact."""

    name: str
    nbytes: int
    code: str
    most: int

    @property
    def is_float(self) -> bool:
        return "float" in self.name


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("float32", 4, "f", 1000),
        Kind("int32", 4, "i", 1000),
        Kind("bfloat16", 2, "", 7),
        Kind("uint8", 1, "B", 7),
        Kind("float16", 2, "", 15),
        Kind("float64", 8, "d", 1000),
        Kind("int64", 8, "q", 1000),
    )
}


FP8 = Kind("float8e4m3", 1, "", 1)
"""Exact in maxima of up to 16 ranks; its sums are not."""


class Segment(NamedTuple):
    """A part of a buffer: the elements of ``key``, each multiplied by ``factor``."""

    key: str
    factor: float


class Contents(NamedTuple):
    """What a rank's buffers hold before and after a call of all ranks, in segments of equal length. An empty
    target: this rank receives nothing."""

    source: Sequence[Segment]
    target: Sequence[Segment]


def contents_of(call: str, key: str, rank: int, ranks: int, root: int = 0) -> Contents:
    """The contents for a call whose ranks contribute equally: ``allreduce``, ``reduce``, ``bcast``,
    ``allgather``, ``reduce-scatter``, ``alltoall``; by default each rank sends to the next one in a ring.

    ``key``: with a format for the number of a segment, and other for other data. A rank multiplies its
    segments by its number plus 1.
    """

    def part(number: int, factor: int) -> Segment:
        return Segment(key.format(number), factor)

    total, every = ranks * (ranks + 1) // 2, range(ranks)
    own, for_each = [part(0, rank + 1)], [part(other, rank + 1) for other in every]
    match call:
        case "allreduce":
            return Contents(own, [part(0, total)])
        case "reduce":
            return Contents(own, [part(0, total)] if rank == root else [])
        case "bcast":
            return Contents(own, [part(0, root + 1)])
        case "allgather":
            return Contents(own, [part(0, other + 1) for other in every])
        case "reduce-scatter":
            return Contents(for_each, [part(rank, total)])
        case "alltoall":
            return Contents(for_each, [part(rank, other + 1) for other in every])
    return Contents(own, [part(0, (rank - 1) % ranks + 1)])


@lru_cache(64)
def block(kind: Kind, segment: Segment) -> bytes:
    """`PERIOD` elements of a segment."""
    values = [segment.factor * value for value in _values(segment.key, kind.most)]
    if kind.name == "float16":
        return struct.pack(f"{PERIOD}e", *values)
    if kind == FP8:
        return bytes(_fp8(int(value)) for value in values)
    if kind.name == "bfloat16":
        wide = array("f", values).tobytes()
        data = bytearray(2 * PERIOD)
        data[::2], data[1::2] = wide[2::4], wide[3::4]
        return bytes(data)
    whole = values if kind.is_float else [int(value) for value in values]
    return array(kind.code, [int(value) & 255 for value in whole] if kind.code == "B" else whole).tobytes()


def _fp8(number: int) -> int:
    """An integer up to 16 as a float of one sign, four exponent (bias 7) and three mantissa bits."""
    exponent = number.bit_length() - 1
    return (exponent + 7) << 3 | (number << 3 >> exponent & 7) if number else 0


@lru_cache(64)
def _values(key: str, most: int) -> list[int]:
    """Drawing them takes longer than all else about a block, and segments of several factors share them."""
    return Random(key).choices(range(most + 1), k=PERIOD)


def write_segments(memory: Memory, kind: Kind, segments: Sequence[Segment], count: int, offset: int) -> None:
    """Write ``count`` elements of each segment, one segment behind the other, from ``offset`` on."""
    nbytes = count * kind.nbytes
    for number, segment in enumerate(segments):
        piece = block(kind, segment) * min(REPEATS, count // PERIOD + 1)
        for at in range(0, nbytes, len(piece)):
            memory.write(piece[: nbytes - at], offset + number * nbytes + at)


def fill(memory: Memory, nbytes: int) -> None:
    """Fill the first bytes with `FILL`."""
    piece = FILL * min(nbytes, 4 * PERIOD * REPEATS)
    for at in range(0, nbytes, len(piece) or 1):
        memory.write(piece[: nbytes - at], at)


def wrong_segments(memory: Memory, kind: Kind, segments: Sequence[Segment], count: int, offset: int) -> str:
    """How the memory differs from these segments; empty if every element is correct."""
    nbytes, wrong, first = count * kind.nbytes, 0, ""
    for number, segment in enumerate(segments):
        piece = block(kind, segment) * min(REPEATS, count // PERIOD + 1)
        for at in range(0, nbytes, len(piece)):
            expected = piece[: nbytes - at]
            found = memory.read(len(expected), offset + number * nbytes + at)
            if found == expected:
                continue
            changed = (int.from_bytes(found, "little") ^ int.from_bytes(expected, "little")).to_bytes(
                len(expected), "little"
            )
            wrong += len(changed) - changed.count(0)
            if not first:
                element = (len(changed) - len(changed.lstrip(b"\0"))) // kind.nbytes
                place = number * count + at // kind.nbytes + element
                begin, end = element * kind.nbytes, (element + 1) * kind.nbytes
                first = (
                    f"element {place}: 0x{_hex(found[begin:end])} instead of 0x{_hex(expected[begin:end])}"
                )
    return f"{wrong} of {nbytes * len(segments)} B wrong, first {first}" if wrong else ""


def _hex(element: bytes) -> str:
    return element[::-1].hex()
