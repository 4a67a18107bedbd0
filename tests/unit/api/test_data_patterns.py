"""Data patterns that encode their offset, and descriptions of differences."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuipc_doctor.api.data_patterns import (
    GLANCE,
    PIECE,
    TURNS,
    difference,
    glanced_at,
    pattern,
    read_unless_pattern,
    reader_of,
    unlike_pattern,
    write_glances,
    write_pattern,
    write_zeros,
    wrong_glances,
)


@given(st.integers(0, 20_000), st.lists(st.integers(), max_size=3))
def test_pattern_has_the_requested_length_and_is_repeatable(nbytes: int, key: list[int]) -> None:
    assert len(pattern(nbytes, *key)) == nbytes
    assert pattern(nbytes, *key) == pattern(nbytes, *key)


@given(st.integers(0, 15))
def test_pattern_shifted_by_a_power_of_two_differs(exponent: int) -> None:
    data = pattern(1 << 17, 1)
    shift = 1 << exponent
    assert data[shift : shift + 4096] != data[:4096]


def test_wrong_byte_is_counted_and_located() -> None:
    right = pattern(3 * 4096, 1)
    wrong = bytearray(right)
    wrong[5000] ^= 0xFF
    assert difference(bytes(wrong), right) == (
        f"1 of 12288 B wrong on 1 of 3 pages, first at offset 5000 "
        f"(0x{wrong[5000]:02x} instead of 0x{right[5000]:02x})"
    )


def test_missing_data_is_reported() -> None:
    assert difference(b"", b"abc") == "0 B instead of 3 B"


@given(st.binary(max_size=10_000), st.binary(max_size=10_000))
def test_any_difference_is_found(one: bytes, other: bytes) -> None:
    assert bool(difference(one, other)) == (one != other)


class Sparse:
    """Memory of any size that stores only the written parts."""

    def __init__(self) -> None:
        self.parts: dict[int, bytes] = {}

    def write(self, data: bytes, offset: int = 0) -> None:
        self.parts[offset] = data

    def read(self, nbytes: int, offset: int = 0) -> bytes:
        return self.parts[offset][:nbytes]


def edges(first: int, last: int) -> list[int]:
    """Offsets of the sampled parts around these powers of two."""
    return [(1 << bits) - GLANCE // 2 for bits in range(first, last + 1)]


@pytest.mark.parametrize(
    ("nbytes", "offsets"),
    [
        (1, [0]),
        (2 * GLANCE, [0]),
        (4 << 20, [0, *edges(15, 21), (4 << 20) - GLANCE]),
        ((2 << 30) + (2 << 20), [0, *edges(15, 31), (2 << 30) + (2 << 20) - GLANCE]),
    ],
)
def test_samples_are_at_the_ends_and_across_powers_of_two(nbytes: int, offsets: list[int]) -> None:
    memory: Any = Sparse()
    write_glances(memory, nbytes, 1)
    assert list(memory.parts) == offsets
    assert glanced_at(nbytes) == sum(map(len, memory.parts.values()))
    assert wrong_glances("it", memory, nbytes, 1) == []
    lines = wrong_glances("it", memory, nbytes, 2)
    assert [line.partition(":")[0] for line in lines] == [f"it, at {offset}" for offset in offsets]


def test_samples_of_rounds_that_take_turns_are_at_the_ends_and_together_everywhere() -> None:
    whole, memories = Sparse(), [Sparse() for _ in range(TURNS)]
    write_glances(whole, 4 << 20)  # type: ignore[arg-type]
    for turn, memory in enumerate(memories, 7):
        write_glances(memory, 4 << 20, turn=turn)  # type: ignore[arg-type]
        assert {0, (4 << 20) - GLANCE} <= memory.parts.keys() < whole.parts.keys()
        assert wrong_glances("it", memory, 4 << 20, turn=turn) == []  # type: ignore[arg-type]
    assert {offset for memory in memories for offset in memory.parts} == whole.parts.keys()


def test_remaining_memory_is_read_in_a_step_that_names_the_previous_close() -> None:
    steps, memory = list[str](), Sparse()
    w: Any = SimpleNamespace(step=lambda what: steps.append(what) or nullcontext())
    write_glances(memory, 4 << 20, 1)
    read = reader_of(w, "the mapping that stays", memory, 4 << 20, 1)
    assert read("round 1") == []
    memory.parts[0] = memory.parts[(4 << 20) - GLANCE]
    (line,) = read("round 2")
    assert line.startswith("the mapping that stays, after round 2, at 0:")
    assert steps == [f"read the mapping that stays, after round {n}" for n in (1, 2)]


class Bytes:
    """Memory that can be written and read only within its first `MUCH` bytes."""

    def __init__(self) -> None:
        self.data = bytearray(max(MUCH) + 1)

    def write(self, data: bytes, offset: int = 0) -> None:
        self.data[offset : offset + len(data)] = data

    def read(self, nbytes: int, offset: int = 0) -> bytes:
        return bytes(self.data[offset : offset + nbytes])


MUCH = [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 3 * PIECE + 5000]


@pytest.mark.parametrize("nbytes", MUCH)
def test_pattern_written_in_pieces_is_the_same(nbytes: int) -> None:
    memory: Any = Bytes()
    write_pattern(memory, nbytes, 1, 2)
    assert memory.data == pattern(nbytes, 1, 2).ljust(len(memory.data), b"\0")
    assert unlike_pattern(memory, nbytes, 1, 2) == ""
    memory.data[-1] = 1
    write_zeros(memory, nbytes)
    assert memory.data == b"\1".rjust(len(memory.data), b"\0")


@pytest.mark.parametrize("wrong", [{0}, {PIECE}, {PIECE - 1, 2 * PIECE + 3}, {3 * PIECE + 4999}])
def test_difference_found_in_pieces_is_the_same(wrong: set[int]) -> None:
    memory: Any = Bytes()
    write_pattern(memory, MUCH[-1], 1)
    for offset in wrong:
        memory.data[offset] ^= 0xFF
    expected = pattern(MUCH[-1], 1)
    assert read_unless_pattern(memory, MUCH[-1], 1) == memory.read(MUCH[-1])
    assert unlike_pattern(memory, MUCH[-1], 1) == difference(memory.read(MUCH[-1]), expected) != ""


def test_wrong_data_is_reported_although_a_later_read_is_correct() -> None:
    class Once(Bytes):
        def read(self, nbytes: int, offset: int = 0) -> bytes:
            data = super().read(nbytes, offset)
            write_pattern(self, 2 * PIECE)  # type: ignore[arg-type]
            return data

    memory: Any = Once()
    write_pattern(memory, 2 * PIECE)
    memory.data[5] ^= 0xFF
    assert unlike_pattern(memory, 2 * PIECE).startswith(f"1 of {2 * PIECE} B wrong on 1 of ")


def test_each_piece_is_written_once_and_correct_data_read_once() -> None:
    """Neither needs more host memory than a piece."""
    sizes: list[int] = []

    class Counting(Bytes):
        def write(self, data: bytes, offset: int = 0) -> None:
            sizes.append(len(data))
            super().write(data, offset)

        def read(self, nbytes: int, offset: int = 0) -> bytes:
            sizes.append(nbytes)
            return super().read(nbytes, offset)

    memory: Any = Counting()
    write_zeros(memory, 2 * PIECE + 5)
    write_pattern(memory, 2 * PIECE + 5)
    assert unlike_pattern(memory, 2 * PIECE + 5) == ""
    assert read_unless_pattern(memory, 2 * PIECE + 5) is None
    assert sizes == [PIECE, PIECE, 5] * 4
