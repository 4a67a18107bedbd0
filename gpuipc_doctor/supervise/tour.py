"""A tour: one set of processes, one for each role, that visits several probes one after the other.

Each visit has its own directory, journal, records and result, as if it were a probe of its own. The tour ends
at the first visit that does not complete. Unless it is the tour's first, no evidence of it is gathered,
because it does not count: `run.tours` repeats it alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpuipc_doctor.model import AtRest, Ending, ProbeOutcome
from gpuipc_doctor.supervise import evidence, keeper
from gpuipc_doctor.supervise.assignment import RoleFiles, RoleResult, announce
from gpuipc_doctor.supervise.journal import Progress
from gpuipc_doctor.supervise.probe import Execution
from gpuipc_doctor.supervise.role import RunningRole
from gpuipc_doctor.supervise.start import Visit


@dataclass
class VisitingRole(RunningRole):
    """A role whose process goes on with the next visit after this one."""

    def poll(self, now: float) -> None:
        self.progress.read()
        if self.ending is None and self.progress.visited:
            self.result = RoleResult.read(self.files.result)
            self.ending, self.ended_at = Ending.COMPLETED, now
        super().poll(now)


@dataclass
class Tour(Execution):
    """The visit under way of a tour; ``later`` has those that follow the first."""

    def visit_all(
        self, until: float, stop: threading.Event, goes_on: Callable[[ProbeOutcome], bool]
    ) -> ProbeOutcome:
        """Make the visits in order, up to the first that does not complete or that ends a process.

        ``goes_on`` is called with the outcome of each visit before the last, and returns whether to go on.
        Returns the outcome of the last visit made.
        """
        started_on = time.time()
        self._first = self.probe
        first = Visit(self.probe, self.check_file, self.directory)
        try:
            for visit in (first, *self.later):
                self._visit(visit, until, stop)
                if visit is self.later[-1] or not self._is_left or not goes_on(self._conclude()):
                    break
        finally:
            self._end_tree()
            keeper.remove_abandoned(since=started_on)
        return self._conclude()

    def _visit(self, visit: Visit, until: float, stop: threading.Event) -> None:
        self.probe, self.check_file, self.directory = visit.probe, visit.check_file, visit.directory
        self._began = time.monotonic()
        kind = RunningRole if visit is self.later[-1] else VisitingRole
        with evidence.bounded_logs(visit.directory):
            if not self._roles:
                self._start(until, stop)
            self._roles = {name: self._at_visit(role, kind) for name, role in self._roles.items()}
            self._watch(until, stop)
        self._count_initialisations()

    def _announce(self, at_rest: Sequence[AtRest]) -> None:
        """Signal the start to every visit. Only the first visit of a device waits until the device is idle,
        because no process of the tour has ended since then."""
        visits = (Visit(self.probe, self.check_file, self.directory), *self.later)
        devices = dict.fromkeys(device for visit in visits for device in visit.probe.devices)
        unvisited = dict(zip(devices, at_rest, strict=True))
        for visit in visits:
            file = RoleFiles(visit.directory, next(iter(visit.probe.roles))).turn
            announce(file, [unvisited.pop(device, AtRest(None, 0.0)) for device in visit.probe.devices])

    def _at_visit(self, role: RunningRole, kind: type[RunningRole]) -> RunningRole:
        """The same process at the present visit."""
        files = RoleFiles(self.directory, role.files.role)
        return kind(role.process, files, Progress(files.journal), self._began)

    @property
    def _is_left(self) -> bool:
        """Whether every role's process has completed the visit, and goes on or is already ahead."""
        return all(role.progress.visited for role in self._roles.values())

    def _gather_evidence(self, until: float) -> None:
        """Gather evidence at the first visit only, which may count; others are repeated alone."""
        if self.probe is self._first:
            super()._gather_evidence(until)
