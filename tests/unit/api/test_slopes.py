"""The slope and its interval: exact on lines, robust to outliers, wide with noise."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuipc_doctor.api.slopes import BLOCK_BYTES, block_of, is_even, slope, smallest_found


@given(rise=st.integers(-(10**6), 10**6), start=st.integers(-(10**9), 10**9), n=st.integers(4, 40))
def test_line_has_its_slope_without_uncertainty(rise: int, start: int, n: int) -> None:
    found = slope(range(n), [start + rise * x for x in range(n)])
    assert (found.low, found.estimate, found.high) == (rise, rise, rise)


@given(st.lists(st.floats(-1e9, 1e9), min_size=4, max_size=30))
def test_interval_contains_the_estimate(y: list[float]) -> None:
    found = slope(range(len(y)), y)
    assert found.low <= found.estimate <= found.high


def test_an_outlier_does_not_move_a_slope() -> None:
    y = [x * 100 for x in range(32)]
    y[7] = 10**9
    assert slope(range(32), y).estimate == pytest.approx(100)


@pytest.mark.parametrize(
    ("x", "y"), [([1, 2, 3], [1, 2, 3]), ([1, 1, 2, 3], [1, 2, 3, 4]), ([1, 2, 3, 4], [1])]
)
def test_too_few_values(x: list[float], y: list[float]) -> None:
    with pytest.raises(ValueError, match="at least four points"):
        slope(x, y)


MIB = 1 << 20


@given(
    rounds=st.integers(4, 48).flatmap(lambda n: st.sampled_from([range(n), range(8, 8 * n + 8, 8)])),
    above=st.floats(0, 4 * MIB),
    jumps=st.lists(st.sampled_from([0, 0, 0, 1, -1]), min_size=48, max_size=48),
    phase=st.integers(0, BLOCK_BYTES - 1),
    more=st.sampled_from([0, 0, 1, 4096, MIB]),
)
def test_stated_detectable_growth_is_found_in_each_phase_of_the_counter(
    rounds: range, above: float, jumps: list[int], phase: int, more: int
) -> None:
    levels = [sum(jumps[:n]) * BLOCK_BYTES for n in range(len(rounds))]
    each = smallest_found(rounds, levels, above, BLOCK_BYTES) + more
    assert slope(rounds, stepped(rounds, levels, each, phase)).low > above


@pytest.mark.parametrize(("n", "above"), [(12, 4 * MIB / 12), (43, 4 * MIB / 43), (134, 4 * MIB / 134)])
def test_much_less_than_the_detectable_growth_is_not_found_in_each_phase(n: int, above: float) -> None:
    each = smallest_found(range(n), [0] * n, above, BLOCK_BYTES) // 2
    phases = random.Random(n).sample(range(BLOCK_BYTES), 100)
    found = [slope(range(n), stepped(range(n), [0] * n, each, phase)).low > above for phase in phases]
    assert found.count(True) < 99


def stepped(rounds: range, levels: list[int], each: int, phase: int) -> list[int]:
    """Levels that grow by ``each`` a round, as a counter of blocks shows them."""
    return [
        level + (each * done + phase) // BLOCK_BYTES * BLOCK_BYTES
        for done, level in zip(rounds, levels, strict=True)
    ]


@pytest.mark.parametrize(
    ("figures", "mib"),
    [
        ([700, 700], 2),
        ([700, 738], 2),
        ([703, 741], 2),  # for any amount that the idle device has in use
        ([700, 748], 16),
        ([700, 748, 702], 2),
        ([700, 662], 2),
        ([700, 737, 700], 2),  # counted in bytes, although a driver allocates blocks
    ],
)
def test_block_size_of_a_counter_is_derived_from_its_changes(figures: list[int], mib: int) -> None:
    assert block_of(figure * MIB for figure in figures) == mib * MIB


@pytest.mark.parametrize(
    ("series", "even"),
    [
        pytest.param([block * BLOCK_BYTES for block in range(60)], True, id="each round"),
        pytest.param([max(block - 25, 0) * BLOCK_BYTES for block in range(60)], True, id="from the 26th on"),
        pytest.param([0] * 60, False, id="never"),
        pytest.param([min(block, 20) * BLOCK_BYTES for block in range(60)], False, id="at the beginning"),
        pytest.param([block // 20 * 20 * BLOCK_BYTES for block in range(60)], False, id="twice"),
        pytest.param(
            [4 * MIB * (min(at, max(28, at - 16)) // 2 + (at > 1)) for at in range(60)],
            False,
            id="of unequal losses, none in a quarter",
        ),
        pytest.param(
            [4 * MIB * (min(at, max(29, at - 20)) // 5 + 2 * (at >= 5)) for at in range(60)],
            False,
            id="of few losses, one thrice as large, none in a third",
        ),
        pytest.param([max(block - 50, 0) * BLOCK_BYTES for block in range(60)], False, id="nine at the end"),
    ],
)
def test_growth_is_even_if_it_goes_on_in_all_parts(series: list[float], even: bool) -> None:
    assert is_even(series) is even
