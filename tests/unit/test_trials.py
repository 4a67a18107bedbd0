"""Workarounds are told as what they were seen to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuipc_doctor import trials
from gpuipc_doctor.api import Check, Context, Finding, Probe, ProbeOutcome
from gpuipc_doctor.knownissues import KnownIssue
from gpuipc_doctor.knownissues import Workaround as Remedy
from gpuipc_doctor.knownissues.versions import Range
from gpuipc_doctor.model import (
    Ending,
    Fact,
    Join,
    Json,
    Launch,
    Relation,
    Result,
    RoleOutcome,
    Status,
    Workaround,
)
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
    roles = tuple(runner.failed[0][1].roles.values())
    runner.results = [Result("leaky", Finding.fail("leaks", "by 52 MiB"), roles=roles)]
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
    trials.try_all(runner, lambda _: [Workaround({"X": "1"}, "slow")])
    [result] = runner.results
    assert result.finding.status is Status.FAIL
    assert result.finding.evidence == ("by 52 MiB", says)


def test_a_failure_that_no_launcher_started_is_left_alone(runner: Rehearsal) -> None:
    planned = PlannedProbe(Leaky(), Path(__file__), Probe("", {}))
    runner.failed = [(planned, outcome(leaks=True))]
    trials.try_all(runner, lambda _: [Workaround({"X": "1"}, "slow")])
    assert runner.results[0].finding.evidence == ("by 52 MiB",)


def issue(*workarounds: Remedy) -> KnownIssue:
    return KnownIssue("x", "x", "mpich", "leak", "open", "it leaks", (), workarounds=workarounds)


def tried(
    runner: Rehearsal, known: KnownIssue, relation: Relation, *built_in: Workaround
) -> list[tuple[dict[str, str], str]]:
    """The settings that are candidates where the issue is found in this relation, and what they cost."""
    join = Join("x", "x", relation, "", checks=("leaky",), subjects=("node",))
    facts = [Fact("mpich", "4.3.2", "here")]
    of = trials.candidates([known], [join], facts, built_in)
    [failure] = trials.first_failures(runner)
    return [(dict(one.env), one.cost) for one in of(failure)]


def test_what_a_known_issue_that_shows_offers_comes_first_and_nothing_twice(runner: Rehearsal) -> None:
    known = issue(Remedy("a", {"A": "1"}, cost="dear"), Remedy("downgrade"))
    built_in = Workaround({"B": "1"}, ""), Workaround({"A": "1"}, "cheap")
    assert tried(runner, known, Relation.UNKNOWN, *built_in) == [({"A": "1"}, "dear"), ({"B": "1"}, "")]
    assert tried(runner, known, Relation.LATENT, *built_in) == [({"B": "1"}, ""), ({"A": "1"}, "cheap")]


def test_only_what_is_right_for_the_version_is_tried(runner: Rehearsal) -> None:
    number = Remedy("a", {"A": "0"}, Range("mpich", "3.4", fixed="4.2.0"))
    word = Remedy("a", {"A": "disabled"}, Range("mpich", "4.2.0"))
    assert tried(runner, issue(number, word), Relation.CONFIRMED) == [({"A": "disabled"}, "")]


def test_neither_what_is_set_nor_what_takes_gpus_away_is_tried(
    runner: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A", "1")
    known = issue(Remedy("a", {"A": "1"}), Remedy("b", {"MPICH_GPU_SUPPORT_ENABLED": "0"}))
    assert tried(runner, known, Relation.CONFIRMED) == []
