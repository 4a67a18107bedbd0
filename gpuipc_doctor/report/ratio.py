"""The ratio of two sets of samples, with bounds that account for noise."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, count

_EXACT_UP_TO = 1600
"""Number of sample pairs up to which the distribution is computed exactly; above, the normal distribution is
as good.
"""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ratio of after to before: estimate and interval."""

    estimate: float
    low: float
    high: float

    @property
    def inverse(self) -> Ratio:
        return Ratio(1 / self.estimate, 1 / self.high, 1 / self.low)


def ratio(before: Sequence[float], after: Sequence[float], doubt: float) -> Ratio | None:
    """The ratio of ``after`` to ``before``; ``doubt`` is the probability that the bounds miss it.

    The estimate is the median of all ratios of an ``after`` value to a ``before`` value, with bounds at two
    ranks given by the Mann-Whitney distribution: Hodges and Lehmann's estimate and interval, on logarithms
    (J. L. Hodges, E. L. Lehmann, Ann. Math. Stat. 34 (1963), 598). It assumes that samples are independent,
    and that both sides have one distribution apart from a factor. No particular distribution is assumed: an
    outlier widens the interval but does not make it wrong. None if there are too few samples for this
    ``doubt``. Values must be positive.
    """
    rank = _rank(len(before), len(after), doubt)
    if rank is None:
        return None
    ratios = sorted(b / a for a in before for b in after)
    middle = len(ratios) // 2
    estimate = math.sqrt(ratios[middle] * ratios[-1 - middle])
    return Ratio(estimate, ratios[rank], ratios[-1 - rank])


def samples_needed(doubt: float) -> int:
    """Minimum samples per side, equal on both, for bounds with this ``doubt``."""
    return next(n for n in count(1) if _rank(n, n, doubt) is not None)


@cache
def _rank(m: int, n: int, doubt: float) -> int | None:
    """Number of the m·n sorted ratios beyond the bound at each end; None if there are too few ratios."""
    if m * n > _EXACT_UP_TO:
        from statistics import NormalDist

        deviation = math.sqrt(m * n * (m + n + 1) / 12)
        rank = math.floor(m * n / 2 + NormalDist().inv_cdf(doubt / 2) * deviation - 0.5)
    else:
        arrangements = list(accumulate(_arrangements(m, n)))
        rank = bisect_right(arrangements, doubt / 2 * arrangements[-1]) - 1
    return rank if rank >= 0 else None


def _arrangements(m: int, n: int) -> list[int]:
    """Number of orderings of m and n values with 0, 1, … of the m·n pairs inverted.

    The coefficients of the Gaussian binomial, computed by multiplying with (1 - q^(n+i)) / (1 - q^i).
    """
    ways = [1] + [0] * (m * n)
    for i in range(1, m + 1):
        for k in range(m * n, n + i - 1, -1):
            ways[k] -= ways[k - n - i]
        for k in range(i, m * n + 1):
            ways[k] += ways[k - i]
    return ways
