"""Reruns with debug logs after a hang or crash: one for each kind, and the evidence it adds."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuipc_doctor.api import Check, Finding, Probe, ProbeOutcome, loader
from gpuipc_doctor.model import Evidence, EvidenceKind, Status, Tier
from gpuipc_doctor.probe_types import Ending, Launch, RoleOutcome
from gpuipc_doctor.report import sentences
from gpuipc_doctor.report_types import CheckInfo
from gpuipc_doctor.run import reruns
from gpuipc_doctor.run.conclusions import NotRun
from gpuipc_doctor.run.planner import PlannedProbe, Planner
from gpuipc_doctor.run.request import Request
from gpuipc_doctor.run.results import ResultLog
from gpuipc_doctor.site.config import SiteConfig

FILE = Path(__file__).parents[2] / "fixtures" / "ranks.py"
CHECK: Any = loader.module(FILE).CHECK  # type: ignore[attr-defined]
LOUDER = {"FI_LOG_LEVEL": "info", "UCX_LOG_LEVEL": "info"}
AGAIN = "Rerun with FI_LOG_LEVEL=info UCX_LOG_LEVEL=info: "


def outcome(*log: str, call: str = "MPI_Recv", ending: Ending = Ending.HUNG) -> ProbeOutcome:
    roles = {
        "rank 0": RoleOutcome("rank 0", Ending.STOPPED, log_tail=("rank 0 is fine",)),
        "rank 1": RoleOutcome("rank 1", ending, operation=call, log_tail=log),
    }
    blamed = None if ending is Ending.COMPLETED else "rank 1"
    return ProbeOutcome("", (), {}, roles, blamed, 1.0, deadline_s=10.0)


class Stage:
    """A stand-in for the schedule: returns an answer instead of running, and records the environment."""

    def __init__(self, answer: ProbeOutcome | NotRun) -> None:
        self.answer = answer
        self.launches: list[Launch] = []

    def run_one(self, planned: PlannedProbe) -> ProbeOutcome | NotRun:
        assert planned.probe.launch is not None
        self.launches.append(planned.probe.launch)
        return self.answer


def heard(answer: ProbeOutcome | NotRun, *failed: ProbeOutcome) -> tuple[Stage, list[tuple[Evidence, ...]]]:
    """The schedule after `rerun_with_logs`, and each failure's evidence."""
    log, stage = ResultLog(), Stage(answer)
    probe = Probe("", {}, launch=Launch(("mpiexec",), {"FI_LOG_LEVEL": "warn"}))
    log.announce(CheckInfo(CHECK.id, "ranks", Tier.ACCEPTANCE))
    for number, one in enumerate(failed):
        log.keep(PlannedProbe(number, CHECK, FILE, probe), one, [Finding.fail("failed", "it failed")])
    schedule: Any = stage
    reruns.rerun_with_logs(log, schedule, Planner(Request(), SiteConfig()), LOUDER)
    return stage, [result.finding.evidence for result in log.results()]


BUDGET = NotRun(Finding.skip("budget", "budget; run it alone"), "budget")
QUIET = "libfabric:7:1::core: a line at 0x10"


@pytest.mark.parametrize(
    ("answer", "evidence"),
    [
        (
            outcome(QUIET, "why it failed", "more, of no weight"),
            (f"{AGAIN}same failure, new log lines:", "rank 1: why it failed"),
        ),
        (
            outcome("inserting an address"),
            (f"{AGAIN}same failure, new log lines:", "rank 1: inserting an address"),
        ),
        (outcome(QUIET), (f"{AGAIN}same failure, no new log lines",)),
        (outcome(ending=Ending.COMPLETED), (f"{AGAIN}passed this time",)),
        (outcome(call="MPI_Send"), (f"{AGAIN}rank 1: MPI_Send #0 hung (10 s)",)),
        (
            BUDGET,
            ("Not rerun with FI_LOG_LEVEL=info UCX_LOG_LEVEL=info: budget; run it alone",),
        ),
    ],
)
def test_evidence_of_the_rerun(answer: ProbeOutcome | NotRun, evidence: tuple[str, ...]) -> None:
    stage, [told] = heard(answer, outcome(QUIET))
    assert tuple(map(sentences.line, told)) == evidence
    assert {item.kind for item in told} == {EvidenceKind.RERUN}
    assert told[0].values["env"] == LOUDER
    assert [launch.env for launch in stage.launches] == [LOUDER]


