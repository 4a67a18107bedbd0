"""What `config hooks slurm` writes, as Prolog, Epilog and HealthCheckProgram of a real Slurm."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from tests.slurm.cluster import Cluster, until

pytestmark = [pytest.mark.slurm, pytest.mark.cuda, pytest.mark.xdist_group("slurm")]

HEALTHY, FAULTY, HANGING = "healthy-cuda", "nvidia-460.32.03", "hang-init"

REASON = f"gpuipc-doctor: SIMULATED ({FAULTY}) FAIL ipc-reopen on cuda:0 GPU-"

Site = Callable[..., Cluster]


def install(cluster: Cluster, node: str, profile: str, budget_s: float = 20, **prolog: object) -> None:
    """Make a node the one that a profile simulates, and give it a site config and the hook."""
    policy = {"on_fail": "drain", "on_error": "log", "on_budget": "log", "on_unkillable": "log"}
    lines = [f"  {key}: {value}\n" for key, value in {**policy, "simulate": profile, **prolog}.items()]
    place = cluster.directory / node
    place.mkdir(exist_ok=True)
    config = place / "site.yaml"
    config.write_text(f"budget_s: {{prolog: {budget_s}}}\nprolog:\n{''.join(lines)}")
    tool = [sys.executable, "-m", "gpuipc_doctor.cli.main", "config", "hooks", "slurm"]
    subprocess.run([*tool, "--config", config, "--to", place], env=cluster.environment, check=True)


@pytest.fixture
def site(slurm: Callable[..., Cluster]) -> Site:
    """``site(profile, …, on_fail="log")`` is a cluster whose nodes are those that the profiles simulate."""

    def up(*profiles: str, hooks: tuple[str, ...] = ("Prolog",), **options: object) -> Cluster:
        settings = {key: options.pop(key) for key in list(options) if not key[0].islower()}

        def prepare(cluster: Cluster) -> None:
            for node, profile in zip(cluster.nodes, profiles, strict=True):
                install(cluster, node, profile, **options)
            hook = cluster.directory / "hook"  # the nodes have one slurm.conf and are one machine
            hook.write_text(f'#!/bin/sh\nexec "{cluster.directory}/$SLURMD_NODENAME/gpuipc-doctor-slurm"\n')
            hook.chmod(0o755)

        settings |= dict.fromkeys(hooks, "{directory}/hook")
        return slurm(prepare=prepare, nodes=len(profiles), PrologFlags="Alloc", **settings)

    return up


def srun(cluster: Cluster, *options: str) -> subprocess.CompletedProcess[str]:
    return cluster.run("srun", *options, "echo", "the job ran", timeout_s=60)


def test_on_a_healthy_node_the_job_runs_and_nothing_is_left(site: Site) -> None:
    cluster = site(HEALTHY)
    assert srun(cluster).stdout == "the job ran\n"
    assert f"gpuipc-doctor: SIMULATED ({HEALTHY}) PASS" in cluster.log("n1")
    cluster.await_node("n1", "idle")
    assert cluster.left() == []


def test_a_faulty_node_is_drained_with_our_reason_and_the_job_goes_elsewhere(site: Site) -> None:
    cluster = site(FAULTY, HEALTHY)
    job = cluster.ask(
        "sbatch", "--parsable", "--wrap=echo $SLURMD_NODENAME", f"--output={cluster.directory}/out"
    )
    assert cluster.await_node("n1", "drained").startswith(REASON)
    until("it is in the queue again", lambda: cluster.job(job)["JobState"] == "PENDING")
    assert (cluster.job(job)["Restarts"], cluster.job(job)["Reason"]) == ("1", "launch_failed_requeued_held")
    # Slurm lets a job that it has put back wait for two minutes.
    cluster.ask("scontrol", "update", f"jobid={job}", "starttime=now")
    cluster.ask("scontrol", "release", job)
    until("it has run", lambda: cluster.job(job)["JobState"] == "COMPLETED")
    assert (cluster.directory / "out").read_text() == "n2\n"
    assert cluster.node("n2")[0] == "idle"
    assert cluster.left() == []


def test_one_faulty_node_of_two_gives_the_whole_job_back(site: Site) -> None:
    cluster = site(HEALTHY, FAULTY)
    ended = srun(cluster, "-N2")
    assert ended.returncode != 0
    assert "the job ran" not in ended.stdout
    assert cluster.await_node("n2", "drained").startswith(REASON)
    assert "drain" not in cluster.node("n1")[0]


def test_a_driver_that_hangs_costs_no_more_than_the_budget(site: Site) -> None:
    cluster = site(HANGING, budget_s=4)
    started = time.monotonic()
    assert srun(cluster).stdout == "the job ran\n"
    assert (
        time.monotonic() - started < 4 + 1 + 3
    )  # the budget, the promised second, and Slurm on a busy machine
    assert "cuInit" in cluster.log("n1")
    cluster.await_node("n1", "idle")
    assert cluster.left() == []


@pytest.mark.parametrize(
    ("prolog", "words"),
    [
        ({"on_budget": "drain"}, "ERROR"),
        ({"deadline_s": 1}, "FAIL"),
    ],
)
def test_a_driver_that_hangs_drains_the_node_where_the_policy_says_so(
    site: Site, prolog: dict[str, object], words: str
) -> None:
    cluster = site(HANGING, budget_s=4, **prolog)
    assert srun(cluster).returncode != 0
    reason = cluster.await_node("n1", "drained")
    assert reason.startswith(f"gpuipc-doctor: SIMULATED ({HANGING}) {words}"), reason
    assert "cuInit" in reason
    assert cluster.left() == []


@pytest.mark.parametrize("what", ["python", "package", "config", "config's syntax"])
def test_a_tool_that_is_broken_lets_the_job_run_and_says_so(site: Site, what: str) -> None:
    cluster = site(FAULTY)
    hook, config = cluster.directory / "n1/gpuipc-doctor-slurm", cluster.directory / "n1/site.yaml"
    if what == "python":
        hook.write_text(hook.read_text().replace(sys.executable, "/nowhere/python"))
    elif what == "package":
        hook.write_text(hook.read_text().replace("-m gpuipc_doctor", "-m gpuipc_nowhere"))
    elif what == "config":
        config.unlink()
    else:
        config.write_text("prolog: [")
    assert srun(cluster).stdout == "the job ran\n"
    cluster.await_node("n1", "idle")
    assert "gpuipc-doctor" in cluster.log("n1")


def test_as_epilog_it_drains_the_node_when_the_job_has_ended(site: Site) -> None:
    cluster = site(FAULTY, hooks=("Epilog",))
    assert srun(cluster).stdout == "the job ran\n"
    assert cluster.await_node("n1", "drained").startswith(REASON)


def test_as_health_check_it_drains_a_node_that_has_no_job(site: Site) -> None:
    cluster = site(FAULTY, HEALTHY, hooks=("HealthCheckProgram",), HealthCheckInterval="2")
    assert cluster.await_node("n1", "drained").startswith(REASON)
    assert cluster.node("n2")[0] == "idle"


def test_who_drained_the_node_before_keeps_the_reason(site: Site) -> None:
    cluster = site(HEALTHY, hooks=("HealthCheckProgram",), HealthCheckInterval="1")
    cluster.ask("scontrol", "update", "nodename=n1", "state=drain", "reason=the fan is broken")
    install(cluster, "n1", FAULTY)
    until("it was found faulty twice", lambda: cluster.log("n1").count("ipc-reopen") > 1, timeout_s=40)
    assert cluster.node("n1") == ("drained", "the fan is broken")
