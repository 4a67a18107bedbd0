"""The cases that are called as programs call them, and what is left out where results would be inexact."""

from __future__ import annotations

import struct

import pytest

from gpuipc_doctor.api.reduction_data import FP8, KINDS, Segment, block
from gpuipc_doctor.collective import as_used, data
from gpuipc_doctor.collective.data import Case

ROOM = 1 << 30


def test_every_use_is_a_case_of_its_own_data() -> None:
    cases = list(as_used.cases(8, ROOM, soak=True))
    assert len(cases) == len(as_used.USES)
    assert len({case.number for case in cases}) == len(cases)
    assert max(case.nbytes for case in cases) == 512 << 20
    assert {case.reduction for case in cases} == {"sum", "average", "maximum", "doubled"}


def test_acceptance_is_smaller() -> None:
    assert max(case.nbytes for case in as_used.cases(8, ROOM, soak=False)) == 64 << 20
    assert all(case.nbytes <= 4100 for case in as_used.cases(8, 4096, soak=False))


@pytest.mark.parametrize(("ranks", "has"), [(1, True), (2, True), (3, False), (6, False), (8, True)])
def test_averages_that_are_no_exact_floats_are_left_out(ranks: int, has: bool) -> None:
    assert has is any(case.reduction == "average" for case in as_used.cases(ranks, ROOM, soak=True))


def test_sums_that_short_floats_cannot_hold_are_left_out() -> None:
    cases = [case for case in as_used.cases(16, ROOM, soak=True) if case.kind.nbytes < 4]
    assert {case.reduction for case in cases} == {"maximum"}


@pytest.mark.parametrize(
    ("reduction", "factor"), [("sum", 10), ("maximum", 4), ("average", 2.5), ("doubled", 20)]
)
def test_expected_result_of_a_reduction(reduction: str, factor: float) -> None:
    kind = KINDS["float32"]
    case = Case(1, "all-reduce", 5, kind, False, 0, reduction=reduction)
    (target,) = data.contents(case, 2, 4).target
    ones = struct.unpack("<5f", block(kind, Segment(target.key, 1))[:20])
    assert struct.unpack("<5f", block(kind, target)[:20]) == tuple(factor * one for one in ones)


def test_fp8_is_that_of_the_open_compute_project() -> None:
    """E4M3 of "OCP 8-bit Floating Point Specification": bias 7, three bits of mantissa."""
    ones = bytes(block(FP8, Segment("x", 1)))
    assert set(ones) == {0x00, 0x38}
    for number, bits in ((2, 0x40), (3, 0x44), (8, 0x50), (13, 0x55), (16, 0x58)):
        assert set(block(FP8, Segment("x", number))) == {0x00, bits}


def test_each_property_can_be_left_out() -> None:
    case = Case(1, "all-reduce", 64, KINDS["bfloat16"], True, 1, as_used.GROUP, "average", 1)
    found = dict(as_used.variants(case))
    assert list(found) == [
        "in place",
        "as average",
        "of bfloat16",
        "in a group of three",
        "at an unaligned address",
        "with another root than rank 0",
    ]
    assert found["of bfloat16"].kind.name == "float32"
    assert found["of bfloat16"].nbytes == case.nbytes
    assert list(as_used.variants(Case(1, "all-reduce", 64, KINDS["int32"], False, 0))) == []
