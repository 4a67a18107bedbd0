"""An allocator's memory, sampled by a role function during its work."""

from __future__ import annotations

from collections.abc import Mapping

from gpuipc_doctor.api.allocator import Allocator
from gpuipc_doctor.api.ledger import NOISE_BYTES, Ledger, account, tell_loaded
from gpuipc_doctor.api.worker import Worker
from gpuipc_doctor.model import Evidence, Finding, Json, Line, Mark, RoleOutcome, Series

_LINES = {"used": "used on the device", "reserved": "reserved by the allocator", "allocated": "allocated"}


class MemorySamples:
    """Bytes allocated and reserved, as counted by the allocator, and bytes used on the device since the
    start, by all processes and by this one. The partner watches the device by `look_on`.
    """

    def __init__(self, w: Worker, allocator: Allocator) -> None:
        self._w = w
        self._allocator = allocator
        tell_loaded(w)
        self._ledger = Ledger(w)
        self._before = self._ledger.mark()
        self._own_before = w.gpu.memory_of_this_process()
        self._started = w.clock()
        self.seconds: list[float] = []
        self.allocated: list[int] = []
        self.reserved: list[int] = []
        self.used: list[int] = []
        self.own: list[int | None] = []
        self.marks: list[tuple[float, str]] = []

    def take(self, after: str = "") -> int:
        """Take a sample; ``after`` names an event to mark. Returns the bytes used on the device."""
        allocated, reserved = self._allocator.held()
        self.seconds.append(self._w.clock() - self._started)
        self.allocated.append(allocated)
        self.reserved.append(reserved)
        self.used.append(self._ledger.used() - self._before)
        own = self._w.gpu.memory_of_this_process()
        self.own.append(None if own is None or self._own_before is None else own - self._own_before)
        if after:
            self.marks.append((self.seconds[-1], after))
        return self.used[-1]

    def last(self) -> None:
        """Take the last sample, when everything is released. If memory seems missing, watch it while idle."""
        if self.take() > NOISE_BYTES or self._ledger.is_doubtful():
            self._ledger.watch_idle(self.seconds[-1])

    def json(self) -> Json:
        """The samples as JSON, for `Worker.record`; `series` reads them."""
        return {name: getattr(self, name) for name in ("seconds", *_LINES, "own", "marks")}


def used_since_the_start(role: RoleOutcome) -> tuple[list[float], float]:
    """Bytes used at each sample, and how far they may be wrong because the device's count moves by itself.

    If it does, the bytes of this process count instead, where the driver reports them.
    """
    samples, idle = role.records["samples"], account(role).idle
    if not idle.moves:
        return samples["used"], 0.0
    if None not in samples["own"]:
        return samples["own"], 0.0
    used = idle.without([0, *samples["used"]], [0.0, *samples["seconds"]])[1:]
    return used, idle.change_within(samples["seconds"][-1])[1]


def judge_hidden(program: RoleOutcome, onlooker: RoleOutcome) -> Finding | None:
    """The ERROR if used memory moves by itself so much that a loss would not have been noticed."""
    watched = account(onlooker)
    doubt = max(used_since_the_start(program)[1], *(entry.doubt for entry in watched.entries))
    if doubt <= NOISE_BYTES:
        return None
    says = "a loss of less than {least:mib} would not have been noticed"
    return watched.moving(Evidence.seen(says, least=NOISE_BYTES + doubt))


def series(title: str, samples: Mapping[str, Json]) -> Series:
    """The recorded samples as a time series."""
    return Series(
        title,
        "seconds",
        tuple(samples["seconds"]),
        tuple(Line(text, tuple(samples[name])) for name, text in _LINES.items()),
        tuple(Mark(at, text) for at, text in samples["marks"]),
    )
