"""Ranks that a real srun starts, on one node and on two, are found and blamed, and none is left behind."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.cluster import Cluster
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.mpi, pytest.mark.usefixtures("resting")]

Slurm = Callable[..., Cluster]

SMALL_MESSAGES = str(Path(__file__).parents[1] / "fixtures/small-messages.yaml")

PREFIXES = Path(os.environ.get("GPUIPC_TEST_MPI", "/nowhere"))

LIBRARIES = {
    "mpich43": "libmpi.so.12",
    "mpich50": "libmpi.so.12",
    "openmpi": "libmpi.so.40",  # by PMIx if Slurm can load it, else by its own launcher
    "impi": "libmpi.so.12",  # by its own launcher
}


def check(node: str, *options: str, library: str = "mpich50") -> list[str]:
    """The command that checks small messages on a simulated node."""
    return [
        *(sys.executable, "-m", "gpuipc_doctor", "check", "mpi-small-message"),
        *("--simulate", node, "--backend", "cuda", "--no-workarounds", "--json"),
        *("--mpi-lib", str(PREFIXES / library / "lib" / LIBRARIES[library]), *options),
    ]


def findings(
    ended: subprocess.CompletedProcess[str], check: str = "mpi-small-message"
) -> list[dict[str, Any]]:
    """The findings of a check, each with its probe's name and its roles."""
    assert ended.stdout, ended
    results = json.loads(ended.stdout)["results"]
    found = [
        {**result["finding"], "probe": result["probe"], "roles": result["roles"]}
        for result in results
        if result["check"] == check
    ]
    for finding in found:
        if finding["key"] == "out-of-line":  # a slow latency only means that this machine is busy
            finding |= {"status": "PASS"}
    return found


def assert_nothing_is_left(cluster: Cluster) -> None:
    """Wait until no process of the job is left; Slurm removes a step shortly after it ends."""
    until("nothing is left of the ranks", lambda: not cluster.left())


@pytest.mark.parametrize(
    "library",
    [pytest.param(one, marks=[] if one == "mpich50" else pytest.mark.full) for one in LIBRARIES],
)
def test_messages_arrive_between_two_nodes(slurm: Slurm, library: str) -> None:
    cluster = slurm(nodes=2)
    options = ("--nodes", "2", "--keep-logs", str(cluster.directory / "logs"))
    ended = cluster.run("salloc", "-N2", *check("healthy-single", *options, library=library))
    within, between = findings(ended)
    assert (within["status"], within["probe"]) == ("PASS", "")
    assert (between["status"], between["probe"]) == ("PASS", "between nodes"), between
    right = between["summary"].endswith(" kinds of message correct from n1 to n2")
    assert right or between["key"] == "out-of-line", between
    assert [role["records"]["node"] for role in between["roles"]] == ["n1", "n2"]
    assert [role["records"]["node"] for role in within["roles"]] == ["n1", "n1"]
    assert_nothing_is_left(cluster)


@pytest.mark.parametrize(
    ("node", "ending"),
    [
        ("mpi-crash-256", "ended the process by SIGABRT"),
        pytest.param("mpi-hang-16", "hung (2 s)", marks=pytest.mark.full),  # see the next test
    ],
)
def test_ranks_of_srun_that_fail_are_blamed_and_leave_nothing(slurm: Slurm, node: str, ending: str) -> None:
    cluster = slurm()
    ended = cluster.run("salloc", "-n1", *check(node, "--deadline", "2", "--config", SMALL_MESSAGES))
    first, *_ = findings(ended)
    assert first["status"] == "FAIL"
    assert first["summary"].startswith("rank 1: MPI_Recv #"), first
    assert first["summary"].endswith(ending), first
    assert any("cxil_map() failed: -22" in line for line in first["roles"][0]["log_tail"])
    if node == "mpi-hang-16":
        assert all(role["python_stack"] and role["native_stack"] for role in first["roles"])
    assert_nothing_is_left(cluster)


def test_hang_between_nodes_is_blamed_and_leaves_nothing(slurm: Slurm) -> None:
    cluster = slurm(nodes=2)
    command = check("mpi-hang-finalize", "--nodes", "2", "--deadline", "2", "--config", SMALL_MESSAGES)
    ended = cluster.run("salloc", "-N2", *command)
    (between,) = (finding for finding in findings(ended) if finding["probe"] == "between nodes")
    assert between["summary"].endswith(": MPI_Finalize #1 hung (2 s)"), between
    assert all(role["python_stack"] for role in between["roles"])
    assert_nothing_is_left(cluster)


def test_killed_doctor_leaves_no_ranks(slurm: Slurm) -> None:
    """The ranks end before the job does, when Slurm would kill them anyway."""
    cluster = slurm(nodes=2)
    doctor = shlex.join(check("mpi-hang-16", "--nodes", "2", "--deadline", "60"))
    ranks = "pgrep -fc '[g]puipc_doctor.worker.*rank'"  # a pattern that does not match itself
    script = (
        f"{doctor} & until test $({ranks}) -ge 2; do sleep 0.1; done; kill -9 $!; "
        f"until test $({ranks}) -eq 0; do sleep 0.1; done; echo none is left"
    )
    ended = cluster.run("salloc", "-N2", "sh", "-c", script)
    assert ended.stdout == "none is left\n", ended
    assert_nothing_is_left(cluster)


