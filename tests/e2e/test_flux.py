"""Ranks under Flux, with a stand-in for ``flux run``: Flux itself was not tested."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import FEW_MESSAGES, Command

STAND_IN = Path(__file__).parents[1] / "fixtures/flux.py"

pytestmark = [pytest.mark.mpi, pytest.mark.cuda, pytest.mark.usefixtures("resting")]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a script under ``flux batch``."""
    shutil.copy(STAND_IN, tmp_path / "flux")
    (tmp_path / "flux").chmod(0o755)
    mpiexec = Path(os.environ["GPUIPC_TEST_MPI"], "mpich50/bin/mpiexec")
    return {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "FLUX_URI": "local:///run/flux/local",
        "FLUX_STAND_IN_MPIEXEC": str(mpiexec),
    }


def results(doctor: Command, environment: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Check → status and summary of its last finding."""
    library = Path(os.environ["GPUIPC_TEST_MPI"], "mpich50/lib/libmpi.so.12")
    command = [
        "check",
        "mpi-small-message",
        "--config",
        FEW_MESSAGES,
        "--device",
        "cuda:0",
        "--no-workarounds",
    ]
    ended = doctor(*command, "--simulate", "healthy-single", "--mpi-lib", library, "--json", env=environment)
    return {
        result["check"]: (result["finding"]["status"], result["finding"]["summary"])
        for result in json.loads(ended.stdout)["results"]
    }


@pytest.mark.full
def test_ranks_start_by_flux_run_in_an_instance(doctor: Command, environment: dict[str, str]) -> None:
    assert results(doctor, environment)["mpi-small-message"][0] == "PASS"


def test_flux_that_cannot_start_ranks_is_an_error(
    doctor: Command, environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "flux").write_text("#!/bin/sh\necho 'flux-run: ERROR: unsatisfiable request' >&2\nexit 1\n")
    status, says = results(doctor, environment)["mpi-start"]
    assert status == "ERROR"
    assert "unsatisfiable request" in says


def test_el_capitans_launcher_has_only_documented_options(environment: dict[str, str]) -> None:
    """Each rank has the GPU that Flux assigns."""
    site = Path(__file__).parents[2] / "site-configs/llnl-el-capitan.yaml"
    [line] = [line for line in site.read_text().splitlines() if "launcher:" in line]
    command = line.partition(": ")[2].format(nodes=1, ranks=2).split()
    shown = [*command, "sh", "-c", "echo $FLUX_TASK_RANK has $CUDA_VISIBLE_DEVICES"]
    ended = subprocess.run(shown, env=environment, capture_output=True, text=True, check=True)
    assert sorted(ended.stdout.splitlines()) == ["0 has 0", "1 has 1"]
    refused = subprocess.run(
        [*shown[:2], "-o", "spindel.level=off", "true"], env=environment, capture_output=True, check=False
    )
    assert refused.returncode == 2
