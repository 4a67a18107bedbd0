"""A slope with its uncertainty, for memory that may or may not creep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations


@dataclass(frozen=True, slots=True)
class Slope:
    """Change of y per unit of x: the estimate and the bounds of its 95 % interval."""

    estimate: float
    low: float
    high: float


def lasting(series: Sequence[float]) -> Slope:
    """How a series goes on once bounded caches are full: the slope of its last third."""
    begins = 2 * len(series) // 3
    return slope(range(begins, len(series)), series[begins:])


def slope(x: Sequence[float], y: Sequence[float], confidence: float = 0.95) -> Slope:
    """The Theil-Sen slope of ``y`` over ``x``, which a few outliers do not move.

    The estimate is the median of the slopes of all pairs of points; the interval is Sen's, from the
    variance of Kendall's rank correlation (P. K. Sen, J. Am. Stat. Assoc. 63 (1968), 1379; without his
    correction for ties, so it errs to the wide side). Needs at least four points with distinct x;
    raises `ValueError` otherwise.
    """
    from statistics import NormalDist, median

    n = len(x)
    if n < 4 or n != len(y) or len(set(x)) != n:
        raise ValueError("a slope needs at least four points with distinct x")
    slopes = sorted((y[j] - y[i]) / (x[j] - x[i]) for i, j in combinations(range(n), 2))
    deviation = math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    reach = NormalDist().inv_cdf(0.5 + confidence / 2) * deviation
    low = max(math.floor((len(slopes) - reach) / 2), 0)
    high = min(math.ceil((len(slopes) + reach) / 2), len(slopes) - 1)
    return Slope(median(slopes), slopes[low], slopes[high])
