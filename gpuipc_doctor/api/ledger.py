"""The one instrument with which checks watch device memory.

A role function keeps a `Ledger` of a device; what it entered reaches ``judge`` as an `Account`. A counter is
believed only after it was seen to move, what is not back at once is looked for again, and what grows counts
only beyond its control.

Where the driver counts the memory of all processes together, a change by a size of ours is ours, and so is a
loss that repeats when the same is done again. Whose any other change is cannot be told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from gpuipc_doctor.api.gpu import Gpu
from gpuipc_doctor.api.trend import Slope, block_of, slope, smallest_found
from gpuipc_doctor.api.worker import Worker
from gpuipc_doctor.model import Evidence, EvidenceKind, Finding, Json, Line, ProbeOutcome, Series

ODD_BYTES = 37 << 20
"""Large beside the 2 MiB blocks in which drivers keep their own books, small beside any GPU, and no size that
others are likely to ask for."""

NOISE_BYTES = 4 << 20
"""Change of used memory that says nothing: a block or two of a driver's own."""

CREEP_BYTES = 64 << 10
"""Growth over a whole loop that says nothing."""

QUIET_S = 0.04
"""So long must used memory stand still before it is taken for what it was."""

SETTLE_S = 2.0
"""For a driver to finish what it does after a process has ended."""

PATIENCE_S = 8.0
"""What is not back by then is lost; after one loss a role waits for `SETTLE_S` only."""

LAG_S = 1.0
"""Seconds for a counter to show what was allocated: some are refreshed at intervals."""

TRIES = 3
"""How often something is watched again where others allocated or freed at the same moment."""

PROGRAM_ENDED = "the program ended"


# -- in workers -------------------------------------------------------------------------------------------


