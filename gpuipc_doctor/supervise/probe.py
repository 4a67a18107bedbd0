"""One probe, from the start of its workers to the end of their last process.

Start every role; watch until all have ended or one has failed; gather evidence, passive first; end the
process tree; report how each role ended and which one failed.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path

from gpuipc_doctor.api.driver_errors import INITIALISATIONS
from gpuipc_doctor.model import Device, Node
from gpuipc_doctor.probe_types import Baseline, Ending, LauncherEnd, Probe, ProbeOutcome, Reached, RoleOutcome
from gpuipc_doctor.stacks.process_list import Process, descendants, processes
from gpuipc_doctor.supervise import evidence, keeper, process_limits, tree
from gpuipc_doctor.supervise.assignment import (
    Inbox,
    Listener,
    Order,
    RoleFiles,
    RoleResult,
    StartSignal,
    announce,
)
from gpuipc_doctor.supervise.fork_servers import ForkServers
from gpuipc_doctor.supervise.role import LaunchedProcess, RunningRole
from gpuipc_doctor.supervise.start import LAUNCHER_LOG, Starter, Visit

TICK_S = 0.005
SLOW_TICK_S, SLOW_AFTER_S = 0.02, 1.0
"""Seconds between polls of a probe, once it has run for `SLOW_AFTER_S`."""

JOURNAL_EVERY_S = 0.1

LISTEN_S = 0.05
"""Seconds between polls of a probe with a listener, which may run for days; so long its end may take."""

STALLED_S = 1.0
"""Seconds. At the end of the budget, an operation that has run for longer is reported as a possible hang."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits of a probe."""

    start_up_s: float = 60.0
    """Seconds until a worker's first journal line, which a cold file system may delay."""
    settle_s: float = 0.5
    """Seconds after a failure until the other roles have ended, and after the last rank's end until the
    launcher ends."""
    grace_s: float = 0.3
    """Seconds between TERM and KILL of a process."""
    launcher_s: float = 2.0
    """Seconds between TERM and KILL of a launcher, which has to end its ranks, perhaps on other nodes."""
    kill_s: float = 3.0
    """Seconds after KILL until a process counts as unkillable."""


_WORST_FIRST = (
    Ending.CRASHED,
    Ending.DRIVER_ERROR,
    Ending.UNAVAILABLE,
    Ending.UNFIT,
    Ending.EXCEPTION,
    Ending.NOT_STARTED,
)
"""Order in which roles that ended in the same tick are blamed."""


