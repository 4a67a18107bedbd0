"""The meter: measures a device's used memory for a role function; `leak_report` judges its records.

A counter is trusted only after it was seen to move, and missing memory is looked for again. A counter that
may move by itself is watched while this run is idle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from gpuipc_doctor.api.driver_errors import NotAlone
from gpuipc_doctor.api.gpu import Gpu
from gpuipc_doctor.api.leak_report import SETTLE_S, follows
from gpuipc_doctor.api.loop_growth import Loop
from gpuipc_doctor.api.memory_counter import (
    LAG_S,
    NOISE_BYTES,
    ODD_BYTES,
    PROMPT_S,
    IdleCounter,
    Window,
    window_of,
)
from gpuipc_doctor.api.worker import Worker
from gpuipc_doctor.model import Json

QUIET_S = 0.04
"""Seconds without change after which used memory counts as stable."""

PATIENCE_S = 8.0
"""Seconds after which missing memory counts as lost; after one loss a role waits for `SETTLE_S` only."""

PROMPT_PATIENCE_S = 0.5
"""The same beside other probes: what processes hold is told without a lag, and a loss is looked for anew, by
the probe alone."""

LATEST_S = 8.0
"""Seconds for which a counter that missed a change is watched once more, to say how late it is."""

IDLE_S, LONGEST_IDLE_S = 2.0, 6.0
"""Minimum and maximum seconds for which an idle counter is watched, if it may move by itself."""

TRIES = 3
"""Retries if other processes allocated or freed at the same time."""

PROGRAM_ENDED = "the program ended"

HELD = "held by the partner"
"""Name in `Worker.kept` of what a partner's process, which goes on, held at the last visit's end: for each
device its bytes, and how many of them the driver attributes to this run."""

LOADED = "gpuipc_doctor: loaded, and this process goes on"
"""Message of `tell_loaded` to `look_on`; a site's program may send others."""

THIS_RUN = "perhaps of this test"
"""Value of ``whose`` of `Gpu.memory_holders`."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Used memory of a device in bytes, and the time of the reading in seconds."""

    nbytes: int
    at: float
    ours: int | None = None
    """Bytes that the processes of this run held; None if unknown."""

    def less(self, nbytes: int, ours: int | None = 0) -> Reading:
        """This reading without ``nbytes``, of which ``ours`` were held by this run."""
        left = None if self.ours is None or ours is None else self.ours - ours
        return Reading(self.nbytes - nbytes, self.at, left)


