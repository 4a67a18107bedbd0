"""What counts as a refusal, what the engine blames on the call, and what a lack means."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuipc_doctor.api import DriverError, unless_refused
from gpuipc_doctor.api.capabilities import instead_of, lacking, words_of_lack
from gpuipc_doctor.model import DriverFault
from gpuipc_doctor.vendors import AMD, NVIDIA
from tests.checks.judging import gpu


def raising(name: str) -> None:
    raise DriverError(DriverFault("call", 1, name))


@pytest.mark.parametrize(
    "name", ["CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_INVALID_HANDLE", "hipErrorInvalidDevicePointer"]
)
def test_documented_refusal_counts_as_one(name: str) -> None:
    refused = unless_refused(lambda: raising(name))
    assert str(refused) == f"call returned {name} (1)"


@pytest.mark.parametrize("name", ["CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_OUT_OF_MEMORY", "hipErrorUnknown"])
def test_other_errors_are_left_to_the_engine(name: str) -> None:
    with pytest.raises(DriverError):
        unless_refused(lambda: raising(name))


def test_result_without_a_refusal_is_returned() -> None:
    assert unless_refused(lambda: b"handle") == b"handle"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("CUDA_ERROR_ALREADY_MAPPED", "is_already_mapped"),
        ("hipErrorAlreadyMapped", "is_already_mapped"),
        ("CUDA_ERROR_NOT_PERMITTED", "is_not_permitted"),
        ("CUDA_ERROR_NOT_SUPPORTED", "is_not_supported"),
        ("hipErrorNotSupported", "is_not_supported"),
        ("CUDA_ERROR_OUT_OF_MEMORY", "is_out_of_memory"),
        ("hipErrorOutOfMemory", "is_out_of_memory"),
        ("CUDA_ERROR_INVALID_VALUE", ""),
    ],
)
def test_kinds_of_error_are_identified_by_name(name: str, kind: str) -> None:
    error = DriverError(DriverFault("call", 1, name))
    kinds = ("is_already_mapped", "is_not_permitted", "is_not_supported", "is_out_of_memory")
    assert [each for each in kinds if getattr(error, each)] == ([kind] if kind else [])


@pytest.mark.parametrize(
    ("call", "capabilities"),
    [
        ("cuIpcOpenMemHandle", ["legacy-ipc"]),
        ("cuMemPoolExportPointer", ["pool-ipc"]),
        ("hipMallocFromPoolAsync", ["memory-pools"]),
        ("cuMemExportToShareableHandle", ["vmm-ipc"]),
        ("cuMemAlloc", []),
    ],
)
def test_unsupported_call_shows_which_capability_is_lacking(call: str, capabilities: list[str]) -> None:
    assert lacking(call) == capabilities


@pytest.mark.parametrize(
    ("capabilities", "mode", "says", "instead"),
    [
        ({"multi-process"}, "prohibited", "its compute mode is prohibited", "nvidia-smi -c 0"),
        ({"multi-process"}, "", "CU_DEVICE_ATTRIBUTE_COMPUTE_MODE is not 0", "nvidia-smi -c 0"),
        ({"vmm-ipc", "pool-ipc"}, "", "lacks pool-ipc, vmm-ipc (its driver", "NCCL_CUMEM_ENABLE=0"),
        ({"contexts"}, "", "lacks contexts (its driver", "use another GPU or driver"),
    ],
)
def test_lack_is_told_with_what_to_use_instead(
    capabilities: set[str], mode: str, says: str, instead: str
) -> None:
    assert says in words_of_lack(NVIDIA, capabilities, mode)
    assert instead in instead_of((), capabilities)


def test_what_to_use_instead_is_the_vendors() -> None:
    amd = gpu(0, "hip")
    assert "UCX_TLS=^rocm_ipc" in instead_of((amd,), ["legacy-ipc"])
    assert "UCX_TLS=^cuda_ipc" in instead_of((gpu(0),), ["legacy-ipc"])


def test_what_no_device_of_a_backend_has_is_no_fault_of_the_device() -> None:
    bare = replace(AMD, lacks=frozenset({"memory-pools", "pool-ipc"}))
    lacks = words_of_lack(bare, {"pool-ipc", "memory-pools", "vmm-ipc"})
    assert lacks == "lacks memory-pools, pool-ipc: ROCm has no such calls"
