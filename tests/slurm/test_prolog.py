"""The files written by `config hooks slurm`, as Prolog, Epilog and HealthCheckProgram of a real Slurm."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.cluster import Cluster
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.cuda]

HEALTHY, FAULTY, HANGING = "healthy-cuda", "nvidia-460.32.03", "hang-init"

REASON = f"gpuipc-doctor: SIMULATED ({FAULTY}) FAIL ipc-reopen on cuda:0 GPU-"

Site = Callable[..., Cluster]


def install(cluster: Cluster, node: str, profile: str, budget_s: int = 20, **prolog: object) -> None:
    """Make a node one that a profile simulates, and install a site config and the hook for it."""
    policy = {"on_fail": "drain", "on_error": "log", "on_budget": "log", "on_unkillable": "drain"}
    section = {**policy, "log": "log.jsonl", "state_dir": "state", "simulate": profile, **prolog}
    place = cluster.directory / node
    place.mkdir(exist_ok=True)
    config = place / "site.yaml"
    config.write_text(json.dumps({"budget_s": {"prolog": budget_s}, "prolog": section}))
    tool = [sys.executable, "-m", "gpuipc_doctor", "config", "hooks", "slurm"]
    subprocess.run([*tool, "--config", config, "--to", place], env=cluster.environment, check=True)


def logged(cluster: Cluster, node: str) -> list[dict[str, Any]]:
    """The log entries of the prologs on a node, oldest first."""
    return [json.loads(line) for line in (cluster.directory / node / "log.jsonl").read_text().splitlines()]


@pytest.fixture
def site(slurm: Callable[..., Cluster]) -> Site:
    """``site(profile, …, on_fail="log")`` starts a cluster with one node for each profile."""

    def up(*profiles: str, hooks: tuple[str, ...] = ("Prolog",), gpus: int = 0, **options: object) -> Cluster:
        settings = {key: options.pop(key) for key in list(options) if not key[0].islower()}

        def prepare(cluster: Cluster) -> None:
            for node, profile in zip(cluster.nodes, profiles, strict=True):
                install(cluster, node, profile, **options)
            hook = cluster.directory / "hook"  # the nodes share one slurm.conf and one machine
            hook.write_text(f'#!/bin/sh\nexec "{cluster.directory}/$SLURMD_NODENAME/gpuipc-doctor-slurm"\n')
            hook.chmod(0o755)

        settings |= dict.fromkeys(hooks, "{directory}/hook")
        return slurm(prepare=prepare, nodes=len(profiles), gpus=gpus, PrologFlags="Alloc", **settings)

    return up


def srun(cluster: Cluster, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a job that prints a line, which shows whether it ran. The exit code does not: if Slurm cancels the
    job before its step starts, srun exits with 0 or 1."""
    return cluster.run("srun", *options, "echo", "the job ran")


def assert_nothing_is_left(cluster: Cluster) -> None:
    """Assert that no process of the hook is left; Slurm's own step may still be ending."""
    assert [words for words in cluster.left() if not words.startswith("slurmstepd: [")] == []


def test_job_runs_on_a_healthy_node_and_nothing_is_left(site: Site) -> None:
    cluster = site(HEALTHY)
    assert srun(cluster).stdout == "the job ran\n"
    assert f"gpuipc-doctor: SIMULATED ({HEALTHY}) PASS" in cluster.log("n1")
    cluster.await_node("n1", "idle")
    assert_nothing_is_left(cluster)


def test_faulty_node_is_drained_with_our_reason_and_the_job_runs_elsewhere(site: Site) -> None:
    cluster = site(FAULTY, HEALTHY)
    output = f"--output={cluster.directory}/out"
    job = cluster.ask("sbatch", "--parsable", "--wrap=echo $SLURMD_NODENAME", output).strip()
    assert cluster.await_node("n1", "drained").startswith(REASON)
    until("it is in the queue again", lambda: cluster.job(job)["JobState"] == "PENDING")
    assert (cluster.job(job)["Restarts"], cluster.job(job)["Reason"]) == ("1", "launch_failed_requeued_held")
    # Slurm delays a requeued job by two minutes.
    cluster.ask("scontrol", "update", f"jobid={job}", "starttime=now")
    cluster.ask("scontrol", "release", job)
    until("it has run", lambda: cluster.job(job)["JobState"] == "COMPLETED")
    assert (cluster.directory / "out").read_text() == "n2\n"
    assert cluster.node("n2")[0] == "idle"
    assert_nothing_is_left(cluster)


