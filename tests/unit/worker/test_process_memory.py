"""Memory by process, as NVML tells it, or not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest

from gpuipc_doctor.api.gpu import DriverError
from gpuipc_doctor.model import DriverFault
from gpuipc_doctor.worker.backends import nvml
from gpuipc_doctor.worker.backends.nvml import ProcessMemory
from gpuipc_doctor.worker.nvml import GpuMemory

ME, PARTNER, OTHER = os.getpid(), 2_000_001, 2_000_002
MIB = 1 << 20


def told(processes: Sequence[tuple[int, int | None]] | None, used: int = 1000 * MIB) -> ProcessMemory:
    class Nvml:
        def by_uuid(self, uuid: str) -> str:
            return uuid

        def processes(self, _: Any) -> Sequence[tuple[int, int | None]] | None:
            return processes

        def memory(self, _: Any) -> GpuMemory:
            if used < 0:
                raise DriverError(DriverFault("nvmlDeviceGetMemoryInfo", 3, "Not Supported"))
            return GpuMemory(2 * used, used, used)

    return ProcessMemory(Nvml())  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _partner_is_of_this_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "carries", lambda pid, marker: pid in (ME, PARTNER))


@pytest.mark.parametrize(
    ("processes", "held"),
    [
        ([(ME, 518 * MIB), (PARTNER, 20 * MIB), (OTHER, 7 * MIB)], 538 * MIB),
        ([(ME, 518 * MIB), (ME, 518 * MIB)], 1036 * MIB),  # of two MIG instances
        ([(PARTNER, 20 * MIB)], None),  # this process is hidden, or has another pid
        ([(ME, None)], None),  # N/A
        ([(ME, 518 * MIB), (PARTNER, None)], None),
        ([(ME, 518 * MIB), (ME, None)], None),
        ([(ME, 518 * MIB), (OTHER, None)], 518 * MIB),
        ([(ME, 518 * MIB), (0, 7 * MIB), (2**31, 7 * MIB)], 518 * MIB),  # pids of another namespace
        ([], None),
        (None, None),
    ],
)
def test_of_this_probe(processes: Sequence[tuple[int, int | None]] | None, held: int | None) -> None:
    assert told(processes).of_this_probe("GPU-1") == held


def test_process_that_ended_holds_nothing() -> None:
    memory = told(processes := [(ME, 5 * MIB), (PARTNER, 20 * MIB)])
    assert memory.of_this_probe("GPU-1") == 25 * MIB
    processes.pop()
    assert memory.of_this_probe("GPU-1") == 5 * MIB


@pytest.mark.parametrize(
    ("processes", "used", "nobodys"),
    [
        ([(ME, 300 * MIB), (OTHER, 100 * MIB)], 1000 * MIB, (600 * MIB, [ME, OTHER])),
        ([], 615 * MIB, (615 * MIB, [])),
        ([(OTHER, None)], 1000 * MIB, None),
        ([(ME, 300 * MIB), (OTHER, 2**63)], 1000 * MIB, None),  # garbage
        (None, 1000 * MIB, None),
        ([], -1, None),
    ],
)
def test_of_nobody(
    processes: Sequence[tuple[int, int | None]] | None, used: int, nobodys: tuple[int, list[int]] | None
) -> None:
    assert told(processes, used).of_nobody("GPU-1") == nobodys