def test_directory_missing_on_the_other_node_is_reported(slurm: Slurm, tmp_path: Path) -> None:
    cluster = slurm(nodes=2)
    logs = cluster.directory / "logs"
    hide = cluster.directory / "hide.sh"
    hide.write_text(f"""#!/bin/sh
test "$SLURMD_NODENAME" = n1 && exec "$@"
exec unshare -m sh -c 'mount -t tmpfs none {logs} && exec "$@"' sh "$@"
""")
    hide.chmod(0o755)
    config = tmp_path / "site.yaml"
    launcher = f"srun --overlap --overcommit -K1 --mpi=pmi2 -N{{nodes}} -n{{ranks}} {hide}"
    config.write_text(f"mpi:\n  launcher: {launcher}\n")
    command = check("healthy-single", "--nodes", "2", "--keep-logs", str(logs), "--config", str(config))
    ended = cluster.run("salloc", "-N2", *command)
    within, between = findings(ended)
    assert within["status"] == "PASS"
    assert between["status"] == "ERROR"
    assert f": the worker did not start: n2 does not see {logs}" in between["summary"], between
    assert "with --keep-logs or TMPDIR, name a directory" in between["summary"]


def test_ranks_that_srun_does_not_connect_are_explained(slurm: Slurm) -> None:
    cluster = slurm()
    ended = cluster.run("salloc", "-n2", *check("healthy-single"), env={"SLURM_MPI_TYPE": "none"})
    (finding,) = findings(ended, "mpi-start")
    assert finding["status"] == "ERROR"
    assert "srun started 2 ranks of MPICH" in finding["summary"]
    assert finding["remedy"].startswith("set SLURM_MPI_TYPE to the interface that the library speaks")


def places_apart(cluster: Cluster) -> None:
    """Make Open MPI's daemons keep their files apart: these nodes have the same name and ``/tmp``."""
    prolog = cluster.directory / "task-prolog"
    place = f"{cluster.directory}/$SLURMD_NODENAME"
    prolog.write_text(f"#!/bin/sh\nmkdir -p {place}\necho export PRTE_MCA_prte_tmpdir_base={place}\n")
    prolog.chmod(0o755)


def test_ranks_start_without_the_pmix_library_and_its_package_is_named(slurm: Slurm) -> None:
    cluster = slurm(nodes=2, TaskProlog="{directory}/task-prolog", prepare=places_apart)
    for file in Path("/usr").glob("lib*/**/libpmix.so*"):
        if not file.is_symlink():
            cluster.ask("mount", "--bind", "/dev/null", str(file))
    options = ("--nodes", "2", "--keep-logs", str(cluster.directory / "logs"))
    ended = cluster.run("salloc", "-N2", *check("healthy-single", *options, library="openmpi"))
    within, between = findings(ended)
    assert (within["status"], between["status"]) == ("PASS", "PASS"), (within, between)
    results = [result["finding"] for result in json.loads(ended.stdout)["results"]]
    (warned,) = (finding for finding in results if finding["key"] == "srun-cannot-start-ranks")
    assert warned["summary"].endswith("--mpi=pmix); using the mpiexec of Open MPI 5.0.11")
    assert "libpmix-dev" in warned["remedy"]
    assert_nothing_is_left(cluster)


def test_doctor_that_is_a_rank_starts_its_own_ranks(slurm: Slurm) -> None:
    cluster = slurm()
    ended = cluster.run("srun", "--mpi=pmi2", "-n1", *check("healthy-single"))
    (finding,) = findings(ended)
    assert finding["status"] == "PASS", finding


def test_missing_second_node_is_an_error_and_the_first_is_tested(slurm: Slurm) -> None:
    cluster = slurm()
    ended = cluster.run("salloc", "-N1", *check("healthy-single", "--nodes", "2"))
    assert [finding["status"] for finding in findings(ended)] == ["PASS"]
    told = [result["finding"] for result in json.loads(ended.stdout)["results"]]
    assert any("but this Slurm allocation has 1" in finding["summary"] for finding in told)
    assert ended.returncode == 11


def test_node_name_inherited_from_the_launcher_is_not_used(slurm: Slurm) -> None:
    """Batch scripts have this variable, and Hydra passes its caller's environment to every rank."""
    cluster = slurm(nodes=2)
    options = ("--nodes", "2", "--keep-logs", str(cluster.directory / "logs"))
    handed_on = {"SLURMD_NODENAME": "n1"}
    ended = cluster.run("salloc", "-N2", *check("healthy-single", *options, library="impi"), env=handed_on)
    within, between = findings(ended)
    assert (within["status"], between["status"]) == ("PASS", "PASS"), (within, between)
