"""The order in which probes start, and which of them run at the same time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpuipc_doctor.api import Check, Context, Device, Finding, Probe, ProbeOutcome
from gpuipc_doctor.cli.progress import Silent
from gpuipc_doctor.probe_types import Baseline, Ending, Launch, RoleOutcome
from gpuipc_doctor.run import order, schedule
from gpuipc_doctor.run.planner import PlannedProbe
from gpuipc_doctor.run.tours import Tour, singles
from gpuipc_doctor.supervise.assignment import StartSignal
from gpuipc_doctor.supervise.session import Session
from tests.checks.judging import gpu

FIRST, SECOND = gpu(0), gpu(1)

NUMBERS = itertools.count(1)


class Any(Check):
    id = title = "any"

    def probes(self, ctx: Context) -> list[Probe]:
        return []


class Passes(Any):
    def judge(self, done: ProbeOutcome) -> list[Finding]:
        return [Finding.ok("right", "it is right")]


def planned(
    name: str, *devices: Device, exclusive: bool = False, imports: tuple[str, ...] = ()
) -> PlannedProbe:
    probe = Probe(name, {}, devices, exclusive=exclusive, imports=imports)
    return PlannedProbe(next(NUMBERS), Any(), Path(__file__), probe)


def test_spinning_ranks_have_one_processor_each() -> None:
    launch = Launch(("mpiexec", "-n", "{ranks}"))
    ranks = [planned(name, device) for name, device in (("first", FIRST), ("second", SECOND))]
    ranks = [replace(planned, probe=replace(planned.probe, launch=launch)) for planned in ranks]
    waiting = [*ranks, planned("other", SECOND)]
    assert startable(waiting, [], jobs=2) == ["first", "other"]
    assert startable(ranks, [], jobs=1) == ["first"]
    assert startable(waiting, [], jobs=4) == ["first", "second", "other"]


def names(tours: Iterable[Tour]) -> list[str]:
    return [tour.probe.name for tour in tours]


def startable(waiting: list[PlannedProbe], running: list[PlannedProbe], jobs: int) -> list[str]:
    return names(order.startable(singles(waiting), singles(running), jobs))


def test_sharing_probes_start_first_then_exclusive_pairs_and_devices_then_ranks() -> None:
    """Probes that can share a device run beside the prolog's checks, and not after a long line of others."""
    ranks = planned("ranks", FIRST)
    probes = [
        replace(ranks, probe=replace(ranks.probe, launch=Launch(("mpiexec",)))),
        planned("alone", SECOND, exclusive=True),
        planned("pair, alone", FIRST, SECOND, exclusive=True),
        planned("shares", FIRST),
        planned("pair", FIRST, SECOND),
    ]
    line = sorted(singles(probes), key=order.priority)
    assert names(line) == ["shares", "pair", "pair, alone", "alone", "ranks"]


def outcome(probe: Probe, ending: Ending | None = None) -> ProbeOutcome:
    """The outcome of a probe with one role that ended in this way, or without roles."""
    roles = {"role": RoleOutcome("role", ending)} if ending else {}
    return ProbeOutcome(probe.name, probe.devices, {}, roles, next(iter(roles), None), 0.0, 1.0, "")


class Importing:
    """A session whose fork servers finish importing after ``left`` probes have run."""

    unkillable = ""

    def __init__(self, left: int) -> None:
        self.left = left

    def expect(self, imports: Iterable[str]) -> None: ...

    def has_imported(self, imports: Iterable[str]) -> bool:
        return self.left <= 0

    def run(
        self, check: str, file: Path, probe: Probe, *, until: float, turn: StartSignal | None
    ) -> ProbeOutcome:
        self.left -= 1
        return outcome(probe)


@pytest.mark.parametrize(
    ("left", "turns"),
    [
        (0, ["pair", "reads", "torch", "cupy", "alone"]),
        (1, ["pair", "reads", "torch", "cupy", "alone"]),
        (2, ["pair", "alone", "reads", "torch", "cupy"]),
        (9, ["pair", "alone", "reads", "torch", "cupy"]),
    ],
)
def test_no_device_waits_for_imports_while_other_probes_can_run(left: int, turns: list[str]) -> None:
    probes = [
        planned("pair", FIRST, SECOND),
        planned("torch", FIRST, imports=("torch",), exclusive=True),
        planned("cupy", FIRST, imports=("cupy",), exclusive=True),
        planned("alone", FIRST, exclusive=True),
        planned("reads", FIRST, imports=("torch",)),
    ]
    ran: list[str] = []

    def take(planned: PlannedProbe, ended: schedule.Ended) -> list[PlannedProbe]:
        ran.append(planned.probe.name)
        return []

    session: Session = Importing(left)  # type: ignore[assignment]
    running = schedule.Schedule(session, Silent(), time.monotonic() + 60)
    running._quiet = Still()  # type: ignore[assignment]
    running.run(probes, 1, take)
    assert ran == turns


class Still:
    """Devices that are always idle."""

    def learn(self, probes: Sequence[PlannedProbe], until: float) -> None: ...
    def waits_itself(self, planned: PlannedProbe) -> bool:
        return False

    def baselines(self, planned: PlannedProbe) -> tuple[Baseline, ...]:
        return (Baseline(0, 0.0),)

    def before(self, planned: PlannedProbe, until: float) -> None: ...
    def after(self, planned: PlannedProbe, outcome: ProbeOutcome) -> None: ...


def test_sharing_probes_start_together_but_not_with_an_exclusive_one() -> None:
    running = [planned("alone", FIRST, exclusive=True)]
    waiting = [planned("a", FIRST), planned("b", SECOND), planned("c", SECOND), planned("d", SECOND)]
    assert startable(waiting, running, jobs=3) == ["b", "c"]


def test_waiting_exclusive_probe_runs_before_later_ones() -> None:
    running = [planned("shares", FIRST)]
    waiting = [planned("alone", FIRST, exclusive=True), planned("later", FIRST), planned("other", SECOND)]
    assert startable(waiting, running, jobs=4) == ["other"]