class Ledger:
    """The used memory of one device, as one role watches it, and what it entered of that so far.

    Opening it allocates `ODD_BYTES` and waits for the counter to rise by as much; so one role at a time. A
    counter that lags is waited for from then on, by as long as it took.
    """

    def __init__(self, w: Worker, gpu: Gpu | None = None) -> None:
        self._w = w
        self._gpu = gpu or w.gpu
        self._rises: list[list[int]] = []
        self._entries: dict[str, Json] = {}
        self._loops: dict[str, Json] = {}
        self._patience_s = PATIENCE_S
        self._lag_s = 0.0
        self._still, self._since = self._gpu.memory_used(), w.clock()
        with w.step("see whether used memory rises by what is allocated"):
            while len(self._rises) < TRIES and not self._see_rise():
                pass
        self._record()

    @property
    def lag_s(self) -> float:
        """Seconds by which the counter lags; 0 where it was seen to follow at once."""
        return self._lag_s

    def _see_rise(self) -> bool:
        """Note by how much the counter rises, and how long it takes to rise and to fall; whether it is clear.

        A counter that is refreshed at intervals takes a whole one if it was seen to change just before, else
        a part of one. Where only one of the two changes took time, a refresh came just before the other was
        looked for: then both are timed again.
        """
        before = self.mark()

        def seconds_until(more: int) -> float:
            if self._stands_at(before + more):
                return 0.0
            began = self._w.clock()
            changed = self._w.wait_until(lambda: self._stands_at(before + more), LAG_S)
            return self._w.clock() - began if changed else 0.0

        with self._gpu.alloc(ODD_BYTES):
            rise_s = seconds_until(ODD_BYTES)
            self._rises.append([before, self._gpu.memory_used()])
        fall_s = seconds_until(0)
        self._lag_s = max(self._lag_s, 1.25 * max(rise_s, fall_s))
        return _follows(self._rises) and bool(rise_s) == bool(fall_s)

    def _stands_at(self, used: int) -> bool:
        return abs(self._beyond(used)) <= NOISE_BYTES

    def mark(self) -> int:
        """Used memory in bytes, once it stands still. What is as at the last mark has stood since then."""
        self._wait_out_lag()

        def is_quiet() -> bool:
            now = self._gpu.memory_used()
            if abs(now - self._still) > NOISE_BYTES:
                self._still, self._since = now, self._w.clock()
            return self._w.clock() - self._since >= QUIET_S

        self._w.wait_until(is_quiet, SETTLE_S)
        return self._gpu.memory_used()

    def used(self) -> int:
        """Used memory in bytes, as it is at this moment."""
        self._wait_out_lag()
        return self._gpu.memory_used()

    def sampled(self, rounds: range) -> range:
        """The rounds of a loop to read used memory after: every fourth where each reading must wait."""
        return rounds[3::4] if self._lag_s else rounds

    def used_after(self, sampled: range, rounds: Iterable[int], act: Callable[[int], object]) -> list[int]:
        """Used memory, in bytes, after those rounds of an act that are sampled."""
        used = []
        for number in rounds:
            act(number)
            if number in sampled:
                used.append(self.used())
        return used

    def watch(self, end: str, act: Callable[[], object]) -> None:
        """Do something that leaves used memory as it was, and note after its ``end`` what is missing.

        Where some is missing, it is done once more, to see whether that repeats. Where less is used than
        before, memory of others came back meanwhile, and what is ours cannot be told from it: then it is done
        again, too.
        """
        for _ in range(TRIES):
            before = self.mark()
            act()
            self.enter(end, before, act)
            if self._entries[end]["missing"] >= -NOISE_BYTES:
                break

    def enter(self, end: str, mark: int, again: Callable[[], object] | None = None) -> bool:
        """Wait for used memory to come back to its mark after ``end``, and note what is missing.

        Where some is missing, ``again`` repeats what ended, to see whether as much is lost by it. Returns
        whether it was called.
        """
        began = self._w.clock()
        missing = self._missing_after_wait(mark)
        holders = [] if abs(missing) <= NOISE_BYTES else self._gpu.memory_holders()
        entry = self._entries[end] = {
            "missing": missing,
            "waited_s": self._w.clock() - began - self._lag_s,
            "holders": holders,
        }
        self._record()
        if again is None or missing <= NOISE_BYTES:
            return False
        mark = self.mark()
        again()
        entry["repeated"] = self._missing_after_wait(mark)
        self._record()
        return True

    def _missing_after_wait(self, mark: int) -> int:
        self._wait_out_lag()
        if not self._w.wait_until(lambda: self._beyond(mark) <= NOISE_BYTES, self._patience_s):
            self._patience_s = SETTLE_S
        return self._beyond(mark)

    def _wait_out_lag(self) -> None:
        if self._lag_s:
            self._w.wait_until(lambda: False, self._lag_s)

    def enter_loop(
        self, what: str, rounds: Iterable[int], used: Sequence[int], control: Sequence[int]
    ) -> None:
        """Note used memory after these rounds of a loop, and of as many that do without ``what``."""
        self._loops[what] = {"rounds": list(rounds), "used": list(used), "control": list(control)}
        self._record()

    def _beyond(self, mark: int) -> int:
        return self._gpu.memory_used() - mark

    def _record(self) -> None:
        device = self._gpu.device.label
        told = {"device": device, "rises": self._rises, "entries": self._entries, "loops": self._loops}
        self._w.record(ledger=told)


def ledger_in_turn(w: Worker) -> Ledger:
    """A ledger of each rank's device, opened by one rank after the other: they may share it."""
    for rank in range(w.mpi.size):
        if rank == w.mpi.rank:
            ledger = Ledger(w)
        w.mpi.barrier()
    return ledger


def look_on(w: Worker) -> None:
    """Look at used memory, let the partner begin, and see that no more is in use after it has ended.

    The partner is the last role. Roles between do the same on their own devices: `look_on_another`. The
    partner is sent the seconds by which the counter lags.
    """
    ledger = Ledger(w)
    before = ledger.mark()
    *others, partner = w.peers
    lag_s = max([ledger.lag_s, *(other.recv() for other in others)])
    partner.send(lag_s)
    partner.wait_gone()
    for other in others:
        other.send("ended")
    ledger.enter(PROGRAM_ENDED, before)


def look_on_another(w: Worker) -> None:
    """As `look_on`, which is the first role, on this role's device."""
    ledger = Ledger(w)
    before = ledger.mark()
    w.peer.send(ledger.lag_s)
    w.peer.recv()
    ledger.enter(PROGRAM_ENDED, before)


def begin_when_asked(w: Worker) -> None:
    """Wait for the partner to let this role begin; meanwhile the driver initialises, which takes its time."""
    _ = w.gpu
    w.peer.recv()


