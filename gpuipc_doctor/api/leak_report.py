"""Judges what a `meter` recorded of a device's used memory, as a `LeakReport`.

A counter that moves while this run is idle is an ERROR: nothing is subtracted, and only what the processes of
this run hold is judged. If the driver only counts the memory of all processes together, a change is
attributed to this tool in two cases: if it is a multiple of the tested allocations, or if it recurs when the
action is repeated. Other changes have an unknown cause.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from gpuipc_doctor.api.loop_growth import RERUN_IDLE, Loop
from gpuipc_doctor.api.memory_counter import LAG_S, NOISE_BYTES, ODD_BYTES, STILL, IdleCounter
from gpuipc_doctor.api.slopes import block_of
from gpuipc_doctor.model import Evidence, EvidenceKind, Finding, Json
from gpuipc_doctor.probe_types import ProbeOutcome, RoleOutcome
from gpuipc_doctor.report_types import Series

SETTLE_S = 2.0
"""Seconds for a driver's cleanup after a process has ended."""

DESCRIBED_WITHIN = 1.01
"""A device is reported if its memory counter shows more than this many times the size that the driver
states."""

REINSTALL = "reinstall the driver; check dmesg for GPU errors"
"""Remedy if a driver describes a device wrongly."""

RERUN_QUIET = (
    "rerun while no process reads or writes files: where a GPU is a NUMA node of the host (GH200, GB200), "
    "the page cache counts as its used memory, except in CDMM mode"
)
"""Remedy if used memory moves by itself."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The bytes ``missing`` after the event ``end``, and the seconds waited for them."""

    end: str
    missing: int
    waited_s: float = 0.0
    holders: Sequence[Mapping[str, Json]] = ()
    """The processes that then held memory of the device: see `Gpu.memory_holders`."""
    repeated: int | None = None
    """Bytes missing after the action was repeated; None if it was not repeated."""
    mark: int | None = None
    """Bytes in use before the action."""
    ours: int | None = None
    """Bytes that the processes of this run hold more than before; None if the driver does not say."""

    @property
    def is_back(self) -> bool:
        return abs(self.missing) <= NOISE_BYTES

    def judge(self, size: int, most: int, block: int, later: Iterable[Entry] = ()) -> Finding | None:
        """Judge missing memory: a FAIL if it fits 1 to ``most`` allocations of ``size`` bytes, rounded up to
        whole blocks, or if a repetition of the action lost as much. ``later``: the entries after this one,
        any of which may have released the memory."""
        if self.is_back:
            return self.late()
        if not self._fits(size, most, block) and not self.repeats:
            return self.unexplained()
        says = "at least {size:mib} of it should have been released; waited {waited:s}"
        waited = Evidence.seen(says, size=size, waited=round(self.waited_s))
        ends = [each.end for each in later if each.is_back and each.mark == self.mark is not None]
        return self.not_returned(
            waited, *(Evidence.seen("released after {end}", end=end) for end in ends[:1])
        )

    def _fits(self, size: int, most: int, block: int) -> bool:
        taken = -(-size // block) * block
        pieces = max(1, math.ceil((self.missing - NOISE_BYTES) / taken))
        return pieces <= most and self.missing >= pieces * size - NOISE_BYTES

    def not_returned(self, *evidence: Evidence) -> Finding:
        """The FAIL for missing memory."""
        return Finding.fail(
            "not-returned",
            "{missing:mib} of device memory was not released after {end}",
            *evidence,
            *self._repetition(),
            *holders(self.holders),
            missing=self.missing,
            end=self.end,
        )

    @property
    def repeats(self) -> bool:
        """Whether a repetition lost the same amount."""
        lost = self.repeated if self.repeated is not None else 0
        return lost > NOISE_BYTES and abs(lost - self.missing) <= NOISE_BYTES

    def _repetition(self) -> list[Evidence]:
        if self.repeated is None:
            return []
        says = "used memory changed by {repeated:mib} when the step was repeated"
        return [Evidence.seen(says, repeated=self.repeated)]

    def trust(self, found: Finding | None) -> Finding | None:
        """The finding ``found`` about a loss while a process ran, or an ERROR in its place if the memory was
        still missing after the process had ended."""
        return self.unexplained() if found and not self.is_back else found

    def late(self) -> Finding | None:
        """Warn of memory that was released late."""
        if not self.is_back or self.waited_s <= SETTLE_S:
            return None
        return Finding.warn(
            "returned-late",
            "device memory was released only {waited:s} after {end}",
            remedy="check dmesg for the cause; a job that starts sooner finds less free memory",
            waited=round(self.waited_s, 1),
            end=self.end,
        )

    def unexplained(self) -> Finding:
        """The ERROR for a change that is not a multiple of our allocations: its cause is unknown."""
        once = self.repeated is None and self.missing > 0
        says = "seen once, after {end}; the check does not repeat this step" if once else "seen after {end}"
        return Finding.error(
            "unexplained-change",
            "used device memory changed by {missing:mib}: cannot tell which process did it",
            Evidence.seen(says, end=self.end),
            *self._repetition(),
            *holders(self.holders),
            remedy=RERUN_IDLE,
            missing=self.missing,
        )


@dataclass(frozen=True, slots=True)
class LeakReport:
    """What one role's meter recorded of one device."""

    device: str
    rises: Sequence[Sequence[int]]
    """Used memory before and after each allocation of `ODD_BYTES`."""
    entries: Sequence[Entry] = ()
    loops: Sequence[Loop] = ()
    sizes: tuple[int, int] = (0, 0)
    """Bytes of the device, according to the driver's description and according to its counter of free
    memory."""
    idle: IdleCounter = STILL
    late_s: float = 0.0
    """Seconds until a counter that had missed a change showed an allocation; else 0."""
    call: str = ""
    """The driver's function that reads a late counter."""

    def judge(self, size: int, most: int = 1) -> list[Finding]:
        """Judge all entries. Missing memory is a FAIL if it fits 1 to ``most`` allocations of ``size`` bytes.

        An entry is not judged if it only released memory that was missing in an earlier entry. Memory that a
        loop lost is reported as growth of the loop, not also as missing at the end.
        """
        if blind := self.blind():
            return [blind]
        found = self._judge_visible(size, most)
        return [*found, self.moving()] if self.idle.moves else found

    def moving(self, *hidden: Evidence) -> Finding:
        """The ERROR if used memory moves by itself, so that losses may be ``hidden``."""
        moved, seconds = self.idle.seen
        return Finding.error(
            "counter-moves",
            "used memory of {device} changes while no test runs, by {moved:mib} in {seconds:s}: "
            "leaks cannot be measured",
            *hidden,
            remedy=RERUN_QUIET,
            device=self.device,
            moved=moved,
            seconds=round(seconds, 1),
        )

    def _judge_visible(self, size: int, most: int) -> list[Finding]:
        owed, missing = 0, []
        creeping = [loop for loop in self.loops if loop.judge(self.device)]
        for number, entry in enumerate(self.entries, 1):
            if owed and abs(entry.missing + owed) <= NOISE_BYTES:
                owed = 0
                continue
            owed += 0 if entry.is_back else entry.missing
            if not any(loop.explains(entry.missing) for loop in creeping):
                missing.append(entry.judge(size, most, self.block, self.entries[number:]))
        if creeping:
            missing = [finding for finding in missing if finding and finding.key == "not-returned"]
        found = (self.understated(), *(loop.judge(self.device) for loop in creeping), *missing)
        return [finding for finding in found if finding]

    @property
    def block(self) -> int:
        """Step of the device's memory counter in bytes, derived from its changes."""
        loops = chain.from_iterable((*loop.used, *loop.control) for loop in self.loops)
        return block_of(chain(*self.rises, loops))

    def understated(self) -> Finding | None:
        """The WARN if the driver describes a smaller device than its counter of free memory does.

        The reverse is normal: a limit of MPS, or memory that the driver reserves.
        """
        described, counted = self.sizes
        if counted <= described * DESCRIBED_WITHIN:
            return None
        return Finding.warn(
            "understated-size",
            "the driver describes {device} with {described:mib} of memory but counts {counted:mib}; tests "
            "used the smaller size",
            remedy=REINSTALL,
            device=self.device,
            described=described,
            counted=counted,
        )

    def blind(self) -> Finding | None:
        """The ERROR if the counter did not rise by the allocated amount."""
        if self.late_s <= LAG_S and follows(self.rises):
            return None
        if self.idle.moves:
            return self.moving(Evidence.seen("it did not rise by what was allocated"))
        if self.late_s > LAG_S:
            return Finding.error(
                "counter-late",
                "memory counter of {device} ({call}) shows changes only after {late:s}: it hides leaks",
                remedy="rerun on an idle device; if the error returns, update the driver (counter too slow)",
                device=self.device,
                call=self.call,
                late=round(self.late_s, 1),
            )
        return Finding.error(
            "counter-does-not-follow",
            "memory counter of {device} is unreliable: it changed by {changes} B when {asked:bytes} "
            "were allocated",
            remedy="rerun on an idle device; if the error returns, update the driver (counter broken)",
            device=self.device,
            changes=[after - before for before, after in self.rises],
            asked=ODD_BYTES,
        )

    def evidence(self) -> list[Evidence]:
        """Evidence of a PASS: the watched actions."""
        says = "released after {end}; up to {unseen:mib} missing would not have been noticed"
        ends = [Evidence.seen(says, end=entry.end, unseen=NOISE_BYTES) for entry in self.entries]
        return ends + [loop.sensitivity(self.device, self.block) for loop in self.loops]

    def series(self) -> list[Series]:
        return [loop.series(self.device) for loop in self.loops]


def leak_report(role: RoleOutcome, device: str = "") -> LeakReport:
    """What a role's meter recorded. ``device``: label of a device that is not the role's own."""
    told = role.meters[device]
    idle = IdleCounter(told.get("idle", ()))
    entries = [Entry(end, **entry) for end, entry in told["entries"].items()]
    loops = [Loop(what, **loop) for what, loop in told["loops"].items()]
    if idle.moves:
        entries = [
            replace(entry, missing=max(entry.ours or 0, 0), repeated=None, waited_s=0.0) for entry in entries
        ]
        loops = [ours for loop in loops if (ours := loop.of_this_run())]
    return LeakReport(
        told["device"],
        told["rises"],
        entries,
        loops,
        told["sizes"],
        idle,
        told.get("late_s", 0.0),
        told.get("call", ""),
    )


def leak_reports(done: ProbeOutcome) -> list[LeakReport]:
    """One report per device; if both roles use the same device, their reports are the same."""
    roles = ("exporter", "importer")[: len(done.devices)]
    return [leak_report(done.roles[role]) for role in roles if role in done.roles and done.roles[role].meters]


def blind(done: ProbeOutcome) -> Finding | None:
    """An ERROR if a counter that a role watched did not move, else None."""
    watched = (leak_report(role) for role in done.roles.values() if "" in role.meters)
    return next(filter(None, (each.blind() for each in watched)), None)


def holders(found: Iterable[Mapping[str, Json]]) -> list[Evidence]:
    """The processes that hold memory of the device, the largest first, from `Gpu.memory_holders`."""
    says = "process {pid}{name:aside}, {whose}, holds {held:mib} of device memory"
    largest_first = sorted(found, key=lambda one: -one["held"])
    return [Evidence(EvidenceKind.HOLDER, says, holder) for holder in largest_first]


def follows(rises: Sequence[Sequence[int]]) -> bool:
    """Whether a counter rose by `ODD_BYTES` at least once (before, after)."""
    return any(abs(after - before - ODD_BYTES) <= NOISE_BYTES for before, after in rises)
