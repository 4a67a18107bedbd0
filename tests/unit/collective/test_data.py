"""The cases of collective-data: what buffers hold before and after, and how wrong data is described."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from gpuipc_doctor.api import elements
from gpuipc_doctor.api.elements import KINDS, PERIOD, Kind, Segment, block
from gpuipc_doctor.collective import data
from gpuipc_doctor.collective.data import Case

FLOAT, BYTE, BF16 = KINDS["float32"], KINDS["uint8"], KINDS["bfloat16"]


@dataclass
class Ram:
    """Memory of a test."""

    nbytes: int
    address: int = 0
    content: bytearray = field(init=False)

    def __post_init__(self) -> None:
        self.content = bytearray(self.nbytes)

    def write(self, written: bytes, offset: int = 0) -> None:
        self.content[offset : offset + len(written)] = written

    def read(self, nbytes: int | None = None, offset: int = 0) -> bytes:
        return bytes(self.content[offset : self.nbytes if nbytes is None else offset + nbytes])


def written(kind: Kind, segments: Sequence[Segment], count: int) -> Ram:
    memory = Ram(count * kind.nbytes * len(segments))
    elements.write_segments(memory, kind, segments, count, 0)
    return memory


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
@pytest.mark.parametrize("count", [0, 1, 3, PERIOD, 3 * PERIOD + 1, 200 * PERIOD + 7])
def test_written_segments_are_correct(kind: Kind, count: int) -> None:
    segments = [Segment("a", 1), Segment("b", 3)]
    assert elements.wrong_segments(written(kind, segments, count), kind, segments, count, 0) == ""


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_one_wrong_element_at_the_end_is_found_and_placed(kind: Kind) -> None:
    count, segments = 150 * PERIOD, [Segment("a", 1), Segment("b", 2)]
    memory = written(kind, segments, count)
    memory.content[-kind.nbytes] ^= 1
    says = elements.wrong_segments(memory, kind, segments, count, 0)
    assert says.startswith(f"1 of {2 * count * kind.nbytes} B wrong, first element {2 * count - 1}: ")


def test_data_shifted_by_a_page_is_wrong() -> None:
    count, segments = 8192, [Segment("a", 1)]
    memory = written(FLOAT, segments, count)
    memory.content[:] = memory.content[4096:] + memory.content[:4096]
    assert elements.wrong_segments(memory, FLOAT, segments, count, 0)


def test_short_floats_are_encoded_as_their_format_says() -> None:
    values = elements.Random("x").choices(range(8), k=PERIOD)
    wide = [struct.pack("<f", value)[2:] for value in values]
    assert block(BF16, Segment("x", 1)) == b"".join(wide)


def test_sums_of_eight_ranks_are_exact() -> None:
    total = sum(range(1, 9))
    for kind in KINDS.values():
        largest = kind.most * total
        if kind.name == "bfloat16":
            assert largest <= 256
        if kind.name == "float16":
            assert largest <= 2048


def cases_of(operation: str, ranks: int) -> Case:
    return Case(1, operation, 5, FLOAT, False, ranks - 1)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("operation", data.OPERATIONS)
def test_layout_is_what_the_operation_means(operation: str, ranks: int) -> None:
    """The expected results follow from all ranks' sources by the operation's definition."""
    case = cases_of(operation, ranks)
    layouts = [data.layout(case, rank, ranks) for rank in range(ranks)]

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
