"""Limits of the tool's own processes: which failures they turn into an ERROR, and which not."""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import Any

import pytest

from gpuipc_doctor.model import DriverFault, Status
from gpuipc_doctor.probe_types import Ending, LauncherEnd, ProbeOutcome, RoleOutcome
from gpuipc_doctor.report import sentences
from gpuipc_doctor.supervise import blame, process_limits

OOM = DriverFault("cuMemAlloc", 2, "CUDA_ERROR_OUT_OF_MEMORY")
HIP_OOM = DriverFault("hipMalloc", 2, "hipErrorOutOfMemory")
REFUSED = DriverFault("cuInit", 304, "CUDA_ERROR_OPERATING_SYSTEM")
OTHER = DriverFault("cuIpcOpenMemHandle", 400, "CUDA_ERROR_INVALID_HANDLE")
ALL = {
    "address space": 1 << 32,
    "data": 1 << 30,
    "file size": 1000,
    "processor time": 60,
    "open files": 64,
    "processes": 50,
}
FREE = [(30 << 30, 40 << 30)]


def outcome(limits: dict[str, int], said: str = "", **role: Any) -> ProbeOutcome:
    """A failed probe whose launcher printed ``said``."""
    ended = {"ending": Ending.CRASHED, "signal": "SIGSEGV", "operation": "cuCall", "memory": FREE, **role}
    blamed = RoleOutcome("rank 0", **ended)
    return ProbeOutcome(
        "", (), {}, {"rank 0": blamed}, "rank 0", 1.0, launcher=LauncherEnd(1, 0.0, (said,)), limits=limits
    )


@pytest.mark.parametrize(
    ("limit", "said", "role", "words"),
    [
        (
            "address space",
            "",
            {"ending": Ending.DRIVER_ERROR, "fault": OOM},
            "to 4096 MiB (ulimit -v",
        ),
        ("address space", "", {"ending": Ending.DRIVER_ERROR, "fault": HIP_OOM}, "LimitAS of slurmd's unit"),
        ("address space", "", {"ending": Ending.DRIVER_ERROR, "fault": REFUSED}, "(ulimit -v"),
        ("address space", "mmap: Cannot allocate memory", {"ending": Ending.NOT_STARTED}, "(ulimit -v"),
        ("data", "what():  std::bad_alloc", {"signal": "SIGABRT"}, "limited to 1024 MiB (ulimit -d"),
        ("data", "", {"ending": Ending.EXCEPTION, "exception": "MemoryError: "}, "LimitDATA"),
        ("file size", "", {"signal": "SIGXFSZ"}, "files limited to 1000 bytes (ulimit -f"),
        ("file size", "", {"ending": Ending.DRIVER_ERROR, "fault": REFUSED}, "LimitFSIZE"),
        ("file size", "write: File too large", {}, "LimitFSIZE"),
        ("processor time", "", {"signal": "SIGXCPU"}, "limited to 60 s (ulimit -t"),
        ("open files", "[Errno 24] Too many open files", {}, "limited to 64 (ulimit -n"),
        ("processes", "fork: Resource temporarily unavailable", {}, "limited to 50 (ulimit -u"),
    ],
)
def test_limit_that_was_reached_is_an_error_that_names_it(
    limit: str, said: str, role: dict[str, Any], words: str
) -> None:
    found = blame.conclude(outcome({limit: ALL[limit]}, said, **role))
    assert (found.status, found.key) == (Status.ERROR, "limited")
    assert words in sentences.summary(found)
    assert "slurmd's unit" in found.remedy


@pytest.mark.parametrize(
    ("limits", "said", "role"),
    [
        (ALL, "segmentation fault", {}),
        (ALL, "", {"ending": Ending.HUNG}),
        (ALL, "", {"ending": Ending.DRIVER_ERROR, "fault": OTHER}),
        (ALL, "MPI_ERR_TRUNCATE: message truncated", {"signal": "SIGABRT"}),
        ({"open files": 64, "processes": 50}, "", {"ending": Ending.DRIVER_ERROR, "fault": OOM}),
        ({"file size": 1000}, "", {"ending": Ending.DRIVER_ERROR, "fault": OOM}),
        ({}, "mmap: Cannot allocate memory", {}),
        ({}, "", {"ending": Ending.DRIVER_ERROR, "fault": OOM}),
        ({"address space": 1 << 32}, "Too many open files", {}),
        ({"processes": 50}, "socket: Resource temporarily unavailable", {}),
    ],
)
def test_failure_that_no_limit_explains_stays_a_fail(
    limits: dict[str, int], said: str, role: dict[str, Any]
) -> None:
    assert blame.conclude(outcome(limits, said, **role)).status is Status.FAIL


def test_device_memory_held_by_others_is_told_before_a_limit() -> None:
    full = {"ending": Ending.DRIVER_ERROR, "fault": OOM, "memory": [(0, 40 << 30)]}
    assert blame.conclude(outcome(ALL, **full)).key == "out-of-memory"


PROGRAM = """
import resource, sys
from gpuipc_doctor.supervise import process_limits
which = {"-v": "AS", "-f": "FSIZE", "-n": "NOFILE", "-t": "CPU"}
kind, soft, hard = getattr(resource, "RLIMIT_" + which[sys.argv[1]]), *map(int, sys.argv[2:])
resource.setrlimit(kind, (soft, hard))
process_limits.raise_soft()
name = {"-v": "address space", "-f": "file size", "-n": "open files", "-t": "processor time"}[sys.argv[1]]
print(resource.getrlimit(kind)[0], process_limits.started_with()[name], process_limits.present().get(name))
"""


@pytest.mark.parametrize(
    ("flag", "soft", "hard", "printed"),
    [
        ("-v", 1 << 30, -1, f"-1 {1 << 30} None"),
        ("-v", 1 << 30, 1 << 32, f"{1 << 32} {1 << 30} {1 << 32}"),
        ("-v", 57 << 40, 57 << 40, f"{57 << 40} {57 << 40} None"),  # out of reach
        ("-f", 100, -1, "-1 100 None"),
        ("-n", 64, 128, "128 64 128"),
        ("-n", 64, 512, "512 64 None"),
        ("-t", 60, 90, "60 60 60"),  # the hard one would end a process by SIGKILL, which says nothing
    ],
)
def test_soft_limits_are_raised_and_told_as_set(flag: str, soft: int, hard: int, printed: str) -> None:
    command = [sys.executable, "-c", PROGRAM, flag, str(soft), str(hard)]
    assert subprocess.run(command, capture_output=True, text=True).stdout.strip() == printed


def test_many_open_files_are_not_raised_to_the_kernels_most() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    command = [sys.executable, "-c", PROGRAM, "-n", "256", str(hard)]
    raised = int(subprocess.run(command, capture_output=True, text=True).stdout.split()[0])
    assert raised == min(hard, process_limits.MOST_FILES)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (MemoryError(), "no memory"),
        (OSError(24, "Too many open files"), "Too many open files"),
        (RuntimeError("can't start new thread"), "can't start new thread"),
        (ImportError("libgcc_s.so.1: failed to map segment from shared object"), "failed to map segment"),
    ],
)
def test_scarcity_is_recognised_also_behind_another_error(error: Exception, line: str) -> None:
    outer = ValueError("x.yaml: cannot be read")
    outer.__cause__ = error
    for each in (error, outer):
        assert process_limits.is_scarcity(each)
        assert line in process_limits.of_error(each)
    assert not process_limits.is_scarcity(ValueError("x"))
    assert not process_limits.is_scarcity(OSError(2, "No such file"))
