"""The cluster of the other tests is a real one, and leaves nothing behind."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from tests.slurm.cluster import Cluster
from tests.waiting import until

pytestmark = [pytest.mark.slurm]

Slurm = Callable[..., Cluster]


def test_a_step_runs_on_each_of_two_nodes(slurm: Slurm) -> None:
    cluster = slurm(nodes=2)
    ended = cluster.run("srun", "-N2", "-n2", "sh", "-c", "echo $SLURMD_NODENAME")
    assert sorted(ended.stdout.split()) == ["n1", "n2"], ended


def test_jobs_at_the_same_time_get_different_gpus(slurm: Slurm) -> None:
    cluster = slurm(gpus=4)
    both = cluster.directory / "tmp/steps"
    both.mkdir()
    wait = f"touch {both}/$SLURM_STEP_ID; until test $(ls {both} | wc -l) = 2; do sleep 0.1; done"
    show = f"srun -n1 --exact --gres=gpu:2 sh -c 'echo $CUDA_VISIBLE_DEVICES; {wait}' & "
    ended = cluster.run("salloc", "-n2", "--gres=gpu:4", "sh", "-c", show * 2 + "wait")
    assert sorted(ended.stdout.split()) == ["0,1", "2,3"], ended


def test_command_that_takes_too_long_is_killed(slurm: Slurm) -> None:
    cluster = slurm()
    with pytest.raises(subprocess.TimeoutExpired):
        cluster.run("sleep", "4711", timeout_s=3.0)  # long enough for it to start
    until("it has ended", lambda: "sleep 4711" not in cluster.processes())


def test_leftovers_of_a_job_are_seen_and_then_killed(slurm: Slurm) -> None:
    cluster = slurm()
    begun = "until pgrep -fx 'sleep 4711' >/dev/null; do sleep 0.1; done"
    cluster.run("srun", "sh", "-c", f"setsid sleep 4711 >/dev/null 2>&1 & {begun}")
    assert "sleep 4711" in cluster.processes()
    cluster.stop()
    assert list(cluster.processes()) == []
