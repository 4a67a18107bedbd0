"""What a failure printed is looked up among known issues and messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpuipc_doctor import knownissues
from gpuipc_doctor.model import DriverFault, Evidence, EvidenceKind, Fact, Finding, Status, Tier
from gpuipc_doctor.probe_types import Ending, Launch, LauncherEnd, ProbeOutcome, RoleOutcome
from gpuipc_doctor.report import advice, node_content
from gpuipc_doctor.report_types import Report, Result
from gpuipc_doctor.run.causes import recognition
from gpuipc_doctor.run.results import Explanation, kind_of_failure
from gpuipc_doctor.supervise import blame

CRASHED = Finding.fail("crashed", "{role}: MPI_Init ended the process", role="rank 0")
ISSUES = knownissues.load()
DRIVER = (Fact("nvidia-driver", "580.95.05", "test"),)


def result(*log: str, finding: Finding = CRASHED, fault: DriverFault | None = None, on: int = 0) -> Result:
    role = RoleOutcome("rank 0", Ending.CRASHED, log_tail=log, fault=fault)
    return Result("mpi-start", finding, devices=(f"cuda:{on}",), roles=(role,))


def recognised(*results: Result, facts: Sequence[Fact] = DRIVER) -> list[Finding]:
    shown = recognition.recognise(results, (), facts, ISSUES)
    return [shown.get(kind_of_failure(each), Explanation()).beside(each.finding) for each in results]


def named(finding: Finding) -> list[tuple[str, str]]:
    return [
        (item.values["entry"], item.values["confidence"])
        for item in finding.evidence
        if item.kind is EvidenceKind.RECOGNISED
    ]


NOT_READY = DriverFault("cuInit", 802, "CUDA_ERROR_SYSTEM_NOT_READY")


@pytest.mark.parametrize("status", [Status.FAIL, Status.ERROR])
def test_known_issue_is_found_in_the_drivers_code(status: Status) -> None:
    [finding] = recognised(result(fault=NOT_READY, finding=replace(CRASHED, status=status)))
    assert named(finding)[0] == ("nvidia-fabric-manager-not-ready", "high")
    assert finding.remedy.startswith("run systemctl status nvidia-fabricmanager")
    assert ";" not in finding.remedy.partition(" on the host")[0], "the first remedy alone"


@pytest.mark.parametrize(
    ("line", "entry"),
    [
        ("MPIDU_Init_shm_init(197).......: unable to allocate shared memory", "mpich-shared-memory-fails"),
        ("PML ucx cannot be selected", "ompi-no-pml"),
        ("sock.c:513  UCX  ERROR bind(fd=17 addr=0.0.0.0:10001) failed: Address already in use",
         "ucx-listener-not-opened"),
    ],
)  # fmt: skip
def test_message_is_found_in_what_a_rank_printed(line: str, entry: str) -> None:
    [finding] = recognised(result("n1: starts", line))
    assert entry in dict(named(finding))
    assert finding.remedy


def test_message_is_found_in_what_a_launcher_printed() -> None:
    line = "There are not enough slots available in the system to satisfy the 2\nslots that were requested by"
    launch, ended = Launch(("mpiexec",)), LauncherEnd(1, 0.0, tuple(line.splitlines()))
    outcome = ProbeOutcome("", (), {}, {}, None, 1.0, launch=launch, launcher=ended)
    [finding] = blame.of_launcher(outcome)
    [finding] = recognised(Result("mpi-start", replace(finding, status=Status.FAIL)))
    assert "launcher-lacks-slots" in dict(named(finding))


@pytest.mark.parametrize("status", [Status.PASS, Status.WARN, Status.SKIP])
def test_what_did_not_fail_is_not_looked_up(status: Status) -> None:
    [finding] = recognised(result(fault=NOT_READY, finding=replace(CRASHED, status=status)))
    assert not named(finding)


def test_own_remedy_stays() -> None:
    [finding] = recognised(result(fault=NOT_READY, finding=replace(CRASHED, remedy="load the module")))
    assert named(finding)
    assert finding.remedy == "load the module"


def test_texts_are_judged_one_by_one() -> None:
    """What one failure printed explains no other failure, but all failures equal to it."""
    other = replace(CRASHED, key="exited")
    first, second, third = recognised(
        result(fault=NOT_READY), result("all is well", finding=other), result(on=1)
    )
    assert named(first) == named(third)
    assert not named(second)


def test_entry_of_a_version_that_is_not_affected_is_a_hint_only() -> None:
    fault = DriverFault("cuIpcOpenMemHandle", 400, "CUDA_ERROR_INVALID_HANDLE")
    for version, expected in (("460.32.03", "high"), ("450.102.04", "low")):
        [finding] = recognised(result(fault=fault), facts=(Fact("nvidia-driver", version, ""),))
        assert dict(named(finding)).get("nvidia-ipc-reopen", "low") == expected


def test_our_own_sentences_are_not_looked_up() -> None:
    cause = Evidence(EvidenceKind.CAUSE, "{name}", {"name": "CUDA_ERROR_SYSTEM_NOT_READY"})
    [finding] = recognised(result(finding=replace(CRASHED, evidence=(cause,))))
    assert not named(finding)


def screen(finding: Finding) -> str:
    return node_content.screen(
        Report("n1", "2026-11-27T00:00:00+01:00", 1.0, Tier.ACCEPTANCE, "1", (), (), (),
               (Result("mpi-start", finding),), probes_run=1)
    )  # fmt: skip


def test_bug_report_is_advised_only_if_nothing_explains_the_failure() -> None:
    to_whom = advice.REPORT_IT.split("{")[0]
    [known] = recognised(result(fault=NOT_READY))
    [unknown] = recognised(result("no such words anywhere"))
    assert to_whom not in screen(known)
    assert "nvidia-fabric-manager-not-ready" in screen(known)
    assert "(high confidence)" in screen(known)
    assert to_whom in screen(unknown)