def test_each_kind_of_failure_is_rerun_once() -> None:
    failures = outcome("a"), outcome("b"), outcome("c", call="MPI_Waitall")
    stage, evidence = heard(BUDGET, *failures)
    assert len(stage.launches) == 2
    assert [bool(lines) for lines in evidence] == [True, False, True]


def test_log_lines_of_the_first_run_are_not_repeated() -> None:
    _, [told] = heard(outcome("error: no", "an address"), outcome("error: no"))
    assert tuple(map(sentences.line, told)) == (f"{AGAIN}same failure, no new log lines",)


def ended_by(signal: str, ending: Ending) -> ProbeOutcome:
    roles = {"rank 1": RoleOutcome("rank 1", ending, operation="MPI_Recv", signal=signal)}
    return ProbeOutcome("", (), {}, roles, "rank 1", 1.0)


def test_signal_that_ended_a_hang_does_not_change_its_kind() -> None:
    planned = PlannedProbe(0, CHECK, FILE, Probe("", {}))
    hung = {reruns.kind_of(planned, ended_by(signal, Ending.HUNG)) for signal in ("SIGTERM", "SIGKILL")}
    crashed = {reruns.kind_of(planned, ended_by(signal, Ending.CRASHED)) for signal in ("SIGSEGV", "SIGABRT")}
    assert (len(hung), len(crashed)) == (1, 2)