def test_one_faulty_node_of_two_requeues_the_whole_job(site: Site) -> None:
    cluster = site(HEALTHY, FAULTY)
    assert srun(cluster, "-N2").stdout == ""
    assert cluster.await_node("n2", "drained").startswith(REASON)
    assert "drain" not in cluster.node("n1")[0]


def test_hanging_driver_costs_no_more_than_the_budget(site: Site) -> None:
    cluster = site(HANGING, budget_s=4)
    assert srun(cluster).stdout == "the job ran\n"
    assert "cuInit" in cluster.log("n1")
    cluster.await_node("n1", "idle")
    assert_nothing_is_left(cluster)


@pytest.mark.parametrize(
    ("prolog", "words"),
    [
        ({"on_budget": "drain"}, "ERROR"),
        ({"deadline_s": 1}, "FAIL"),
    ],
)
def test_hanging_driver_drains_the_node_if_the_policy_says_so(
    site: Site, prolog: dict[str, object], words: str
) -> None:
    cluster = site(HANGING, budget_s=4, **prolog)
    assert srun(cluster).stdout == ""
    reason = cluster.await_node("n1", "drained")
    assert reason.startswith(f"gpuipc-doctor: SIMULATED ({HANGING}) {words}"), reason
    assert "cuInit" in reason
    assert_nothing_is_left(cluster)


def test_hanging_driver_drains_the_node_at_the_second_job(site: Site) -> None:
    cluster = site(HANGING, budget_s=4, deadline_s=6)
    assert srun(cluster).stdout == "the job ran\n"
    assert srun(cluster).stdout == ""
    reason = cluster.await_node("n1", "drained")
    assert reason.startswith(f"gpuipc-doctor: SIMULATED ({HANGING}) FAIL"), reason
    assert "cuInit #1 hung (6 s)" in reason
    assert_nothing_is_left(cluster)


def test_shadow_mode_runs_the_job_and_logs_the_action(site: Site) -> None:
    cluster = site(FAULTY, shadow=True)
    assert srun(cluster).stdout == "the job ran\n"
    cluster.await_node("n1", "idle")
    (entry,) = logged(cluster, "n1")
    assert (entry["job"], entry["exit_code"], entry["withheld"]) == ("1", 0, "shadow mode is on")
    assert [concern["action"] for concern in entry["concerns"]] == ["drain"]
    assert "would drain, but shadow mode is on: FAIL ipc-reopen" in entry["line"]


def test_pass_is_remembered_until_something_changes(site: Site) -> None:
    cluster = site(HEALTHY, fresh_for_s=600)
    for _ in range(2):
        assert srun(cluster).stdout == "the job ran\n"
    first, second = logged(cluster, "n1")
    assert first["results"]
    assert (second["job"], second["results"]) == ("2", [])
    assert "PASS" in second["line"]
    assert " s ago" in second["line"]
    install(cluster, "n1", FAULTY, fresh_for_s=600)
    assert srun(cluster).stdout == ""
    assert cluster.await_node("n1", "drained").startswith(REASON)


def test_only_the_jobs_gpus_are_tested(site: Site, tmp_path: Path) -> None:
    """GPU 1 is broken; jobs on GPU 0 may run."""
    broken = tmp_path / "broken.yaml"
    broken.write_text(
        "description: Two GPUs, of which the second does not open handles.\nextends: healthy-cuda\n"
        "faults:\n  - {call: ipc-open, device: 1, do: error, error: INVALID_HANDLE}\n"
    )
    cluster = site(str(broken), gpus=2)
    assert srun(cluster, "--gres=gpu:1").stdout == "the job ran\n"
    assert srun(cluster, "--gres=gpu:2").stdout == ""
    assert " on cuda:1 GPU-" in cluster.await_node("n1", "drained")
    assert [entry["gpus"] for entry in logged(cluster, "n1")] == ["0", "0,1"]
    tested = [
        {place for result in entry["results"] for place in result["devices"]}
        for entry in logged(cluster, "n1")
    ]
    assert tested == [{"cuda:0"}, {"cuda:0", "cuda:1"}]


def test_all_gpus_are_tested_for_a_job_without_gpus(site: Site) -> None:
    cluster = site(HEALTHY, gpus=2)
    assert srun(cluster).stdout == "the job ran\n"
    (entry,) = logged(cluster, "n1")
    assert (entry["gpus"], set(entry["devices"])) == ("", {"cuda:0", "cuda:1"})


def test_jobs_that_start_at_once_are_each_tested(site: Site) -> None:
    cluster = site(HEALTHY, gpus=2, fresh_for_s=600)
    one = "srun -n1 --gres=gpu:1 echo the job ran & "
    ended = cluster.run("sh", "-c", one * 4 + "wait")
    assert ended.stdout == "the job ran\n" * 4, ended
    entries = logged(cluster, "n1")
    assert {entry["job"] for entry in entries} == {"1", "2", "3", "4"}
    assert {entry["gpus"] for entry in entries} == {"0", "1"}
    assert all(" PASS " in entry["line"] for entry in entries), entries


