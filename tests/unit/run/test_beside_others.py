"""What watches memory runs beside other probes where the driver tells memory by process."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any as Anything

import pytest

from gpuipc_doctor.api import Check, Context, Device, Finding, Probe, ProbeOutcome
from gpuipc_doctor.cli.progress import Silent
from gpuipc_doctor.probe_types import Ending, Launch, RoleOutcome
from gpuipc_doctor.run.conclusions import Doubt, Ended
from gpuipc_doctor.run.planner import PlannedProbe
from gpuipc_doctor.run.schedule import Schedule
from gpuipc_doctor.supervise.session import Session
from tests.checks.judging import gpu

NUMBERS = itertools.count(1)
FIRST, SECOND = gpu(0), gpu(1)


class Passes(Check):
    title = "any"

    def __init__(self, id_: str) -> None:
        self.id = id_

    def probes(self, ctx: Context) -> list[Probe]:
        return []

    def judge(self, done: ProbeOutcome) -> list[Finding]:
        return [Finding.ok("right", "it is right")]


def watches(check: str, *devices: Device) -> PlannedProbe:
    probe = Probe("", {"role": print}, devices or (FIRST,), exclusive=True, by_process=True)  # type: ignore[dict-item]
    return PlannedProbe(next(NUMBERS), Passes(check), Path(__file__), probe)


@dataclass
class Fake:
    """A session in which checks end so beside others, and pass alone; also the devices' idle memory."""

    beside: Mapping[str, Ending] = field(default_factory=dict)
    tells: bool = True
    nobodys: Mapping[Device, int | str] = field(default_factory=dict)
    ran: list[tuple[str, bool]] = field(default_factory=list)
    """Each check, and whether it ran alone."""

    unkillable = ""

    def run(self, check: str, file: Path, probe: Probe, **_: Anything) -> ProbeOutcome:
        self.ran.append((check, probe.exclusive))
        ending = Ending.COMPLETED if probe.exclusive else self.beside.get(check, Ending.COMPLETED)
        role = RoleOutcome("role", ending)
        blamed = None if ending is Ending.COMPLETED else "role"
        return ProbeOutcome("", probe.devices, {}, {"role": role}, blamed, 0.0)

    def baselines(self, _: Anything) -> tuple[()]:
        return ()

    def learn(self, *_: Anything) -> None: ...
    def tells_by_process(self, planned: PlannedProbe) -> bool:
        return self.tells

    def lost(self, devices: Iterable[Device], until: float) -> dict[Device, int | str]:
        return {device: self.nobodys[device] for device in devices if device in self.nobodys}

    def waits_itself(self, _: Anything) -> bool:
        return False

    def before(self, *_: Anything) -> None: ...
    def after(self, *_: Anything) -> None: ...


def taken(
    fake: Fake, *probes: PlannedProbe, isolate: bool = False, jobs: int = 2
) -> tuple[Schedule, dict[str, Ended | Doubt]]:
    session: Session = fake  # type: ignore[assignment]
    schedule = Schedule(session, Silent(), time.monotonic() + 60)
    schedule.tours.isolate = isolate
    schedule._quiet = fake  # type: ignore[assignment]
    ends: dict[str, Ended | Doubt] = {}

    def take(planned: PlannedProbe, ended: Ended | Doubt) -> list[PlannedProbe]:
        ends[planned.check.id] = ended
        return []

    schedule.run(probes, jobs, take)
    return schedule, ends


def test_where_the_driver_tells_them_apart_they_run_beside_others() -> None:
    taken(fake := Fake(), watches("a"), watches("b"))
    assert sorted(fake.ran) == [("a", False), ("b", False)]


@pytest.mark.parametrize(
    ("tells", "isolate", "checks"),
    [(False, False, "ab"), (True, True, "ab"), (True, False, "aa")],
    ids=["not told", "isolated", "one check, which has nobody beside it"],
)
def test_otherwise_they_run_alone(tells: bool, isolate: bool, checks: str) -> None:
    taken(fake := Fake(tells=tells), *map(watches, checks), isolate=isolate)
    assert sorted(fake.ran) == [(check, True) for check in checks]


@pytest.mark.parametrize(
    ("isolate", "nodes", "alone"), [(True, 1, False), (False, 1, False), (False, 2, True)]
)
def test_ranks_of_this_node_are_measured_by_process_in_every_run(
    isolate: bool, nodes: int, alone: bool
) -> None:
    planned = watches("a")
    ranks = replace(planned, probe=replace(planned.probe, launch=Launch(("mpiexec",), nodes=nodes)))
    taken(fake := Fake(), ranks, isolate=isolate)
    assert fake.ran == [("a", alone)]


