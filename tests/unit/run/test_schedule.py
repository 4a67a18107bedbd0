"""The order in which probes start, and which of them run at the same time."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpuipc_doctor.api import Check, Context, Device, Finding, Probe, ProbeOutcome, loader
from gpuipc_doctor.cli.progress import Silent
from gpuipc_doctor.model import AtRest, Ending, Launch, RoleOutcome
from gpuipc_doctor.run import schedule
from gpuipc_doctor.run.planner import PlannedProbe
from gpuipc_doctor.run.tours import Tour, Tours, singles
from gpuipc_doctor.supervise.assignment import StartSignal
from gpuipc_doctor.supervise.session import Session
from tests.checks.judging import gpu
from tests.waiting import LIMIT_S, until

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
    return names(schedule._startable(singles(waiting), singles(running), jobs))


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
    line = sorted(singles(probes), key=schedule._priority)
    assert names(line) == ["shares", "pair", "pair, alone", "alone", "ranks"]


def outcome(probe: Probe, ending: Ending | None = None) -> ProbeOutcome:
    """The outcome of a probe with one role that ended in this way, or without roles."""
    roles = {"role": RoleOutcome("role", ending)} if ending else {}
    return ProbeOutcome(probe.name, probe.devices, {}, roles, next(iter(roles), None), 0.0, 1.0, "")


class Importing:
    """A session whose stems finish importing after ``left`` probes have run."""

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

    def __init__(self, waits_itself: bool = False) -> None:
        self._waits_itself = waits_itself

    def learn(self, probes: Sequence[PlannedProbe], until: float) -> None: ...
    def waits_itself(self, planned: PlannedProbe) -> bool:
        return self._waits_itself and planned.probe.exclusive

    def at_rest(self, planned: PlannedProbe) -> tuple[AtRest, ...]:
        return (AtRest(0, 0.0),)

    def before(self, planned: PlannedProbe, until: float) -> None: ...
    def after(self, planned: PlannedProbe, outcome: ProbeOutcome) -> None: ...


class InTurn:
    """A session whose probes each run until the next one has started, if it can, and their signal came."""

    unkillable = ""

    def __init__(self) -> None:
        self.told: list[str] = []
        self._news = threading.Condition()

    def expect(self, imports: Iterable[str]) -> None: ...
    def has_imported(self, imports: Iterable[str]) -> bool:
        return True

    def run(
        self, check: str, file: Path, probe: Probe, *, until: float, turn: StartSignal | None
    ) -> ProbeOutcome:
        self._tell(f"{probe.name} starts")
        while turn and turn.at_rest is None and not turn.given_up:
            time.sleep(0.001)
        if turn and turn.given_up:
            self._tell(f"{probe.name} is given up")
        elif probe.name == "first":
            self._wait_for("second starts")
            self._tell("first ends")
        else:
            self._tell(f"{probe.name} has its turn")
        return outcome(probe)

    def tour(
        self,
        visits: Sequence[tuple[str, Path, Probe]],
        *,
        until: float,
        goes_on: Callable[[ProbeOutcome], bool],
        turn: StartSignal | None,
    ) -> ProbeOutcome:
        """The first visit waits for the signal; the other visits follow."""
        (check, file, probe), *later = visits
        first = self.run(check, file, probe, until=until, turn=turn)
        for _, _, probe in later if not (turn and turn.given_up) and goes_on(first) else ():
            self._tell(f"{probe.name} is visited")
            first = outcome(probe)
        return first

    def _tell(self, news: str) -> None:
        with self._news:
            self.told.append(news)
            self._news.notify_all()

    def _wait_for(self, news: str) -> None:
        with self._news:
            assert self._news.wait_for(lambda: news in self.told, LIMIT_S)


@pytest.mark.parametrize("interrupted", [False, True])
def test_next_probe_starts_early_and_is_stopped_if_it_must_not_run(
    interrupted: bool,
) -> None:
    session = InTurn()
    running = schedule.Schedule(session, Silent(), time.monotonic() + LIMIT_S)  # type: ignore[arg-type]
    running._quiet = Still(waits_itself=True)  # type: ignore[assignment]

    def take(planned: PlannedProbe, ended: schedule.Ended) -> list[PlannedProbe]:
        running.interrupted = interrupted
        return []

    running.run([planned(name, FIRST, exclusive=True) for name in ("first", "second")], 1, take)
    end = "second is given up" if interrupted else "second has its turn"
    assert session.told == ["first starts", "second starts", "first ends", end]


@pytest.mark.parametrize("apart", [False, True])
def test_next_tour_starts_early_and_anew_if_its_probes_must_run_alone(apart: bool) -> None:
    session = InTurn()
    tours = Tours()
    running = schedule.Schedule(session, Silent(), time.monotonic() + LIMIT_S, tours)  # type: ignore[arg-type]
    running._quiet = Still(waits_itself=True)  # type: ignore[assignment]

    def take(planned: PlannedProbe, ended: schedule.Ended) -> list[PlannedProbe]:
        tours.isolate = apart
        return []

    def visit(name: str) -> PlannedProbe:
        probe = Probe(name, {"a": len, "b": len}, (FIRST,), exclusive=True)  # type: ignore[dict-item]
        return PlannedProbe(next(NUMBERS), Passes(), loader.built_in()["ipc-pool"], probe)

    running.run([planned("first", FIRST, exclusive=True), visit("second"), visit("third")], 1, take)
    at_first, later = session.told[:4], session.told[4:]
    assert at_first[:3] == ["first starts", "second starts", "first ends"]
    if apart:
        assert sorted(session.told[3:]) == [
            "second has its turn", "second is given up", "second starts", "third has its turn", "third starts"
        ]  # fmt: skip
    else:
        assert (at_first[3], later) == ("second has its turn", ["third is visited"])


class ImportsMeanwhile(InTurn):
    """A session whose imports are ready once the second probe has started."""

    def has_imported(self, imports: Iterable[str]) -> bool:
        return "second starts" in self.told


def test_early_started_probe_runs_before_later_imports() -> None:
    session = ImportsMeanwhile()
    running = schedule.Schedule(session, Silent(), time.monotonic() + LIMIT_S)  # type: ignore[arg-type]
    running._quiet = Still(waits_itself=True)  # type: ignore[assignment]
    ran: list[str] = []

    def take(planned: PlannedProbe, ended: schedule.Ended) -> list[PlannedProbe]:
        ran.append(planned.probe.name)
        return []

    probes = [
        planned("cupy", FIRST, exclusive=True, imports=("cupy",)),
        planned("first", FIRST, exclusive=True),
        planned("second", FIRST, exclusive=True),
    ]
    running.run(probes, 1, take)
    assert ran == ["first", "second", "cupy"]


def test_probe_that_shares_a_device_starts_before_an_early_started_exclusive_one() -> None:
    """On an H200 two checks waited for 7 s beside devices that they could have shared."""
    session = InTurn()
    running = schedule.Schedule(session, Silent(), time.monotonic() + LIMIT_S)  # type: ignore[arg-type]
    running._quiet = Still(waits_itself=True)  # type: ignore[assignment]
    waits = [planned("second", FIRST, exclusive=True), planned("later", FIRST, exclusive=True)]
    running._early = early = singles(waits)
    ranks = planned("ranks", FIRST)
    ranks = replace(ranks, probe=replace(ranks.probe, launch=Launch(("mpiexec",))))
    shares, other = planned("shares", FIRST), planned("not yet", FIRST, exclusive=True)
    line = sorted([*singles([ranks, other]), *early, *singles([shares])], key=schedule._priority)
    assert names(running._in_line(line)) == ["shares", "second", "later", "not yet", "ranks"]


class EndsAhead(InTurn):
    """A session whose second probe ends before its start signal with ``ending``."""

    def __init__(self, ending: Ending) -> None:
        super().__init__()
        self.ending = ending

    def run(
        self, check: str, file: Path, probe: Probe, *, until: float, turn: StartSignal | None
    ) -> ProbeOutcome:
        if probe.name == "second" and "second starts" not in self.told:
            if self.ending is Ending.UNKILLABLE:
                self.unkillable = "it"
            self._tell("second starts")
            return outcome(probe, self.ending)
        return super().run(check, file, probe, until=until, turn=turn)


@pytest.mark.parametrize("ending", [Ending.HUNG, Ending.UNKILLABLE])
def test_probe_that_ended_before_its_signal_restarts_or_is_reported_as_unkillable(ending: Ending) -> None:
    session = EndsAhead(ending)
    running = schedule.Schedule(session, Silent(), time.monotonic() + LIMIT_S)  # type: ignore[arg-type]
    running._quiet = Still(waits_itself=True)  # type: ignore[assignment]
    taken: dict[str, schedule.Ended] = {}

    def take(planned: PlannedProbe, ended: schedule.Ended) -> list[PlannedProbe]:
        until("the second has ended", lambda: all(early.outcome.done() for early in running._early))
        taken[planned.probe.name] = ended
        return []

    running.run([planned(name, FIRST, exclusive=True) for name in ("first", "second")], 1, take)
    second = taken["second"]
    assert isinstance(second, ProbeOutcome)
    assert [role.ending for role in second.roles.values()] == ([ending] if session.unkillable else [])
    assert session.told.count("second starts") == (1 if session.unkillable else 2)


def test_pairs_without_a_common_device_run_at_the_same_time() -> None:
    ring = [gpu(number) for number in range(4)]
    pairs = [
        planned(f"{a}{b}", ring[a], ring[b], exclusive=True) for a, b in ((0, 1), (1, 2), (2, 3), (3, 0))
    ]
    shares = planned("shares", ring[0])
    assert startable([*pairs, shares], [], jobs=4) == ["01", "23"]
    assert startable([pairs[1], pairs[3], shares], [pairs[0]], jobs=4) == []


def test_next_probe_for_a_device() -> None:
    probes = [
        planned("both", FIRST, SECOND, exclusive=True),
        planned("later", FIRST, exclusive=True),
        planned("shares", SECOND),
    ]
    assert names(schedule._next_in_line(singles(probes))) == ["both"]
    assert names(schedule._next_in_line(singles(probes[1:]))) == ["later"]


def test_sharing_probes_start_together_but_not_with_an_exclusive_one() -> None:
    running = [planned("alone", FIRST, exclusive=True)]
    waiting = [planned("a", FIRST), planned("b", SECOND), planned("c", SECOND), planned("d", SECOND)]
    assert startable(waiting, running, jobs=3) == ["b", "c"]


def test_waiting_pair_does_not_block_its_other_device() -> None:
    running = [planned("alone", FIRST, exclusive=True)]
    waiting = [planned("pair", FIRST, SECOND), planned("shares", SECOND)]
    assert startable(waiting, running, jobs=4) == ["shares"]


def test_waiting_exclusive_probe_runs_before_later_ones() -> None:
    running = [planned("shares", FIRST)]
    waiting = [planned("alone", FIRST, exclusive=True), planned("later", FIRST), planned("other", SECOND)]
    assert startable(waiting, running, jobs=4) == ["other"]
