"""Tried workarounds are reported with their observed effect."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuipc_doctor.api import Check, Context, Finding, Probe, ProbeOutcome
from gpuipc_doctor.knownissues import KnownIssue
from gpuipc_doctor.knownissues import Workaround as Remedy
from gpuipc_doctor.model import Device, EvidenceKind, Fact, Json, Status, Tier, Trial
from gpuipc_doctor.probe_types import Calls, Ending, Launch, RoleOutcome, Workaround
from gpuipc_doctor.report import sentences
from gpuipc_doctor.report_types import CheckInfo, Join, Relation
from gpuipc_doctor.run import causes, workarounds
from gpuipc_doctor.run.conclusions import NotRun
from gpuipc_doctor.run.planner import PlannedProbe, Planner
from gpuipc_doctor.run.request import Request
from gpuipc_doctor.run.results import ResultLog
from gpuipc_doctor.site.config import SiteConfig


class Leaky(Check):
    id = "leaky"
    title = "leaky"
    needs_mpi = True
    curable_warnings = frozenset({"keeps"})

    def probes(self, ctx: Context) -> Iterable[Probe]:
        return []

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        found = {True: LEAKS, "a little": KEEPS, False: Finding.ok("fine", "fine")}
        yield found[done.records["rank 0"]["leaks"]]


def outcome(
    ending: Ending = Ending.COMPLETED, price: tuple[float, str] | None = None, **records: Json
) -> ProbeOutcome:
    how = {"operation": "MPI_Init_thread", "signal": "SIGABRT"}
    role = RoleOutcome("rank 0", ending, **how, records=records, price=price)
    blamed = None if ending is Ending.COMPLETED else "rank 0"
    return ProbeOutcome("", (), {}, {"rank 0": role}, blamed, 1.0)


class Stage:
    """A stand-in for the schedule: returns the answer for the value of variable X instead of running."""

    def __init__(self, answers: dict[str, ProbeOutcome | NotRun]) -> None:
        self.answers = answers
        self.tried: list[tuple[str, str]] = []
        """(subject, value of X) of each run."""

    def run_one(self, planned: PlannedProbe) -> ProbeOutcome | NotRun:
        x = (planned.probe.launch or planned.probe).env["X"]
        self.tried.append((planned.probe.subject, x))
        return self.answers[x]


LAUNCH = Launch(("mpiexec", "-n", "{ranks}"), {"X": "unset", "Y": "1"})
LEAKS = Finding.fail("leaks", "leaks", "by 52 MiB")
KEEPS = Finding.warn("keeps", "keeps 16 buffers")


def failed(*devices: Device, launch: Launch | None = LAUNCH, finding: Finding = LEAKS) -> ResultLog:
    """The results of a probe that failed on each of the devices, or on the node."""
    log = ResultLog()
    log.announce(CheckInfo("leaky", "leaky", Tier.ACCEPTANCE))
    for number, on in enumerate([(device,) for device in devices] or [()]):
        planned = PlannedProbe(number, Leaky(), Path(__file__), Probe("", {}, on, launch=launch))
        log.keep(planned, outcome(leaks=True, price=(40.0, "GB/s")), [finding])
    return log


def after(log: ResultLog, stage: Stage, *offered: Workaround) -> list[Finding]:
    """The findings after these workarounds were tried."""
    schedule: Any = stage
    workarounds.try_all(log, schedule, Planner(Request(), SiteConfig()), lambda _: offered)
    return [result.finding for result in log.results()]


def test_nothing_is_tried_twice() -> None:
    log, stage = failed(), Stage({"1": outcome(leaks=True), "2": outcome(leaks=False)})
    first, second = Workaround({"X": "1"}, "slow"), Workaround({"X": "2"}, "slow")
    after(log, stage, first)
    [finding] = after(log, stage, second, first)
    assert stage.tried == [("node", "1"), ("node", "2")]
    assert [str(item.values["outcome"]) for item in finding.evidence[1:]] == ["does not help", "helps"]


@pytest.mark.parametrize(
    ("answer", "says", "outcome"),
    [
        (
            outcome(leaks=False, price=(10.0, "GB/s")),
            "Tried X=1: helps, 40.0 to 10.0 GB/s (slow)",
            Trial.HELPS,
        ),
        (outcome(leaks=False), "Tried X=1: helps (slow)", Trial.HELPS),
        (outcome(leaks=True), "Tried X=1: does not help (slow)", Trial.DOES_NOT_HELP),
        (
            outcome(Ending.CRASHED),
            "Tried X=1: makes it worse: rank 0: MPI_Init_thread #0 ended the process by SIGABRT (slow)",
            Trial.WORSE,
        ),
        (
            NotRun(Finding.skip("budget", "budget; run it alone"), "budget"),
            "Not tried: X=1 (budget; run it alone)",
            Trial.NOT_TRIED,
        ),
        (
            replace(outcome(), stopped="budget"),
            "Tried X=1: cannot tell whether this helps: time budget exhausted while this probe ran (slow)",
            Trial.UNKNOWN,
        ),
    ],
)
def test_outcome_of_a_workaround(answer: ProbeOutcome | NotRun, says: str, outcome: Trial) -> None:
    [finding] = after(failed(), Stage({"1": answer}), Workaround({"X": "1"}, "slow"))
    assert finding.status is Status.FAIL
    assert sentences.evidence(finding) == ("by 52 MiB", says)
    trial = finding.evidence[-1]
    assert trial.kind is EvidenceKind.TRIAL
    assert (trial.values["env"], trial.values["outcome"]) == ({"X": "1"}, outcome.value)


@pytest.mark.parametrize(
    ("leaks", "after_fail", "after_warning"),
    [
        (False, Trial.HELPS, Trial.HELPS),
        ("a little", Trial.HELPS, Trial.DOES_NOT_HELP),
        (True, Trial.DOES_NOT_HELP, Trial.DOES_NOT_HELP),
    ],
)
def test_warning_is_cured_only_by_a_pass(leaks: Json, after_fail: Trial, after_warning: Trial) -> None:
    for finding, became in ((LEAKS, after_fail), (KEEPS, after_warning)):
        [found] = after(
            failed(finding=finding), Stage({"1": outcome(leaks=leaks)}), Workaround({"X": "1"}, "")
        )
        assert found.evidence[-1].values["outcome"] == became.value


def test_no_workaround_is_tried_on_another_warning() -> None:
    [found] = after(failed(finding=Finding.warn("slow", "slow")), Stage({}), Workaround({"X": "1"}, ""))
    assert found.evidence == ()


def test_probe_without_a_launcher_is_rerun_with_the_setting() -> None:
    stage = Stage({"1": outcome(leaks=False)})
    [finding] = after(failed(launch=None), stage, Workaround({"X": "1"}, "slow"))
    assert sentences.evidence(finding) == ("by 52 MiB", "Tried X=1: helps (slow)")


def test_no_workaround_is_tried_on_a_follow_up() -> None:
    """No workaround is tried on a follow-up probe: it is reported with the original failure."""
    stage, log = Stage({"1": outcome(leaks=False)}), failed()
    rest = PlannedProbe(9, Leaky(), Path(__file__), Probe("the rest", {}, launch=LAUNCH), follows=1)
    log.keep(rest, outcome(leaks=True), [Finding.fail("map", "some kinds of message failed")])
    after(log, stage, Workaround({"X": "1"}, ""))
    assert stage.tried == [("node", "1")]


def issue(*workarounds: Remedy) -> KnownIssue:
    return KnownIssue("x", "x", "mpich", "leak", "open", "it leaks", (), workarounds=workarounds)


def tried(
    known: KnownIssue, relation: Relation, *built_in: Workaround, launch: Launch | None = LAUNCH
) -> list[tuple[dict[str, str], str]]:
    """The candidate settings for an issue with this relation, and their cost."""
    log = failed(launch=launch)
    join = Join("x", "x", relation, "", findings=tuple(result.ref for result in log.results()))
    facts = [Fact("mpich", "4.3.2", "here")]
    of = workarounds.candidates([known], [join], facts, built_in)
    [failure] = workarounds.worth_trying(log)
    return [(dict(workaround.env), workaround.cost) for workaround in of(failure)]


def test_workarounds_of_an_issue_that_another_finding_of_the_probe_shows_are_not_tried() -> None:
    log = failed()
    [shown] = (result.ref for result in log.results())
    join = Join("x", "x", Relation.CONFIRMED, "", findings=(replace(shown, key="leaky.other"),))
    of = workarounds.candidates(
        [issue(Remedy("a", {"A": "1"}))], [join], [Fact("mpich", "4.3.2", "here")], []
    )
    assert [of(failure) for failure in workarounds.worth_trying(log)] == [[]]


def test_without_ranks_only_settings_of_the_driver_are_tried() -> None:
    """NCCL's settings do nothing in a process without NCCL, so "does not help" would be wrong."""
    known = issue(
        Remedy("a", {"NCCL_P2P_DISABLE": "1"}),
        Remedy("b", {"HSA_ENABLE_IPC_MODE_LEGACY": "1"}),
        Remedy("c", {"HSA_ENABLE_IPC_MODE_LEGACY": "0", "UCX_TLS": "tcp"}),
    )
    built_in = Workaround({"HIP_X": "1"}, "")
    offered = tried(known, Relation.CONFIRMED, built_in, launch=None)
    assert offered == [({"HSA_ENABLE_IPC_MODE_LEGACY": "1"}, "")]


