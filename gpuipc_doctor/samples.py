"""What an allocator holds, sampled by a role function while it works."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from gpuipc_doctor.allocator import Allocator
from gpuipc_doctor.gpu import Gpu
from gpuipc_doctor.model import Json, Line, Mark, Series

_LINES = {"used": "used on the device", "reserved": "reserved by the allocator", "allocated": "allocated"}


class MemorySamples:
    """Bytes allocated and reserved as the allocator counts them, and used on the device beyond the start.

    Used memory is `Gpu.memory_used`.
    """

    def __init__(self, gpu: Gpu, allocator: Allocator, clock: Callable[[], float]) -> None:
        self._gpu = gpu
        self._allocator = allocator
        self._clock = clock
        self._started = clock()
        self._before = gpu.memory_used()
        self.seconds: list[float] = []
        self.allocated: list[int] = []
        self.reserved: list[int] = []
        self.used: list[int] = []

    def take(self) -> None:
        allocated, reserved = self._allocator.held()
        self.seconds.append(self._clock() - self._started)
        self.allocated.append(allocated)
        self.reserved.append(reserved)
        self.used.append(self._gpu.memory_used() - self._before)

    def json(self) -> Json:
        """For `Worker.record`; `series` draws it."""
        return {name: getattr(self, name) for name in ("seconds", *_LINES)}


def series(title: str, samples: Mapping[str, list[float]], marks: Iterable[tuple[float, str]] = ()) -> Series:
    """The recorded samples, with ``marks`` at seconds since their start."""
    return Series(
        title,
        "seconds",
        tuple(samples["seconds"]),
        tuple(Line(text, tuple(samples[name])) for name, text in _LINES.items()),
        tuple(Mark(at, text) for at, text in marks),
    )
