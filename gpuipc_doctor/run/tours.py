"""Which probes share a tour's processes, and what becomes of a visit that does not pass.

A visit that passes has passed: it did its own work and verified its own data. Any other visit does not
count. Its probe is repeated alone, in fresh processes, and that outcome is judged if it is complete. If the
probe passes alone, the same visits are made before it again: if it then fails again, it fails because of
them. Pairs of ranks make their visits in one launch, in turn (`supervise.launched_tour`).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from gpuipc_doctor.api import Check, loader
from gpuipc_doctor.api.driver_errors import INITIALISATIONS
from gpuipc_doctor.model import Device, Finding, Status, Tier
from gpuipc_doctor.probe_types import Ending, Launch, Probe, ProbeOutcome
from gpuipc_doctor.run import conclusions
from gpuipc_doctor.run.conclusions import Confirmation, Doubt
from gpuipc_doctor.run.planner import PlannedProbe

FEWEST = 3
"""Visits of a tour for which a further process pays."""

PAIR = 2
"""Devices of a pair, and ranks of a launch that make a visit."""

LIKE_FAILURES, FAILURES = 2, 4
"""Number of visits failed alike, and of all failed visits, after which the rest runs alone."""


@dataclass(eq=False)
class Tour:
    """Probes on their way, from the plan to their outcomes: one set of processes runs them in order. A tour
    of one visit is a probe alone.

    ``confirms``: number of visits to make again because the last of these failed, which alone counts; 0: all
    visits count.
    """

    visits: tuple[PlannedProbe, ...]
    confirms: int = 0
    made: int = 0
    """Number of visits whose outcome was handled."""
    shares: bool = False
    """Whether others may run on the devices of a probe that was `alone_at_first`."""

    def __post_init__(self) -> None:
        self.outcomes: list[Future[ProbeOutcome | None]] = [Future() for _ in self.visits]
        """Of each visit; None for a visit that is not made."""
        self.shared: Future[ProbeOutcome | None] = Future()
        """Completed when a probe that is `alone_at_first` shares its devices."""

    @property
    def number(self) -> int:
        return self.visits[0].number

    @property
    def check(self) -> Check:
        return self.visits[0].check

    @property
    def probe(self) -> Probe:
        """The probe, or a stand-in for all of them, with what the tour occupies."""
        if len(self.visits) == 1:
            probe = self.visits[0].probe
            return replace(probe, exclusive=True) if self.will_share else probe
        devices = dict.fromkeys(device for planned in self.visits for device in planned.probe.devices)
        return replace(self.visits[0].probe, devices=tuple(devices), exclusive=_is_exclusive(self.visits))

    @property
    def will_share(self) -> bool:
        """Whether a probe needs its devices alone, but not to its end."""
        probe = self.visits[0].probe
        return probe.alone_at_first and not (probe.exclusive or self.shares)

    @property
    def goes_on(self) -> bool:
        return self.made < (self.confirms or len(self.visits))

    @property
    def visit(self) -> PlannedProbe:
        """The visit under way."""
        return self.visits[self.made]

    @property
    def outcome(self) -> Future[ProbeOutcome | None]:
        return self.outcomes[self.made]

    def end(self) -> tuple[PlannedProbe, ...]:
        """Make no more visits; returns those whose outcome was not handled."""
        rest, self.made = self.visits[self.made :], len(self.visits)
        return rest


@dataclass
class Tours:
    """Plans tours, and remembers the visits in doubt.

    ``seed`` chooses the first device of a tour. ``isolate``: every probe runs alone. ``by_gpu``: only probes
    on the same devices share a tour. ``most``: maximum tours of probes that could share one.
    """

    seed: int = 0
    isolate: bool = False
    by_gpu: bool = False
    most: int = sys.maxsize
    doubts: dict[int, Doubt] = field(default_factory=dict)
    """By number of the planned probe."""
    believed: set[tuple[str, str]] = field(default_factory=set)
    """(Check, key) of SKIPs that a probe also gave alone."""
    ranks_apart: bool = False
    """Whether a launch failed to start its ranks, so that the pairs of all launches have their own."""
    not_together: list[tuple[ProbeOutcome, Finding]] = field(default_factory=list)
    """Launches whose ranks did not all start, and what that means."""
    _failures: Counter[object] = field(default_factory=Counter)

    def plan(self, probes: Sequence[PlannedProbe], jobs: int) -> list[Tour]:
        """Combine probes into tours, of which ``jobs`` may run at a time."""
        groups: dict[object, list[PlannedProbe]] = {}
        for planned in probes:
            alone = self.isolate or not can_share(planned)
            groups.setdefault(planned.number if alone else self._processes(planned), []).append(planned)
        return [
            Tour(tuple(share))
            for group in groups.values()
            for share in _way_to_share(group)(group, min(jobs, self.most), self.seed)
        ]

    def _processes(self, planned: PlannedProbe) -> object:
        """Key that is equal for probes that the same processes can run.

        Probes of array libraries are in one tour for each device. Of exclusive ones a tour has all libraries,
        each in a process of its own; others have a tour for each library, and these run beside each other. A
        role without partners can run its probes one after the other.
        """
        probe = planned.probe
        how = (
            (probe.exclusive, probe.by_process and not probe.exclusive, probe.concurrent)
            if len(probe.roles) > 1
            else ()
        )
        library = bool(probe.library) if probe.exclusive else probe.library
        on = probe.devices if planned.check.needs_allocators or self.by_gpu else ()
        backends = tuple(dict.fromkeys(device.backend for device in probe.devices))
        env = frozenset(probe.env.items())
        launched = (planned.check.id, probe.launch.command, *probe.launch.env.items()) if probe.launch else ()
        return backends, tuple(probe.roles), how, env, planned.repetition, on, library, launched

    def separate(self, tour: Tour) -> Sequence[Tour]:
        """The tour's probes, if they must run alone now; a tour that confirms stays."""
        alone = self.isolate or (self.ranks_apart and tour.probe.launch is not None)
        return singles(tour.visits) if alone and not tour.confirms and len(tour.visits) > 1 else [tour]

    def count_failure(self, planned: PlannedProbe, outcome: ProbeOutcome) -> None:
        """Note that a visit did not pass."""
        role = outcome.roles.get(outcome.blamed or "")
        kind = (role.operation, role.ending) if role else (planned.check.id,)
        self._failures[kind] += 1
        worn_out = self._failures.total() >= FAILURES or self._failures[kind] >= LIKE_FAILURES
        self.isolate = self.isolate or worn_out

    def note_apart(
        self, outcome: ProbeOutcome, launched: Confirmation | None, why: Finding | None = None
    ) -> None:
        """Note that the ranks of a launch did not all start: see `conclusions.of_apart`."""
        self.not_together.append((outcome, conclusions.of_apart(outcome, launched, why)))
        self.ranks_apart = self.ranks_apart or launched is not Confirmation.CAME_ONCE

    def passes(self, planned: PlannedProbe, outcome: ProbeOutcome) -> bool:
        """Whether an outcome counts: it passes, or is a SKIP for a reason that holds also alone."""

        def counts(finding: Finding) -> bool:
            is_believed = (planned.check.id, finding.key) in self.believed
            return finding.status is Status.PASS or (finding.status is Status.SKIP and is_believed)

        return outcome.completed and all(map(counts, conclusions.conclude(planned, outcome)))

    def believe(self, planned: PlannedProbe, outcome: ProbeOutcome) -> None:
        """Note the SKIPs of a probe that ran alone."""
        self.believed.update(
            (planned.check.id, finding.key)
            for finding in conclusions.conclude(planned, outcome)
            if outcome.completed and finding.status is Status.SKIP
        )

    def doubted(self, visits: tuple[PlannedProbe, ...]) -> list[PlannedProbe]:
        """The visits in doubt of a tour with these visits."""
        doubts = ((planned, self.doubts.get(planned.number)) for planned in visits)
        return [planned for planned, doubt in doubts if doubt and doubt.visits is visits]

    def is_in_doubt(self, tour: Tour) -> bool:
        """Whether the tour is a probe to be repeated alone."""
        return len(tour.visits) == 1 and tour.number in self.doubts