@pytest.mark.parametrize(
    ("answer", "load", "status"),
    [
        (outcome(ending=Ending.COMPLETED), 64.0, Status.WARN),
        (outcome(ending=Ending.COMPLETED), 1.0, Status.FAIL),
        (outcome(), 64.0, Status.FAIL),  # it hung again
        (BUDGET, 64.0, Status.FAIL),
    ],
)
def test_hang_of_an_overloaded_node_that_does_not_recur_is_a_warning(
    answer: ProbeOutcome | NotRun, load: float, status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reruns.os, "getloadavg", lambda: (load, load, load))
    monkeypatch.setattr(reruns.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(reruns.os, "sched_getaffinity", lambda _: {0})  # of the job
    log, stage = ResultLog(), Stage(answer)
    schedule: Any = stage
    log.announce(CheckInfo(CHECK.id, "ranks", Tier.ACCEPTANCE))
    planned = PlannedProbe(0, CHECK, FILE, Probe("", {}, launch=Launch(("mpiexec",), {})))
    log.keep(planned, outcome(), [Finding.fail("hung", "MPI_Recv hung")])
    reruns.rerun_with_logs(log, schedule, Planner(Request(), SiteConfig()), LOUDER)
    (result,) = log.results()
    assert result.finding.status is status
    assert "MPI_Recv hung" in sentences.summary(result.finding) + "".join(sentences.evidence(result.finding))


class Slow(Check):
    id, title = "slow", "a measurement"
    disturbed = frozenset({"slow-pair"})

    def probes(self, ctx: Any) -> list[Probe]:
        return []

    def judge(self, done: ProbeOutcome) -> list[Finding]:
        return measured(done.probe)


def measured(said: str) -> list[Finding]:
    """``1-2 120 wrong``: this pair, its GB/s, and whether data were wrong too."""
    if not said:
        return [Finding.ok("measured", "200 GB/s")]
    pair, rate, *wrong = said.split()
    slow = Finding.warn("slow-pair", "{slow}: {rate} GB/s", remedy="reseat", slow=[pair], rate=int(rate))
    return [*(Finding.fail("wrong", "wrong data") for _ in wrong), slow]


def done(said: str) -> ProbeOutcome:
    return ProbeOutcome(said, (), {}, {}, None, 1.0)


IDLE = "rerun on an idle node; if it stays slow"


@pytest.mark.parametrize(
    ("first", "answer", "load", "found"),
    [
        ("1-2 120", done(""), 1.0, ["PASS 200 GB/s|measured before: 1-2: 120 GB/s|"]),
        ("1-2 120", done("1-2 119"), 1.0, ["WARN 1-2: 120 GB/s|measured again: 1-2: 119 GB/s|reseat"]),
        (
            "1-2 120",
            done("1-2 119"),
            64.0,
            [f"WARN 1-2: 120 GB/s|measured again: 1-2: 119 GB/s|{IDLE}, reseat"],
        ),
        (
            "1-2 120",
            done("0-3 119"),
            1.0,
            [f"WARN 1-2: 120 GB/s|measured again: 0-3: 119 GB/s|{IDLE}, reseat"],
        ),
        ("1-2 120", BUDGET, 1.0, ["WARN 1-2: 120 GB/s|not measured again: budget; run it alone|reseat"]),
        ("1-2 120 wrong", done(""), 1.0, ["FAIL wrong data||"]),  # wrong data are no measurement
        ("", done("1-2 120"), 1.0, ["PASS 200 GB/s||"]),  # nothing to make again
    ],
)
def test_measurement_that_warns_is_made_again(
    first: str,
    answer: ProbeOutcome | NotRun,
    load: float,
    found: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reruns.os, "getloadavg", lambda: (load, load, load))
    monkeypatch.setattr(reruns.os, "cpu_count", lambda: 4)
    log = ResultLog()
    log.announce(CheckInfo("slow", "", Tier.ACCEPTANCE))
    log.keep(PlannedProbe(0, Slow(), FILE, Probe(first, {})), done(first), measured(first))
    schedule: Any = SimpleNamespace(run_one=lambda planned: answer)
    reruns.measure_again(log, schedule, Planner(Request(), SiteConfig()))
    said = [
        f"{each.status.value} {sentences.summary(each)}|{'; '.join(sentences.evidence(each))}|{each.remedy}"
        for each in (result.finding for result in log.results())
    ]
    assert said == found


DIAG = "[17.2] [n1:4] rdmacm_cm.c:953  UCX  DIAG  rdma_create_event_channel failed: No such device"
ERROR = "[17.2] [n1:4] mm_iface.c:817  UCX  ERROR failed to allocate"


@pytest.mark.parametrize(
    ("others", "own", "lines"),
    [
        ((ERROR,), (ERROR.replace("4", "5"),), [f"rank 0: {ERROR} ×2"]),
        ((DIAG,), (DIAG.replace("4", "5"), ERROR), [f"rank 1: {ERROR}"]),
        ((), (DIAG,), [f"rank 1: {DIAG}"]),
        ((), ("=   KILLED BY SIGNAL: 9 (Killed)", ERROR), [f"rank 1: {ERROR}"]),
        ((), ("I_MPI_DEBUG=6",), []),
    ],
)
def test_line_of_a_crash_is_evidence_if_it_is_its_own(
    others: tuple[str, ...], own: tuple[str, ...], lines: list[str]
) -> None:
    """Ranks that crashed: the innocent one's lines, and those of rank 1, which is blamed."""
    roles = {
        "rank 0": RoleOutcome("rank 0", Ending.PEER_LOST, log_tail=others),
        "rank 1": RoleOutcome("rank 1", Ending.CRASHED, operation="MPI_Recv", signal="SIGSEGV", log_tail=own),
    }
    crashed = ProbeOutcome("", (), {}, roles, "rank 1", 1.0)
    _, [told] = heard(crashed, outcome(ending=Ending.CRASHED))
    assert [sentences.line(item) for item in told[1:]] == lines
