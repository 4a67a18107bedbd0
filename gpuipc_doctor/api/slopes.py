"""A slope with its uncertainty, for memory that may or may not grow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations, pairwise
from operator import or_
from typing import TypeVar

Figure = TypeVar("Figure", int, float)

BLOCK_BYTES = 2 << 20
"""Minimum bytes of a driver's memory blocks."""


CONFIDENCE = 0.95
"""Of the interval of a slope."""

PARTS, EVEN = 8, 0.5
"""Parts of a series that grows, each of which must have this fraction of an equal share of the growth."""

PART = 3
"""Minimum steps of a part."""

ONCE = 3
"""Number of rises of used memory that initialisation may cause: they do not count as growth."""


@dataclass(frozen=True, slots=True)
class Slope:
    """Change of y per unit of x: the estimate and the bounds of its 95 % interval."""

    estimate: float
    low: float
    high: float


def last_third(series: Sequence[Figure]) -> Sequence[Figure]:
    return series[2 * len(series) // 3 :]


def lasting(series: Sequence[float]) -> Slope:
    """The slope of the last third of a series, in which a bounded cache is already full."""
    last = last_third(series)
    return slope(range(len(last)), last)


def is_even(series: Sequence[float]) -> bool:
    """Whether a series grows in all its parts, as it does if each round loses memory, or one of a few rounds.
    What another process takes comes in bursts. A loss may begin with a later round of the first half."""
    begin = next((at for at, (before, after) in enumerate(pairwise(series)) if after > before), 0)
    if begin > len(series) // 2:
        return False
    series = series[begin:]
    steps = len(series) - 1
    rises = [after - before for before, after in pairwise(series) if after > before]
    parts = min(PARTS, steps // PART)
    bounds = [series[steps * part // parts] for part in range(parts + 1)] if parts > 1 else []
    one = min(rises) if rises and max(rises) <= 2 * min(rises) else BLOCK_BYTES  # if few rounds lose memory
    least = EVEN * (series[-1] - series[0]) / max(parts, 1) - max(one, BLOCK_BYTES)
    return len(rises) > ONCE and all(after - before >= least for before, after in pairwise(bounds))


def slope(x: Sequence[float], y: Sequence[float]) -> Slope:
    """The Theil-Sen slope of ``y`` over ``x``, which is robust against a few outliers.

    The estimate is the median of the slopes of all pairs of points; the interval is Sen's, from the variance
    of Kendall's rank correlation (P. K. Sen, J. Am. Stat. Assoc. 63 (1968), 1379), without his correction for
    ties, so the interval is rather too wide. Raises `ValueError` for fewer than four points with distinct x.
    """
    from statistics import median

    n = len(x)
    if n < 4 or n != len(y) or len(set(x)) != n:
        raise ValueError("a slope needs at least four points with distinct x")
    slopes = sorted((y[j] - y[i]) / (x[j] - x[i]) for i, j in combinations(range(n), 2))
    reach = _reach(n)
    low = max(math.floor((len(slopes) - reach) / 2), 0)
    high = min(math.ceil((len(slopes) + reach) / 2), len(slopes) - 1)
    return Slope(median(slopes), slopes[low], slopes[high])


def smallest_found(x: Sequence[float], y: Sequence[float], above: float, block: int) -> int:
    """The smallest growth of ``y`` per unit of ``x`` that would raise `Slope.low` above ``above``.

    The counter moves in steps of ``block``, so two points differ by whole blocks only. ``x`` must rise.
    """
    needed = sorted(
        block * (math.floor((above * (x[j] - x[i]) - (y[j] - y[i])) / block) + 1) / (x[j] - x[i])
        for i, j in combinations(range(len(x)), 2)
    )
    spared = max(math.floor((len(needed) - _reach(len(x))) / 2), 0)
    return max(math.ceil(needed[-1 - spared]), 0)


def block_of(figures: Iterable[float]) -> int:
    """The driver's block size: the largest power of two that divides every change of a figure."""
    first, *rest = map(int, figures)
    changes = reduce(or_, (figure - first for figure in rest), 0)
    return max(changes & -changes, BLOCK_BYTES)


def _reach(n: int) -> float:
    """Number of the slopes between ``n`` points that the confidence interval contains."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