def singles(probes: Iterable[PlannedProbe]) -> list[Tour]:
    """A tour for each probe."""
    return [Tour((planned,)) for planned in probes]


def first_of_each_gpu(visits: Iterable[PlannedProbe]) -> list[PlannedProbe]:
    """For each GPU its first visit, if possible one without other GPUs."""
    of_gpu: dict[Device, PlannedProbe] = {}
    for planned in sorted(visits, key=lambda planned: len(planned.probe.devices)):
        for device in planned.probe.devices:
            of_gpu.setdefault(device, planned)
    return list({planned.number: planned for planned in of_gpu.values()}.values())


def is_of_start(outcome: ProbeOutcome) -> bool:
    """Whether a process ended, or was stopped, while it initialised the driver."""
    return outcome.blamed is not None and outcome.roles[outcome.blamed].operation in INITIALISATIONS


def can_share(planned: PlannedProbe) -> bool:
    """Whether a probe may share processes with others.

    Roles that start processes need their own processes. So do a site's own checks, which were written for
    fresh processes. Of ranks, pairs can share a launch.
    """
    probe = planned.probe
    is_launched = probe.launch is not None and not _is_pair_of_ranks(probe, probe.launch)
    started_otherwise = is_launched or probe.starters or probe.together
    needs_own = started_otherwise or probe.ends == probe.roles.keys()
    is_built_in = planned.file in loader.built_in().values()
    return bool(probe.devices) and is_built_in and not needs_own and planned.follows is None


def _is_pair_of_ranks(probe: Probe, launch: Launch) -> bool:
    """Whether two ranks of a launch on this node can make the probe. A launcher that binds devices might give
    more ranks other ones."""
    is_here = launch.nodes == 1 and not launch.shows
    return is_here and len(probe.roles) == PAIR and not (probe.exclusive or probe.by_process or probe.fresh)