@pytest.mark.parametrize("ending", [Ending.EXCEPTION, Ending.DRIVER_ERROR, Ending.CRASHED, Ending.HUNG])
def test_what_fails_beside_others_is_repeated_alone_and_only_that_counts(ending: Ending) -> None:
    _, ends = taken(fake := Fake({"a": ending}), watches("a"), watches("b"))
    assert sorted(fake.ran) == [("a", False), ("a", True), ("b", False)]
    assert all(isinstance(end, ProbeOutcome) and end.completed for end in ends.values())


def test_where_that_fails_again_the_rest_has_its_devices_to_itself_at_once() -> None:
    """In a container, NVML may not list our own processes."""
    fake = Fake(dict.fromkeys("abcd", Ending.EXCEPTION))
    _, ends = taken(fake, *map(watches, "abcd"), jobs=1)
    assert sorted(fake.ran) == [
        ("a", False), ("a", True), ("b", False), ("b", True), ("c", True), ("d", True),
    ]  # fmt: skip
    assert all(isinstance(end, ProbeOutcome) and end.completed for end in ends.values())


def test_memory_that_nobody_holds_repeats_alone_what_was_not_alone_on_that_device() -> None:
    fake = Fake({"a": Ending.EXCEPTION}, nobodys={FIRST: 8 << 20})
    schedule, _ = taken(fake, watches("a"), watches("b"), watches("c", SECOND))
    assert sorted(fake.ran) == [("a", False), ("a", True), ("b", False), ("b", True), ("c", False)]
    ((nbytes, again),) = schedule.lost.values()
    assert (nbytes, [planned.check.id for planned in again]) == (8 << 20, ["b"])


@pytest.mark.parametrize(("second", "runs"), [(8 << 20, 2), ("it changes by itself", 1)])
def test_pair_whose_two_devices_are_in_doubt_runs_again_once_and_only_for_a_loss(
    second: int | str, runs: int
) -> None:
    fake = Fake(nobodys={FIRST: 8 << 20 if runs > 1 else "it changes by itself", SECOND: second})
    schedule, _ = taken(fake, watches("a", FIRST, SECOND), watches("b", SECOND))
    assert fake.ran.count(("a", True)) == fake.ran.count(("b", True)) == runs - 1
    assert [[planned.check.id for planned in of] for _, of in schedule.lost.values()] == [["a"], ["a", "b"]]


class Sharing(Fake):
    """A session in which ``first`` shares its devices, or not, and ends after the other, or after a wait."""

    def __init__(self, *, shares: bool) -> None:
        super().__init__()
        self.shares, self.other = shares, threading.Event()
        self.ended: list[str] = []

    def waits_itself(self, _: Anything) -> bool:
        return True

    def run(self, check: str, file: Path, probe: Probe, **given: Anything) -> ProbeOutcome:
        if check == "first":
            if self.shares:
                given["turn"].share()
            self.other.wait(10 if self.shares else 0.1)
        else:
            self.other.set()
        self.ended.append(check)
        return super().run(check, file, probe, **given)


@pytest.mark.parametrize("shares", [True, False])
def test_probe_that_is_alone_at_first_starts_first_and_others_run_once_it_shares(shares: bool) -> None:
    planned = watches("first")
    first = replace(planned, probe=replace(planned.probe, alone_at_first=True))
    taken(fake := Sharing(shares=shares), watches("other"), first)
    assert fake.ended == (["other", "first"] if shares else ["first", "other"])
    assert ("first", False) in fake.ran


@pytest.mark.parametrize(
    ("shares", "ending", "runs"),
    [(True, Ending.HUNG, 2), (False, Ending.HUNG, 1), (False, Ending.EXCEPTION, 2)],
    ids=["beside others", "still alone", "could not tell"],
)
def test_probe_that_is_alone_at_first_is_repeated_if_it_failed_beside_others_or_could_not_tell(
    shares: bool, ending: Ending, runs: int
) -> None:
    planned = watches("first")
    first = replace(planned, probe=replace(planned.probe, alone_at_first=True))
    fake = Sharing(shares=shares)
    fake.beside = {"first": ending}
    taken(fake, first, watches("other"))
    assert [check for check, _ in fake.ran].count("first") == runs
    assert ("other", False) in fake.ran