def test_slurm_ends_a_prolog_that_does_not_start(site: Site) -> None:
    """The prolog's Python hangs at its start, as if its file system were gone."""
    cluster = site(HEALTHY, PrologEpilogTimeout="3")
    hook, sleeps = cluster.directory / "n1/gpuipc-doctor-slurm", cluster.directory / "sleeps"
    sleeps.write_text("#!/bin/sh\nexec sleep 4711\n")
    sleeps.chmod(0o755)
    hook.write_text(hook.read_text().replace(sys.executable, str(sleeps)))
    assert srun(cluster).stdout == ""
    assert cluster.await_node("n1", "drained") == "Prolog error"
    until("it is gone", lambda: not cluster.left())


@pytest.mark.parametrize(
    "what",
    [
        "python",
        "config",
        *(pytest.param(part, marks=pytest.mark.full) for part in ("package", "config's syntax")),
    ],
)
def test_broken_tool_lets_the_job_run_and_says_so(site: Site, what: str) -> None:
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


def test_epilog_drains_the_node_after_the_job(site: Site) -> None:
    cluster = site(FAULTY, hooks=("Epilog",))
    assert srun(cluster).stdout == "the job ran\n"
    assert cluster.await_node("n1", "drained").startswith(REASON)


def test_health_check_drains_a_node_without_a_job(site: Site) -> None:
    cluster = site(FAULTY, HEALTHY, hooks=("HealthCheckProgram",), HealthCheckInterval="2")
    assert cluster.await_node("n1", "drained").startswith(REASON)
    assert cluster.node("n2")[0] == "idle"


@pytest.mark.full
def test_sweep_as_health_check_lets_nodes_register_and_drains_none(slurm: Callable[..., Cluster]) -> None:
    """Here it cannot tell, for want of NVML; slurmd logs what exits with 0 at its level of debugging only."""

    def prepare(cluster: Cluster) -> None:
        config = cluster.directory / "site.yaml"
        config.write_text(json.dumps({"sweep": {"state_dir": "state"}}))
        tool = [sys.executable, "-m", "gpuipc_doctor", "config", "hooks", "sweep"]
        subprocess.run([*tool, "--config", config, "--to", cluster.directory], check=True)

    program = "{directory}/gpuipc-doctor-sweep"
    cluster = slurm(prepare=prepare, nodes=1, HealthCheckProgram=program, HealthCheckInterval="1")
    line = "health_check success rc:0 output:gpuipc-doctor: ERROR cannot tell: NVIDIA: "
    until("it has run twice", lambda: cluster.log("n1").count(line) > 1)
    assert cluster.node("n1")[0] == "idle"


def test_existing_drain_reason_is_kept(site: Site) -> None:
    cluster = site(HEALTHY, hooks=("HealthCheckProgram",), HealthCheckInterval="1")
    cluster.ask("scontrol", "update", "nodename=n1", "state=drain", "reason=the fan is broken")
    install(cluster, "n1", FAULTY)
    until("it was found faulty twice", lambda: cluster.log("n1").count("ipc-reopen") > 1)
    assert cluster.node("n1") == ("drained", "the fan is broken")


def test_epilog_tells_what_rose_in_the_job_and_the_node_stays(slurm: Callable[..., Cluster]) -> None:
    def prepare(cluster: Cluster) -> None:
        (node,) = cluster.nodes
        install(cluster, node, "nvlink-replays")
        place = cluster.directory / node
        tool = [sys.executable, "-m", "gpuipc_doctor", "config", "hooks", "slurm", "--epilog"]
        command = [*tool, "--config", place / "site.yaml", "--to", place]
        subprocess.run(command, env=cluster.environment, check=True)

    place = "{directory}/n1/gpuipc-doctor-slurm"
    settings = {"Prolog": place, "Epilog": f"{place}-epilog", "PrologFlags": "Alloc"}
    cluster = slurm(prepare=prepare, nodes=1, **settings)
    cluster.ask("srun", "true")
    entries = until(
        "the epilog has logged", lambda: [entry for entry in logged(cluster, "n1") if "epilog" in entry]
    )
    assert entries[0]["exit_code"] == 0
    assert "cuda:0, NVLink 3 to cuda:1: " in entries[0]["epilog"]["rises"][0]
    assert entries[0]["job"] == logged(cluster, "n1")[0]["job"]
    cluster.await_node("n1", "idle")