def _importance(planned: PlannedProbe) -> tuple[Tier, bool]:
    """Sort key: the prolog's checks first, then those of IPC handles, which most applications use."""
    return planned.check.tier, "legacy-ipc" not in planned.check.requires


def _order(checks: Sequence[str], planned: PlannedProbe) -> tuple[bool, int]:
    """Sort key: visits at which processes end come last."""
    return bool(planned.probe.ends), checks.index(planned.check.id)


def _is_exclusive(group: Iterable[PlannedProbe]) -> bool:
    return any(planned.probe.exclusive for planned in group)


def _way_to_share(group: Sequence[PlannedProbe]) -> Callable[..., Iterable[Sequence[PlannedProbe]]]:
    if group[0].probe.launch:
        return _in_turn
    return _neighbours if _is_exclusive(group) else _share


def _in_turn(group: Sequence[PlannedProbe], _most: int, seed: int) -> Iterable[Sequence[PlannedProbe]]:
    """Pairs of ranks, in one launch; too few have launches of their own, with fewer ranks.

    The first pair of two devices has its own: a library can be wrong in two ranks of two devices, and right
    among ranks of which two have the same device. Intel MPI is.
    """
    if len(group) < FEWEST:
        return [[planned] for planned in group]
    start = seed % len(group)
    together = [*group[start:], *group[:start]]
    of_two = next((planned for planned in together if len(planned.probe.devices) > 1), None)
    alone = [[of_two]] if of_two else []
    return [*alone, [planned for planned in together if planned is not of_two]]


def _share(group: Sequence[PlannedProbe], most: int, seed: int) -> Iterable[Sequence[PlannedProbe]]:
    """Distribute probes by the exporter's device, so that each set of processes uses few devices. Of two
    devices only the first exports to the other in most checks: then some of these pairs go to the second."""
    firsts = list(dict.fromkeys(planned.probe.devices[:1] for planned in group))
    number = max(1, min(most, len(firsts), len(group) // FEWEST // max(len(group[0].probe.roles), 1)))
    places = {first: (place + seed) % len(firsts) for place, first in enumerate(firsts)}
    checks = list(dict.fromkeys(planned.check.id for planned in sorted(group, key=_importance)))
    shares: list[list[PlannedProbe]] = [[] for _ in range(number)]

    def order(planned: PlannedProbe) -> tuple[bool, int, int]:
        return *_order(checks, planned), places[planned.probe.devices[:1]]

    def share_of(devices: Sequence[Device]) -> list[PlannedProbe]:
        return shares[places[tuple(devices)] * number // len(firsts)]

    for planned in sorted(group, key=order):
        share_of(planned.probe.devices[:1]).append(planned)
    if len(firsts) == number == 2:
        for planned in [each for each in group if each.probe.devices[1:] in places]:
            own, other = share_of(planned.probe.devices[:1]), share_of(planned.probe.devices[1:])
            if len(own) > len(other) + 1:
                own.remove(planned)
                other.append(planned)
        for share in shares:
            share.sort(key=order)
    return filter(None, shares)


def _neighbours(group: Sequence[PlannedProbe], most: int, _seed: int) -> Iterable[Sequence[PlannedProbe]]:
    """Distribute exclusive probes to tours of neighbouring devices, which can run at the same time. Pairs
    between two of these have a tour of their own.

    A visit takes 0.3 to 1.8 s, most of it outside of the driver, and the processes of a further tour 0.5 s.
    """
    devices = sorted(
        {device for planned in group for device in planned.probe.devices}, key=lambda device: device.index
    )
    number = min(most, len(devices))
    part = {device: place * number // len(devices) for place, device in enumerate(devices)}
    shares: dict[frozenset[int], list[PlannedProbe]] = {}
    for planned in sorted(group, key=lambda planned: (bool(planned.probe.ends), planned.probe.library)):
        shares.setdefault(frozenset(part[device] for device in planned.probe.devices), []).append(planned)
    return shares.values()


def is_harmless(planned: PlannedProbe, outcome: ProbeOutcome) -> bool:
    """Whether a tour goes on after a visit: it passed, or found a reason to test nothing."""
    severity = conclusions.worst(planned, outcome).severity
    return outcome.completed and severity <= Status.SKIP.severity


def has_hung(outcome: ProbeOutcome) -> bool:
    return any(role.ending is Ending.HUNG for role in outcome.roles.values())


def is_unkillable(outcome: ProbeOutcome) -> bool:
    return any(role.ending is Ending.UNKILLABLE for role in outcome.roles.values())


def is_beside(planned: PlannedProbe) -> bool:
    """Whether a probe that measures memory has others beside it on its devices."""
    return planned.probe.by_process and not planned.probe.exclusive


def must_be_alone(tour: Tour, ended: ProbeOutcome) -> bool:
    """Whether a visit that was made beside others on its devices must be repeated alone: it could not tell,
    or failed while there were others."""
    role = ended.roles.get(ended.blamed or "")
    was_alone = tour.will_share and not (role and role.ending is Ending.EXCEPTION)
    is_settled = ended.completed or ended.stopped or is_unkillable(ended)
    return is_beside(tour.visit) and not (was_alone or is_settled)
