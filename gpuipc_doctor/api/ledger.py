"""Measures device memory for checks.

A role function keeps a `Ledger` of a device; its entries reach ``judge`` as an `Account`. A counter is
trusted only after it was seen to move, missing memory is checked again, and growth counts only beyond the
control's growth. A counter that moves by itself is watched while this run is idle: what it then does is
subtracted, and what it may hide is an ERROR (`IdleCounter`). If the driver only counts the memory of all
processes together, a change is attributed to this tool in two cases: if it is a multiple of the tested
allocations, or if it recurs when the action is repeated. Other changes have an unknown cause.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from gpuipc_doctor.api.gpu import Gpu
from gpuipc_doctor.api.idle_counter import STILL, WIDER, IdleCounter, Reading, Window, window_of
from gpuipc_doctor.api.slopes import Slope, block_of, is_even, slope, smallest_found
from gpuipc_doctor.api.worker import Worker
from gpuipc_doctor.model import Evidence, EvidenceKind, Finding, Json, Line, ProbeOutcome, RoleOutcome, Series

ODD_BYTES = 37 << 20
"""Bytes of the test allocation: small for a GPU, and a size that other processes are unlikely to allocate."""

NOISE_BYTES = 4 << 20
"""Change of used memory to ignore: one or two of the driver's own blocks."""

CREEP_BYTES = 64 << 10
"""Bytes by which used memory may grow from the first round of a loop to its last."""

WANDERS = 3.0
"""Factor of what used memory may do by itself during a loop: a counter that wandered little while it was
watched may wander on in one direction (a healthy node's `ipc-pool` was a FAIL)."""

QUIET_S = 0.04
"""Seconds without change after which used memory counts as stable."""

PROMPT_S = 0.02
"""Seconds within which used memory is read, unless this process is interrupted."""

SETTLE_S = 2.0
"""Seconds for a driver's cleanup after a process has ended."""

PATIENCE_S = 8.0
"""Seconds after which missing memory counts as lost; after one loss a role waits for `SETTLE_S` only."""

LAG_S = 1.0
"""Seconds after which a counter must show an allocation: some are refreshed at intervals."""

LATEST_S = 8.0
"""Seconds for which a counter that missed a change is watched once more, to say how late it is."""

DESCRIBED_WITHIN = 1.01
"""A device is reported if its memory counter shows more than this many times the size that the driver
states."""

IDLE_S, LONGEST_IDLE_S = 2.0, 6.0
"""Minimum and maximum seconds for which an idle counter is watched, if it may move by itself."""

HIDES = 0.5
"""Fraction of a tested allocation that a moving counter may hide: with more, nothing can be said."""

TRIES = 3
"""Retries if other processes allocated or freed at the same time."""

FEWEST_SAMPLES = 6
"""Minimum readings of used memory that show a steady rise in a loop without a control."""

PROGRAM_ENDED = "the program ended"

HELD = "held by the partner"
"""Name in `Worker.kept` of the bytes by device that a partner's process, which goes on, held at the last
visit's end."""

LOADED = "gpuipc_doctor: loaded, and this process goes on"
"""Message of `tell_loaded` to `look_on`; a site's program may send others."""

THIS_RUN = "possibly part of this run"
"""Value of ``whose`` of `Gpu.memory_holders`."""

REINSTALL = "reinstall the driver; check dmesg for GPU errors"
"""Remedy if a driver describes a device wrongly."""

RERUN_QUIET = (
    "rerun while no process reads or writes files: where a GPU is a NUMA node of the host (GH200, GB200), "
    "the page cache counts as its used memory, except in CDMM mode"
)
"""Remedy if used memory moves by itself."""

RERUN_IDLE = "rerun on an idle device; if used memory changes again, the driver causes it"
"""Remedy for a change of used memory by an unknown process."""


# -- in workers -------------------------------------------------------------------------------------------