@pytest.mark.parametrize(("made", "offered"), [("MPI_Init_thread", ["IPC"]), ("dlopen libmpi", [])])
def test_settings_of_messages_are_offered_after_mpi_init(made: str, offered: list[str]) -> None:
    log = ResultLog()
    log.announce(CheckInfo("leaky", "leaky", Tier.ACCEPTANCE))
    hung = outcome(Ending.HUNG)
    role = replace(hung.roles["rank 0"], calls=(Calls(made, 1, 0.1),))
    probe = Probe("", {}, launch=LAUNCH)
    kept = PlannedProbe(1, Leaky(), Path(__file__), probe)
    log.keep(kept, replace(hung, roles={"rank 0": role}), [Finding.fail("hung", "hung")])
    join = Join("x", "x", Relation.NEW, "", findings=tuple(result.ref for result in log.results()))
    facts, known = [Fact("mpich", "4.3.2", "here")], issue(Remedy("a", {"SIGNATURE": "1"}))
    of = workarounds.candidates([known], [join], facts, [Workaround({"IPC": "off"}, "")])
    [failure] = workarounds.worth_trying(log)
    assert [next(iter(workaround.env)) for workaround in of(failure)] == ["SIGNATURE", *offered]


def test_settings_already_set_or_hiding_gpus_are_not_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("A", "1")
    known = issue(Remedy("a", {"A": "1"}), Remedy("b", {"MPICH_GPU_SUPPORT_ENABLED": "0"}))
    assert tried(known, Relation.CONFIRMED) == []