def _follows(rises: Sequence[Sequence[int]]) -> bool:
    return any(abs(after - before - ODD_BYTES) <= NOISE_BYTES for before, after in rises)


# -- in judges --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """What was missing after something ended: bytes in use beyond the mark, after so many seconds."""

    end: str
    missing: int
    waited_s: float = 0.0
    holders: Sequence[Mapping[str, Json]] = ()
    """Who held memory of the device then: see `Gpu.memory_holders`."""
    repeated: int | None = None
    """What was missing when the same was done once more; None where it was not."""

    @property
    def is_back(self) -> bool:
        return abs(self.missing) <= NOISE_BYTES

    def judge(self, size: int, most: int) -> Finding | None:
        """Judge what is missing, where up to ``most`` pieces of ``size`` bytes were given back."""
        if self.is_back:
            return self.late()
        pieces = round(self.missing / size)
        if not self.repeats and (not 0 < pieces <= most or abs(self.missing - pieces * size) > NOISE_BYTES):
            return self.somebody_elses()
        return Finding.fail(
            "not-returned",
            "{missing:mib} of device memory did not come back after {end}",
            Evidence.seen(
                "pieces of {size:mib} were given back; waited {waited:s} for them",
                size=size,
                waited=round(self.waited_s),
            ),
            *self._repetition(),
            *holders(self.holders),
            missing=self.missing,
            end=self.end,
        )

    @property
    def repeats(self) -> bool:
        """Whether as much was lost again."""
        lost = self.repeated if self.repeated is not None else 0
        return lost > NOISE_BYTES and abs(lost - self.missing) <= NOISE_BYTES

    def _repetition(self) -> list[Evidence]:
        if self.repeated is None:
            return []
        return [Evidence.seen("done once more, it changed by {repeated:mib}", repeated=self.repeated)]

    def trust(self, found: Finding | None) -> Finding | None:
        """Return ``found``; if the memory stays missing after the process ended, another process holds it."""
        return self.somebody_elses() if found and not self.is_back else found

    def late(self) -> Finding | None:
        """Warn where memory came back, but not soon."""
        if not self.is_back or self.waited_s <= SETTLE_S:
            return None
        return Finding.warn(
            "returned-late",
            "device memory came back only {waited:s} after {end}",
            remedy="a job that starts sooner finds less memory; check dmesg for the cause",
            waited=round(self.waited_s, 1),
            end=self.end,
        )

    def somebody_elses(self) -> Finding:
        """Say that it cannot be told whose a change is that is no multiple of ours."""
        once = self.repeated is None and self.missing > 0
        says = "seen once, after {end}, which the check does not repeat" if once else "seen after {end}"
        return Finding.error(
            "unexplained-change",
            "used device memory changed by {missing:mib}, and it cannot be told whose that is",
            Evidence.seen(says, end=self.end),
            *self._repetition(),
            *holders(self.holders),
            remedy="run the check on an idle device: what changes there too is the driver's",
            missing=self.missing,
        )


@dataclass(frozen=True, slots=True)
class Loop:
    """Used memory after some rounds of a loop, and after as many that do without what it is about."""

    what: str
    rounds: Sequence[int]
    used: Sequence[int]
    control: Sequence[int]

    @property
    def growth(self) -> Slope:
        return slope(self.rounds, self.used)

    @property
    def unsuspicious(self) -> float:
        """Bytes a round by which used memory may grow: as in the control, or too little to say anything."""
        return max(CREEP_BYTES / max(self.rounds), slope(self.rounds, self.control).high)

    def judge(self, device: str) -> Finding | None:
        """Judge whether memory is lost in each round."""
        growth = self.growth
        if growth.low <= self.unsuspicious:
            return None
        return Finding.fail(
            "grows",
            "used memory of {device} grows by {growth:bytes} with each {what}",
            interval(growth, max(self.rounds)),
            device=device,
            what=self.what,
            growth=growth.estimate,
        )

    def explains(self, missing: int) -> bool:
        """Whether so much is what was lost in all rounds, give or take a quarter."""
        return math.isclose(missing, self.growth.estimate * max(self.rounds), rel_tol=0.25)

    def sensitivity(self, device: str, block: int) -> Evidence:
        """Say which growth would have been found, counted in such blocks: see `smallest_found`."""
        smallest = smallest_found(self.rounds, self.used, self.unsuspicious, block)
        return Evidence.measured(
            "growth of {device} by {smallest:bytes} or more with each {what} would have been found: its used "
            "memory moves in steps of {block:bytes}, {rounds} rounds",
            rounds=max(self.rounds),
            smallest=smallest,
            what=self.what,
            device=device,
            block=block,
        )

    def series(self, device: str) -> Series:
        lines = ((self.what, self.used), (f"without {self.what}", self.control))
        return Series(
            f"used memory of {device}, beyond the first sample",
            "rounds",
            tuple(self.rounds),
            tuple(Line(text, tuple(used - samples[0] for used in samples)) for text, samples in lines),
        )