class Ledger:
    """One role's measurements of the used memory of one device.

    Opening a ledger allocates `ODD_BYTES` and waits for the memory counter to rise, so roles that share a
    device take turns. If the counter lags, each later read waits for the lag.
    """

    def __init__(self, w: Worker, gpu: Gpu | None = None) -> None:
        self._w = w
        self._gpu = gpu or w.gpu
        self._name = "" if self._gpu is w.gpu else self._gpu.device.label
        self._rises: list[list[int]] = []
        self._entries: dict[str, Json] = {}
        self._loops: dict[str, Json] = {}
        self._running: dict[str, Json] = {}
        self._idle: list[Window] = []
        self._is_suspect = False
        self._patience_s = PATIENCE_S
        self._lag_s = self._late_s = 0.0
        self._missed = False
        """Whether the counter did not show a change within `LAG_S`."""
        self._sizes = [self._gpu.device.total_bytes, self._gpu.memory_info()[1]]
        self._still = self._marked = self._read()
        with w.step("check that used memory rises by the allocated amount"):
            while len(self._rises) < TRIES and not self._see_rise():
                pass
        if self._is_suspect or self._lag_s or self._missed:
            self.watch_idle()
            self._lag_s = 0.0 if self.moves else self._lag_s
            if self._missed and not self.moves:
                self._late_s = self._time_late_rise()
        self._record()

    @property
    def moves(self) -> bool:
        """Whether used memory was seen to move by itself."""
        return self.idle.moves

    @property
    def idle(self) -> IdleCounter:
        """What used memory does by itself."""
        return IdleCounter(self._idle)

    def is_doubtful(self, *series: Sequence[int]) -> bool:
        """Whether used memory may move by itself, as these ``series`` of it or an earlier reading suggest."""
        return self._is_suspect or self.moves or any(max(used) - min(used) > NOISE_BYTES for used in series)

    def watch_idle(self, seconds: float = IDLE_S) -> None:
        """Watch used memory while no process of this run works on the device."""
        readings = [self._read()]
        until = readings[0].at + min(max(seconds, IDLE_S), LONGEST_IDLE_S)

        def is_over() -> bool:
            readings.append(self._read())
            return readings[-1].at >= until

        self._w.wait_until(is_over, LONGEST_IDLE_S)
        self._idle.append(window_of([(each.at, int(each)) for each in readings]))
        self._is_suspect = False
        self._record()

    def _read(self) -> Reading:
        """Used memory, read again if this process was interrupted, so that its time is known."""
        for _ in range(TRIES):
            before = self._w.clock()
            used = self._gpu.memory_used()
            after = self._w.clock()
            if after - before <= PROMPT_S:
                break
        return Reading(used, (before + after) / 2)

    @property
    def lag_s(self) -> float:
        """Seconds after which the memory counter shows a change; 0 if it does so at once."""
        return self._lag_s

    def _see_rise(self) -> bool:
        """Measure the counter's rise and its delays in rising and falling; returns whether the delays are
        conclusive.

        If only the rise or only the fall was delayed, the counter was refreshed by chance after the other
        change, and both must be timed again.
        """
        before = self.mark()

        def seconds_until(more: int) -> float:
            if self._stands_at(before + more):
                return 0.0
            began = self._w.clock()
            changed = self._w.wait_until(lambda: self._stands_at(before + more), LAG_S)
            self._missed |= not changed
            return self._w.clock() - began if changed else 0.0

        with self._gpu.alloc(ODD_BYTES):
            rise_s = seconds_until(ODD_BYTES)
            self._rises.append([int(before), self._gpu.memory_used()])
        fall_s = seconds_until(0)
        self._lag_s = max(self._lag_s, 1.25 * max(rise_s, fall_s))
        return _follows(self._rises) and bool(rise_s) == bool(fall_s)

    def _time_late_rise(self) -> float:
        """Seconds until the counter shows an allocation; 0 if it does not within `LATEST_S`."""
        before, began = self._read(), self._w.clock()
        with self._gpu.alloc(ODD_BYTES):
            shown = self._w.wait_until(lambda: self._stands_at(before + ODD_BYTES), LATEST_S)
            return self._w.clock() - began if shown else 0.0

    def _stands_at(self, used: int) -> bool:
        return abs(self._beyond(used)) <= NOISE_BYTES

    def mark(self) -> Reading:
        """Used memory in bytes, once it has been constant for `QUIET_S` seconds."""
        self._wait_out_lag()
        first = self._read()

        def is_quiet() -> bool:
            now = self._read()
            if abs(now - self._still) > NOISE_BYTES:
                self._still = now
            return now.at - self._still.at >= QUIET_S

        self._w.wait_until(is_quiet, SETTLE_S)
        self._marked = self._read()
        self._is_suspect |= 0 < abs(self._marked - first) <= NOISE_BYTES
        self._marked.ours = self._held_by_this_run() if self._idle else None
        return self._marked

    def change_since(self, mark: Reading) -> int:
        """Bytes by which used memory rose since ``mark``, less what it does by itself."""
        now = self.mark()
        return int(now - mark - self.idle.change_within(now.at - mark.at)[0])

    def used(self) -> Reading:
        """Used memory in bytes, now."""
        self._wait_out_lag()
        return self._read()

    def sampled(self, rounds: range) -> range:
        """Rounds of a loop after which to read used memory; every fourth of them if the counter lags."""
        return rounds[3::4] if self._lag_s else rounds

    def used_after(
        self, sampled: range, rounds: Iterable[int], act: Callable[[int], object], what: str = "round"
    ) -> list[Reading]:
        """Used memory in bytes after the sampled rounds of an action; ``what`` names the action."""
        used = []
        for number in rounds:
            act(number)
            if number in sampled:
                used.append(self.sample(what, number))
        return used

    def sample(self, what: str, number: int) -> Reading:
        """Used memory in bytes after a round of a loop.

        It is recorded at once, since a leak may fill the device before `enter_loop`. See `filled`.
        """
        if self._running.get("what") != what:
            self._running = {"device": self._gpu.device.label, "what": what, "rounds": [], "used": []}
            self._running["total"] = self._gpu.device.total_bytes
        used = self.used()
        self._running["rounds"].append(number)
        self._running["used"].append(int(used))
        self._w.keep_loop(self._running)
        return used

    def watch(self, end: str, act: Callable[[], object]) -> None:
        """Run an action that must leave used memory unchanged, and record missing memory under the name
        ``end``.

        If memory is missing, the action is repeated once, to see whether the loss recurs. The action is also
        repeated if used memory fell: other processes then released memory, which may hide a loss.
        """
        for _ in range(TRIES):
            before = self.mark()
            act()
            self.enter(end, before, act)
            if self._entries[end]["missing"] >= -NOISE_BYTES or self.moves:
                break

    def enter(self, end: str, mark: int, again: Callable[[], object] | None = None) -> bool:
        """Wait for used memory to return to ``mark``, and record memory that is missing after ``end``.

        If memory is missing, ``again`` is called to see whether the loss recurs. Returns whether ``again``
        was called.
        """
        missing, waited_s = self._missing_after_wait(mark)
        if self._is_suspect or abs(missing) > NOISE_BYTES or waited_s > SETTLE_S:
            self.watch_idle(0 if self.moves else IDLE_S)
        entry = self._entries[end] = {
            "mark": int(mark),
            "missing": int(missing),
            "waited_s": waited_s,
            "seconds": missing.at - self._time_of(mark),
            "holders": [] if abs(missing) <= NOISE_BYTES else self._gpu.memory_holders(),
            "ours": self._ours_since(mark),
        }
        self._record()
        if again is None or missing <= NOISE_BYTES + self._explained(missing, mark):
            return False
        mark = self.mark()
        again()
        missing, _ = self._missing_after_wait(mark)
        entry |= {"repeated": int(missing), "repeated_s": missing.at - mark.at}
        self._record()
        return True

    def _missing_after_wait(self, mark: int) -> tuple[Reading, float]:
        """Bytes missing since ``mark`` after a wait, and the seconds until they were last seen missing.

        Time in which this process had no processor does not count: it could not see that they were back.
        """
        self._wait_out_lag()
        began = last = self._w.clock()
        without_processor_s = self._w.without_processor_s()

        def is_back() -> bool:
            nonlocal last
            more = self._beyond(mark)
            if more <= NOISE_BYTES or more <= NOISE_BYTES + self._explained(more, mark):
                return True
            last = more.at
            return False

        if not self._w.wait_until(is_back, self._patience_s):
            self._patience_s, last = SETTLE_S, self._w.clock()
        waited_s = last - began - (self._w.without_processor_s() - without_processor_s)
        return self._beyond(mark), max(waited_s, 0.0)

    def _explained(self, more: Reading, mark: int) -> float:
        """Bytes by which a counter that moves by itself may have risen since ``mark``."""
        return max(sum(self.idle.change_within(more.at - self._time_of(mark))), 0.0)

    def _time_of(self, mark: int) -> float:
        return mark.at if isinstance(mark, Reading) else self._marked.at

    def _ours_since(self, mark: int) -> int | None:
        """Bytes that the processes of this run hold more than at ``mark``; None if unknown."""
        before = mark.ours if isinstance(mark, Reading) else None
        now = None if before is None else self._held_by_this_run()
        return None if before is None or now is None else now - before

    def _held_by_this_run(self) -> int | None:
        holders = self._gpu.memory_holders()
        return sum(each["held"] for each in holders if each["whose"] == THIS_RUN) if holders else None

    def _wait_out_lag(self) -> None:
        if self._lag_s:
            self._w.wait_until(lambda: False, self._lag_s)

    def enter_loop(
        self, what: str, rounds: Iterable[int], used: Sequence[int], control: Sequence[int]
    ) -> None:
        """Record used memory after these rounds of the loop ``what`` and of its control.

        If used memory grew, or changed in the control, it is then watched while idle for as long.
        """
        at, control_at = (
            [each.at for each in samples if isinstance(each, Reading)] for samples in (used, control)
        )
        told: Json = {
            "rounds": list(rounds),
            "used": [*map(int, used)],
            "control": [*map(int, control)],
        }
        if self.is_doubtful(used) or len(set(control)) > 1 or Loop(what, **told).judge(""):
            self.watch_idle(at[-1] - at[0] if at else IDLE_S)
        self._loops[what] = {**told, "at": at, "control_at": control_at}
        self._running = {}
        self._w.keep_loop(None)
        self._record()

    def _beyond(self, mark: int) -> Reading:
        return self._read().less(mark)

    def _record(self) -> None:
        device = self._gpu.device.label
        told = {"device": device, "rises": self._rises, "entries": self._entries, "loops": self._loops}
        late = {"late_s": self._late_s, "call": self._gpu.name_of("mem-info")} if self._late_s else {}
        self._w.keep_ledger(self._name, told | {"sizes": self._sizes, "idle": self._idle} | late)


