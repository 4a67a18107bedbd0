"""A job that hangs on two nodes of a real Slurm, examined by `gpuipc-doctor job --slurm`."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuipc_doctor.job import document
from gpuipc_doctor.job.document import Cause
from tests.slurm.cluster import Cluster
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.mpi]

PLANTED = Path(__file__).parents[1] / "fixtures/jobs/planted.py"

LIBRARY = Path(os.environ.get("GPUIPC_TEST_MPI", "/nowhere")) / "mpich50/lib/libmpi.so.12"

DOCTOR = (sys.executable, "-m", "gpuipc_doctor", "job")


@pytest.fixture
def rank_of_nobody() -> Iterator[int]:
    """The pid of a rank of user ``nobody``, who has no other rank."""
    ranked = {**os.environ, "PMI_RANK": "0", "PMI_SIZE": "1"}
    with subprocess.Popen(["sleep", "600"], env=ranked, user="nobody") as rank:
        yield rank.pid
        rank.kill()


@pytest.mark.full
def test_job_is_examined_over_ssh(sshd: list[str], rank_of_nobody: int) -> None:
    options = [word for option in sshd for word in ("--launch-option", option)]
    command = [*DOCTOR, "--user", "nobody", "-w", "n1", "--via", "ssh", "--json", *options]
    ended = subprocess.run(command, capture_output=True, text=True)
    report = document.loads(ended.stdout)
    assert [rank.pid for rank in report.ranks] == [rank_of_nobody], ended
    assert report.verdict.cause is Cause.UNKNOWN  # it sleeps, and nobody knows why
    wrong = ["1" if word == sshd[1] else word for word in command]
    refused = subprocess.run(wrong, capture_output=True, text=True)
    assert (refused.returncode, "Connection refused" in refused.stderr) == (3, True), refused


@pytest.mark.full
def test_job_is_examined_by_flux_run(tmp_path: Path, rank_of_nobody: int) -> None:
    """A stand-in for Flux runs the command after Flux's options; Flux itself was not tested."""
    flux = tmp_path / "flux"
    start = "at = sys.argv.index(sys.executable); os.execv(sys.executable, sys.argv[at:])"
    flux.write_text(f"#!{sys.executable}\nimport os, sys\n{start}\n")
    flux.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "FLUX_URI": "local:///run/flux"}
    command = [*DOCTOR, "--user", "nobody", "-w", "n1", "--json"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert [rank.pid for rank in document.loads(ended.stdout).ranks] == [rank_of_nobody], ended


def test_late_rank_of_a_job_on_two_nodes_is_blamed(slurm: Callable[..., Cluster]) -> None:
    cluster = slurm(nodes=2)
    output = cluster.directory / "output"
    ranks = shlex.join([f"MPI4PY_LIBMPI={LIBRARY}", "srun", "--mpi=pmi2", sys.executable, str(PLANTED)])
    shape = ("-N2", "--ntasks-per-node=2", "-o", str(output))
    job = cluster.ask("sbatch", "--parsable", *shape, "--wrap", f"env {ranks} one-late").strip()
    until("4 ranks are ready", lambda: output.exists() and output.read_text().count("ready") == 4)

    ended = cluster.run(*DOCTOR, "--slurm", job, "--json")
    assert ended.returncode == 12, ended
    report = document.loads(ended.stdout)
    assert (report.verdict.cause, report.verdict.blamed) == (Cause.HOST_LATE, (3,)), report
    assert [(rank.rank, rank.host) for rank in report.ranks] == [(0, "n1"), (1, "n1"), (2, "n2"), (3, "n2")]
    assert report.size == 4

    saved = cluster.directory / "report.json"
    saved.write_text(ended.stdout)
    again = cluster.run(*DOCTOR, "--slurm", job, "--since", saved)
    assert "without progress: ranks 0-3" in again.stdout, again

    here = cluster.run(*DOCTOR, "--slurm", job, "-w", "n1,n3", "--json")
    partly = document.loads(here.stdout)
    assert [rank.rank for rank in partly.ranks] == [0, 1]
    assert "n3" in partly.unable
    assert partly.verdict.cause is not Cause.RANK_ENDED, "the ranks of a silent node have not ended"

    cluster.ask("scancel", job)
    until("it has ended", lambda: not cluster.ask("squeue", "-h", "-j", job).strip())
    gone = cluster.run(*DOCTOR, "--slurm", job)
    assert gone.returncode == 3, gone
    assert gone.stdout == ""
