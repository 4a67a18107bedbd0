"""The cases of collective-data: what buffers hold before and after."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from gpuipc_doctor.api.reduction_data import KINDS, Segment, block
from gpuipc_doctor.collective import data
from gpuipc_doctor.collective.data import Case

FLOAT = KINDS["float32"]


def cases_of(operation: str, ranks: int) -> Case:
    return Case(1, operation, 5, FLOAT, False, ranks - 1)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("operation", data.OPERATIONS)
def test_layout_is_what_the_operation_means(operation: str, ranks: int) -> None:
    """The expected results follow from all ranks' sources by the operation's definition."""
    case = cases_of(operation, ranks)
    layouts = [data.contents(case, rank, ranks) for rank in range(ranks)]

    def numbers(segments: Sequence[Segment]) -> list[int]:
        return [value for each in segments for value in struct.unpack("<5f", block(FLOAT, each)[:20])]

    sources, targets = (
        [numbers(of) for of in column]
        for column in zip(*[(x.source, x.target) for x in layouts], strict=True)
    )
    summed = [sum(column) for column in zip(*sources, strict=True)]
    joined = [value for source in sources for value in source]
    for rank, target in enumerate(targets):
        expected = {
            "all-reduce": summed,
            "reduce": summed if rank == case.root else [],
            "broadcast": sources[case.root],
            "all-gather": joined,
            "reduce-scatter": summed[5 * rank : 5 * rank + 5],
            "ring": sources[(rank - 1) % ranks],
            "all-to-all": [value for source in sources for value in source[5 * rank : 5 * rank + 5]],
        }[operation]
        assert target == expected


@pytest.mark.parametrize("ranks", [1, 8, 9, 36, 37, 500])
@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float32"])
def test_sums_of_many_ranks_are_exact_and_each_rank_counts(kind: str, ranks: int) -> None:
    exact = {"bfloat16": 1 << 8, "float16": 1 << 11, "float32": 1 << 24}[kind]
    counted = set[int]()
    for number in range(16):
        case = Case(number, "all-reduce", 5, KINDS[kind], False, 0)
        weights = [data.weight(case, rank, ranks) for rank in range(ranks)]
        assert sum(weights) * KINDS[kind].most <= exact
        counted |= {rank for rank, weight in enumerate(weights) if weight}
    assert len(counted) == ranks


def test_cases_cover_every_operation_size_and_place() -> None:
    cases = list(data.cases(4, data.LARGEST))
    assert {case.operation for case in cases} == set(data.OPERATIONS)
    assert {case.kind.name for case in cases} == set(KINDS)
    reductions = [case for case in cases if case.operation == "all-reduce"]
    assert {case.in_place for case in reductions} == {True, False}
    assert {0, data.LARGEST} <= {case.nbytes for case in reductions}
    assert len({case.number for case in cases}) == len(cases)
    assert all(case.root < 4 for case in cases)


def test_sizes_stay_within_the_room() -> None:
    room = 70_000
    for case in data.cases(3, room):
        parts = 3 if case.operation in ("all-gather", "reduce-scatter", "all-to-all") else 1
        assert case.nbytes * parts <= room + 3 * case.kind.nbytes


def test_sums_that_short_floats_cannot_hold_are_left_out() -> None:
    assert not [case for case in data.cases(16, 4096) if "16" in case.kind.name]
