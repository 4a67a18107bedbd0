"""Findings for errors in a check's code, and for incomplete probes."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuipc_doctor.api import Check, Context, Finding, Probe, ProbeOutcome, loader
from gpuipc_doctor.cli.progress import Silent
from gpuipc_doctor.model import Status, Tier
from gpuipc_doctor.probe_types import Ending, Launch, RoleOutcome
from gpuipc_doctor.report import sentences
from gpuipc_doctor.report_types import CheckInfo
from gpuipc_doctor.run.conclusions import conclude, judge
from gpuipc_doctor.run.engine import RERUN_BUDGET_FRACTION, Run
from gpuipc_doctor.run.planner import MAX_FOLLOW_UPS, Plan, PlannedProbe, Planner
from gpuipc_doctor.run.request import Request
from gpuipc_doctor.run.results import ResultLog
from gpuipc_doctor.run.schedule import Schedule
from gpuipc_doctor.site.config import SiteConfig
from gpuipc_doctor.supervise import blame
from tests.checks.judging import completed, each_round, gpu

FILE = Path(__file__).parents[2] / "fixtures" / "misbehaving.py"

role = loader.role(FILE, "completes")
PROBE = Probe("", {"a": role})


class Odd(Check):
    id = "odd"
    title = "odd"

    def probes(self, ctx: Context) -> Iterable[Probe]:
        return []


def outcome(ending: Ending = Ending.COMPLETED) -> ProbeOutcome:
    roles = {"a": RoleOutcome("a", ending, operation="pause")}
    return ProbeOutcome("", (), {}, roles, None if ending is Ending.COMPLETED else "a", 0.1)


class Session:
    """A stand-in for the supervisor: every probe has this outcome."""

    unkillable = ""
    ran = False

    def __init__(self, ends: ProbeOutcome | Exception) -> None:
        self.ends = ends

    def run(self, *_: object, **__: object) -> ProbeOutcome:
        if isinstance(self.ends, Exception):
            raise self.ends
        return self.ends


def planned(check: Check, **changes: Any) -> PlannedProbe:
    return PlannedProbe(**{"number": 1, "check": check, "file": FILE, "probe": PROBE, **changes})


def run(check: Check, ends: ProbeOutcome | Exception | Session, *probes: PlannedProbe) -> Run:
    """A run of these probes of the check; by default of one."""
    session: Any = ends if isinstance(ends, Session) else Session(ends)
    nothing: Any = None
    schedule = Schedule(session, Silent(), until=float("inf"))
    log = ResultLog()
    log.announce(CheckInfo(check.id, check.title, check.tier))
    run = Run(Planner(Request(), SiteConfig()), nothing, nothing, schedule, log, nothing, Future())
    run.execute(Plan((), probes or (planned(check),), ()), [])
    return run


@pytest.mark.parametrize("mistake", [KeyError("x"), SystemExit(0)])
def test_judge_that_fails_is_an_error(mistake: BaseException) -> None:
    class Failing(Odd):
        def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
            raise mistake

    [finding] = judge(planned(Failing()), outcome())
    assert finding.status is Status.ERROR
    assert type(mistake).__name__ in sentences.summary(finding)


@pytest.mark.parametrize("said", [[], ["fine"], [None]])
def test_judge_without_a_valid_finding_is_an_error(said: list[Any]) -> None:
    class Mumbling(Odd):
        def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
            return said

    [finding] = judge(planned(Mumbling()), outcome())
    assert finding.status is Status.ERROR


LOSES = each_round("open", descriptors=lambda number: number)


@pytest.mark.parametrize(
    ("says", "keys"),
    [
        (Finding.ok("fine", "fine"), ["descriptors-left"]),
        (Finding.warn("odd", "odd"), ["odd", "descriptors-left"]),
        (Finding.fail("keeps", "mappings are kept"), ["keeps"]),
    ],
)
def test_loss_of_a_process_is_found_unless_the_checks_finding_explains_it(
    says: Finding, keys: list[str]
) -> None:
    class Fine(Odd):
        explains_losses = frozenset({"keeps"})

        def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
            yield says

    lost = replace(outcome(), roles={"importer": completed("importer", LOSES)})
    assert [finding.key for finding in judge(planned(Fine()), lost)] == keys


def at_exit(*endings: Ending, returned: bool = True) -> ProbeOutcome:
    """A probe whose first role crashed as its process exited; the other roles ended in these ways."""
    crashed = RoleOutcome("a", Ending.CRASHED, operation="process exit", occurrence=1, signal="SIGABRT")
    others = {
        name: RoleOutcome(name, ending, operation="process exit" if returned else "pause")
        for name, ending in zip("bc", endings, strict=False)
    }
    return replace(outcome(Ending.CRASHED), roles={"a": crashed, **others})


@pytest.mark.parametrize(
    ("says", "ends", "keys"),
    [
        (Finding.ok("fine", "fine"), at_exit(), ["crashed"]),
        (Finding.ok("fine", "fine"), at_exit(Ending.COMPLETED, Ending.STOPPED), ["crashed"]),
        (Finding.fail("lost", "lost"), at_exit(Ending.COMPLETED, Ending.STOPPED), ["lost", "crashed"]),
        (Finding.skip("none", "none"), at_exit(Ending.COMPLETED), ["none", "crashed"]),
        (Finding.fail("lost", "lost"), at_exit(Ending.STOPPED, returned=False), ["crashed"]),
        (Finding.fail("lost", "lost"), replace(at_exit(), stopped="interrupted"), ["interrupted"]),
    ],
)
def test_work_is_judged_although_a_process_crashed_at_exit(
    says: Finding, ends: ProbeOutcome, keys: list[str]
) -> None:
    class Fine(Odd):
        def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
            yield says

    assert [finding.key for finding in conclude(planned(Fine()), ends)] == keys


def test_probe_that_cannot_be_started_is_an_error() -> None:
    [result] = run(Odd(), OSError(28, "No space left on device")).log.results()
    assert result.finding.status is Status.ERROR
    assert "No space left on device" in sentences.summary(result.finding)


def test_skipped_repetition_keeps_earlier_results() -> None:
    class Fine(Odd):
        def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
            yield Finding.ok("fine", "fine")

    class StopsAfterOne(Session):
        def run(self, *_: object, **__: object) -> ProbeOutcome:
            if self.ran:
                return replace(outcome(), stopped="budget")
            self.ran = True
            return outcome()

    thrice = (planned(Fine(), number=number, repetition=number) for number in (1, 2, 3))
    results = run(Fine(), StopsAfterOne(outcome()), *thrice).log.results()
    assert [(r.finding.status, r.repetition) for r in results] == [(Status.PASS, 1)]


def test_follow_ups_are_limited_and_equal_endings_reported_once() -> None:
    class Endless(Odd):
        def again(self, failed: ProbeOutcome) -> Iterable[Probe]:
            yield Probe("more", {"a": role})

    log = run(Endless(), outcome(Ending.HUNG)).log
    assert log.probes_run == MAX_FOLLOW_UPS + 1
    first, last, left_out = log.results()
    assert (first.probe, last.probe) == ("", "more")
    assert (
        sentences.summary(left_out.finding) == "1 follow-up probes were not run, because 40 had already run"
    )


def test_probes_with_equal_endings_are_each_reported() -> None:
    """Two variants of one check on one subject, like messages on a node and between nodes."""

    class Mapping(Odd):
        def again(self, failed: ProbeOutcome) -> Iterable[Probe]:
            if not failed.probe.endswith("the rest"):
                yield Probe(f"{failed.probe}, the rest", {"a": role})

    class NamesIt(Session):
        def run(self, check: object, file: object, probe: Probe, **__: object) -> ProbeOutcome:
            return replace(outcome(Ending.HUNG), probe=probe.name)

    ways = (
        planned(Mapping(), number=101, probe=Probe("near", {"a": role})),
        planned(Mapping(), number=102, probe=Probe("far", {"a": role})),
        planned(Mapping(), number=103, probe=Probe("far", {"a": role}), repetition=2),
    )
    told = {
        (result.probe, result.repetition)
        for result in run(Mapping(), NamesIt(outcome()), *ways).log.results()
    }
    assert told > {("near", 1), ("far", 1), ("far", 2)}


def test_mistake_in_follow_ups_is_an_error() -> None:
    class Failing(Odd):
        def again(self, failed: ProbeOutcome) -> Iterable[Probe]:
            raise KeyError("cell")

    statuses = [result.finding.status for result in run(Failing(), outcome(Ending.HUNG)).log.results()]
    assert sorted(statuses, key=lambda status: status.severity) == [Status.ERROR, Status.FAIL]


class Clock(Session):
    """Records the time limit of each probe."""

    def __init__(self, ends: ProbeOutcome) -> None:
        super().__init__(ends)
        self.untils: list[float] = []

    def run(self, *_: object, **how: Any) -> ProbeOutcome:
        self.untils.append(how["until"])
        return outcome()


@pytest.mark.parametrize(
    ("launch", "share"), [(None, 1.0), (Launch(("mpiexec",)), 1 - RERUN_BUDGET_FRACTION)]
)
def test_share_of_the_budget_is_reserved_for_reruns_of_ranks(launch: Launch | None, share: float) -> None:
    session: Any = Clock(outcome())
    now = time.monotonic()
    schedule = Schedule(session, Silent(), until=now + 1000)
    run = Run(Planner(Request(), SiteConfig()), session, session, schedule, ResultLog(), session, Future())
    run.log.announce(CheckInfo("odd", "odd", Tier.ACCEPTANCE))
    of_ranks = planned(Odd(), probe=replace(PROBE, launch=launch))
    run.execute(Plan((), (of_ranks,), ()), [])
    schedule.run_one(of_ranks)
    first, again = session.untils
    assert first == pytest.approx(now + 1000 * share, abs=60)
    assert again == now + 1000


def test_loaded_libraries_are_collected_from_all_ranks() -> None:
    log = ResultLog()
    assert log.loaded_in_ranks() is None
    roles = {name: RoleOutcome(name, Ending.COMPLETED, loaded=[name]) for name in ("a", "b")}
    ranks = replace(outcome(), roles=roles)
    log.keep(planned(Odd()), ranks, [])
    assert log.loaded_in_ranks() is None  # no launcher started it
    log.keep(planned(Odd(), number=2, probe=replace(PROBE, launch=Launch(("mpiexec",)))), ranks, [])
    assert log.loaded_in_ranks() == frozenset({"a", "b"})


RULE = "-" * 74


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (["sh: 1: mpiexec: not found"], "sh: 1: mpiexec: not found"),
        ([RULE, "The listener thread failed to start. We cannot", "continue.", RULE],
         "The listener thread failed to start. We cannot continue."),
        ([RULE, "There are not enough slots:", "", "Either request fewer, or …", RULE, "[n1] more"],
         "There are not enough slots:"),
        ([RULE, "first", RULE, RULE, "second", RULE], "second"),
        (["gpuipc-doctor: n2 does not see it", RULE, "A process has died.", RULE], "n2 does not see it"),
        ([RULE], "it printed nothing"),
    ],
    ids=["last words", "banner", "banner of paragraphs", "two banners", "our own", "nothing"],
)  # fmt: skip
def test_worker_that_did_not_start_is_explained(log: list[str], said: str) -> None:
    roles = {"rank 0": RoleOutcome("rank 0", Ending.NOT_STARTED, log_tail=tuple(log))}
    finding = blame.conclude(ProbeOutcome("", (), {}, roles, "rank 0", 0.1))
    assert sentences.summary(finding) == f"rank 0: the worker did not start: {said}"


@pytest.mark.parametrize(
    ("found", "lost", "keys"),
    [
        (Finding.ok("right", "it is right"), 8 << 20, ["unexplained-change", "right"]),
        (Finding.fail("not-returned", "memory was lost"), 8 << 20, ["not-returned"]),
        (Finding.ok("right", "it is right"), "it changes by itself", ["not-compared", "right"]),
        (
            Finding.fail("not-returned", "memory was lost"),
            "it changes by itself",
            ["not-compared", "not-returned"],
        ),
    ],
)
def test_memory_that_no_process_holds_is_unexplained_only_if_no_probe_found_anything(
    found: Finding, lost: int | str, keys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Finds(Odd):
        def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
            return [found]

    device = gpu(0)
    probe = planned(Finds(), probe=Probe("", {"a": role}, (device,)))
    ran = run(Finds(), outcome(), probe)
    ran.schedule.lost[device] = (lost, [probe])
    monkeypatch.setattr(ran.schedule, "run", lambda *_, **__: None)
    ran.execute(Plan((), (), ()), [])
    assert [result.finding.key for result in ran.log.results()] == keys
