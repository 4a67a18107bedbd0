"""Elements of collectives' and kernels' data: written, and compared to the last one."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from gpuipc_doctor.api import reduction_data
from gpuipc_doctor.api.reduction_data import FILL, KINDS, PERIOD, REPEATS, Kind, Segment, block

FLOAT, BF16 = KINDS["float32"], KINDS["bfloat16"]


@dataclass
class Ram:
    """Memory of a test."""

    nbytes: int
    address: int = 0
    content: bytearray = field(init=False)
    largest: int = 0
    """Most bytes copied at a time."""

    def __post_init__(self) -> None:
        self.content = bytearray(self.nbytes)

    def write(self, written: bytes, offset: int = 0) -> None:
        self.content[offset : offset + len(written)] = written
        self.largest = max(self.largest, len(written))

    def read(self, nbytes: int | None = None, offset: int = 0) -> bytes:
        self.largest = max(self.largest, nbytes or 0)
        return bytes(self.content[offset : self.nbytes if nbytes is None else offset + nbytes])


def written(kind: Kind, segments: Sequence[Segment], count: int) -> Ram:
    memory = Ram(count * kind.nbytes * len(segments))
    reduction_data.write_segments(memory, kind, segments, count, 0)
    return memory


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
@pytest.mark.parametrize("count", [0, 1, 3, PERIOD, 3 * PERIOD + 1, 200 * PERIOD + 7])
def test_written_segments_are_correct(kind: Kind, count: int) -> None:
    segments = [Segment("a", 1), Segment("b", 3)]
    assert reduction_data.wrong_segments(written(kind, segments, count), kind, segments, count, 0) == ""


def test_first_wrong_element_is_described_and_all_wrong_bytes_are_counted() -> None:
    segments = [Segment("a", 1)]
    memory = written(FLOAT, segments, 3 * PERIOD)
    right = bytes(memory.content)
    for element in (5, 2 * PERIOD):
        memory.content[4 * element] ^= 0xFF
    says = reduction_data.wrong_segments(memory, FLOAT, segments, 3 * PERIOD, 0)
    found, expected = bytes(memory.content)[20:24][::-1].hex(), right[20:24][::-1].hex()
    assert says == f"2 of {12 * PERIOD} B wrong, first element 5: 0x{found} instead of 0x{expected}"


def test_copies_are_of_a_bounded_size() -> None:
    count, segments = 300 * PERIOD, [Segment("a", 1)]
    memory = written(FLOAT, segments, count)
    assert memory.largest == 4 * PERIOD * REPEATS
    memory.largest = 0
    assert reduction_data.wrong_segments(memory, FLOAT, segments, count, 0) == ""
    assert memory.largest == 4 * PERIOD * REPEATS
    few = written(FLOAT, segments, 3)
    assert reduction_data.wrong_segments(few, FLOAT, segments, 3, 0) == ""
    assert (few.largest, len(few.content)) == (12, 12)


@pytest.mark.parametrize("nbytes", [0, 1, 4096, 4 * PERIOD * REPEATS + 3])
def test_first_bytes_are_filled(nbytes: int) -> None:
    memory = Ram(nbytes + 8)
    reduction_data.fill(memory, nbytes)
    assert bytes(memory.content) == FILL * nbytes + bytes(8)
    assert memory.largest <= 4 * PERIOD * REPEATS


def test_data_shifted_by_a_page_is_wrong() -> None:
    count, segments = 8192, [Segment("a", 1)]
    memory = written(FLOAT, segments, count)
    memory.content[:] = memory.content[4096:] + memory.content[:4096]
    assert reduction_data.wrong_segments(memory, FLOAT, segments, count, 0)


def test_numbers_are_as_drawn_and_those_of_a_byte_wrap() -> None:
    values = reduction_data.Random("x").choices(range(1001), k=PERIOD)
    assert struct.unpack(f"<{PERIOD}i", block(KINDS["int32"], Segment("x", 3))) == tuple(
        3 * v for v in values
    )
    few = reduction_data.Random("x").choices(range(8), k=PERIOD)
    assert block(KINDS["uint8"], Segment("x", 100)) == bytes(100 * value % 256 for value in few)


def test_sums_of_eight_ranks_are_exact() -> None:
    total = sum(range(1, 9))
    for kind in KINDS.values():
        largest = kind.most * total
        if kind.name == "bfloat16":
            assert largest <= 256
        if kind.name == "float16":
            assert largest <= 2048
