"""Patterns that show where they belong, and words for what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuipc_doctor.api.patterns import GLANCE, difference, differences, pattern, write_glances, wrong_glances


@given(st.integers(0, 20_000), st.lists(st.integers(), max_size=3))
def test_a_pattern_is_as_long_as_asked_and_repeatable(nbytes: int, key: list[int]) -> None:
    assert len(pattern(nbytes, *key)) == nbytes
    assert pattern(nbytes, *key) == pattern(nbytes, *key)


@given(st.integers(0, 15))
def test_no_shift_by_a_power_of_two_maps_a_pattern_onto_itself(exponent: int) -> None:
    data = pattern(1 << 17, 1)
    shift = 1 << exponent
    assert data[shift : shift + 4096] != data[:4096]


def test_keys_tell_patterns_apart() -> None:
    assert len({pattern(64, rank, round_) for rank in range(8) for round_ in range(64)}) == 8 * 64


def test_equal_data_has_no_difference() -> None:
    assert difference(b"abc", b"abc") == ""


def test_one_wrong_byte_is_counted_and_placed() -> None:
    right = pattern(3 * 4096, 1)
    wrong = bytearray(right)
    wrong[5000] ^= 0xFF
    assert difference(bytes(wrong), right) == (
        f"1 of 12288 B wrong on 1 of 3 pages, first at offset 5000 "
        f"(0x{wrong[5000]:02x} instead of 0x{right[5000]:02x})"
    )


def test_missing_data_is_said() -> None:
    assert difference(b"", b"abc") == "0 B instead of 3 B"


@given(st.binary(max_size=10_000), st.binary(max_size=10_000))
def test_any_difference_is_seen(one: bytes, other: bytes) -> None:
    assert bool(difference(one, other)) == (one != other)


def test_of_what_is_wrong_it_is_said_where_and_of_what_is_right_nothing() -> None:
    assert differences("round 2", b"abc", b"abc") == []
    assert differences("round 2", b"abd", b"abc") == [f"round 2: {difference(b'abd', b'abc')}"]


class Sparse:
    """Memory of any size of which only what is written takes room."""

    def __init__(self) -> None:
        self.parts: dict[int, bytes] = {}

    def write(self, data: bytes, offset: int = 0) -> None:
        self.parts[offset] = data

    def read(self, nbytes: int, offset: int = 0) -> bytes:
        return self.parts[offset][:nbytes]


@pytest.mark.parametrize(
    ("nbytes", "offsets"),
    [
        (1, [0]),
        (2 * GLANCE, [0]),
        (4 << 20, [0, (4 << 20) - GLANCE]),
        ((2 << 30) + (2 << 20), [0, (2 << 30) - GLANCE // 2, (2 << 30) + (2 << 20) - GLANCE]),
    ],
)
def test_a_segment_is_looked_at_at_its_ends_and_across_boundaries(nbytes: int, offsets: list[int]) -> None:
    memory: Any = Sparse()
    write_glances(memory, nbytes, 1)
    assert list(memory.parts) == offsets
    assert wrong_glances("it", memory, nbytes, 1) == []
    lines = wrong_glances("it", memory, nbytes, 2)
    assert [line.partition(":")[0] for line in lines] == [f"it, at {offset}" for offset in offsets]


def test_a_glance_shows_what_is_at_another_offset() -> None:
    memory: Any = Sparse()
    write_glances(memory, 4 << 20, 1)
    memory.parts[0] = memory.parts[(4 << 20) - GLANCE]
    (line,) = wrong_glances("it", memory, 4 << 20, 1)
    assert line.startswith("it, at 0:")
