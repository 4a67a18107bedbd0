"""An allocator's memory, sampled by a role function during its work."""

from __future__ import annotations

from collections.abc import Mapping

from gpuipc_doctor.api.allocator import Allocator
from gpuipc_doctor.api.ledger import Ledger
from gpuipc_doctor.api.worker import Worker
from gpuipc_doctor.model import Json, Line, Mark, Series

_LINES = {"used": "used on the device", "reserved": "reserved by the allocator", "allocated": "allocated"}


class MemorySamples:
    """Bytes allocated and reserved, as counted by the allocator, and bytes used on the device since the
    start.
    """

    def __init__(self, w: Worker, allocator: Allocator) -> None:
        self._w = w
        self._allocator = allocator
        self._ledger = Ledger(w)
        self._before = self._ledger.mark()
        self._started = w.clock()
        self.seconds: list[float] = []
        self.allocated: list[int] = []
        self.reserved: list[int] = []
        self.used: list[int] = []
        self.marks: list[tuple[float, str]] = []

    def take(self, after: str = "") -> int:
        """Take a sample; ``after`` names an event to mark. Returns the bytes used on the device."""
        allocated, reserved = self._allocator.held()
        self.seconds.append(self._w.clock() - self._started)
        self.allocated.append(allocated)
        self.reserved.append(reserved)
        self.used.append(self._ledger.used() - self._before)
        if after:
            self.marks.append((self.seconds[-1], after))
        return self.used[-1]

    def json(self) -> Json:
        """The samples as JSON, for `Worker.record`; `series` reads them."""
        return {name: getattr(self, name) for name in ("seconds", *_LINES, "marks")}


def series(title: str, samples: Mapping[str, Json]) -> Series:
    """The recorded samples as a time series."""
    return Series(
        title,
        "seconds",
        tuple(samples["seconds"]),
        tuple(Line(text, tuple(samples[name])) for name, text in _LINES.items()),
        tuple(Mark(at, text) for at, text in samples["marks"]),
    )
