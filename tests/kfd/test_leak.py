"""Faults of AMD's own runtimes: a check passes, or fails each time, names the fault and tries what helps."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.kfd import emulated
from tests.kfd.emulated import REPOSITORY, Runtime
from tests.waiting import LIMIT_S

FAULTS = {
    ("ipc-vmm", 6): ("rocm-ipc-close-leaves-freed-object", "AMD_DIRECT_DISPATCH=0"),
    ("ipc-release", 7): ("rocm-ipc-hipfree-leak", "HSA_ENABLE_IPC_MODE_LEGACY=1"),
    ("ipc-dmabuf", 7): ("rocm-dmabuf-export-keeps-memory", ""),
    ("driver-pool-release", 7): ("rocm-72-vmm-unmap-leak", "DEBUG_HIP_MEM_POOL_VMHEAP=0"),
}
"""Check and generation: the known issue that it finds there, and the setting that helps, if any."""

UNFIT = {
    ("ipc-dmabuf", 5): "has no dma-bufs",
    ("ipc-dmabuf", 6): "has no dma-bufs",
    ("ipc-vmm", 5): "has no virtual memory",
    ("driver-pool-release", 5): "has no pools",
    ("ipc-release", 6): "passes or crashes: benchmarks/amd_runtimes.md",
}
"""Check and generation that have no one answer there."""


@pytest.mark.kfd
@pytest.mark.hip
@pytest.mark.full
@pytest.mark.parametrize(
    ("runtime", "check"),
    [
        pytest.param(
            runtime, check, id=f"{runtime.name}-{check}", marks=pytest.mark.xdist_group(f"kfd-{runtime.name}")
        )
        for runtime in emulated.chosen_runtimes()
        for check in sorted({check for check, _ in FAULTS})
        if (check, runtime.generation) not in UNFIT
    ],
)
def test_known_fault_of_a_runtime_is_named_with_the_setting_that_helps(runtime: Runtime, check: str) -> None:
    with emulated.node(runtime, gpus=1) as node:
        command = [*node.enter, sys.executable, "-m", "gpuipc_doctor", "check", check, "--json"]
        done = subprocess.run(
            [*command, "--backend", "hip"],
            env={**os.environ, **node.env},
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    report = json.loads(done.stdout)
    found = [result["finding"] for result in report["results"] if result["check"] == check]
    seen = {join["issue"] for join in report["joins"] if join["relation"] != "latent"}
    tried = {item["line"] for finding in found for item in finding["evidence"]}
    if fault := FAULTS.get((check, runtime.generation)):
        issue, setting = fault
        assert "FAIL" in {finding["status"] for finding in found}
        assert issue in seen
        assert not setting or any(line.startswith(f"Tried {setting}: helps") for line in tried), tried
    else:
        assert {finding["status"] for finding in found} == {"PASS"}
        assert not seen