@dataclass
class Execution:
    """The state of one probe while it runs. ``temporary``: see `Starter`."""

    probe: Probe
    check_file: Path
    directory: Path
    node: Node
    marker: str
    limits: Limits
    servers: ForkServers
    turn: StartSignal | None = None
    listener: InitVar[Listener | None] = None
    temporary: Path | None = None
    later: tuple[Visit, ...] = ()
    unkillable: str = ""
    processes: int = 0
    initialisations: int = 0
    """Workers started so far, and driver initialisations in them."""
    _roles: dict[str, RunningRole] = field(default_factory=dict)
    _ended: dict[int, float] = field(default_factory=dict)
    """Pids of workers, and of processes that were ended with them; 0: started with the probe, or later."""
    _tour: tuple[Device, ...] = ()
    _culprit: RunningRole | None = None
    _stopped: str = ""
    _launcher: LauncherEnd | None = None
    _began: float = 0.0

    def __post_init__(self, listener: Listener | None) -> None:
        first = RoleFiles(self.directory, next(iter(self.probe.roles)))
        self._inbox = Inbox(first.inbox, listener) if listener else None
        self._turn_file = first.turn
        self._waits_for_turn = self.turn is not None

    def run(self, until: float, stop: threading.Event) -> ProbeOutcome:
        self._began, started_on = time.monotonic(), time.time()
        with evidence.bounded_logs(self.directory):
            try:
                self._take_turn()
                self._start(until, stop)
                self._watch(until, stop)
                if self._inbox:
                    self._inbox.wait(0.0)  # its last lines
            finally:
                self._end_tree()
                if self._inbox:
                    self._inbox.close()
                keeper.remove_abandoned(started_on, self._ended)
        self._count_initialisations()
        return self._conclude()

    def _count_initialisations(self) -> None:
        progress = [role.progress for role in self._roles.values()]
        self.initialisations += sum(each.made(name) for each in progress for name in INITIALISATIONS)

    def _conclude(self) -> ProbeOutcome:
        stays = self.probe.launch is None or self.probe.launch.nodes == 1
        return ProbeOutcome(
            probe=self.probe.name,
            devices=self.probe.devices,
            params=self.probe.params,
            roles={name: self._outcome(name, role) for name, role in self._roles.items()},
            blamed=next((name for name, role in self._roles.items() if role is self._culprit), None),
            elapsed_s=time.monotonic() - self._began,
            deadline_s=self.probe.deadline_s,
            logs=str(self.directory),
            stopped=self._stopped,
            launch=self.probe.launch,
            launcher=self._launcher,
            limits=process_limits.present() if self._culprit and stays else {},
            began=self._began,
        )

    def _start(self, until: float, stop: threading.Event) -> None:
        self._roles = self._starter(until, stop).start()
        self.processes += len(self._roles)

    def _starter(self, until: float, stop: threading.Event) -> Starter:
        ready_by = time.monotonic() + self.limits.start_up_s

        def fork(imports: set[str], environment: Mapping[str, str], order: Order) -> int | None:
            server = self.servers.of(imports, environment)
            return server.fork(order, ready_by, lambda: self._is_given_up(stop) or time.monotonic() > until)

        return Starter(
            self.probe,
            self.check_file,
            self.directory,
            self.node,
            self.marker,
            fork,
            waits_for_turn=self.turn is not None,
            temporary=self.temporary,
            later=self.later,
            tour=self._tour,
        )

    def _is_given_up(self, stop: threading.Event) -> bool:
        return stop.is_set() or (self.turn is not None and self.turn.given_up)

    def _take_turn(self) -> None:
        """Pass on the start signal. The time limits of the probe and its roles count from the signal."""
        if self.turn and self._waits_for_turn and self.turn.baselines is not None:
            self._announce(self.turn.baselines)
            self._waits_for_turn = False
            self._began = time.monotonic()
            for role in self._roles.values():
                role.progress.read()
                if role.progress.waiting:
                    role.progress.last_at = self._began

    def _announce(self, baselines: Sequence[Baseline]) -> None:
        announce(self._turn_file, baselines)

    # -- watch ------------------------------------------------------------------------------------------

    def _watch(self, until: float, stop: threading.Event) -> None:
        """Watch until all roles have ended, one has failed, or the run is over; then find the failed one."""
        journals_read_at = time.monotonic()
        while any(role.ending is None for role in self._roles.values()):
            self._take_turn()
            now = time.monotonic()
            for role in self._roles.values():
                role.poll(now)
            if any(role.went_wrong for role in self._roles.values()):
                self._settle()
                return
            if self._is_given_up(stop):
                self._stopped = "interrupted"
                return
            if now > until:
                self._stopped = "budget"
                self._culprit = self._stalled(now)
                return
            if now - journals_read_at > JOURNAL_EVERY_S:
                journals_read_at = now
                if overdue := self._overdue(now):
                    role, ending = overdue
                    suspects = self._suspects(role) if ending is Ending.HUNG else [role]
                    self._culprit = suspects[0]
                    self._gather_evidence(now + (until - now) / 2)
                    for role in suspects:
                        role.ending = ending
                    return
                self._share()
            if self._inbox is None:
                soon = self._waits_for_turn or now - self._began < SLOW_AFTER_S
                time.sleep(TICK_S if soon else SLOW_TICK_S)
            elif self._inbox.wait(LISTEN_S):  # a role that reports restarts its journal
                next(iter(self._roles.values())).progress.begin_anew()

    def _share(self) -> None:
        """Tell the scheduler once every role shares its devices."""
        all_do = all(role.progress.kept.get("shares") for role in self._roles.values())
        if self.turn and self.turn.share and all_do:
            self.turn.share()
            self.turn.share = None

    def _settle(self) -> None:
        """Let roles that lost their partner end by themselves, then blame the first failure."""
        until = time.monotonic() + self.limits.settle_s
        while time.monotonic() < until and any(role.ending is None for role in self._roles.values()):
            time.sleep(TICK_S)
            for role in self._roles.values():
                role.poll(time.monotonic())
        self._culprit = first_wrong(role for role in self._roles.values() if role.went_wrong)

    def _overdue(self, now: float) -> tuple[RunningRole, Ending] | None:
        """The role that exceeded its deadline; a role in an armed operation takes precedence."""
        living = [role for role in self._roles.values() if role.ending is None]
        for role in living:
            role.progress.read()
        for role in living:
            if not role.progress.started and now - role.started_at > self.limits.start_up_s:
                return role, Ending.NOT_STARTED
        busy = [role for role in living if not role.progress.waiting]
        all_wait = not busy and not self._waits_for_turn  # some role should be working then
        started = [role for role in (living if all_wait else busy) if role.progress.started]
        allowed_s = self.probe.deadline_s
        silent = [role for role in started if role.silent_for(now, allowed_s) > allowed_s]
        if (all_wait or self.probe.launch or self.probe.together) and len(silent) < len(started):
            # If all roles wait, a message may be under way. Ranks busy-wait for each other: a rank with a
            # processor must not count as hung because another rank had none. On two busy cores a message of
            # 16 MiB took over two seconds.
            return None
        return (min(silent, key=self._stuck_order), Ending.HUNG) if silent else None

    def _stuck_order(self, role: RunningRole) -> tuple[bool, bool, int, int, float]:
        """Sort key: roles in an operation first. Among ranks, those in a driver call come first, then those
        with the fewest MPI calls. Ranks of NCCL or RCCL: those with the fewest returned calls of it.

        A rank in a driver call waits for no other rank. All ranks make about equally many MPI calls unless
        one hangs.
        """
        progress, is_rank = role.progress, self.probe.launch is not None
        calls = progress.mpi_calls if is_rank else 0
        done = progress.collective_calls
        return not progress.operation, is_rank and progress.is_in_mpi, calls, done, progress.last_at

    def _suspects(self, hung: RunningRole) -> list[RunningRole]:
        """The ranks with as many MPI calls, or collective calls, as this one. Any of them may block the
        others."""
        if hung.progress.makes_collectives:
            done = hung.progress.collective_calls
            return likeliest_first(
                role
                for role in self._roles.values()
                if role.ending is None and role.progress.operation and role.progress.collective_calls == done
            ) or [hung]
        if not (self.probe.launch and hung.progress.is_in_mpi):
            return [hung]
        return likeliest_first(
            role
            for role in self._roles.values()
            if role.ending is None
            and role.progress.is_in_mpi
            and role.progress.mpi_calls == hung.progress.mpi_calls
        )

    def _stalled(self, now: float) -> RunningRole | None:
        """The role that has been longest in its running operation; None if none exceeds `STALLED_S`."""
        for role in self._roles.values():
            role.progress.read()
        armed = [role for role in self._roles.values() if role.ending is None and role.progress.operation]
        longest = min(armed, key=lambda role: role.progress.last_at, default=None)
        return longest if longest and now - longest.progress.last_at > STALLED_S else None

    def _gather_evidence(self, until: float) -> None:
        """Gather evidence of every running role; native stacks come last, because reading them disturbs the
        process.

        ``until``: time by which the evidence must be complete, so that the run stays within its budget.
        """
        living = [role for role in self._roles.values() if role.ending is None]
        here = [role for role in living if role.process.pid]
        for role in living:
            if role.process.is_elsewhere:
                role.kernel = (f"{role.files.role} is on another node: no native stack available",)
        for role in here:
            role.kernel = evidence.kernel_view(role.process.pid)
        for role in here:
            at_work = tree.at_work(role.process.pid)
            role.native_stack = evidence.native_stack(at_work, role.files.native_stack, until)

    # -- end --------------------------------------------------------------------------------------------

    def _end_tree(self) -> None:
        def left() -> list[Process]:
            # Ranks that srun starts on this node are not our children, but Slurm's.
            among = processes().values() if self.probe.launch else descendants(os.getpid())
            ours = [process for process in among if tree.carries(process.pid, self.marker)]
            self._note_pids(process.pid for process in ours)
            return ours

        self._note_pids(role.process.pid for role in self._roles.values())

        if self._roles and all(role.ending is Ending.COMPLETED for role in self._roles.values()):
            self._await_launcher()
        grace_s = self.limits.launcher_s if self.probe.launch else self.limits.grace_s
        if remaining := tree.end(left, grace_s=grace_s, limit_s=self.limits.kill_s):
            views = {process.pid: evidence.kernel_view(process.pid) for process in remaining}
            every_line = tuple(line for view in views.values() for line in view)
            self.unkillable = "; ".join(every_line)
            roles = self._roles.values()
            stuck = [role for role in roles if role.process.pid in views]
            # A remaining process may come from a worker; then the probe has not passed.
            for role in stuck or [role for role in roles if role.ending in (None, Ending.COMPLETED)][:1]:
                role.ending = Ending.UNKILLABLE
                role.kernel = views.get(role.process.pid, every_line)
                self._culprit = self._culprit or role
        for role in self._roles.values():
            role.process.collect(0.0 if role.ending is Ending.UNKILLABLE else 1.0)
            role.progress.read()
            if role.ending is None:
                role.ending = Ending.STOPPED
                role.result = RoleResult.read(role.files.result)

    def _note_pids(self, pids: Iterable[int]) -> None:
        """Remember processes of this probe, which may leave files behind."""
        self._ended |= {pid: 0.0 for pid in pids if pid and pid not in self._ended}

    def _await_launcher(self) -> None:
        """Wait for the launcher to end. It is not killed, because it would then report a failure."""
        launch, began = self.probe.launch, time.monotonic()
        is_known = launch is None or launch.ends_badly
        limit_s = self.limits.settle_s if is_known else max(self.probe.deadline_s, self.limits.launcher_s)
        for role in self._roles.values():
            role.process.collect(max(began + limit_s - time.monotonic(), 0.0))
        process = next(iter(self._roles.values())).process
        all_well = all(role.process.returncode == 0 for role in self._roles.values())
        if not is_known and all_well and isinstance(process, LaunchedProcess) and process.launcher_code != 0:
            tail = evidence.log_tail(self.directory / LAUNCHER_LOG)
            self._launcher = LauncherEnd(process.launcher_code, limit_s, tail)

    def _outcome(self, name: str, role: RunningRole) -> RoleOutcome:
        assert role.ending is not None
        code = role.process.returncode
        kept = dict(role.progress.kept)
        if reached := kept.get("reached"):
            kept["reached"] = Reached(*reached)
        bad = role.ending is not Ending.COMPLETED
        fault = role.result.fault if role.result else None
        # A call that returned an error is no longer armed, nor is the clean-up after it.
        operation = fault.call if fault else role.progress.operation if bad else ""
        between_calls = role.ending is Ending.CRASHED and not operation
        returned = between_calls and evidence.crashed_in_librarys_thread(role.files.python_stack)
        if returned:
            operation = role.progress.returned_last
        return RoleOutcome(
            role=name,
            ending=role.ending,
            pid=role.process.pid,
            operation=operation,
            occurrence=(role.result.occurrence if role.result else 0)
            or role.progress.occurrences.get(operation, 0),
            step=role.progress.step if bad else "",
            returned=returned and bool(operation),
            signal=tree.signal_name(-code) if code is not None and code < 0 else "",
            exit_code=code if code is not None and code >= 0 else None,
            fault=fault,
            exception=role.result.exception if role.result else "",
            records=role.progress.records,
            python_stack=evidence.python_stack(role.files.python_stack) if bad else (),
            native_stack=role.native_stack,
            kernel=role.kernel,
            log_tail=evidence.log_tail(*self._logs(role)) if bad else (),
            elapsed_s=(role.ended_at or time.monotonic()) - max(role.started_at, self._began),
            start_up_s=max(role.progress.first_at - role.started_at, 0.0),  # 0 if it never started
            calls=tuple(role.progress.returned.values()),
            **kept,
        )

    def _logs(self, role: RunningRole) -> list[Path]:
        """Logs with a role's last output: the role's log, and the launcher's unless this tool ended the
        role."""
        ended_by_us = role.ending in (Ending.HUNG, Ending.STOPPED)
        return [role.files.log] if ended_by_us else [role.files.log, self.directory / LAUNCHER_LOG]


def likeliest_first(ranks: Iterable[RunningRole]) -> list[RunningRole]:
    """Sort ranks that sleep in the call first: healthy ranks spin while they wait."""
    everyone = processes()

    def spins(role: RunningRole) -> bool:
        process = everyone.get(role.process.pid)
        return process is None or process.state == "R"

    return sorted(ranks, key=spins)


def first_wrong(roles: Iterable[RunningRole]) -> RunningRole:
    """The failed role to blame.

    Roles that only lost their partner are blamed last. Otherwise the earliest tick counts, then the kind of
    ending, then the time. On a busy node an exit can be delayed, so a partner may seem to end before the
    cause. Clocks of two nodes are not compared.
    """
    wrong = list(roles)
    here = not any(role.process.is_elsewhere for role in wrong)

    def order(role: RunningRole) -> tuple[bool, int, int, float]:
        rank = _WORST_FIRST.index(role.ending) if role.ending in _WORST_FIRST else len(_WORST_FIRST)
        at = role.went_wrong_at if here else role.ended_at
        return role.is_casualty, int(at / TICK_S), rank, at

    return min(wrong, key=order)