@dataclass(frozen=True, slots=True)
class Account:
    """What one role entered in its ledger of one device."""

    device: str
    rises: Sequence[Sequence[int]]
    """Used memory before and after `ODD_BYTES` were allocated, each time."""
    entries: Sequence[Entry] = ()
    loops: Sequence[Loop] = ()

    def judge(self, size: int, most: int = 1) -> list[Finding]:
        """Judge all that was entered, where up to ``most`` pieces of ``size`` bytes were given back.

        What was missing after one end and came back after a later one is the first one's. What crept away in
        a loop is missing in the end, too: that is no second finding, and nobody else's doing.
        """
        if blind := self.blind():
            return [blind]
        owed, missing = 0, []
        creeping = [loop for loop in self.loops if loop.judge(self.device)]
        for entry in self.entries:
            if owed and abs(entry.missing + owed) <= NOISE_BYTES:
                owed = 0
                continue
            owed += 0 if entry.is_back else entry.missing
            if not any(loop.explains(entry.missing) for loop in creeping):
                missing.append(entry.judge(size, most))
        if creeping:
            missing = [one for one in missing if one and one.key == "not-returned"]
        return [one for one in (*(loop.judge(self.device) for loop in creeping), *missing) if one]

    @property
    def block(self) -> int:
        """The steps in bytes in which the device's used memory was seen to move."""
        loops = chain.from_iterable((*loop.used, *loop.control) for loop in self.loops)
        return block_of(chain(*self.rises, loops))

    def blind(self) -> Finding | None:
        """Say that nobody can tell by a counter that did not rise by what was allocated."""
        if _follows(self.rises):
            return None
        return Finding.error(
            "counter-does-not-follow",
            "used memory of {device} cannot be believed: it changed by {changes} B while {asked:bytes} were "
            "allocated",
            remedy="rerun on an idle device; if it repeats, this driver's counter does not work",
            device=self.device,
            changes=[after - before for before, after in self.rises],
            asked=ODD_BYTES,
        )

    def evidence(self) -> list[Evidence]:
        """What was watched, for a finding that all was well."""
        ends = [Evidence.seen("after {end}", end=entry.end) for entry in self.entries]
        return ends + [loop.sensitivity(self.device, self.block) for loop in self.loops]

    def series(self) -> list[Series]:
        return [loop.series(self.device) for loop in self.loops]


def account(record: Mapping[str, Json]) -> Account:
    """What a role entered, from what it recorded."""
    told = record["ledger"]
    return Account(
        told["device"],
        told["rises"],
        [Entry(end, **entry) for end, entry in told["entries"].items()],
        [Loop(what, **loop) for what, loop in told["loops"].items()],
    )


def blind(done: ProbeOutcome) -> Finding | None:
    """Say that nobody can tell, where a counter that some role watched did not move."""
    watched = (account(record) for record in done.records.values() if "ledger" in record)
    return next(filter(None, (each.blind() for each in watched)), None)


def interval(growth: Slope, rounds: int) -> Evidence:
    return Evidence.measured(
        "95 % interval {low:bytes} to {high:bytes}, {rounds} rounds",
        low=growth.low,
        high=growth.high,
        rounds=rounds,
    )


def holders(found: Iterable[Mapping[str, Json]]) -> list[Evidence]:
    """Who holds memory of the device, the largest first, as `Gpu.memory_holders` told it."""
    says = "process {pid}{name:aside}, {whose}, holds {held:mib} of the device"
    largest_first = sorted(found, key=lambda one: -one["held"])
    return [Evidence(EvidenceKind.HOLDER, says, one) for one in largest_first]
