"""Tests of the kernels' sources: both vendors have the same kernels, and none runs without a bound."""

from __future__ import annotations

import re

import pytest

from gpuipc_doctor.worker.backends import kernel_sources
from gpuipc_doctor.worker.backends.cuda import CudaDriver
from gpuipc_doctor.worker.backends.hip import HipDriver

KERNELS = {"fill", "compare", "add", "copy", "store", "wait"}


def test_both_vendors_have_the_same_kernels() -> None:
    assert set(re.findall(r"\.entry gpuipc_(\w+)\(", kernel_sources.ptx(7))) == KERNELS
    assert set(re.findall(r"KERNEL gpuipc_(\w+)\(", kernel_sources.hip_source())) == KERNELS


def test_flags_have_acquire_and_release_of_the_whole_system() -> None:
    ptx, before = kernel_sources.ptx(7), kernel_sources.ptx(6)
    assert len(re.findall(r"^ *(?:st\.release|ld\.acquire)\.sys\.global\.u32", ptx, re.MULTILINE)) == 2
    assert ".target sm_70\n" in ptx
    assert ".target sm_60\n" in before
    assert not re.search(r"^ *(?:st\.release|ld\.acquire)", before, re.MULTILINE)
    assert re.search(r"^ *membar\.sys; st\.volatile\.global\.u32", before, re.MULTILINE)
    assert re.search(r"^ *ld\.volatile\.global\.u32 .*; membar\.sys;", before, re.MULTILINE)


@pytest.mark.parametrize("major", [6, 7])
def test_ptx_is_of_the_oldest_version_with_acquire_and_jumps_back_only_behind_a_count(major: int) -> None:
    """Each backward branch is reached only after a counter changed that ends the loop."""
    ptx = kernel_sources.ptx(major)
    assert ".version 6.0\n" in ptx
    for kernel in ptx.split(".visible .entry")[1:]:
        lines = [line.strip() for line in kernel.splitlines()]
        for place, line in enumerate(lines):
            branch = re.match(r"(?:@%\w+ )?bra (\w+);", line)
            if branch and f"{branch[1]}:" in lines[:place]:
                loop = lines[lines.index(f"{branch[1]}:") : place]
                assert any(re.match(r"(?:add|sub)\.u(?:64|32) %(?:i|count|b),", step) for step in loop)
                assert (
                    any(re.match(r"@%(?:done|is) bra end;", step) for step in loop) or "next" in lines[place]
                )


@pytest.mark.parametrize("driver", [CudaDriver, HipDriver])
def test_refusals_are_errors_of_the_bindings(driver: type[CudaDriver | HipDriver]) -> None:
    prefix, enum, module = {
        "cuda": ("CUDA_ERROR_", "CUresult", "cuda.bindings.driver"),
        "hip": ("hipError", "hipError_t", "hip"),
    }[driver.vendor.backend]
    binding = pytest.importorskip(module)
    binding = getattr(binding, "hip", binding)
    names = {name for name in kernel_sources.REFUSALS if name.startswith(prefix)}
    assert names
    assert names <= set(getattr(binding, enum).__members__)
