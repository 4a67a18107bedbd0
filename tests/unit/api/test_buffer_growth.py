"""The number of freed buffers that are kept, estimated from used memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, product
from typing import Any

import pytest

from gpuipc_doctor.api.buffer_growth import (
    FEWEST,
    BufferGrowth,
    Outcome,
    equal_sizes,
    growing_sizes,
    held_by,
    how_many,
    share_no_address,
)
from gpuipc_doctor.api.slopes import lasting
from gpuipc_doctor.model import EvidenceKind
from tests.checks.judging import TWO, outcome

MIB = 1 << 20
SIZES = [(4 + 2 * number) * MIB for number in range(24)]
QUIET = [0.0] * 8
ALL_KEPT = BufferGrowth(SIZES, list(accumulate(SIZES)), QUIET)
END = sum(SIZES)


def followed_by(small: list[float], late: list[float] | None = None, *, apart: bool = True) -> BufferGrowth:
    return replace(ALL_KEPT, small=small, each=2 * MIB, late=late or [], apart=apart)


def with_small(number: int, first: float = END, each: float = 2 * MIB) -> list[float]:
    return [first + each * n for n in range(1, number + 1)]


FLAT, ONES = [0.0] * 24, [2.0 * MIB * n for n in range(24)]
LOST = [4.0 * MIB * min(n, 15) for n in range(24)]
"""Whole buffers are lost until two thirds of them are sent."""

SLOW = [8.0 * MIB * (n // 5) for n in range(24)]
"""One of five buffers is lost."""

CYCLE = [END + 2.0 * MIB * n for n in range(1, 17)] + [32.0 * MIB] * 83
"""A cache of 16 buffers, which the 99 small buffers fill."""

CREEP = CYCLE[:16] + [32.0 * MIB + n // 8 * 2.0 * MIB for n in range(83)]
"""The same, but one of eight buffers is lost in addition."""


BURSTS = [*FLAT[:15], *(MIB * more for more in (40.0, 40.0, 50.0, 140.0, 155.0, 155.0, 200.0, 235.0, 300.0))]
"""What other processes take: it comes late, and not in equal parts."""


@pytest.mark.parametrize(
    ("fields", "asked", "outcome"),
    [
        ({"used": FLAT}, {}, Outcome.FLAT),
        ({"used": FLAT, "doubt": 5.0 * MIB}, {}, Outcome.UNKNOWN),
        ({"used": FLAT, "doubt": 3.0 * MIB}, {}, Outcome.FLAT),
        ({"doubt": 5.0 * MIB}, {}, Outcome.GROWS),
        ({}, {}, Outcome.GROWS),
        ({"doubt": 1.0}, {}, Outcome.GROWS),
        ({"used": BURSTS, "doubt": 1.0}, {}, Outcome.UNKNOWN),
        ({"used": BURSTS}, {}, Outcome.GROWS),
        ({"used": BURSTS[:23], "sizes": SIZES[:23], "doubt": 1.0}, {}, Outcome.UNKNOWN),
        ({"sizes": SIZES[:23], "used": ALL_KEPT.used[:23]}, {}, Outcome.UNKNOWN),
        ({"sizes": SIZES[:23], "used": SLOW[:23]}, {}, Outcome.UNKNOWN),
        ({"sizes": SIZES[:23], "used": FLAT[:23]}, {}, Outcome.FLAT),
        ({"sizes": SIZES[:23], "used": ALL_KEPT.used[:23]}, {"planned": 99}, Outcome.GROWS),
        ({"sizes": [4 * MIB] * 23, "used": ALL_KEPT.used[:23]}, {}, Outcome.GROWS),
        ({"used": SLOW}, {}, Outcome.GROWS),
        ({"used": LOST, "small": with_small(99, LOST[-1])}, {}, Outcome.GROWS),
        ({"used": LOST, "small": [LOST[-1]] * 99}, {}, Outcome.FLAT),
        ({"used": FLAT, "small": with_small(99, 0.0)}, {}, Outcome.GROWS),
        ({"small": CYCLE, "late": CYCLE[-1:]}, {"planned": 99}, Outcome.BOUNDED),
        ({"small": CYCLE, "late": CYCLE[-1:]}, {"planned": 100}, Outcome.GROWS),
        ({"small": CYCLE[:28], "late": CYCLE[-1:]}, {"decides": False}, Outcome.BOUNDED),
        ({"small": CYCLE[:28], "late": [END]}, {}, Outcome.GROWS),
        ({"small": CYCLE, "late": CYCLE[-1:], "apart": False}, {}, Outcome.GROWS),
        ({"small": CREEP}, {}, Outcome.GROWS),
        ({"small": CREEP, "apart": False}, {}, Outcome.GROWS),
        ({"small": [END * 1.0] * 99, "late": [END]}, {}, Outcome.BOUNDED),
        ({"small": [END * 1.0] * 99, "late": [END]}, {"planned": 100}, Outcome.GROWS),
        ({"used": [MIB * n for n in range(24)]}, {"decides": False}, Outcome.GROWS),
        ({"used": [MIB * n for n in range(24)]}, {"decides": True}, Outcome.GROWS),
        ({"used": ONES}, {"decides": False}, Outcome.GROWS),
        ({}, {"allowed": 24}, Outcome.BOUNDED),
        ({}, {"allowed": 23}, Outcome.GROWS),
        ({}, {"allowed": 99, "planned": 99}, Outcome.GROWS),
        ({"used": ONES}, {"allowed": 99}, Outcome.GROWS),  # 2 of 24 buffers were kept at least
    ],
)
def test_outcome_is_the_first_that_the_measurements_show(
    fields: dict[str, Any], asked: dict[str, Any], outcome: Outcome
) -> None:
    growth = replace(ALL_KEPT, each=2 * MIB, apart=True)
    assert replace(growth, **fields).outcome(**asked) is outcome


@pytest.mark.parametrize(
    ("used", "doubt", "may_creep"),
    [
        ([0.0] * 30, 0.0, False),
        ([0.0] * 5 + [8.0 * MIB] * 25, 0.0, False),  # set up with the first messages
        ([0.0] * 25 + [2.0 * MIB] * 5, 0.0, True),
        ([0.0] * 25 + [2.0 * MIB] * 5, 3.0 * MIB, False),  # the counter may have moved by itself
        ([0.0, 2.0 * MIB] * 15 + [0.0], 0.0, False),
        ([4.0 * MIB * number for number in range(30)], 0.0, False),  # it is certain that this grows
    ],
)
def test_more_buffers_are_sent_if_used_memory_may_creep(
    used: list[float], doubt: float, may_creep: bool
) -> None:
    assert BufferGrowth([4 * MIB] * len(used), used, QUIET, doubt=doubt).may_creep is may_creep


def test_release_for_an_overlapping_buffer_does_not_hide_later_ones() -> None:
    over_the_first_ten = [used - sum(SIZES[: min(n, 10)]) for n, used in enumerate(with_small(99), 1)]
    kept = followed_by(over_the_first_ten).at_least
    assert 89 <= kept <= 14 + 99
    assert followed_by(over_the_first_ten).displacement.bound is None


@pytest.mark.parametrize(("period", "given_up"), [(2, 1), (5, 3), (33, 40)])
def test_saw_tooth_has_no_bound_and_does_not_stop(period: int, given_up: int) -> None:
    """Each buffer is kept, and every few of them an earlier one is released: Open MPI's smcuda."""
    tooth = [END + 2.0 * MIB * (n - n // period * given_up) for n in range(1, 129)]
    growth = followed_by(tooth, [tooth[-1] + 30.0 * MIB])
    assert growth.displacement.bound is None
    assert not growth.displacement.stops


@pytest.mark.parametrize(
    ("growth", "late", "stops"),
    [
        (4, 0, True),
        (6, 2, True),  # one block of the driver
        (4, 2, False),
        (4, 4, False),  # small messages do not use IPC, and large ones cost as much as before
        (4, None, False),
    ],
)
def test_growth_stops_if_neither_small_nor_large_buffers_add_memory(
    growth: int, late: int | None, stops: bool
) -> None:
    growing = replace(ALL_KEPT, used=[float(growth * MIB * n) for n in range(24)])
    flat = [growing.used[-1]] * 99
    ended = [] if late is None else [flat[-1] + late * MIB]
    assert replace(growing, small=flat, each=2 * MIB, late=ended, apart=True).displacement.stops is stops
    assert not replace(growing, small=flat, each=2 * MIB, late=ended, apart=False).displacement.stops


def test_growth_with_releases_has_a_bound_and_does_not_stop() -> None:
    """After 44 small buffers, a cache of 12 large ones uses as much memory as before them."""
    went = [END + 2.0 * MIB * n for n in range(1, 21)]
    back = followed_by([*went, *[END + 2.0 * MIB] * 60], [END + 2.0 * MIB])
    assert not back.displacement.stops
    assert back.displacement.bound == END + 2 * MIB


def test_few_buffers_do_not_show_that_small_growth_stops() -> None:
    slow = replace(ALL_KEPT, used=[1.0 * MIB * n for n in range(24)])
    assert slow.rate.grows
    assert not replace(
        slow, small=[24.0 * MIB] * 99, each=2 * MIB, late=[24.0 * MIB], apart=True
    ).displacement.stops


@pytest.mark.parametrize(
    ("buffers", "freed", "apart"),
    [
        ([(0, 10), (10, 10)], [(20, 5)], True),
        ([(0, 10), (9, 10)], [], False),
        ([(0, 10)], [(5, 1)], False),
        ([(5, 1)], [(0, 10)], False),
        ([(50, 10)], [(0, 100), (10, 10)], False),
        ([(100, 10)], [(0, 100), (10, 10)], True),  # freed buffers may have overlapped each other
    ],
)
def test_buffers_are_apart_if_no_address_was_reused(
    buffers: list[tuple[int, int]], freed: list[tuple[int, int]], apart: bool
) -> None:
    assert share_no_address(buffers, freed) is apart


def test_growth_equal_to_the_control_is_no_growth() -> None:
    control = [8.0 * MIB * n for n in range(8)]
    assert not BufferGrowth(SIZES, [8.0 * MIB * n for n in range(24)], control).rate.grows
    assert not BufferGrowth(
        SIZES, [40.0 * MIB * n for n in range(24)], [40.0 * MIB * n for n in range(8)]
    ).rate.is_large


@pytest.mark.parametrize(
    ("each", "of", "is_large"),
    [
        (2 * MIB - 1, 27 * MIB, False),
        (2 * MIB, 27 * MIB, True),
        (MIB - 1, 4 * MIB, False),
        (MIB, 4 * MIB, True),  # a quarter of each buffer
    ],
)
def test_driver_block_or_quarter_of_each_buffer_is_large(each: int, of: int, is_large: bool) -> None:
    growth = BufferGrowth([of] * 24, [float(each * n) for n in range(24)], QUIET)
    assert (growth.rate.grows, growth.rate.is_large) == (True, is_large)


def test_growing_buffers_fit_the_room_and_are_never_too_few() -> None:
    assert growing_sizes(1000, 4, 2, 43) == list(range(4, 64, 2))  # one of 64 would not fit
    assert growing_sizes(1000, 4, 2, 20) == list(range(4, 44, 2))
    few = growing_sizes(90, 4, 2, 43)
    assert (len(few), few[0], few[-1]) == (12, 2, 13)
    assert sum(few) <= 90


def test_buffers_of_one_size_fit_the_room() -> None:
    assert equal_sizes(1000, 10, 40, 50) == [20] * 50
    assert equal_sizes(10_000, 10, 40, 50) == [40] * 50
    assert equal_sizes(200, 10, 40, 50) == [10] * 20
    assert equal_sizes(60, 10, 40, 50) == [5] * 12


def test_too_few_buffers_are_refused() -> None:
    assert [how_many(room, 2, 20) for room in (100, 30, 24, 23)] == [20, 15, 12, 0]


@pytest.mark.parametrize("buffers", [FEWEST, 36, 128])
def test_growth_stated_as_detectable_on_a_plateau_is_detected(buffers: int) -> None:
    flat, control = [600.0 * MIB] * buffers, [600.0 * MIB] * (buffers // 3)
    least = BufferGrowth([1], flat, control).plateau("sender", 2 * MIB).values["least"]

    def grows(each: int, phase: int) -> bool:
        used = [600.0 * MIB + (each * n + phase) // (2 * MIB) * 2 * MIB for n in range(buffers)]
        return BufferGrowth([1], used, control).rate.grows

    phases = random.Random(buffers).sample(range(2 * MIB), 100)
    assert sum(grows(least, phase) for phase in phases) >= 99
    assert sum(grows(least // 3, phase) for phase in phases) < 99


@pytest.mark.parametrize("looked_at", [12, 43, 134])
def test_two_driver_blocks_at_any_time_are_no_growth(looked_at: int) -> None:
    third, step = range(looked_at), max(1, looked_at // 12)
    for first, second in product(range(0, looked_at, step), repeat=2):
        blocks = [2.0 * MIB * ((first <= n) + (second <= n)) for n in third]
        assert not BufferGrowth([1], [0.0] * 2 * looked_at + blocks, [0.0] * looked_at).rate.grows


GROWS = lasting([float(MIB * n) for n in range(24)])


@pytest.mark.parametrize(
    ("held", "is_theirs"),
    [
        ([MIB * n for n in range(24)], True),
        ([MIB * n * 0.51 for n in range(24)], True),
        ([MIB * n * 0.49 for n in range(24)], False),
        ([MIB] * 24, False),
        ([None] * 12 + [MIB * n for n in range(12)], True),
        ([None] * 13 + [MIB * n for n in range(11)], False),  # a missing figure among the last ones
        ([None] * 24, False),
    ],
)
def test_growth_is_attributed_to_the_process_that_holds_most_of_it(
    held: list[float | None], is_theirs: bool
) -> None:
    records = {"rank 0": {"held": [[0.0] * 24, [MIB] * 24]}, "rank 1": {"held": [[0.0] * 24, held]}}
    found = held_by(outcome(records, TWO, ""), 1, GROWS)
    assert [(item.kind, item.values["role"]) for item in found] == [
        (EvidenceKind.HOLDER, "rank 1")
    ] * is_theirs
    assert held_by(outcome(records, TWO, ""), 0, GROWS) == []


@pytest.mark.parametrize(
    ("control", "pace", "alone"),
    [(0.0, 10.0, 0.0), (0.5, 1.0, 0.5), (0.5, 10.0, 5.0), (-0.5, 10.0, -0.5)],
)
def test_growth_of_the_control_counts_by_the_time_of_an_iteration(
    control: float, pace: float, alone: float
) -> None:
    quiet = [control * MIB * n for n in range(8)]
    measured = replace(ALL_KEPT, control=quiet, pace=pace)
    assert measured.rate.without_messages == alone * MIB
    assert measured.rate.large == max(alone, 0) * MIB + 2 * MIB
    assert replace(measured, used=SLOW).rises.climb == (0.0 if alone > 0 else 1.5 * MIB)


@pytest.mark.parametrize(
    ("used", "may_grow"), [(FLAT, False), ([0.0] + [5.0 * MIB] * 23, True), ([0.0] + [4.0 * MIB] * 23, False)]
)
def test_small_buffers_are_sent_if_used_memory_is_higher_than_at_first(
    used: list[float], may_grow: bool
) -> None:
    assert replace(ALL_KEPT, used=used).may_grow is may_grow


@pytest.mark.parametrize(
    ("tail", "creep", "levels_off", "counts_bytes"),
    [
        (lambda n: 0, 0.0, True, True),
        (lambda n: n % 2 * n * 0.5, 0.0, False, False),  # the minimum stays
        (lambda n: n * 0.02 + n % 2 * n * 0.5, 0.0, False, False),  # it rises by less than the noise
        (lambda n: n * 0.25 + n % 2 * n * 0.25, 0.25, False, False),
        (lambda n: (n > 100) * 10, 0.0, False, True),  # once
        (lambda n: -10 * (n % 20 == 0), 0.0, True, False),  # it was emptied
    ],
)
def test_small_buffers_show_what_is_lost_and_whether_a_cache_counts_bytes(
    tail: Callable[[int], float], creep: float, levels_off: bool, counts_bytes: bool
) -> None:
    after_large = [32.0 * MIB + tail(n) * MIB for n in range(183)]
    seen = followed_by([*CYCLE[:16], *after_large], [max(after_large)]).displacement
    assert seen.creep == pytest.approx(creep * MIB, rel=0.25)
    assert (seen.levels_off, seen.counts_bytes) == (levels_off, counts_bytes)


@pytest.mark.parametrize("mib", [[0.0, 95.5, 98.0, 100.0], [0.0, 0.9, 1.0, 1.0]], ids=["large", "small"])
def test_use_rises_until_it_is_near_its_peak(mib: list[float]) -> None:
    """Within 4 MiB, or 5 % of a small rise."""
    used = [each * MIB for each in mib]
    assert replace(ALL_KEPT, used=used, small=(), late=()).rose_until == 3
