"""Real MPI libraries with device memory of AMD's own runtime, over Debian's UCX with ROCm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kfd import emulated
from tests.kfd.emulated import REPOSITORY, Runtime

LIBRARIES = {"mpich50": "lib/libmpi.so.12", "openmpi": "lib/libmpi.so.40"}
SETTINGS = {
    "mpich50": {"MPIR_CVAR_CH4_NETMOD": "ucx", "MPIR_CVAR_NOLOCAL": "1"},
    "openmpi": {"OMPI_MCA_pml": "ucx"},
}

LACKING = {"mpich50": "MPIR_CVAR_NOLOCAL=1", "openmpi": "OMPI_MCA_pml=ucx"}
"""The variable that `mpi-gpu-aware` recommends if none is set; the other one is MPICH's default here."""

MIB = 10240
"""Memory of each GPU; with less, the memory limit of checks is too small for `mpi-cache-growth`."""

LIMIT_S = 500

FEW_SIZES = REPOSITORY / "tests/fixtures/few-messages.yaml"

pytestmark = [
    pytest.mark.kfd,
    pytest.mark.hip,
    pytest.mark.mpi,
    pytest.mark.parametrize("library", ["mpich50", pytest.param("openmpi", marks=pytest.mark.full)]),
    pytest.mark.parametrize(
        "runtime",
        [
            pytest.param(runtime, id=runtime.name, marks=pytest.mark.xdist_group(f"kfd-{runtime.name}"))
            for runtime in emulated.chosen_runtimes()
            if runtime.has_ucx_with_rocm
        ],
    ),
]


def check(runtime: Runtime, library: str, *checks: str, env: dict[str, str]) -> dict[str, Any]:
    """The JSON report of these checks with this library, on a node of two GPUs."""
    path = Path(os.environ["GPUIPC_TEST_MPI"], library, LIBRARIES[library])
    command = [sys.executable, "-m", "gpuipc_doctor", "check", *checks, "--backend", "hip", "--json"]
    with emulated.node(runtime, gpus=2, mib=MIB) as node:
        done = subprocess.run(
            [*node.enter, *command, "--mpi-lib", str(path)],
            env={**os.environ, **node.env_with_ucx, **env},
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def findings(report: dict[str, Any], check: str) -> dict[tuple[str, ...], dict[str, Any]]:
    """The findings of a check, by probe and devices."""
    return {
        (result["probe"], *result["devices"]): result["finding"]
        for result in report["results"]
        if result["check"] == check
    }


def statuses(report: dict[str, Any], check: str) -> set[str]:
    return {finding["status"] for finding in findings(report, check).values()}


def test_library_accepts_device_pointers_with_its_settings(runtime: Runtime, library: str) -> None:
    report = check(runtime, library, "mpi-gpu-aware", "mpi-small-message", env=SETTINGS[library])
    assert statuses(report, "mpi-gpu-aware") == {"PASS"}
    assert statuses(report, "mpi-small-message") == {"PASS"}


@pytest.mark.full
def test_collectives_are_correct(runtime: Runtime, library: str) -> None:
    """UCX shares no VMM memory of AMD GPUs: the first call with it hangs, which is no fault of the node."""
    more = ("--config", str(FEW_SIZES), "--deadline", "8", "--no-workarounds")
    report = check(runtime, library, "mpi-collectives", *more, env=SETTINGS[library])
    assert statuses(report, "mpi-collectives") <= {"PASS", "SKIP"}
    (passed,) = (each for each in findings(report, "mpi-collectives").values() if each["status"] == "PASS")
    assert "MPI_Compare_and_swap" in str(passed["evidence"])


@pytest.mark.full
def test_missing_setting_is_reported(runtime: Runtime, library: str) -> None:
    report = check(runtime, library, "mpi-gpu-aware", env={})
    (finding,) = findings(report, "mpi-gpu-aware").values()
    assert finding["status"] == "FAIL"
    assert LACKING[library] in finding["remedy"]


@pytest.mark.full
def test_growth_of_ucx_cache_is_a_failure_with_its_workaround(runtime: Runtime, library: str) -> None:
    report = check(runtime, library, "mpi-cache-growth", env=SETTINGS[library])
    found = {probe: finding for (probe, *_), finding in findings(report, "mpi-cache-growth").items()}
    assert found["growing"]["status"] == "FAIL"
    assert found["growing"]["key"] == "grows"
    assert found["IPC off"]["status"] == "PASS"
    lines = [item["line"] for item in found["growing"]["evidence"] if isinstance(item, dict)]
    assert any(line.startswith("Tried UCX_TLS=^rocm_ipc") and ": helps" in line for line in lines), lines
    confirmed = {join["issue"] for join in report["joins"] if join["relation"] == "confirmed"}
    leaks = {"rocm-ipc-hipfree-leak"} if runtime.generation == 7 else set()  # its own leak
    assert confirmed == {"ucx-rocm-ipc-cache-growth", *leaks}


@pytest.mark.full
def test_messages_from_changing_buffers_are_correct(runtime: Runtime, library: str) -> None:
    """Each new buffer uses address space, as the cache keeps its mapping; on ROCm 7 also a descriptor."""
    report = check(runtime, library, "mpi-stale-buffer", "--no-workarounds", env=SETTINGS[library])
    keys = {finding["key"] for finding in findings(report, "mpi-stale-buffer").values()}
    assert keys
    assert keys <= {"right", "addresses-left", "descriptors-left"}
