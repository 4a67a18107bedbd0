"""A tour: one set of processes, one for each role, that visits several probes one after the other.

Each visit has its own directory, journal, records and result, as if it were a probe of its own. A role that
ends its process at a visit (`Probe.ends`) has a new process there, and another one at the next visit; the
other roles' processes stay. The tour ends at the first visit that does not complete. Unless it is the tour's
first, no evidence of it is gathered, because it does not count: `run.tours` repeats it alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpuipc_doctor.probe_types import Baseline, Ending, Probe, ProbeOutcome
from gpuipc_doctor.supervise import evidence, keeper
from gpuipc_doctor.supervise.assignment import RoleFiles, RoleResult, announce
from gpuipc_doctor.supervise.journal import Progress
from gpuipc_doctor.supervise.probe import Execution
from gpuipc_doctor.supervise.role import RunningRole
from gpuipc_doctor.supervise.start import Visit, devices_of, environment_with, imports


@dataclass
class VisitingRole(RunningRole):
    """A role whose process goes on with the next visit after this one."""

    def poll(self, now: float) -> None:
        self.progress.read()
        if self.ending is None and self.progress.visited:
            self.result = RoleResult.read(self.files.result)
            self.ending, self.ended_at = Ending.COMPLETED, now
        super().poll(now)

    def _ending(self) -> Ending:
        # On a busy node the process may have made its later visits and ended since the journal was read.
        return Ending.COMPLETED if self.progress.visited else super()._ending()


@dataclass
class Tour(Execution):
    """The visit under way of a tour; ``later`` has the visits behind it."""

    _ahead: dict[Path, dict[str, RunningRole]] = field(default_factory=dict)
    """Roles started before their first visit, by the visit's directory."""

    def visit_all(
        self, until: float, stop: threading.Event, goes_on: Callable[[ProbeOutcome], bool]
    ) -> ProbeOutcome:
        """Make the visits in order, up to the first that does not complete.

        ``goes_on`` is called with the outcome of each visit before the last, and returns whether to go on.
        Returns the outcome of the last visit made.
        """
        started_on = time.time()
        self._first = self.probe
        visits = (Visit(self.probe, self.check_file, self.directory), *self.later)
        self._tour = devices_of(visits)
        try:
            for number, visit in enumerate(visits):
                self.later = visits[number + 1 :]
                self._visit(visit, until, stop)
                if not (self.later and self._is_left and goes_on(self._conclude())):
                    break
        finally:
            self._end_tree()
            for roles in self._ahead.values():
                for role in roles.values():
                    role.process.collect(self.limits.kill_s)
            keeper.remove_abandoned(started_on, self._ended)
        return self._conclude()

    def _enter(self, visit: Visit) -> None:
        self._note_pids(role.process.pid for role in self._roles.values())
        self._began = time.monotonic()
        self.probe, self.check_file, self.directory = visit.probe, visit.check_file, visit.directory

    def _visit(self, visit: Visit, until: float, stop: threading.Event) -> None:
        self._enter(visit)
        with evidence.bounded_logs(self.directory):
            if not self._roles:
                self._start(until, stop)
                self._start_ahead(until, stop)
            else:
                stay = [role for name, role in self._roles.items() if isinstance(role, VisitingRole)]
                staying = {role.files.role: self._at_visit(role, role.files.role) for role in stay}
                there = staying | self._ahead.pop(visit.directory, {})
                starter = self._starter(until, stop)
                anew = starter.start_anew(name for name in self.probe.roles if name not in there)
                self.processes += len(anew)
                self._roles = {name: (there | anew)[name] for name in self.probe.roles}
            ending = self.probe.parts_from(self.later[0].probe) if self.later else set(self._roles)
            for name in self._roles.keys() - ending:
                self._roles[name] = self._visiting(self._roles[name])
            self._watch(until, stop)
        self._count_initialisations()

    def _start_ahead(self, until: float, stop: threading.Event) -> None:
        """Start the processes of the tour's later libraries: they initialise the driver, and wait for their
        first visit. What is still being imported is not waited for, but started at that visit.
        Without a start signal the first visit has begun, and may measure memory that they would change."""
        if self.turn is None:
            return
        starter, before = self._starter(until, stop), self.probe
        for number, visit in enumerate(self.later):
            if self._is_given_up(stop):
                return
            if visit.probe.library != before.library and self._has_imported(visit.probe):
                rest = self.later[number + 1 :]
                at_visit = replace(
                    starter,
                    probe=visit.probe,
                    check_file=visit.check_file,
                    directory=visit.directory,
                    later=rest,
                )
                self._ahead[visit.directory] = at_visit.start_anew(list(visit.probe.roles)[:1])
                self.processes += 1
            before = visit.probe

    def _take_turn(self) -> None:
        """As for a single probe, once the processes started ahead wait: their start, on some drivers, changes
        used memory, which the first visit may measure."""
        if self._waits_for_turn and all(
            self._is_ready(role) for roles in self._ahead.values() for role in roles.values()
        ):
            super()._take_turn()

    def _is_ready(self, role: RunningRole) -> bool:
        """Whether a role waits for its first visit, or does not come, as that visit will tell."""
        role.progress.read()
        is_late = time.monotonic() - role.started_at > self.probe.deadline_s
        return role.progress.waiting or is_late or role.process.poll()

    def _has_imported(self, probe: Probe) -> bool:
        environment = environment_with(probe.env, self.node.env, unset=probe.unset)
        return self.servers.of(imports(probe), environment).has_imported()

    def _announce(self, baselines: Sequence[Baseline]) -> None:
        """Signal the start to every visit. Only the first visit of a device, and those in which or before
        which processes end, wait until the device is idle: no process of the tour has ended before the
        others."""
        visits = (Visit(self.probe, self.check_file, self.directory), *self.later)
        devices = dict.fromkeys(device for visit in visits for device in visit.probe.devices)
        idle = dict(zip(devices, baselines, strict=True))
        unvisited, before = set(devices), self.probe
        for visit in visits:
            waits = set(devices) if visit.probe.ends or before.library != visit.probe.library else unvisited
            before = visit.probe
            file = RoleFiles(visit.directory, next(iter(visit.probe.roles))).turn
            announce(
                file,
                [idle[device] if device in waits else Baseline(None, 0.0) for device in visit.probe.devices],
            )
            unvisited -= set(visit.probe.devices)

    def _at_visit(self, role: RunningRole, name: str) -> RunningRole:
        """The same process at the present visit, where its role has this name."""
        files = RoleFiles(self.directory, name)
        return RunningRole(role.process, files, Progress(files.journal), self._began)

    def _visiting(self, role: RunningRole) -> VisitingRole:
        return VisitingRole(role.process, role.files, role.progress, role.started_at)

    @property
    def _is_left(self) -> bool:
        """Whether every role has completed the visit: its process goes on, is already ahead, or has ended."""
        return all(
            role.progress.visited if isinstance(role, VisitingRole) else role.ending is Ending.COMPLETED
            for role in self._roles.values()
        )

    def _gather_evidence(self, until: float) -> None:
        """Gather evidence at the first visit only, which may count; others are repeated alone."""
        if self.probe is self._first:
            super()._gather_evidence(until)