def ledger_in_turn(w: Worker) -> Ledger:
    """A ledger of each rank's device, opened by one rank at a time, since ranks may share a device."""
    for rank in range(w.mpi.size):
        if rank == w.mpi.rank:
            ledger = Ledger(w)
        w.mpi.barrier()
    return ledger


def look_on(w: Worker) -> None:
    """Read used memory of all devices, let the partner begin, and check after the partner's end that no more
    is in use.

    The partner receives the longest lag of a counter in seconds and the fewest free bytes of a device. If the
    partner's process goes on (`tell_loaded`), it must return to what it used once its library was loaded; at
    its last visit, nothing of all its visits may be left.
    """
    ledgers = [Ledger(w, gpu) for gpu in w.gpus]
    held = w.kept.pop(HELD, [0 for _ in ledgers])
    marks = [ledger.mark() for ledger in ledgers]
    before = [mark.less(nbytes) for mark, nbytes in zip(marks, held, strict=True)]
    w.peer.send([max(ledger.lag_s for ledger in ledgers), min(gpu.memory_info()[0] for gpu in w.gpus)])
    if goes_on := w.peer.recv_or_end() == LOADED:
        marks = [ledger.mark() for ledger in ledgers]
        w.peer.send(None)
    w.peer.wait_gone()
    for ledger, mark in zip(ledgers, marks if goes_on else before, strict=True):
        ledger.enter(PROGRAM_ENDED, mark)
    if goes_on:
        w.kept[HELD] = [ledger.mark().less(mark) for ledger, mark in zip(ledgers, before, strict=True)]


