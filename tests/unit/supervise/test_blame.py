"""What it means that a call found no memory: who has it decides, and how much is free."""

from __future__ import annotations

import pytest

from gpuipc_doctor.model import DriverFault, Ending, ProbeOutcome, RoleOutcome, Status
from gpuipc_doctor.report import sentences
from gpuipc_doctor.supervise import blame

GIB = 1 << 30


@pytest.mark.parametrize(
    ("memory", "status"),
    [
        ([], Status.ERROR),  # the driver does not say
        ([[1 * GIB, 139 * GIB]], Status.ERROR),
        ([[34 * GIB, 139 * GIB]], Status.ERROR),
        ([[139 * GIB, 139 * GIB]], Status.FAIL),
        ([[139 * GIB, 139 * GIB], [1 * GIB, 139 * GIB]], Status.ERROR),
    ],
)
def test_out_of_memory_fails_only_where_far_more_is_free(memory: list[list[int]], status: Status) -> None:
    role = RoleOutcome(
        "importer",
        Ending.DRIVER_ERROR,
        operation="cuIpcOpenMemHandle",
        occurrence=1,
        fault=DriverFault("cuIpcOpenMemHandle", 2, "CUDA_ERROR_OUT_OF_MEMORY"),
        records={"memory": memory},
    )
    finding = blame.conclude(ProbeOutcome("", (), {}, {"importer": role}, "importer", 1.0))
    assert finding.status is status
    if status is Status.FAIL:
        assert sentences.summary(finding) == (
            "importer: cuIpcOpenMemHandle #1 returned CUDA_ERROR_OUT_OF_MEMORY (2) with 142336 MiB of device "
            "memory free"
        )
