"""The ratio of two sets of samples: exact without noise; its bounds miss it no more often than stated."""

from __future__ import annotations

import random
from itertools import combinations
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuipc_doctor.report.ratio import ratio, samples_needed

TIMES = st.lists(st.floats(1e-6, 1e6), min_size=4, max_size=12)
DOUBT = 0.05


@given(TIMES, TIMES)
def test_bounds_contain_the_estimate(before: list[float], after: list[float]) -> None:
    found = ratio(before, after, DOUBT)
    assert found is not None
    assert found.low <= found.estimate * (1 + 1e-12)
    assert found.estimate <= found.high * (1 + 1e-12)


@given(TIMES, st.floats(0.01, 100))
def test_factor_is_found_for_any_samples(before: list[float], factor: float) -> None:
    found, unchanged = ratio(before, [factor * b for b in before], DOUBT), ratio(before, before, DOUBT)
    assert found is not None
    assert unchanged is not None
    for name in ("estimate", "low", "high"):
        assert getattr(found, name) == pytest.approx(factor * getattr(unchanged, name))
    assert unchanged.estimate == pytest.approx(1)


@given(TIMES, TIMES)
def test_swapped_samples_have_the_inverse_ratio(before: list[float], after: list[float]) -> None:
    there, back = ratio(before, after, DOUBT), ratio(after, before, DOUBT)
    assert there is not None
    assert back is not None
    assert (1 / there.high, 1 / there.estimate, 1 / there.low) == pytest.approx(
        (back.low, back.estimate, back.high)
    )


@pytest.mark.parametrize(("m", "n"), [(4, 4), (5, 5), (4, 7)])
@pytest.mark.parametrize("doubt", [0.2, 0.05, 0.03])
def test_bounds_miss_as_rarely_as_stated_over_all_orders(m: int, n: int, doubt: float) -> None:
    """If nothing changed, all orders of the values are equally likely: count those whose bounds miss 1."""
    misses = 0
    for chosen in combinations(range(m + n), m):
        before = [1.0 + i for i in chosen]
        after = [1.0 + i for i in range(m + n) if i not in chosen]
        found = ratio(before, after, doubt)
        misses += found is not None and not found.low <= 1 <= found.high
    assert misses <= doubt * comb(m + n, m)


def test_too_few_samples_have_no_bounds() -> None:
    assert ratio([1.0], [2.0], DOUBT) is None
    assert ratio([1.0] * 3, [2.0] * 3, DOUBT) is None  # 2 of 20 orders are as extreme
    assert ratio([], [1.0] * 9, DOUBT) is None
    assert [samples_needed(DOUBT / many) for many in (1, 10, 100, 1000)] == [4, 6, 8, 9]


@pytest.mark.parametrize("n", [40, 41])
def test_many_samples_have_bounds_about_as_wide_as_exact_ones(n: int) -> None:
    rng = random.Random(n)
    before, after = ([rng.lognormvariate(0, 0.1) for _ in range(n)] for _ in range(2))
    found = ratio(before, after, DOUBT)
    assert found is not None
    assert 0.04 < found.high - found.low < 0.14  # 2 · 1.96 · 0.1 · √(2/40) is 0.088