class Transports(Leaky):
    workarounds = (
        Workaround({"X": "1"}, "by legacy IPC", part="CUMEM"),
        Workaround({"X": "2"}, "through the host", part="peer-to-peer"),
    )


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (False, False, ["it fails with CUMEM and works by legacy IPC"]),
        (True, False, ["it fails with peer-to-peer and works through the host"]),
        (True, True, ["it fails without each of CUMEM, peer-to-peer: suspect the library or a GPU"]),
        (True, None, []),
    ],
)
def test_part_at_fault_follows_from_a_checks_own_settings(first: Json, second: Json, says: list[str]) -> None:
    log = ResultLog()
    log.announce(CheckInfo("leaky", "leaky", Tier.ACCEPTANCE))
    planned = PlannedProbe(1, Transports(), Path(__file__), Probe("", {}, launch=LAUNCH))
    log.keep(planned, outcome(leaks=True), [LEAKS])
    skipped = NotRun(Finding.skip("budget", "budget"), "budget")
    stage = Stage({"1": outcome(leaks=first), "2": skipped if second is None else outcome(leaks=second)})
    [finding] = after(log, stage, *Transports.workarounds)
    [finding] = after(log, stage, *Transports.workarounds)  # nothing is tried twice
    causes.explain(log, {}, dict, {})
    [finding] = [result.finding for result in log.results()]
    controls = [item for item in finding.evidence if item.kind is EvidenceKind.CONTROL]
    assert [sentences.line(item) for item in controls] == says
