"""How fast each GPU's and each process's use of memory grows."""

from __future__ import annotations

from collections import deque

from gpuipc_doctor.api.trend import slope
from gpuipc_doctor.memory.usage import Key, Sample

WINDOW = 30
"""The latest samples that make the slope: enough to tell growth from noise, few enough to cost little."""


class History:
    """The latest samples of all that is there now."""

    def __init__(self) -> None:
        self._series: dict[Key, deque[tuple[float, int]]] = {}

    def add(self, sample: Sample) -> None:
        """Take in a sample; what it does not know any more is forgotten."""
        self._series = {key: self._series.get(key, deque(maxlen=WINDOW)) for key, _ in sample.used()}
        for key, used in sample.used():
            self._series[key].append((sample.at, used))

    def growth(self, key: Key) -> float | None:
        """Bytes per minute; 0 when a level use would look the same, None as long as nobody can tell.

        The estimate is `trend.slope`'s, which a few jumps do not move; it counts when its 95 % interval
        leaves out 0.
        """
        series = dict(self._series.get(key, ()))
        if len(series) < 4:
            return None
        found = slope([at / 60 for at in series], list(series.values()))
        return found.estimate if found.low > 0 or found.high < 0 else 0.0
