"""A tour of ranks: one launcher starts them all, and two of them make each visit, one visit at a time.

Each device has a rank, and a second one if a visit is that of two ranks on this device. All ranks initialise
MPI before the first visit and finalise it after the last one. A rank waits for its next visit outside of MPI,
so that it takes no processor from those that send messages.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gpuipc_doctor import surveys
from gpuipc_doctor.model import Device
from gpuipc_doctor.probe_types import Probe, ProbeOutcome, Role
from gpuipc_doctor.supervise import evidence, keeper
from gpuipc_doctor.supervise.assignment import RoleFiles, announce
from gpuipc_doctor.supervise.start import Visit, devices_of
from gpuipc_doctor.supervise.tour import Tour

END = "end of the ranks"
"""Name of the probe after the last visit."""


class NotTogether(Exception):
    """The launcher could not start so many ranks, or they could not initialise MPI together, or were stopped
    before they had: ``outcome`` says what happened; if stopped, it is that of the first visit."""

    def __init__(self, outcome: ProbeOutcome) -> None:
        super().__init__("the ranks did not start together")
        self.outcome = outcome


@dataclass
class LaunchedTour(Tour):
    """The visit under way. The first device of a visit is that of its first rank, and so on."""

    def visit_all(
        self, until: float, stop: threading.Event, goes_on: Callable[[ProbeOutcome], bool]
    ) -> ProbeOutcome:
        """As `Tour.visit_all`. Raises `NotTogether`. If the ranks' end fails, so does the last visit."""
        started_on = time.time()
        self._first = self.probe
        probes = (Visit(self.probe, self.check_file, self.directory), *self.later)
        self._tour = devices_of(probes)
        self._second = devices_of(visit for visit in probes if len(visit.probe.devices) == 1)
        visits = tuple(replace(visit, ranks=self._ranks_of(visit.probe.devices)) for visit in probes)
        begin, end = (
            self._of_all("begin of the ranks", surveys.come_together),
            self._of_all(END, surveys.part),
        )
        try:
            self._begin(begin, (*visits, end), until, stop)
            if not self._is_left:
                raise NotTogether(self._told_of(visits[0]) if self._stopped else self._told_of(begin))
            for number, visit in enumerate(visits):
                self._make(visit, until, stop)
                if not self._is_left:
                    return self._told_of(visit)
                outcome = self._conclude()
                if number < len(visits) - 1 and not goes_on(outcome):
                    return self._told_of(visit)
            self._make(end, until, stop)
        finally:
            self._end_tree()
            keeper.remove_abandoned(started_on, self._ended)
        at_end = self._told_of(visits[-1])
        return replace(outcome, launcher=at_end.launcher) if at_end.completed else at_end

    def _ranks_of(self, devices: Sequence[Device]) -> tuple[int, ...]:
        """The ranks of a visit of these devices."""
        first = tuple(map(self._tour.index, devices))
        return first if len(first) > 1 else (*first, len(self._tour) + self._second.index(devices[0]))

    def _of_all(self, name: str, role: Role) -> Visit:
        """A visit of all ranks."""
        devices = (*self._tour, *self._second)
        roles = {f"rank {rank}": role for rank in range(len(devices))}
        directory = self.directory / role.__name__
        directory.mkdir(mode=0o700)
        limit_s = self.probe.deadline_s
        probe = Probe(name, roles, devices, deadline_s=limit_s, launch=self.probe.launch)
        return Visit(probe, surveys.FILE, directory)

    def _begin(self, begin: Visit, later: tuple[Visit, ...], until: float, stop: threading.Event) -> None:
        self._enter(begin)
        self.later = later
        with evidence.bounded_logs(self.directory):
            self._start(until, stop)
            self._ranks = list(self._roles.values())
            self._roles = {name: self._visiting(role) for name, role in self._roles.items()}
            self._watch(until, stop)
        self._count_initialisations()

    def _make(self, visit: Visit, until: float, stop: threading.Event) -> None:
        """Watch the ranks that make a visit."""
        self._enter(visit)
        ranks = visit.ranks or range(len(self._ranks))
        self._roles = {
            name: self._at_visit(self._ranks[rank], name)
            for name, rank in zip(visit.probe.roles, ranks, strict=True)
        }
        if visit.ranks:
            self._roles = {name: self._visiting(role) for name, role in self._roles.items()}
            announce(RoleFiles(self.directory, "").turn, [])
        with evidence.bounded_logs(self.directory):
            self._watch(until, stop)
        self._count_initialisations()

    def _await_launcher(self) -> None:
        if self.probe.name == END:  # before, the launcher waits for the ranks
            super()._await_launcher()

    def _told_of(self, visit: Visit) -> ProbeOutcome:
        """The present outcome as that of a visit, once all processes have ended."""
        self._end_tree()
        return replace(
            self._conclude(), probe=visit.probe.name, devices=visit.probe.devices, params=visit.probe.params
        )
