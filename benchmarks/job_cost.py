"""Measure the cost of `gpuipc-doctor job` for the ranks it examines, and its time for 16 ranks under Slurm.

``python -m benchmarks.job_cost ranks`` and ``python -m benchmarks.job_cost nodes`` (GPUIPC_TEST_MPI names the
MPI libraries; the second needs root and Slurm). Results: benchmarks/planted_jobs.md.
"""

from __future__ import annotations

import os
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpuipc_doctor.job import document
from tests.e2e.conftest import RESTING
from tests.slurm.cluster import Cluster
from tests.slurm.test_job import LIBRARY, PLANTED
from tests.waiting import until

RANK = """\
import time
n, told = 0, time.monotonic()
while True:
    for _ in range(20000):
        pass
    n += 1
    if time.monotonic() - told > 0.1:
        told = time.monotonic()
        print(told, n, time.process_time(), flush=True)
"""
"""A rank that computes, and prints the amount of work and its processor time."""

ROUNDS = 6
JOB = (sys.executable, "-m", "gpuipc_doctor", "job")


def ranks() -> None:
    """Compare a rank's work per processor second while `job` examines it and for as long without `job`."""
    with tempfile.TemporaryDirectory() as place:
        log = Path(place) / "log"
        with log.open("w") as output:
            rank = subprocess.Popen(
                [sys.executable, "-c", RANK],
                stdout=output,
                env={**os.environ, "PMI_RANK": "0", "PMI_SIZE": "1"},
            )
        print("| round | without: work per processor second | looked at | change | our processor seconds |")
        print("|---|---|---|---|---|")
        changes = []
        for number in range(1, ROUNDS + 1):
            time.sleep(6.0)
            began, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([*JOB, "--pid", str(rank.pid)], capture_output=True, check=False)
            ended, after = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
            rows = [tuple(map(float, line.split())) for line in log.read_text().splitlines()[:-1]]
            rates = [_rate(rows, *span) for span in ((began - 6.0, began), (began, ended))]
            changes.append(100 * (rates[1] / rates[0] - 1))
            ours = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
            print(
                f"| {number} | {rates[0]:.0f} | {rates[1]:.0f} | {changes[-1]:+.1f} % | {ours:.2f} |",
                flush=True,
            )
        rank.kill()
        rank.wait()
    print(f"\nMedian {statistics.median(changes):+.1f} %.")


def _rate(rows: list[tuple[float, ...]], begin: float, end: float) -> float:
    within = [row for row in rows if begin <= row[0] <= end]
    return (within[-1][1] - within[0][1]) / (within[-1][2] - within[0][2])


def nodes() -> None:
    """Print the seconds from the command to the verdict for 16 ranks on two nodes."""
    print("| ranks wait by | planted | said | blamed | seconds |")
    print("|---|---|---|---|---|")
    for how, environment in (("polling", {}), ("yielding", RESTING)):
        for kind in ("one-late", "most-late"):
            with tempfile.TemporaryDirectory(prefix="gpuipc-slurm-", dir="/tmp") as place:
                Path(place).chmod(0o755)
                with Cluster(Path(place), nodes=2) as cluster:
                    _on_two_nodes(cluster, how, kind, environment)


def _on_two_nodes(cluster: Cluster, how: str, kind: str, environment: dict[str, str]) -> None:
    output = cluster.directory / "output"
    settings = [f"MPI4PY_LIBMPI={LIBRARY}", *(f"{name}={value}" for name, value in environment.items())]
    started = shlex.join([*settings, "srun", "--mpi=pmi2", sys.executable, str(PLANTED), kind])
    shape = ("-N2", "--ntasks-per-node=8", "-o", str(output))
    number = cluster.ask("sbatch", "--parsable", *shape, "--wrap", f"env {started}").strip()
    until("16 ranks are ready", lambda: output.exists() and output.read_text().count("ready") == 16)
    began = time.monotonic()
    ended = cluster.run(*JOB, "--slurm", number, "--json")
    seconds = time.monotonic() - began
    said = document.loads(ended.stdout).verdict
    blamed = ",".join(map(str, said.blamed)) or "-"
    print(f"| {how} | {kind} | {said.cause.value} | {blamed} | {seconds:.1f} |", flush=True)
    cluster.ask("scancel", number)


if __name__ == "__main__":
    {"ranks": ranks, "nodes": nodes}[sys.argv[1]]()
