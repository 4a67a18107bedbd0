"""In which order probes start, and which of them at the same time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpuipc_doctor.api import Check, Context, Device, Probe, ProbeOutcome
from gpuipc_doctor.cli.progress import Silent
from gpuipc_doctor.model import Launch
from gpuipc_doctor.run import schedule
from gpuipc_doctor.run.planner import PlannedProbe
from gpuipc_doctor.supervise.session import Session
from tests.checks.judging import gpu

FIRST, SECOND = gpu(0), gpu(1)


class Any(Check):
    id = title = "any"

    def probes(self, ctx: Context) -> list[Probe]:
        return []


def planned(
    name: str, *devices: Device, exclusive: bool = False, imports: tuple[str, ...] = ()
) -> PlannedProbe:
    probe = Probe(name, {}, devices, exclusive=exclusive, imports=imports)
    return PlannedProbe(0, Any(), Path(__file__), probe)


def test_ranks_that_spin_have_a_processor_each() -> None:
    launch = Launch(("mpiexec", "-n", "{ranks}"))
    ranks = [planned(name, device) for name, device in (("first", FIRST), ("second", SECOND))]
    ranks = [replace(one, probe=replace(one.probe, launch=launch)) for one in ranks]
    waiting = [*ranks, planned("other", SECOND)]
    assert names(schedule._startable(waiting, [], jobs=2)) == ["first", "other"]
    assert names(schedule._startable(ranks, [], jobs=1)) == ["first"]
    assert names(schedule._startable(waiting, [], jobs=4)) == ["first", "second", "other"]


def names(probes: list[PlannedProbe]) -> list[str]:
    return [one.probe.name for one in probes]


def test_what_has_a_device_to_itself_goes_first_and_pairs_last() -> None:
    probes = [
        planned("pair, alone", FIRST, SECOND, exclusive=True),
        planned("shares", FIRST),
        planned("pair", FIRST, SECOND),
        planned("alone", SECOND, exclusive=True),
    ]
    turns = sorted(probes, key=schedule._turn)
    assert names(turns) == ["alone", "shares", "pair, alone", "pair"]


class Importing:
    """A session whose stems import until so many probes have run."""

    unkillable = ""

    def __init__(self, left: int) -> None:
        self.left = left

    def expect(self, imports: Iterable[str]) -> None: ...

    def has_imported(self, imports: Iterable[str]) -> bool:
        return self.left <= 0

    def run(self, check: str, file: Path, probe: Probe, *, until: float) -> ProbeOutcome:
        self.left -= 1
        return ProbeOutcome(probe.name, probe.devices, {}, {}, None, 0.0, 1.0, "")


@pytest.mark.parametrize(
    ("left", "turns"),
    [
        (0, ["torch", "cupy", "shares", "pair"]),
        (1, ["shares", "torch", "cupy", "pair"]),
        (9, ["shares", "pair", "torch", "cupy"]),
    ],
)
def test_no_device_waits_for_imports_while_there_is_something_else_to_run(
    left: int, turns: list[str]
) -> None:
    probes = [
        planned("pair", FIRST, SECOND),
        planned("torch", FIRST, imports=("torch",), exclusive=True),
        planned("cupy", FIRST, imports=("cupy",), exclusive=True),
        planned("shares", FIRST),
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
    """Devices that are always at rest."""

    def learn(self, probes: Sequence[PlannedProbe], until: float) -> None: ...
    def before(self, planned: PlannedProbe, until: float) -> Probe:
        return planned.probe

    def after(self, probe: Probe, outcome: ProbeOutcome) -> None: ...


def test_what_shares_a_device_starts_beside_its_like_and_beside_nothing_exclusive() -> None:
    running = [planned("alone", FIRST, exclusive=True)]
    waiting = [planned("a", FIRST), planned("b", SECOND), planned("c", SECOND), planned("d", SECOND)]
    assert names(schedule._startable(waiting, running, jobs=3)) == ["b", "c"]


def test_an_exclusive_probe_that_waits_has_its_turn_before_later_ones() -> None:
    running = [planned("shares", FIRST)]
    waiting = [planned("alone", FIRST, exclusive=True), planned("later", FIRST), planned("other", SECOND)]
    assert names(schedule._startable(waiting, running, jobs=4)) == ["other"]