def tell_loaded(w: Worker) -> None:
    """Tell the partner, in `look_on`, that this role's library is loaded, if its process goes on."""
    if w.goes_on:
        w.peer.send(LOADED)
        w.peer.recv()


def begin_when_asked(w: Worker) -> None:
    """Wait until the partner lets this role begin; initialise the driver meanwhile, which takes time."""
    _ = w.gpu
    w.peer.recv()


def _follows(rises: Sequence[Sequence[int]]) -> bool:
    return any(abs(after - before - ODD_BYTES) <= NOISE_BYTES for before, after in rises)


# -- in judges --------------------------------------------------------------------------------------------


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
    seconds: float = 0.0
    repeated_s: float = 0.0
    """Duration of the action and of its repetition, until the last reading."""
    ours: int | None = None
    """Bytes that the processes of this run hold more than before; None if the driver does not say."""
    doubt: float = 0.0
    """Bytes by which used memory may have changed by itself; 0 only if it does not move by itself."""

    def beside(self, idle: IdleCounter) -> Entry:
        """This entry, less what used memory does by itself."""
        expected, doubt = idle.change_within(self.seconds)
        if doubt and self.ours is not None and self.ours > NOISE_BYTES:
            return replace(self, missing=self.ours)
        again, doubt_again = idle.change_within(self.repeated_s)
        repeated = None if self.repeated is None else int(self.repeated - again)
        missing = int(self.missing - expected)
        return replace(self, missing=missing, repeated=repeated, doubt=max(doubt, doubt_again))

    @property
    def is_back(self) -> bool:
        return abs(self.missing) <= NOISE_BYTES + self.doubt

    def is_hidden(self, size: int) -> bool:
        """Whether a counter that moves by itself may hide a loss of ``size`` bytes, or feign one.

        What it did while idle says little about another time, if it turns: a loss must have recurred.
        """
        if not self.doubt:
            return False
        return NOISE_BYTES + self.doubt > HIDES * size if self.is_back else not self.repeats

    def judge(self, size: int, most: int, block: int, later: Iterable[Entry] = ()) -> Finding | None:
        """Judge missing memory: a FAIL if it fits 1 to ``most`` allocations of ``size`` bytes, rounded up to
        whole blocks, or if a repetition of the action lost as much. ``later``: the entries after this one,
        any of which may have released the memory."""
        if self.is_hidden(size):
            return None
        if self.is_back:
            return self.late()
        if not self._fits(size, most, block) and not self.repeats:
            return self.somebody_elses()
        says = "pieces of {size:mib} should have been released; waited {waited:s}"
        waited = Evidence.seen(says, size=size, waited=round(self.waited_s))
        ends = [each.end for each in later if each.is_back and each.mark == self.mark is not None]
        return self.not_returned(
            waited, *(Evidence.seen("released after {end}", end=end) for end in ends[:1])
        )

    def _fits(self, size: int, most: int, block: int) -> bool:
        taken, noise = -(-size // block) * block, NOISE_BYTES + self.doubt
        pieces = max(1, math.ceil((self.missing - noise) / taken))
        return pieces <= most and self.missing >= pieces * size - noise

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
        noise = NOISE_BYTES + self.doubt
        return lost > noise and abs(lost - self.missing) <= noise

    def _repetition(self) -> list[Evidence]:
        if self.repeated is None:
            return []
        says = "used memory changed by {repeated:mib} when the step was repeated"
        return [Evidence.seen(says, repeated=self.repeated)]

    def trust(self, found: Finding | None) -> Finding | None:
        """The finding ``found`` about a loss while a process ran, or an ERROR in its place if the memory was
        still missing after the process had ended."""
        return self.somebody_elses() if found and not self.is_back else found

    def late(self) -> Finding | None:
        """Warn of memory that was released late."""
        if not self.is_back or self.doubt or self.waited_s <= SETTLE_S:
            return None
        return Finding.warn(
            "returned-late",
            "device memory was released only {waited:s} after {end}",
            remedy="check dmesg for the cause; a job that starts sooner finds less free memory",
            waited=round(self.waited_s, 1),
            end=self.end,
        )

    def somebody_elses(self) -> Finding:
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
class Loop:
    """Used memory after the rounds of a loop, and after those of its control."""

    what: str
    rounds: Sequence[int]
    used: Sequence[float]
    control: Sequence[float]
    at: Sequence[float] = ()
    control_at: Sequence[float] = ()
    """Times of the readings in seconds."""
    doubt: float = 0.0
    """Bytes by which used memory may have changed by itself; 0 only if it does not move by itself."""

    def beside(self, idle: IdleCounter) -> Loop:
        """This loop, less what used memory does by itself."""
        doubt = WANDERS * idle.change_within(self.at[-1] - self.at[0])[1] if self.at else 0.0
        used, control = idle.without(self.used, self.at), idle.without(self.control, self.control_at)
        if doubt:  # a control that moves otherwise than the idle counter did shows that the counter turns
            turned = abs(slope(self.rounds, control).estimate) * (self.rounds[-1] - self.rounds[0])
            doubt += WIDER * turned
        return replace(self, used=used, control=control, doubt=doubt)

    @property
    def hidden(self) -> float:
        """Bytes per round that a counter which moves by itself may hide."""
        return self.doubt / max(self.rounds[-1] - self.rounds[0], 1)

    @property
    def growth(self) -> Slope:
        return slope(self.rounds, self.used)

    @property
    def unsuspicious(self) -> float:
        """Bytes per round to ignore: the control's growth, or noise."""
        control = self._without_rounds
        return (
            max(CREEP_BYTES / max(self.rounds), 0.0 if self.hidden else control, control - self.hidden)
            + self.hidden
        )

    @property
    def _without_rounds(self) -> float:
        """Bytes per round in the control; if it grew steadily, in the time that a round takes."""
        control = slope(self.rounds, self.control)
        return control.high * self._pace if control.low > 0 else control.high

    @property
    def _pace(self) -> float:
        """Duration of a round, relative to one of the control. It is 1 if what the idle counter did is
        subtracted."""
        if self.doubt or not (self.at and self.control_at):
            return 1.0
        return max((self.at[-1] - self.at[0]) / max(self.control_at[-1] - self.control_at[0], PROMPT_S), 1.0)

    @property
    def _is_of_rounds(self) -> bool:
        """Whether the growth may be what each round loses: it is even, and the control changed by less."""
        changed = max(max(self.control) - min(self.control) - NOISE_BYTES, 0.0) * self._pace
        return is_even(self.used) and (bool(self.doubt) or changed < (self.used[-1] - self.used[0]) / 2)

    def judge(self, device: str) -> Finding | None:
        """Judge whether each round loses memory, all of them alike."""
        growth = self.growth
        if growth.low <= self.unsuspicious:
            return None
        if not self._is_of_rounds:
            return Finding.error(
                "unexplained-change",
                "used memory of {device} rose by {missing:mib}, but not steadily: cannot tell which process "
                "did it",
                Evidence.seen("seen in {rounds} rounds of {what}", rounds=max(self.rounds), what=self.what),
                remedy=RERUN_IDLE,
                device=device,
                missing=int(self.used[-1] - self.used[0]),
                what=self.what,
            )
        return Finding.fail(
            "grows",
            "used memory of {device} grows by {growth:bytes} with each {what}",
            interval(growth, max(self.rounds)),
            device=device,
            what=self.what,
            growth=growth.estimate,
        )

    def explains(self, missing: int) -> bool:
        """Whether this amount equals the loss of all rounds together, within 25 %."""
        return math.isclose(missing, self.growth.estimate * max(self.rounds), rel_tol=0.25)

    def sensitivity(self, device: str, block: int) -> Evidence:
        """Evidence: the smallest growth that would have been detected. ``block``: see `smallest_found`."""
        smallest = smallest_found(self.rounds, self.used, self.unsuspicious, block)
        return Evidence.measured(
            "growth of {smallest:bytes} or more on {device} with each {what} would have been detected "
            "in {rounds} rounds (the counter's step is {block:bytes})",
            rounds=max(self.rounds),
            smallest=smallest,
            what=self.what,
            device=device,
            block=block,
        )

    def series(self, device: str) -> Series:
        lines = ((self.what, self.used), (f"without {self.what}", self.control))
        return Series(
            f"change of used memory of {device} since the first sample",
            "rounds",
            tuple(self.rounds),
            tuple(Line(text, tuple(used - samples[0] for used in samples)) for text, samples in lines),
        )


@dataclass(frozen=True, slots=True)
class Account:
    """One role's entries in its ledger of one device."""

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
        hidden = [
            Evidence.seen("it cannot be seen whether all memory was released after {end}", end=entry.end)
            for entry in self.entries
            if entry.is_hidden(size)
        ] + [
            Evidence.seen(
                "growth below {least:bytes} with each {what} would not have been noticed",
                least=loop.hidden,
                what=loop.what,
            )
            for loop in self.loops
            if loop.hidden > CREEP_BYTES
        ]
        if self.idle.moves:
            unexplained = [each for each in found if each.key == "unexplained-change"]
            hidden += [item for each in unexplained for item in each.evidence[:1]]
            found = [each for each in found if each not in unexplained]
        return [*found, self.moving(*hidden)] if hidden else found

    def moving(self, *hidden: Evidence) -> Finding:
        """The ERROR if used memory moves by itself so much that losses may be ``hidden``."""
        moved, seconds = self.idle.seen
        return Finding.error(
            "counter-moves",
            "used memory of {device} moves by itself, by {moved:mib} in {seconds:s}: it hides losses",
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
            owed += 0 if entry.is_back or entry.doubt else entry.missing
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
        if self.late_s <= LAG_S and _follows(self.rises):
            return None
        if self.idle.moves:
            return self.moving(Evidence.seen("it did not rise by what was allocated"))
        if self.late_s > LAG_S:
            return Finding.error(
                "counter-late",
                "memory counter of {device} ({call}) shows changes only after {late:s}: it hides losses",
                remedy="rerun on an idle device; if the error returns, this driver's counter is too slow",
                device=self.device,
                call=self.call,
                late=round(self.late_s, 1),
            )
        return Finding.error(
            "counter-does-not-follow",
            "memory counter of {device} is unreliable: it changed by {changes} B when {asked:bytes} "
            "were allocated",
            remedy="rerun on an idle device; if the error returns, this driver's counter does not work",
            device=self.device,
            changes=[after - before for before, after in self.rises],
            asked=ODD_BYTES,
        )

    def evidence(self) -> list[Evidence]:
        """Evidence of a PASS: the watched actions."""
        says = "released after {end}; up to {unseen:mib} missing would not have been noticed"
        ends = [
            Evidence.seen(says, end=entry.end, unseen=NOISE_BYTES + entry.doubt) for entry in self.entries
        ]
        return ends + [loop.sensitivity(self.device, self.block) for loop in self.loops]

    def series(self) -> list[Series]:
        return [loop.series(self.device) for loop in self.loops]


def account(role: RoleOutcome, device: str = "") -> Account:
    """A role's entries. ``device``: label of a device that is not the role's own."""
    told = role.ledgers[device]
    idle = IdleCounter(told.get("idle", ()))
    return Account(
        told["device"],
        told["rises"],
        [Entry(end, **entry).beside(idle) for end, entry in told["entries"].items()],
        [Loop(what, **loop).beside(idle) for what, loop in told["loops"].items()],
        told["sizes"],
        idle,
        told.get("late_s", 0.0),
        told.get("call", ""),
    )


def accounts(done: ProbeOutcome) -> list[Account]:
    """One account per device; if both roles use the same device, their accounts are the same."""
    roles = ("exporter", "importer")[: len(done.devices)]
    return [account(done.roles[role]) for role in roles if role in done.roles and done.roles[role].ledgers]


def filled(role: RoleOutcome) -> Finding | None:
    """Judge a loop in which a call ran out of memory: the FAIL if the loop itself filled the device, else
    None.

    Without a control, used memory must have risen steadily, and by most of the free memory.
    """
    if not (running := role.loop):
        return None
    rounds, used = running["rounds"], running["used"]
    if len(used) < FEWEST_SAMPLES:
        return None
    growth, rose, free = slope(rounds, used), used[-1] - used[0], running["total"] - used[0]
    is_steady = math.isclose(growth.estimate * (rounds[-1] - rounds[0]), rose, rel_tol=0.25)
    if growth.low <= 0 or not is_steady or rose < free / 2:
        return None
    return Finding.fail(
        "grows",
        "used memory of {device} grows by {growth:bytes} with each {what}",
        interval(growth, rounds[-1]),
        Evidence.seen("after {rounds} rounds the device was full", rounds=rounds[-1]),
        device=running["device"],
        what=running["what"],
        growth=growth.estimate,
    )


def blind(done: ProbeOutcome) -> Finding | None:
    """An ERROR if a counter that a role watched did not move, else None."""
    watched = (account(role) for role in done.roles.values() if "" in role.ledgers)
    return next(filter(None, (each.blind() for each in watched)), None)


def interval(growth: Slope, rounds: int) -> Evidence:
    return Evidence.measured(
        "95 % confidence interval of the growth: {low:bytes} to {high:bytes}, from {rounds} rounds",
        low=growth.low,
        high=growth.high,
        rounds=rounds,
    )


def holders(found: Iterable[Mapping[str, Json]]) -> list[Evidence]:
    """The processes that hold memory of the device, the largest first, from `Gpu.memory_holders`."""
    says = "process {pid}{name:aside}, {whose}, holds {held:mib} of device memory"
    largest_first = sorted(found, key=lambda one: -one["held"])
    return [Evidence(EvidenceKind.HOLDER, says, holder) for holder in largest_first]
