"""`ipc-release` on AMD's own runtime passes, or names the leak of ROCm 7.2 and the setting that avoids it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.kfd import emulated
from tests.kfd.emulated import REPOSITORY, Runtime
from tests.waiting import LIMIT_S

LEAK, CURE = "rocm-ipc-hipfree-leak", "Tried HSA_ENABLE_IPC_MODE_LEGACY=1: helps"


@pytest.mark.kfd
@pytest.mark.hip
@pytest.mark.full
@pytest.mark.parametrize(
    "runtime",
    [
        pytest.param(runtime, id=runtime.name, marks=pytest.mark.xdist_group(f"kfd-{runtime.name}"))
        for runtime in emulated.chosen_runtimes()
        if runtime.generation != 6  # 6.4.3 sometimes crashes in it: benchmarks/amd_runtimes.md
    ],
)
def test_leak_of_rocm_7_is_confirmed_with_its_cure(runtime: Runtime) -> None:
    with emulated.node(runtime, gpus=1) as node:
        command = [*node.enter, sys.executable, "-m", "gpuipc_doctor", "check", "ipc-release", "--json"]
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
    found = [result["finding"] for result in report["results"] if result["check"] == "ipc-release"]
    confirmed = {join["issue"] for join in report["joins"] if join["relation"] == "confirmed"}
    cured = [any(item["line"].startswith(CURE) for item in finding["evidence"]) for finding in found]
    leaks = runtime.generation == 7
    assert {finding["status"] for finding in found} == ({"FAIL"} if leaks else {"PASS"})
    assert confirmed == ({LEAK} if leaks else set())
    assert set(cured) == {leaks}
