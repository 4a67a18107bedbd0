"""By which factor one set of samples is larger than another, with bounds that noise seldom crosses."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, count

_EXACT_UP_TO = 1600
"""Pairs of samples up to which the distribution is counted out; beyond, the normal one is as good."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """After to before: the estimate, and the bounds of its interval."""

    estimate: float
    low: float
    high: float

    @property
    def inverse(self) -> Ratio:
        return Ratio(1 / self.estimate, 1 / self.high, 1 / self.low)


def ratio(before: Sequence[float], after: Sequence[float], doubt: float) -> Ratio | None:
    """How many times as large the values of ``after`` are; ``doubt`` is the chance to miss the true factor.

    The median of all ratios of one value to another, between two of these ratios whose ranks the
    Mann-Whitney distribution gives: Hodges and Lehmann's estimate and its interval, on logarithms
    (J. L. Hodges, E. L. Lehmann, Ann. Math. Stat. 34 (1963), 598). It supposes that samples are independent
    and, but for the factor, alike; not how they are distributed, so an outlier costs width and no truth.
    None with too few samples for so little doubt. Values are positive.
    """
    rank = _rank(len(before), len(after), doubt)
    if rank is None:
        return None
    ratios = sorted(b / a for a in before for b in after)
    middle = len(ratios) // 2
    estimate = math.sqrt(ratios[middle] * ratios[-1 - middle])
    return Ratio(estimate, ratios[rank], ratios[-1 - rank])


def samples_needed(doubt: float) -> int:
    """The fewest samples, the same number a side, that can have bounds with no more ``doubt``."""
    return next(n for n in count(1) if _rank(n, n, doubt) is not None)


@cache
def _rank(m: int, n: int, doubt: float) -> int | None:
    """How many of the m·n sorted ratios may be left out at each end; None when not even the bounds hold."""
    if m * n > _EXACT_UP_TO:
        from statistics import NormalDist

        deviation = math.sqrt(m * n * (m + n + 1) / 12)
        rank = math.floor(m * n / 2 + NormalDist().inv_cdf(doubt / 2) * deviation - 0.5)
    else:
        arrangements = list(accumulate(_arrangements(m, n)))
        rank = bisect_right(arrangements, doubt / 2 * arrangements[-1]) - 1
    return rank if rank >= 0 else None


def _arrangements(m: int, n: int) -> list[int]:
    """In how many orders of m and n values so many of the m·n pairs stand the wrong way round: 0, 1, …

    The coefficients of the Gaussian binomial, built up by one factor (1 - q^(n+i)) / (1 - q^i) at a time.
    """
    ways = [1] + [0] * (m * n)
    for i in range(1, m + 1):
        for k in range(m * n, n + i - 1, -1):
            ways[k] -= ways[k - n - i]
        for k in range(i, m * n + 1):
            ways[k] += ways[k - i]
    return ways
