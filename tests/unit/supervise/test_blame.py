"""The finding for a call that ran out of memory depends on the free memory and on who holds the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuipc_doctor.model import Device, DriverFault, Status
from gpuipc_doctor.probe_types import Ending, Launch, LauncherEnd, ProbeOutcome, RoleOutcome
from gpuipc_doctor.report import sentences
from gpuipc_doctor.supervise import blame

GIB = 1 << 30


@pytest.mark.parametrize(
    ("memory", "status"),
    [
        ([], Status.ERROR),  # the driver does not report it
        ([[1 * GIB, 139 * GIB]], Status.ERROR),
        ([[34 * GIB, 139 * GIB]], Status.ERROR),
        ([[139 * GIB, 139 * GIB]], Status.FAIL),
        ([[139 * GIB, 139 * GIB], [1 * GIB, 139 * GIB]], Status.ERROR),
    ],
)
def test_out_of_memory_fails_only_if_far_more_is_free(memory: list[list[int]], status: Status) -> None:
    role = RoleOutcome(
        "importer",
        Ending.DRIVER_ERROR,
        operation="cuIpcOpenMemHandle",
        occurrence=1,
        fault=DriverFault("cuIpcOpenMemHandle", 2, "CUDA_ERROR_OUT_OF_MEMORY"),
        memory=memory,
    )
    finding = blame.conclude(ProbeOutcome("", (), {}, {"importer": role}, "importer", 1.0))
    assert finding.status is status
    if status is Status.FAIL:
        assert sentences.summary(finding) == (
            "importer: cuIpcOpenMemHandle #1 returned CUDA_ERROR_OUT_OF_MEMORY (2) with 142336 MiB of device "
            "memory free"
        )


@pytest.mark.parametrize(
    ("call", "error", "free", "status"),
    [
        ("cuDevicePrimaryCtxRetain", "CUDA_ERROR_UNKNOWN", [GIB >> 4], Status.ERROR),  # seen on an H200
        ("cuCtxCreate", "CUDA_ERROR_UNKNOWN", [139 * GIB, 0], Status.ERROR),
        ("cuDevicePrimaryCtxRetain", "CUDA_ERROR_UNKNOWN", [GIB], Status.FAIL),
        ("cuDevicePrimaryCtxRetain", "CUDA_ERROR_UNKNOWN", [], Status.FAIL),  # no figure
        ("cuDevicePrimaryCtxRetain", "CUDA_ERROR_ILLEGAL_ADDRESS", [0], Status.FAIL),
        ("cuIpcOpenMemHandle", "CUDA_ERROR_UNKNOWN", [0], Status.ERROR),
        ("cuIpcOpenMemHandle", "CUDA_ERROR_UNKNOWN", [GIB], Status.FAIL),
    ],
)
def test_context_that_has_no_room_is_no_fault_of_the_device(
    call: str, error: str, free: list[int], status: Status
) -> None:
    role = RoleOutcome(
        "exporter",
        Ending.DRIVER_ERROR,
        operation=call,
        occurrence=1,
        fault=DriverFault(call, 999, error),
        memory=[(each, 139 * GIB) for each in free],
    )
    assert blame.conclude(ProbeOutcome("", (), {}, {"exporter": role}, "exporter", 1.0)).status is status


@pytest.mark.parametrize(
    ("call", "free", "ours", "key"),
    [
        ("cuMemAlloc", [GIB >> 4], 0, "no-room"),
        ("cuMemAlloc", [GIB >> 4], 2 * GIB, "out-of-memory"),  # without this run, a test would have room
        ("cuMemAlloc", [2 * GIB], 0, "out-of-memory"),
        ("cuMemAlloc", [], 0, "out-of-memory"),
        ("cuDevicePrimaryCtxRetain", [], 0, "no-room"),  # no figures; not even a context has room
    ],
)
def test_gpu_without_room_for_any_test_is_told_from_one_that_a_test_filled(
    call: str, free: list[int], ours: int, key: str
) -> None:
    held = [{"pid": 1, "name": "", "held": ours, "whose": "perhaps of this test"}] * bool(ours)
    fault = DriverFault(call, 2, "CUDA_ERROR_OUT_OF_MEMORY")
    role = RoleOutcome(
        "exporter",
        Ending.DRIVER_ERROR,
        operation=call,
        fault=fault,
        memory=[(each, 139 * GIB) for each in free],
        holders=held,
    )
    device = Device("cuda", 0, "GPU-1", "", "", 139 * GIB)
    outcome = ProbeOutcome("", (device,), {}, {"exporter": role}, "exporter", 1.0)
    assert blame.conclude(outcome).key == key
    assert bool(blame.without_room(outcome)) == (key == "no-room")


VGPU = "cuda:0 is a vGPU (its name is …), which has no such feature"


@pytest.mark.parametrize(
    ("call", "error", "by_design", "lacking"),
    [
        ("cuIpcGetMemHandle", "CUDA_ERROR_NOT_SUPPORTED", VGPU, ["legacy-ipc"]),
        ("cuMemExportToShareableHandle", "CUDA_ERROR_NOT_SUPPORTED", VGPU, ["vmm-ipc"]),
        ("cuIpcOpenMemHandle", "CUDA_ERROR_TOO_MANY_PEERS", "cuda:9 has 9 peers, …", []),
        ("cuIpcOpenMemHandle", "CUDA_ERROR_INVALID_VALUE", "cuda:0 is in a sandbox …", ["legacy-ipc"]),
        ("cuIpcGetMemHandle", "CUDA_ERROR_NOT_SUPPORTED", "", None),
    ],
)
def test_call_that_a_gpu_refuses_by_design_is_no_fault(
    call: str, error: str, by_design: str, lacking: list[str] | None
) -> None:
    role = RoleOutcome(
        "exporter",
        Ending.DRIVER_ERROR,
        operation=call,
        occurrence=1,
        fault=DriverFault(call, 801, error),
        by_design=by_design,
    )
    finding = blame.conclude(ProbeOutcome("", (), {}, {"exporter": role}, "exporter", 1.0))
    assert finding.status is (Status.SKIP if by_design else Status.FAIL)
    assert call in sentences.summary(finding)
    assert by_design in sentences.summary(finding)
    assert finding.values.get("lacking") == lacking


def until_full(used: list[int]) -> dict[str, object]:
    rounds = [4 * n for n in range(1, len(used) + 1)]
    return {"device": "hip:0", "what": "import", "rounds": rounds, "used": used, "total": 3 * GIB}


@pytest.mark.parametrize(
    ("used", "status"),
    [
        ([(1 << 28) + n * (152 << 20) for n in range(18)], Status.FAIL),  # the loop used all of it, in steps
        ([(1 << 28) + n * (152 << 20) for n in range(5)], Status.ERROR),  # too few samples
        ([1 << 28] * 9 + [5 << 29] * 9, Status.ERROR),  # another process started
        ([(1 << 28) + n * (1 << 20) for n in range(18)], Status.ERROR),  # other processes used most of it
        ([1 << 28] * 18, Status.ERROR),
    ],
)
@pytest.mark.parametrize("sampler", ["exporter", "importer"])
def test_loop_that_filled_the_device_itself_fails(used: list[int], status: Status, sampler: str) -> None:
    fault = DriverFault("hipMemCreate", 2, "hipErrorOutOfMemory")
    roles = {
        "exporter": RoleOutcome(
            "exporter",
            Ending.DRIVER_ERROR,
            operation="hipMemCreate",
            occurrence=76,
            fault=fault,
            memory=[(GIB >> 5, 3 * GIB)],
        ),
        "importer": RoleOutcome("importer", Ending.PEER_LOST),
    }
    roles[sampler] = replace(roles[sampler], loop=until_full(used))
    finding = blame.conclude(ProbeOutcome("", (), {}, roles, "exporter", 1.0))
    assert finding.status is status
    if status is Status.FAIL:
        summary = sentences.summary(finding)
        assert summary == "used memory of hip:0 grows by 38 MiB with each import"
        assert sentences.evidence(finding)[-1] == (
            "then exporter: hipMemCreate #76 returned hipErrorOutOfMemory (2)"
        )


HELP = (
    "-" * 74,
    "A requested component was not found, or was unable to be opened.  This",
    "means that this component is either not installed or is unable to be",
    "used on your system.",
    "",
    "Host:      vm",
    "Framework: pml",
    "Component: ucxx",
    "-" * 74,
)


@pytest.mark.parametrize(
    ("log", "exit_code", "words"),
    [
        (HELP, None, "not found, or was unable to be opened (Framework: pml, Component: ucxx)"),
        (("no rules", "of dashes"), None, "exit code the launcher did not keep"),
        (("-" * 74, "never closed"), 14, "exit code 14"),
    ],
)
def test_launchers_explanation_is_the_reason(log: tuple[str, ...], exit_code: int | None, words: str) -> None:
    role = RoleOutcome(
        "rank 0", Ending.CRASHED, operation="MPI_Init_thread", occurrence=1, exit_code=exit_code, log_tail=log
    )
    outcome = ProbeOutcome("", (), {}, {"rank 0": role}, "rank 0", 1.0, launch=Launch(("mpiexec",)))
    assert words in sentences.summary(blame.conclude(outcome))


def test_failed_launcher_is_to_be_run_by_hand_with_its_own_command() -> None:
    launch = Launch(("srun", "--overlap", "-n{ranks}", "--mpi=pmi2"))
    roles = {role: RoleOutcome(role, Ending.COMPLETED) for role in ("rank 0", "rank 1")}
    ended = ProbeOutcome("", (), {}, roles, None, 1.0, launch=launch, launcher=LauncherEnd(1, 0.0))
    (finding,) = blame.of_launcher(ended)
    assert "`srun --overlap -n2 --mpi=pmi2 true`" in finding.remedy
