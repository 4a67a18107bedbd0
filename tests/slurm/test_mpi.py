"""The MPI checks within an allocation: their ranks are started by srun."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, until

pytestmark = [pytest.mark.slurm, pytest.mark.mpi, pytest.mark.xdist_group("slurm")]

Slurm = Callable[..., Cluster]

DOCTOR = [sys.executable, "-m", "gpuipc_doctor.cli.main"]


LIBRARY = "mpich50"
"""It speaks Slurm's own PMI-2. Open MPI's wheel speaks PMIx alone, and Debian's Slurm needs more for that."""


def within_allocation(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command as somebody types it who has an allocation of two tasks."""
    library = str(Path(os.environ["GPUIPC_TEST_MPI"], LIBRARY, "lib/libmpi.so.12"))
    return cluster.run("salloc", "-n2", *DOCTOR, *arguments, "--mpi-lib", library, timeout_s=100)


def test_srun_starts_the_ranks_and_what_they_do_wrong_is_found(slurm: Slurm) -> None:
    cluster = slurm(MpiDefault="pmi2")
    ended = within_allocation(
        cluster, "drill", "healthy-single", "mpi-segv", "mpi-hang-16", "--backend", "cuda"
    )
    assert ": 3 as stated, 0 not" in ended.stdout, ended
    assert cluster.log("n1").count("launch task StepId=") >= 3
    until("nothing is left of the ranks", lambda: not cluster.left())


def test_ranks_that_srun_has_not_introduced_are_an_error_with_its_cure(slurm: Slurm) -> None:
    """MpiDefault is none: srun starts two ranks, each of which takes itself for the only one."""
    what = ["mpi-small-message", "--simulate", "healthy-single", "--backend", "cuda"]
    ended = within_allocation(slurm(), "check", *what)
    seen = " ".join(ended.stdout.split())
    assert "ERROR mpi-small-message on cuda:0 rank 1: it started 2 ranks, each sees 1; " in seen, ended
    assert "if srun started them: give it the --mpi that this library speaks (`srun --mpi=list`)" in seen
