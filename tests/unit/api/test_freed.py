"""How many freed buffers are kept, from used memory."""

from __future__ import annotations

from itertools import accumulate

import pytest

from gpuipc_doctor.api import Freed

MIB = 1 << 20
SIZES = [(4 + 2 * number) * MIB for number in range(24)]
QUIET = [0.0] * 8
ALL_KEPT = Freed(SIZES, list(accumulate(SIZES)), QUIET)
END = sum(SIZES)


def with_small(number: int, first: float = END, each: float = 2 * MIB) -> list[float]:
    return [first + each * n for n in range(1, number + 1)]


def test_buffers_that_grow_and_are_all_kept_are_counted() -> None:
    assert ALL_KEPT.grows
    assert ALL_KEPT.are_kept
    assert ALL_KEPT.at_least([], 2 * MIB) == pytest.approx(24, abs=1)
    assert ALL_KEPT.at_least(with_small(99), 2 * MIB) == pytest.approx(24 + 99, abs=1)


def test_what_is_given_up_for_a_buffer_that_lies_over_it_does_not_hide_the_later_ones() -> None:
    over_the_first_ten = [used - sum(SIZES[: min(n, 10)]) for n, used in enumerate(with_small(99), 1)]
    kept = ALL_KEPT.at_least(over_the_first_ten, 2 * MIB)
    assert 89 <= kept <= 14 + 99
    assert ALL_KEPT.at_most(over_the_first_ten, 2 * MIB) is None


def test_a_leak_of_more_than_the_buffers_is_no_more_buffers_than_were_sent() -> None:
    leak = with_small(10, each=27 * MIB)
    assert ALL_KEPT.at_least(leak, 2 * MIB) == pytest.approx(10 + 23 + 250 / 27, abs=1)


def test_a_cache_that_gave_the_large_ones_up_for_small_ones_is_as_large_as_what_is_left() -> None:
    for kept in (1, 16, 64):
        gone = [used if n <= 8 else 2.0 * MIB * kept for n, used in enumerate(with_small(99))]
        assert ALL_KEPT.at_most(gone, 2 * MIB) == pytest.approx(kept)


@pytest.mark.parametrize("more", [0, 2 * MIB, 40 * MIB, -4 * MIB])
def test_what_gives_nothing_up_is_not_known_to_be_a_cache(more: int) -> None:
    """Small buffers may not go by IPC at all, or a bound in bytes may not be reached."""
    assert ALL_KEPT.at_most([END + more] * 99, 2 * MIB) is None


def test_what_still_grows_has_no_bound_that_is_known() -> None:
    assert ALL_KEPT.at_most(with_small(99, first=0.0), 2 * MIB) is None


def test_growth_as_in_the_control_is_none() -> None:
    control = [8.0 * MIB * n for n in range(8)]
    assert not Freed(SIZES, [8.0 * MIB * n for n in range(24)], control).grows
    assert not Freed(SIZES, [40.0 * MIB * n for n in range(24)], [40.0 * MIB * n for n in range(8)]).are_kept


@pytest.mark.parametrize(("each", "are_kept"), [(27 * MIB // 4, False), (27 * MIB // 4 + 1, True)])
def test_a_quarter_of_each_is_a_little(each: int, are_kept: bool) -> None:
    freed = Freed(SIZES, [float(each * n) for n in range(24)], QUIET)
    assert (freed.grows, freed.are_kept) == (True, are_kept)
