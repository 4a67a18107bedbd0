"""A slope and its interval: right on lines, unmoved by outliers, honest about noise."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuipc_doctor.api.trend import slope


@given(rise=st.integers(-(10**6), 10**6), start=st.integers(-(10**9), 10**9), n=st.integers(4, 40))
def test_a_line_has_its_slope_and_no_uncertainty(rise: int, start: int, n: int) -> None:
    found = slope(range(n), [start + rise * x for x in range(n)])
    assert (found.low, found.estimate, found.high) == (rise, rise, rise)


@given(st.lists(st.floats(-1e9, 1e9), min_size=4, max_size=30))
def test_the_interval_holds_the_estimate(y: list[float]) -> None:
    found = slope(range(len(y)), y)
    assert found.low <= found.estimate <= found.high


def test_one_jump_is_no_slope() -> None:
    found = slope(range(32), [0] * 20 + [2 << 20] * 12)
    assert found.low <= 0


def test_an_outlier_does_not_move_a_slope() -> None:
    y = [x * 100 for x in range(32)]
    y[7] = 10**9
    assert slope(range(32), y).estimate == pytest.approx(100)


def test_noise_without_a_slope_is_rarely_called_one() -> None:
    rng = random.Random(0)
    alarms = sum(slope(range(24), [rng.gauss(0, 1) for _ in range(24)]).low > 0 for _ in range(400))
    assert alarms <= 400 * 0.04  # 2.5 % by construction


def test_a_slope_in_noise_is_found() -> None:
    rng = random.Random(1)
    assert slope(range(32), [x + rng.gauss(0, 4) for x in range(32)]).low > 0.5


@pytest.mark.parametrize(
    ("x", "y"), [([1, 2, 3], [1, 2, 3]), ([1, 1, 2, 3], [1, 2, 3, 4]), ([1, 2, 3, 4], [1])]
)
def test_too_little_to_go_by(x: list[float], y: list[float]) -> None:
    with pytest.raises(ValueError, match="at least four points"):
        slope(x, y)
