"""Run planned probes, so many at once, each when its devices are free and while there is time."""

from __future__ import annotations

import contextlib
import errno
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Protocol

from gpuipc_doctor.model import Ending, Finding, ProbeOutcome, Result
from gpuipc_doctor.run.planner import PlannedProbe
from gpuipc_doctor.run.quiet import QuietDevices
from gpuipc_doctor.supervise.interrupts import interruptible
from gpuipc_doctor.supervise.session import Session
from gpuipc_doctor.supervise.start import imports

HANGS_BEFORE_GIVING_UP = 2
"""So many hangs in the same call on one device, and its other probes are not run: each costs a deadline."""

MAX_JOBS = 4
"""Probes at a time. Drivers let one process at a time initialise: more would only wait for each other, and
that counts against their deadlines."""


class Watcher(Protocol):
    """Is told what runs, from any thread. ``key`` tells probes apart; it is not shown."""

    def planned(self, total: int) -> None:
        """So many probes are going to run, from here on."""

    def started(self, key: str, text: str, deadline_s: float) -> None:
        """A probe begins; each of its operations may take ``deadline_s`` seconds."""

    def finished(self, key: str) -> None: ...
    def concluded(self, result: Result) -> None:
        """What a probe has shown."""


@dataclass(frozen=True, slots=True)
class NotRun:
    """Why a probe was not run."""

    finding: Finding
    stopped: str = ""
    """``interrupted`` or ``budget`` where the run was over; empty otherwise."""


Ended = ProbeOutcome | NotRun

Take = Callable[[PlannedProbe, Ended], Sequence[PlannedProbe]]
"""Is given each probe as it ends, and answers which ones are to follow it."""


@dataclass
class Schedule:
    """``until``: `time.monotonic()` seconds at which the run's budget ends."""

    session: Session
    watcher: Watcher
    until: float
    interrupted: bool = False
    _hangs: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By device and call."""

    def __post_init__(self) -> None:
        self._quiet = QuietDevices(self.session)

    def run(self, probes: Sequence[PlannedProbe], jobs: int, take: Take, *, spare_s: float = 0.0) -> None:
        """Run the probes and what follows them, so many at once, and leave the budget's last seconds."""
        self.watcher.planned(len(probes))
        for planned in probes:
            if planned.probe.imports:
                self.session.expect(imports(planned.probe))
        until = self.until - spare_s
        self._quiet.learn(probes, until)
        waiting = sorted(probes, key=_turn)
        running: dict[Future[ProbeOutcome], PlannedProbe] = {}
        with ThreadPoolExecutor(max(jobs, 1)) as pool:
            while waiting or running:
                in_turn = sorted(waiting, key=self._still_imports)
                for planned in _startable(in_turn, list(running.values()), jobs):
                    waiting.remove(planned)
                    if reason := self._why_not(planned, until):
                        waiting[:0] = take(planned, reason)
                    else:
                        running[pool.submit(self._supervise, planned, until)] = planned
                for future in wait(running, return_when=FIRST_COMPLETED).done if running else ():
                    planned = running.pop(future)
                    ended = _result_of(future)
                    more = take(planned, ended)
                    waiting[:0] = more
                    if not more:  # a check that goes on after a hang has its own bound
                        self._remember_hang(ended)

    def _still_imports(self, planned: PlannedProbe) -> bool:
        """Whether an array library is still being imported for it, which takes seconds."""
        probe = planned.probe
        return bool(probe.imports) and not self.session.has_imported(imports(probe))

    def run_one(self, planned: PlannedProbe) -> Ended:
        """Run a probe alone, within all of the budget."""
        if reason := self._why_not(planned, self.until):
            return reason
        try:
            return self._supervise(planned, self.until)
        except OSError as error:
            return _not_started(error)

    def _supervise(self, planned: PlannedProbe, until: float) -> ProbeOutcome:
        probe = planned.probe
        key = f"{planned.check.id} {probe.subject} {probe.name}"
        self.watcher.started(key, f"{planned.check.id} on {probe.subject}", probe.deadline_s)
        try:
            probe = self._quiet.before(planned, until)
            outcome = self.session.run(planned.check.id, planned.file, probe, until=until)
            self._quiet.after(probe, outcome)
            return outcome
        finally:
            self.watcher.finished(key)

    def _remember_hang(self, ended: Ended) -> None:
        if isinstance(ended, NotRun):
            return
        role = ended.roles.get(ended.blamed or "")
        if role and role.operation and role.ending in (Ending.HUNG, Ending.UNKILLABLE):
            self._hangs.update((device.label, role.operation) for device in ended.devices)

    def _why_not(self, planned: PlannedProbe, until: float) -> NotRun | None:
        """Why a probe is not to be run now, if so."""
        if self.interrupted:
            says = "interrupted before this probe ran"
            return NotRun(Finding.skip("interrupted", says), "interrupted")
        if time.monotonic() > until:
            says = "budget; run it alone with `gpuipc-doctor check {check}`"
            return NotRun(Finding.skip("budget", says, check=planned.check.id), "budget")
        if self.session.unkillable:
            says = "no GPU probe may run beside a process that cannot be killed: {process}"
            return NotRun(Finding.skip("beside-unkillable", says, process=self.session.unkillable))
        for device in planned.probe.devices:
            for (label, call), count in self._hangs.items():
                if label == device.label and count >= HANGS_BEFORE_GIVING_UP:
                    says = "{call} had hung {count} times on {device} by then"
                    return NotRun(Finding.skip("given-up", says, call=call, count=count, device=label))
        return None

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let Ctrl-C, SIGTERM and a lost terminal end what runs, and no more: what was learned stays."""

        def interrupt() -> None:
            self.interrupted = True
            self.session.stop()

        with interruptible(interrupt):
            yield


def _turn(planned: PlannedProbe) -> tuple[bool, bool]:
    """What goes first: on each device what has it to itself, then what shares it, which fills any gap.

    A pair would have its second device wait for the first one.
    """
    return len(planned.probe.devices) > 1, not planned.probe.exclusive


def _result_of(future: Future[ProbeOutcome]) -> Ended:
    try:
        return future.result()
    except OSError as error:
        return _not_started(error)


def _not_started(error: OSError) -> NotRun:
    """A full disk, too many processes: nothing that the node's GPUs do."""
    remedy = "raise the limit of this user's processes (ulimit -u)" if error.errno == errno.EAGAIN else ""
    says = "the probe could not be run: {error}"
    return NotRun(Finding.error("not-run", says, remedy=remedy, error=error.strerror or str(error)))


def _startable(
    waiting: Sequence[PlannedProbe], running: Sequence[PlannedProbe], jobs: int
) -> list[PlannedProbe]:
    """In their order, the probes that may start now: an exclusive one needs devices that nobody uses.

    MPI jobs may be half of all: two ranks that spin while they wait take two processors.
    """
    used = {device for planned in running for device in planned.probe.devices}
    closed = {device for planned in running if planned.probe.exclusive for device in planned.probe.devices}
    chosen: list[PlannedProbe] = []
    for planned in waiting:
        if len(running) + len(chosen) >= jobs:
            break
        launched = sum(one.probe.launch is not None for one in (*running, *chosen))
        if planned.probe.launch and launched >= max(jobs // 2, 1):
            continue
        devices = set(planned.probe.devices)
        if devices & (used if planned.probe.exclusive else closed):
            closed |= devices  # its turn comes before that of later ones
            continue
        chosen.append(planned)
        used |= devices
        if planned.probe.exclusive:
            closed |= devices
    return chosen
