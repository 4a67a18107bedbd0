"""Tests of check mpi-gpu-aware: planned probes, and findings from the worker's facts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from gpuipc_doctor import surveys
from gpuipc_doctor.api import Context, Device, Finding, Probe, ProbeOutcome, loader
from gpuipc_doctor.model import Status
from gpuipc_doctor.probe_types import Ending, RoleOutcome
from gpuipc_doctor.report import sentences

CHECK = loader.load_file(loader.built_in_dir() / "mpi_gpu_aware.py").check
UNABLE = {
    "able": False,
    "via": "own",
    "why_not": "its GPU support is off",
    "remedy": "set I_MPI_OFFLOAD=1",
    "lacks": [],
}


def device(backend: str, index: int = 0) -> Device:
    return Device(backend, index, "GPU-1", "0000:01:00.0", "H200", 1 << 30)


def plan(context: Context) -> list[Probe | Finding]:
    return [*CHECK.probes(context), *surveys.of_mpi_library(context)]


def conclude(
    records: dict[str, Any], *, named: bool = False, simulated: tuple[str, ...] = ()
) -> list[Finding]:
    role = RoleOutcome("mpi", Ending.COMPLETED, records=records)
    params = {"backends": ["cuda"], "library": "/opt/libmpi.so", "chosen_by": "--mpi-lib"}
    params |= {"named": named, "simulated": simulated}
    findings: Iterable[Finding] = CHECK.judge(ProbeOutcome("", (), params, {"mpi": role}, None, 0.1))
    return list(findings)


def seen(aware: dict[str, dict[str, Any]], **facts: Any) -> dict[str, Any]:
    told = {"library": "/opt/libmpi.so.12", "ucx": None, "environment": {}, **facts}
    return {"facts": told, "mpi": "Intel MPI 2021.17", "aware": aware}


def test_one_probe_asks_for_all_backends() -> None:
    options = {"library": "/opt/libmpi.so", "chosen_by": "--mpi-lib", "named": True}
    (probe,) = plan(Context((device("cuda"), device("cuda", 1), device("hip")), options=options))
    assert isinstance(probe, Probe)
    assert probe.params == {"backends": ["cuda", "hip"], "simulated": [], **options}


def test_no_device_is_a_skip() -> None:
    (finding,) = plan(Context())
    assert isinstance(finding, Finding)
    assert finding.status is Status.SKIP


def test_gpu_aware_library_passes_and_reports_its_transport() -> None:
    ucx = {"library": "/ucx/libucp.so.0", "version": "1.22.0", "components": ["cuda_cpy"]}
    able = {"able": True, "via": "ucx", "why_not": "", "remedy": "", "lacks": ["derived types"]}
    (finding,) = conclude(
        seen({"cuda": able}, ucx=ucx, environment={"UCX_TLS": "all", "MPIR_CVAR_NOLOCAL": "1"})
    )
    assert finding.status is Status.PASS
    assert sentences.summary(finding) == (
        "Intel MPI 2021.17 accepts cuda device pointers, through UCX 1.22.0, but not in derived types"
    )
    assert sentences.evidence(finding) == (
        "/opt/libmpi.so.12 (--mpi-lib)",
        "environment: MPIR_CVAR_NOLOCAL=1 UCX_TLS=all",
    )


@pytest.mark.parametrize(("named", "status"), [(True, Status.FAIL), (False, Status.WARN)])
def test_library_that_is_not_gpu_aware_fails_only_if_it_was_named(named: bool, status: Status) -> None:
    (finding,) = conclude(seen({"cuda": UNABLE}), named=named)
    assert finding.status is status
    assert (
        sentences.summary(finding)
        == "Intel MPI 2021.17 accepts no cuda device pointers: its GPU support is off"
    )
    assert finding.remedy == "set I_MPI_OFFLOAD=1"


def test_simulated_memory_passes_and_the_answer_for_a_real_gpu_is_reported() -> None:
    (finding,) = conclude(seen({"cuda": UNABLE}), named=True, simulated=("cuda",))
    assert (finding.status, finding.key) == (Status.PASS, "takes-simulated")
    assert "on a real GPU: its GPU support is off" in sentences.summary(finding)


@pytest.mark.parametrize(("named", "status"), [(True, Status.ERROR), (False, Status.SKIP)])
def test_missing_library_is_an_error_only_if_it_was_named(named: bool, status: Status) -> None:
    (finding,) = conclude({"unavailable": "mpi4py finds no MPI library", "remedy": "load one"}, named=named)
    assert (finding.status, finding.remedy) == (status, "load one")
