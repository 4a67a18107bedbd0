"""What the check ipc-histories plans, and concludes from what its roles recorded."""

from __future__ import annotations

from dataclasses import replace

from gpuipc_doctor.api import Context, Finding, Json
from gpuipc_doctor.histories import results
from gpuipc_doctor.histories.explore import Explored
from gpuipc_doctor.histories.operations import Disagreement, History, Operation, ProcessPlan
from gpuipc_doctor.model import Probe, Status
from tests.checks.judging import MIB, check, conclude, gpu, ledger, plan

REOPEN = History(
    "cuda",
    {1: ProcessPlan(), 2: ProcessPlan(primary=False)},
    (
        Operation("allocate", 1, makes=1, nbytes=4096),
        Operation("open", 2, on=1, makes=2),
        Operation("end-context", 2),
        Operation("open", 2, on=1, makes=3),
    ),
)
REFUSED = Disagreement(
    3, "error", "open", "CUDA_ERROR_INVALID_HANDLE", "cuIpcOpenMemHandle", "it returned 400"
)
WELL = Explored(27, 1500, 1556, 10 * MIB, 7.3, {"open": 126})


def concluded(explored: Explored, missing: int = 0, left_out: Json = ()) -> list[Finding]:
    records = {
        "watch": ledger({"the program ended": missing}),
        "crew": {"explored": results.to_json(explored)},
    }
    return conclude("ipc-histories", records, left_out=left_out)


def test_pass_says_operations_and_bytes() -> None:
    (finding,) = concluded(WELL)
    assert finding.status is Status.PASS
    assert (finding.values["operations"], finding.values["compared"]) == (1556, 10 * MIB)


def test_shortfall_of_time_is_said() -> None:
    (finding,) = concluded(replace(WELL, operations=900))
    assert finding.status is Status.PASS
    assert "of {wanted}" in finding.says


def test_operations_left_out_are_named() -> None:
    (finding,) = concluded(WELL, left_out=["kill"])
    assert finding.evidence[-1].values["left_out"] == ["kill"]


def test_history_that_fails_again_is_a_failure_with_its_steps() -> None:
    (finding,) = concluded(replace(WELL, first=REFUSED, history=REOPEN, shortest=REOPEN, again=REFUSED))
    assert (finding.status, finding.key) == (Status.FAIL, "error")
    assert finding.values["steps"] == 4
    assert "3. process 2 destroys its context and creates another" in [item.says for item in finding.evidence]
    assert results.history_from_json(finding.values["history"]) == REOPEN


def test_history_that_does_not_fail_again_is_a_warning_with_the_whole_history() -> None:
    (finding,) = concluded(replace(WELL, first=REFUSED, history=REOPEN))
    assert (finding.status, finding.key) == (Status.WARN, "seen-once")
    assert results.history_from_json(finding.values["history"]) == REOPEN


def test_memory_that_the_crew_left_is_a_warning() -> None:
    assert [finding.key for finding in concluded(WELL, missing=38 * MIB)] == ["as-modelled", "not-returned"]


def test_devices_that_reach_each_other_go_two_by_two() -> None:
    devices = [
        replace(gpu(number), peers=frozenset({f"cuda:{number ^ 1}"} if number < 2 else ()))
        for number in range(3)
    ]
    probes = plan("ipc-histories", *devices)
    assert [probe.subject for probe in probes] == ["cuda:0 > cuda:1", "cuda:2"]
    assert all(probe.exclusive and probe.params["seed"] == 6 for probe in probes)


def test_harmful_operations_are_left_out() -> None:
    context = Context((gpu(0),), harmful=frozenset({"kills an importer"}))
    (probe,) = check("ipc-histories").probes(context)
    assert isinstance(probe, Probe)
    assert probe.params["left_out"] == ["kill"]


def test_history_of_more_devices_than_there_are_is_an_error() -> None:
    history = results.history_to_json(replace(REOPEN, processes={1: ProcessPlan(), 2: ProcessPlan(1)}))
    (finding,) = check("ipc-histories").probes(Context((gpu(0),), options={"history": history}))
    assert isinstance(finding, Finding)
    assert finding.status is Status.ERROR