class Meter:
    """One role's measurements of the used memory of one device; beside other probes, of what the processes
    of this probe hold.

    Opening a meter allocates `ODD_BYTES` and waits for the memory counter to rise, so roles that share a
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
        """Whether used memory changed by less than noise, which it may do by itself."""
        self._patience_s = PROMPT_PATIENCE_S if self._gpu.by_process else PATIENCE_S
        self.lag_s = 0.0
        """Seconds after which the memory counter shows a change; 0 if it does so at once."""
        self._late_s = 0.0
        self._missed = False
        """Whether the counter did not show a change within `LAG_S`."""
        self._sizes = [self._gpu.device.total_bytes, self._gpu.memory_info()[1]]
        self._still = self._read()
        with w.step("check that used memory rises by the allocated amount"):
            while len(self._rises) < TRIES and not self._see_rise():
                pass
        self._leave_if(not follows(self._rises), "used memory did not rise by what was allocated")
        if self._is_suspect or self.lag_s or self._missed:
            self.watch_idle()
            self.lag_s = 0.0 if self.moves else self.lag_s
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

    def may_move(self, *series: Sequence[Reading]) -> bool:
        """Whether used memory may move by itself, as these ``series`` of it or an earlier reading suggest;
        what processes hold does not."""
        return not self._gpu.by_process and (self._is_suspect or self.moves or any(map(_varies, series)))

    def watch_idle(self, seconds: float = IDLE_S) -> None:
        """Watch used memory while no process of this run works on the device."""
        readings = [self._read()]
        until = readings[0].at + min(max(seconds, IDLE_S), LONGEST_IDLE_S)

        def is_over() -> bool:
            readings.append(self._read())
            return readings[-1].at >= until

        self._w.wait_until(is_over, LONGEST_IDLE_S)
        self._idle.append(window_of([(each.at, each.nbytes) for each in readings]))
        self._is_suspect = False
        self._record()

    def mark(self) -> Reading:
        """Used memory, once it has been constant for `QUIET_S` seconds."""
        first = self.used()

        def is_quiet() -> bool:
            now = self._read()
            if abs(now.nbytes - self._still.nbytes) > NOISE_BYTES:
                self._still = now
            return now.at - self._still.at >= QUIET_S

        self._w.wait_until(is_quiet, SETTLE_S)
        last = self._read()
        self._is_suspect |= 0 < abs(last.nbytes - first.nbytes) <= NOISE_BYTES
        return replace(last, ours=self._held_by_this_run())

    def change_since(self, mark: Reading) -> int:
        """Bytes by which used memory rose since ``mark``."""
        return self.mark().nbytes - mark.nbytes

    def used(self) -> Reading:
        """Used memory, now."""
        self._wait_out_lag()
        return replace(self._read(), ours=self._held_by_this_run())

    def sampled(self, rounds: range) -> range:
        """Rounds of a loop after which to read used memory; every fourth of them if the counter lags."""
        return rounds[3::4] if self.lag_s else rounds

    def used_after(
        self, sampled: range, rounds: Iterable[int], act: Callable[[int], object], what: str = "round"
    ) -> list[Reading]:
        """Used memory after the sampled rounds of an action; ``what`` names the action."""
        used = []
        for number in rounds:
            act(number)
            if number in sampled:
                used.append(self.sample(what, number))
        return used

    def sample(self, what: str, number: int) -> Reading:
        """Used memory after a round of a loop.

        It is recorded at once, since a leak may fill the device before `enter_loop`: see `filled`.
        """
        if self._running.get("what") != what:
            self._running = {"device": self._gpu.device.label, "what": what, "rounds": [], "used": []}
            self._running["total"] = self._gpu.device.total_bytes
        used = self.used()
        self._running["rounds"].append(number)
        self._running["used"].append(used.nbytes)
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

    def enter(self, end: str, mark: Reading, again: Callable[[], object] | None = None) -> bool:
        """Wait for used memory to return to ``mark``, and record memory that is missing after ``end``.

        If memory is missing, ``again`` is called to see whether the loss recurs. Returns whether ``again``
        was called.
        """
        missing, waited_s = self._missing_after_wait(mark)
        self._leave_if(missing > NOISE_BYTES, f"{missing} B are missing after {end}")
        if not self.moves and (self._is_suspect or abs(missing) > NOISE_BYTES or waited_s > SETTLE_S):
            self.watch_idle()
        ours = None if mark.ours is None else self._held_by_this_run()
        entry = self._entries[end] = {
            "mark": mark.nbytes,
            "missing": missing,
            "waited_s": waited_s,
            "holders": [] if abs(missing) <= NOISE_BYTES else self._gpu.memory_holders(),
            "ours": None if mark.ours is None or ours is None else ours - mark.ours,
        }
        self._record()
        if again is None or missing <= NOISE_BYTES:
            return False
        mark = self.mark()
        again()
        entry["repeated"], _ = self._missing_after_wait(mark)
        self._record()
        return True

    def enter_loop(
        self, what: str, rounds: Iterable[int], used: Sequence[Reading], control: Sequence[Reading]
    ) -> None:
        """Record used memory after these rounds of the loop ``what`` and of its control.

        If used memory grew, or changed in the control, it is then watched while idle for as long.
        """
        loop: Json = {
            "rounds": list(rounds),
            "used": [each.nbytes for each in used],
            "control": [each.nbytes for each in control],
        }
        self._leave_if(bool(Loop(what, **loop).judge("")), f"used memory grows with each {what}")
        if not self.moves and (
            _varies(used) or len(set(loop["control"])) > 1 or Loop(what, **loop).judge("")
        ):
            self.watch_idle(used[-1].at - used[0].at)
        self._loops[what] = {
            **loop,
            "at": [each.at for each in used],
            "control_at": [each.at for each in control],
            "ours": [each.ours for each in used],
            "control_ours": [each.ours for each in control],
        }
        self._running = {}
        self._w.keep_loop(None)
        self._record()

    def _leave_if(self, is_suspect: bool, why: str) -> None:
        """Beside other probes: leave what is suspect to the probe alone, whose device's memory is watched."""
        if is_suspect and self._gpu.by_process:
            raise NotAlone(why)

    def _read(self) -> Reading:
        """Used memory, read again if this process was interrupted, so that its time is known."""
        for _ in range(TRIES):
            before = self._w.clock()
            used = self._gpu.memory_used()
            after = self._w.clock()
            if after - before <= PROMPT_S:
                break
        return Reading(used, (before + after) / 2)

    def _see_rise(self) -> bool:
        """Measure the counter's rise and its delays in rising and falling; returns whether the delays are
        conclusive.

        If only the rise or only the fall was delayed, the counter was refreshed by chance after the other
        change, and both must be timed again.
        """
        before = self.mark().nbytes

        def seconds_until(used: int) -> float:
            if self._stands_at(used):
                return 0.0
            began = self._w.clock()
            changed = self._w.wait_until(lambda: self._stands_at(used), LAG_S)
            self._missed |= not changed
            return self._w.clock() - began if changed else 0.0

        with self._gpu.alloc(ODD_BYTES):
            rise_s = seconds_until(before + ODD_BYTES)
            self._rises.append([before, self._read().nbytes])
        fall_s = seconds_until(before)
        self.lag_s = max(self.lag_s, 1.25 * max(rise_s, fall_s))
        return follows(self._rises) and bool(rise_s) == bool(fall_s)

    def _time_late_rise(self) -> float:
        """Seconds until the counter shows an allocation; 0 if it does not within `LATEST_S`."""
        before, began = self._read().nbytes, self._w.clock()
        with self._gpu.alloc(ODD_BYTES):
            shown = self._w.wait_until(lambda: self._stands_at(before + ODD_BYTES), LATEST_S)
            return self._w.clock() - began if shown else 0.0

    def _stands_at(self, used: int) -> bool:
        return abs(self._read().nbytes - used) <= NOISE_BYTES

    def _missing_after_wait(self, mark: Reading) -> tuple[int, float]:
        """Bytes missing since ``mark`` after a wait, and the seconds until they were last seen missing.

        Time in which this process had no processor does not count: it could not see that they were back.
        """
        self._wait_out_lag()
        began = last = self._w.clock()
        without_processor_s = self._w.without_processor_s()

        def is_back() -> bool:
            nonlocal last
            now = self._read()
            if now.nbytes - mark.nbytes <= NOISE_BYTES:
                return True
            last = now.at
            return False

        if not self._w.wait_until(is_back, self._patience_s):
            self._patience_s, last = min(self._patience_s, SETTLE_S), self._w.clock()
        waited_s = last - began - (self._w.without_processor_s() - without_processor_s)
        return self._read().nbytes - mark.nbytes, max(waited_s, 0.0)

    def _held_by_this_run(self) -> int | None:
        """Bytes; None if the driver does not say, and beside other probes, where a reading is of this one."""
        holders = [] if self._gpu.by_process else self._gpu.memory_holders()
        return sum(each["held"] for each in holders if each["whose"] == THIS_RUN) if holders else None

    def _wait_out_lag(self) -> None:
        if self.lag_s:
            self._w.wait_until(lambda: False, self.lag_s)

    def _record(self) -> None:
        device = self._gpu.device.label
        told = {"device": device, "rises": self._rises, "entries": self._entries, "loops": self._loops}
        late = {"late_s": self._late_s, "call": self._gpu.name_of("mem-info")} if self._late_s else {}
        self._w.keep_meter(self._name, told | {"sizes": self._sizes, "idle": self._idle} | late)


