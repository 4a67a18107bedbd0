"""What a check's own mistakes come to, and what follows a probe that did not complete."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from gpuipc_doctor import loader, verdict
from gpuipc_doctor.api import Check, Context, Finding, Probe, ProbeOutcome
from gpuipc_doctor.cli.progress import Silent
from gpuipc_doctor.model import Ending, RoleOutcome, Status
from gpuipc_doctor.plan import Plan, PlannedProbe
from gpuipc_doctor.runner import MAX_FOLLOW_UPS, Runner, judge

FILE = Path(__file__).parent.parent / "fixtures" / "misbehaving.py"

role = loader.role(FILE, "completes")


class Odd(Check):
    id = "odd"
    title = "odd"

    def probes(self, ctx: Context) -> Iterable[Probe]:
        return []


def outcome(ending: Ending = Ending.COMPLETED) -> ProbeOutcome:
    roles = {"a": RoleOutcome("a", ending, operation="pause")}
    return ProbeOutcome("", (), {}, roles, None if ending is Ending.COMPLETED else "a", 0.1)


class Session:
    """Stands in for the supervisor: every probe ends as it is told."""

    unkillable = ""

    def __init__(self, ends: ProbeOutcome | Exception) -> None:
        self.ends = ends

    def run(self, *_: object, **__: object) -> ProbeOutcome:
        if isinstance(self.ends, Exception):
            raise self.ends
        return self.ends


def run(check: Check, ends: ProbeOutcome | Exception) -> Runner:
    session: Any = Session(ends)
    runner = Runner(session, Silent(), until=float("inf"))
    runner.execute(Plan((), (PlannedProbe(check, FILE, Probe("", {"a": role})),), ()), jobs=1)
    return runner


@pytest.mark.parametrize("mistake", [KeyError("x"), SystemExit(0)])
def test_a_judge_that_fails_is_an_error(mistake: BaseException) -> None:
    class Failing(Odd):
        def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
            raise mistake

    [finding] = judge(PlannedProbe(Failing(), FILE, Probe("", {})), outcome())
    assert finding.status is Status.ERROR
    assert type(mistake).__name__ in finding.summary


@pytest.mark.parametrize("said", [[], ["fine"], [None]])
def test_a_judge_that_says_nothing_of_use_is_an_error(said: list[Any]) -> None:
    class Mumbling(Odd):
        def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
            return said

    [finding] = judge(PlannedProbe(Mumbling(), FILE, Probe("", {})), outcome())
    assert finding.status is Status.ERROR


def test_a_probe_that_cannot_be_started_is_an_error() -> None:
    [result] = run(Odd(), OSError(28, "No space left on device")).results
    assert result.finding.status is Status.ERROR
    assert "No space left on device" in result.finding.summary


def test_a_repetition_that_is_skipped_takes_nothing_back() -> None:
    class Fine(Odd):
        def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
            yield Finding.ok("fine")

    class StopsAfterOne(Session):
        def run(self, *_: object, **__: object) -> ProbeOutcome:
            runner.until = 0.0
            return outcome()

    session: Any = StopsAfterOne(outcome())
    runner = Runner(session, Silent(), until=float("inf"))
    planned = PlannedProbe(Fine(), FILE, Probe("", {"a": role}))
    runner.execute(Plan((), (planned,), ()).repeated(3), jobs=1)
    assert [(r.finding.status, r.repetition) for r in runner.results] == [(Status.PASS, 1)]


def test_what_follows_up_is_bounded_and_one_ending_is_told_once() -> None:
    class Endless(Odd):
        def again(self, failed: ProbeOutcome) -> Iterable[Probe]:
            yield Probe("more", {"a": role})

    runner = run(Endless(), outcome(Ending.HUNG))
    assert runner.probes_run == MAX_FOLLOW_UPS + 1
    first, left_out, last = runner.results
    assert (first.probe, last.probe) == ("", "more")
    assert left_out.finding == Finding.skip("40 probes have followed others: 1 more left out")


def test_a_mistake_in_what_follows_up_is_an_error() -> None:
    class Failing(Odd):
        def again(self, failed: ProbeOutcome) -> Iterable[Probe]:
            raise KeyError("cell")

    statuses = [result.finding.status for result in run(Failing(), outcome(Ending.HUNG)).results]
    assert sorted(statuses, key=lambda status: status.severity) == [Status.ERROR, Status.FAIL]


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
        ([RULE], "it left no word"),
    ],
    ids=["last words", "banner", "banner of paragraphs", "two banners", "our own", "nothing"],
)  # fmt: skip
def test_a_worker_that_did_not_start_is_told_of_in_words(log: list[str], said: str) -> None:
    roles = {"rank 0": RoleOutcome("rank 0", Ending.NOT_STARTED, log_tail=tuple(log))}
    finding = verdict.conclude(ProbeOutcome("", (), {}, roles, "rank 0", 0.1))
    assert finding.summary == f"rank 0: the worker did not start: {said}"
