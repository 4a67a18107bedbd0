"""Workarounds are told as what they were seen to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuipc_doctor import trials
from gpuipc_doctor.api import Check, Context, Finding, Probe, ProbeOutcome
from gpuipc_doctor.model import Ending, Json, Launch, Result, RoleOutcome, Status, Workaround
from gpuipc_doctor.plan import PlannedProbe
from gpuipc_doctor.runner import Runner


class Leaky(Check):
    id = "leaky"
    title = "leaky"

    def probes(self, ctx: Context) -> Iterable[Probe]:
        return []

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        yield Finding.fail("leaks") if done.records["rank 0"]["leaks"] else Finding.ok("fine")


def outcome(ending: Ending = Ending.COMPLETED, **records: Json) -> ProbeOutcome:
    role = RoleOutcome("rank 0", ending, operation="MPI_Init_thread", signal="SIGABRT", records=records)
    blamed = None if ending is Ending.COMPLETED else "rank 0"
    return ProbeOutcome("", (), {}, {"rank 0": role}, blamed, 1.0)


class Rehearsal(Runner):
    """Answers instead of running, by the value of the variable X."""

    answers: dict[str, ProbeOutcome | str]

    def rehearse(self, planned: PlannedProbe) -> ProbeOutcome | str:
        assert planned.probe.launch is not None
        return self.answers[planned.probe.launch.env["X"]]


@pytest.fixture
def runner() -> Rehearsal:
    nothing: Any = None
    runner = Rehearsal(nothing, nothing, until=0.0)
    launch = Launch(("mpiexec", "-n", "{ranks}"), {"X": "unset", "Y": "1"})
    planned = PlannedProbe(Leaky(), Path(__file__), Probe("", {}, launch=launch))
    runner.failed = [(planned, outcome(leaks=True, price=(40.0, "GB/s")))]
    runner.results = [Result("leaky", Finding.fail("leaks", "by 52 MiB"))]
    return runner


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (outcome(leaks=False, price=(10.0, "GB/s")), "Tried X=1: helps, 40.0 to 10.0 GB/s (slow)"),
        (outcome(leaks=False), "Tried X=1: helps (slow)"),
        (outcome(leaks=True), "Tried X=1: does not help (slow)"),
        (
            outcome(Ending.CRASHED),
            "Tried X=1: makes it worse: rank 0: MPI_Init_thread #0 ended the process by SIGABRT (slow)",
        ),
        ("budget; run it alone", "Not tried: X=1 (budget; run it alone)"),
        (
            replace(outcome(), stopped="budget"),
            "Tried X=1: not known to help: budget: the run's time was up while this probe ran (slow)",
        ),
    ],
)
def test_what_became_of_a_workaround(runner: Rehearsal, answer: ProbeOutcome | str, says: str) -> None:
    runner.answers = {"1": answer}
    trials.try_all(runner, [Workaround({"X": "1"}, "slow")])
    [result] = runner.results
    assert result.finding.status is Status.FAIL
    assert result.finding.evidence == ("by 52 MiB", says)


def test_a_failure_that_no_launcher_started_is_left_alone(runner: Rehearsal) -> None:
    planned = PlannedProbe(Leaky(), Path(__file__), Probe("", {}))
    runner.failed = [(planned, outcome(leaks=True))]
    trials.try_all(runner, [Workaround({"X": "1"}, "slow")])
    assert runner.results[0].finding.evidence == ("by 52 MiB",)