def _varies(series: Sequence[Reading]) -> bool:
    used = [reading.nbytes for reading in series]
    return max(used) - min(used) > NOISE_BYTES


def meter_in_turn(w: Worker) -> Meter:
    """A meter of each rank's device, opened by one rank at a time, since ranks may share a device."""
    for rank in range(w.mpi.size):
        if rank == w.mpi.rank:
            meter = Meter(w)
        w.mpi.barrier()
    return meter


def look_on(w: Worker) -> None:
    """Read used memory of all devices, let the partner begin, and check after the partner's end that no more
    is in use.

    The partner receives the longest lag of a counter in seconds and the fewest free bytes of a device. If the
    partner's process goes on (`tell_loaded`), it must return to what it used once its library was loaded; at
    its last visit, nothing of all its visits may be left.
    """
    meters = [Meter(w, gpu) for gpu in w.gpus]
    held = w.kept.pop(HELD, [(0, 0)] * len(meters))
    marks = [meter.mark() for meter in meters]
    before = [mark.less(*theirs) for mark, theirs in zip(marks, held, strict=True)]
    w.peer.send([max(meter.lag_s for meter in meters), min(gpu.memory_info()[0] for gpu in w.gpus)])
    if goes_on := w.peer.recv_or_end() == LOADED:
        marks = [meter.mark() for meter in meters]
        w.peer.send(None)
    w.peer.wait_gone()
    for meter, mark in zip(meters, marks if goes_on else before, strict=True):
        meter.enter(PROGRAM_ENDED, mark)
    if goes_on:
        left = [meter.mark().less(mark.nbytes, mark.ours) for meter, mark in zip(meters, before, strict=True)]
        w.kept[HELD] = [(each.nbytes, each.ours) for each in left]


def tell_loaded(w: Worker) -> None:
    """Tell the partner, in `look_on`, that this role's library is loaded, if its process goes on."""
    if w.goes_on:
        w.peer.send(LOADED)
        w.peer.recv()


def begin_when_asked(w: Worker) -> None:
    """Wait until the partner lets this role begin; initialise the driver meanwhile, which takes time."""
    _ = w.gpu
    w.peer.recv()
