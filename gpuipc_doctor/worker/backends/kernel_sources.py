"""The sources of the kernels, and the errors with which drivers refuse to compile, load or launch them."""

from __future__ import annotations

import re
from pathlib import Path

from gpuipc_doctor.api.driver_errors import DriverError, KernelsUnavailable

REFUSALS = frozenset(
    {
        "CUDA_ERROR_INVALID_IMAGE",
        "CUDA_ERROR_NO_BINARY_FOR_GPU",
        "CUDA_ERROR_INVALID_PTX",
        "CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        "CUDA_ERROR_JIT_COMPILATION_DISABLED",
        "CUDA_ERROR_INVALID_SOURCE",
        "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND",
        "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED",
        "CUDA_ERROR_NOT_FOUND",
        "CUDA_ERROR_NOT_PERMITTED",
        "CUDA_ERROR_NOT_SUPPORTED",
        "hipErrorInvalidImage",
        "hipErrorNoBinaryForGpu",
        "hipErrorInvalidKernelFile",
        "hipErrorInvalidSource",
        "hipErrorSharedObjectSymbolNotFound",
        "hipErrorSharedObjectInitFailed",
        "hipErrorInvalidDeviceFunction",
        "hipErrorNotFound",
        "hipErrorNotSupported",
    }
)
"""Errors with which a driver refuses kernels, which says nothing about IPC; those of hiprtc are always meant.

https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html and ``hip_runtime_api.h``."""

_BEFORE_VOLTA = re.compile(r"^ *[^/\n]*; *// sm_60: *(.*)$", re.MULTILINE)


def ptx(major: int) -> str:
    """The kernels' PTX for GPUs of this compute capability; before 7.0 there is no acquire and release."""
    text = Path(__file__).with_name("kernels.ptx").read_text()
    return text if major >= 7 else _BEFORE_VOLTA.sub(r"\1", text).replace(".target sm_70", ".target sm_60")


def hip_source() -> str:
    return Path(__file__).with_name("kernels.hip").read_text()


def refused(error: DriverError, log: str = "") -> KernelsUnavailable:
    """The driver's refusal in its own words, with the first line of the compiler's ``log``."""
    first = next((line.strip() for line in log.splitlines() if line.strip()), "")
    return KernelsUnavailable(f"{error.fault}{': ' if first else ''}{first}")
