"""Growth of the memory use of each GPU and process."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from gpuipc_doctor.api.slopes import Slope, slope
from gpuipc_doctor.node.memory_usage import Key, Sample

WINDOW = 30
"""Number of samples for the slope. With fewer, growth cannot be distinguished from noise."""


class History:
    """The latest samples of all current GPUs and processes."""

    def __init__(self) -> None:
        self._series: dict[Key, deque[tuple[float, int]]] = {}

    def add(self, sample: Sample) -> None:
        """Add a sample. Processes that it does not contain are forgotten."""
        self._series = {key: self._series.get(key, deque(maxlen=WINDOW)) for key, _ in sample.used()}
        for key, used in sample.used():
            self._series[key].append((sample.at, used))

    def growth(self, key: Key) -> float | None:
        """Bytes per minute by `slope`, which is robust against jumps; None while there are too few
        samples. The result is 0 if the slope's 95 % interval includes 0."""
        series = dict(self._series.get(key, ()))
        if len(series) < 4:
            return None
        found = per_minute(list(series.items()))
        return found.estimate if found.low > 0 or found.high < 0 else 0.0


def per_minute(samples: Sequence[tuple[float, int]]) -> Slope:
    """Change per minute of at least four samples: (seconds, value)."""
    return slope([at / 60 for at, _ in samples], [value for _, value in samples])
