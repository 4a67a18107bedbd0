"""Memory of a program that allocates: samples of its allocator, and what the device has lost.

The program is one role; another role watches device memory until the program has ended (`look_on`). Memory
that another process takes looks like a loss, but is unlikely twice: a second run must confirm a loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from gpuipc_doctor.api.allocator import Allocator
from gpuipc_doctor.api.allocator import probe as allocator_probe
from gpuipc_doctor.api.leak_report import Entry, blind, leak_report
from gpuipc_doctor.api.loop_growth import RERUN_IDLE
from gpuipc_doctor.api.memory_counter import NOISE_BYTES
from gpuipc_doctor.api.meter import Meter, tell_loaded
from gpuipc_doctor.api.worker import Worker
from gpuipc_doctor.model import Evidence, Finding, Json
from gpuipc_doctor.probe_types import Probe, ProbeOutcome, Role, RoleOutcome
from gpuipc_doctor.report_types import Line, Mark, Series

LOST = "lost"
"""Parameter of the second run: the bytes that the first run lost."""

Judge = Callable[[ProbeOutcome], Finding | None]
"""Returns the FAIL of a completed run whose program lost memory while running."""

_LINES = {"used": "used on the device", "reserved": "reserved by the allocator", "allocated": "allocated"}


class MemorySamples:
    """Bytes allocated and reserved, as counted by the allocator, and bytes used on the device since the
    start, by all processes and by this one. The partner watches the device by `look_on`.
    """

    def __init__(self, w: Worker, allocator: Allocator) -> None:
        self._w = w
        self._allocator = allocator
        tell_loaded(w)
        self._meter = Meter(w)
        self._before = self._meter.mark()
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
        self.used.append(self._meter.used().nbytes - self._before.nbytes)
        own = self._w.gpu.memory_of_this_process()
        self.own.append(None if own is None or self._own_before is None else own - self._own_before)
        if after:
            self.marks.append((self.seconds[-1], after))
        return self.used[-1]

    def last(self) -> None:
        """Take the last sample, when everything is released. If memory seems missing, watch it while idle."""
        if self.take() > NOISE_BYTES or self._meter.may_move():
            self._meter.watch_idle(self.seconds[-1])

    def json(self) -> Json:
        """The samples as JSON, for `Worker.record`; `series` reads them."""
        return {name: getattr(self, name) for name in ("seconds", *_LINES, "own", "marks")}


def used_since_the_start(role: RoleOutcome) -> list[float]:
    """Bytes used at each sample: of the device or, if its count moves by itself, of this process; 0 where the
    driver does not report them."""
    samples = role.records["samples"]
    return [own or 0 for own in samples["own"]] if leak_report(role).idle.moves else samples["used"]


def judge_hidden(program: RoleOutcome, onlooker: RoleOutcome) -> Finding | None:
    """The ERROR if used memory moves by itself."""
    watched, own = leak_report(onlooker), leak_report(program)
    if watched.idle.moves:
        return watched.moving()
    return own.moving() if own.idle.moves and None in program.records["samples"]["own"] else None


def series(title: str, samples: Mapping[str, Json]) -> Series:
    """The recorded samples as a time series."""
    return Series(
        title,
        "seconds",
        tuple(samples["seconds"]),
        tuple(Line(text, tuple(samples[name])) for name, text in _LINES.items()),
        tuple(Mark(at, text) for at, text in samples["marks"]),
    )


def repeat_if_lost(ended: ProbeOutcome, roles: Mapping[str, Role], judge: Judge) -> Iterator[Probe]:
    """Plan the second run if memory was lost in the first one."""
    if not ended.completed or LOST in ended.params or blind(ended):
        return
    found, missing = judge(ended), _after(ended).missing
    if found or missing > NOISE_BYTES:
        told = found and {"key": found.key, "says": found.says, "values": dict(found.values)}
        params: Json = {**ended.params, LOST: {"found": told, "missing": missing}}
        again = allocator_probe(ended.probe, ended.devices[0], roles, **params)
        yield replace(again, deadline_s=ended.deadline_s)


def judge_loss(done: ProbeOutcome, judge: Judge) -> Finding | None:
    """The FAIL for a loss in both runs, the ERROR for a loss in one of them, else None."""
    if done.completed and LOST not in done.params:
        return _after(done).trust(judge(done))
    first = done.params.get(LOST, {"found": None})
    if not done.completed:
        says = "device memory was missing after one run, which was not repeated ({why})"
        return _seen_once(first["found"], says, why=done.stopped) if done.stopped else None
    found, after = judge(done), replace(_after(done), repeated=first["missing"])
    if after.repeats:
        return after.not_returned()
    if found and first["found"] and found.key == first["found"]["key"]:
        return after.trust(
            replace(found, evidence=(*found.evidence, Evidence.seen("seen in both of two runs")))
        )
    told = found and {"says": found.says, "values": found.values}
    return _seen_once(told or first["found"], "device memory was missing after only one of two runs")


def _after(done: ProbeOutcome) -> Entry:
    watcher = next(role for name, role in done.roles.items() if name != "program")
    return leak_report(watcher).entries[0]


def _seen_once(found: Mapping[str, Json] | None, says: str, **values: Json) -> Finding | None:
    if not found:
        return None
    seen = Evidence.seen(found["says"], **found["values"])
    return Finding.error(
        "unexplained-change", f"{says}: cannot tell which process holds it", seen, remedy=RERUN_IDLE, **values
    )
