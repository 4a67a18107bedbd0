"""A fleet on a real Slurm, and over ssh: a dead node costs only its own answer."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuipc_doctor.fleet.directory import SUMMARY
from gpuipc_doctor.simulator import fabric_programs
from tests.e2e.conftest import SMALL_MESSAGES
from tests.slurm.cluster import Cluster, until
from tests.slurm.conftest import RESTING_APART
from tests.waiting import LIMIT_S

pytestmark = [pytest.mark.slurm, pytest.mark.cuda]

Slurm = Callable[..., Cluster]

PROFILES = {"n1": "healthy-single", "n2": "nvidia-460.32.03", "n3": "healthy-single", "n4": "healthy-single"}

DOCTOR = (sys.executable, "-m", "gpuipc_doctor")

TOOL = """#!/bin/sh
node=${{SLURMD_NODENAME:-$FLEET_NODE}}
case $node in
    {cases}
esac
exec {python} -m gpuipc_doctor "$@" --simulate $profile
"""


def tool(directory: Path, special: str = "") -> Path:
    """The tool of the nodes: it runs on a simulated node that depends on the node's name."""
    cases = "\n    ".join(f"{node}) profile={profile} ;;" for node, profile in PROFILES.items())
    path = directory / "gpuipc-doctor"
    path.write_text(TOOL.format(cases=f"{special}\n    {cases}", python=sys.executable))
    path.chmod(0o755)
    return path


def fleet(into: Path, *options: str) -> list[str]:
    checks = ("--", "ipc-reopen", "driver-init", "--backend", "cuda")
    return [*DOCTOR, "fleet", "check", "--into", str(into), *options, *checks]


def told(into: Path) -> dict[str, object]:
    command = [*DOCTOR, "fleet", "report", str(into), "--json"]
    found: dict[str, object] = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
    return found


def topology(cluster: Cluster) -> None:
    """Write a topology with two switches, in which neighbours by number are not neighbours."""
    lines = "SwitchName=s0 Nodes=n[1,3]\nSwitchName=s1 Nodes=n[2,4]\nSwitchName=top Switches=s[0-1]\n"
    (cluster.directory / "topology.conf").write_text(lines)


@pytest.fixture(scope="module")
def four_nodes(shared_slurm: Slurm) -> Cluster:
    settings = {"PartitionName": "gpu Nodes=n1 MaxTime=INFINITE State=UP", "TopologyPlugin": "topology/tree"}
    return shared_slurm(nodes=4, prepare=topology, **settings)


@pytest.fixture
def four(four_nodes: Cluster) -> Iterator[Cluster]:
    """Four nodes below two switches, which are idle again at the end of the test."""
    yield four_nodes
    four_nodes.rest()


def test_each_node_of_an_allocation_answers(four: Cluster, tmp_path: Path) -> None:
    command = fleet(tmp_path / "out", "--tool", str(tool(tmp_path)))
    ended = four.run("salloc", "-N4", *command, timeout_s=LIMIT_S)
    assert "FAIL" in ended.stdout, ended
    assert "2 FAIL" not in ended.stdout
    nodes = told(tmp_path / "out")["nodes"]
    assert nodes == {"pass": "n[1,3-4]", "fail": "n2", "unknown": ""}


def test_a_node_of_a_partition_and_a_reservation(four: Cluster, tmp_path: Path) -> None:
    """The node only accepts jobs that name the partition and the reservation."""
    reservation = ("reservationname=upgrade", "starttime=now", "duration=60", "nodes=n1", "users=root")
    four.ask("scontrol", "create", "reservation", *reservation, "partition=gpu")
    where = ("--tool", str(tool(tmp_path)))
    refused = four.run(*fleet(tmp_path / "without", *where, "-w", "n1", "--patience", "2"), timeout_s=LIMIT_S)
    asked = (*where, "--partition", "gpu", "--reservation", "upgrade")
    ended = four.run(*fleet(tmp_path / "out", *asked), timeout_s=LIMIT_S)
    four.ask("scontrol", "delete", "reservationname=upgrade")
    assert refused.returncode == 11, refused
    assert ended.returncode == 0, ended
    assert told(tmp_path / "out")["nodes"] == {"pass": "n1", "fail": "", "unknown": ""}


def test_dead_and_broken_nodes_cost_only_their_own_answer(slurm: Slurm, tmp_path: Path) -> None:
    """Without an allocation: one node drained, one slurmd killed, one node without the tool, one unknown."""
    cluster = slurm(nodes=4, SlurmdTimeout="0", MessageTimeout="5")
    cluster.ask("scontrol", "update", "nodename=n1", "state=drain", "reason=test")
    [slurmd] = cluster.ask("pgrep", "-f", "slurmd.* -N n3").split()
    cluster.run("kill", "-9", slurmd)
    special = "n4) exec /nowhere/gpuipc-doctor ;;"
    options = ("-w", "n[1-4],nowhere", "--deadline", "300")
    command = fleet(tmp_path / "out", "--tool", str(tool(cluster.directory, special)), *options)
    ended = cluster.run(*command, timeout_s=LIMIT_S)
    assert ended.returncode == 12, ended
    found = told(tmp_path / "out")
    assert found["nodes"] == {"pass": "", "fail": "n2", "unknown": "n[1,3-4],nowhere"}
    silent = {missing["nodes"]: missing for missing in found["silent"]}  # type: ignore[attr-defined]
    assert silent["nowhere"]["state"] == "launch failed"
    assert "Invalid node name" in silent["nowhere"]["reason"]
    states = {nodes: one["state"] for nodes, one in silent.items()}
    assert states["n4"] == "tool missing"
    assert set(states.values()) <= {"tool missing", "launch failed", "deadline"}


def test_ctrl_c_keeps_known_answers_and_leaves_no_step(four: Cluster, tmp_path: Path) -> None:
    special = "n2) exec sleep 4711 ;;"
    into = tmp_path / "out"
    command = fleet(into, "--tool", str(tool(tmp_path, special)), "-w", "n[1-2]")
    running = subprocess.Popen(
        four._inside(tuple(command)),
        env=four.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until("the first has answered", (into / f"n1{SUMMARY}").exists)
    until("the other runs", lambda: "sleep 4711" in four.processes())
    [pid] = four.ask("pgrep", "-f", "gpuipc_doctor fleet check").split()
    four.run("kill", "-INT", pid)
    shown, said = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 130
    assert "no report from n2" in shown
    assert f"gpuipc-doctor fleet check --resume --into {into}" in said
    assert told(into)["nodes"]["pass"] == "n1"  # type: ignore[index]


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ((), {"n1 n3", "n2 n4"}),
        pytest.param(("--across",), {"n1 n2", "n3 n4"}, marks=pytest.mark.full),
    ],
)
def test_neighbours_come_from_slurms_topology(
    four: Cluster, tmp_path: Path, options: tuple[str, ...], first: set[str]
) -> None:
    """A stand-in for the tool answers nothing; it records which nodes were paired."""
    path, asked = tmp_path / "gpuipc-doctor", tmp_path / "asked"
    script = f"""#!/bin/sh
while [ "$1" != --partner ]; do shift; done
echo "$SLURMD_NODENAME $2" >> {asked}
"""
    path.write_text(script)
    path.chmod(0o755)
    pairs = (*DOCTOR, "fleet", "pairs", "--json", "--tool", str(path), *options)
    ended = four.run("salloc", "-N4", *pairs, timeout_s=LIMIT_S)
    assert ended.returncode == 11, ended
    assert set(asked.read_text().splitlines()[:2]) == first
    assert json.loads(ended.stdout)["no answer"] == "n[1-4]"


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("where", "profile", "verdict"),
    [
        pytest.param(
            "*n2*",
            "mpi-wrong-byte",
            {"bad nodes": "n2", "bad pairs": "", "cannot tell": ""},
            id="node",
        ),
        pytest.param(
            "'n1 '*n3*|'n3 '*n1*",
            "mpi-hang-finalize",
            {"bad nodes": "", "bad pairs": "n1 - n3", "cannot tell": ""},
            id="link",
            marks=pytest.mark.full,
        ),
    ],
)
def test_bad_node_is_distinguished_from_bad_link(
    four: Cluster, tmp_path: Path, where: str, profile: str, verdict: dict[str, str]
) -> None:
    """Messages to and from n2 arrive wrong from every partner; between n1 and n3, MPI hangs."""
    path = tmp_path / "gpuipc-doctor"
    library = Path(os.environ["GPUIPC_TEST_MPI"]) / "mpich43/lib/libmpi.so.12"
    path.write_text(
        f"""#!/bin/sh
case "$SLURMD_NODENAME $*" in {where}) profile={profile} ;; *) profile=healthy-single ;; esac
exec {sys.executable} -m gpuipc_doctor "$@" --simulate $profile --backend cuda --mpi-lib {library}
"""
    )
    path.chmod(0o755)
    options = ("--deadline", "5", "--config", SMALL_MESSAGES)
    pairs = (*DOCTOR, "fleet", "pairs", "--json", "--tool", str(path), "--", *options)
    ended = four.run("salloc", "-N4", *pairs, timeout_s=LIMIT_S, env=RESTING_APART)
    assert ended.returncode == 12, ended
    said = json.loads(ended.stdout)
    assert {name: said[name] for name in verdict} == verdict
    assert said["rounds"] <= 8
    assert said["runs"] <= 12


@pytest.mark.skipif("fi_pingpong" not in fabric_programs.here(), reason="no fi_pingpong on PATH")
@pytest.mark.parametrize(
    ("profile", "says"),
    [
        ("fabric-wrong-byte", "fi_pingpong: messages without MPI had wrong data"),
        pytest.param("fabric-hang-16", "(16 B over tcp) hung", marks=pytest.mark.full),
        pytest.param("fabric-healthy", "all pairs pass", marks=pytest.mark.full),
    ],
)
def test_bad_node_is_found_without_mpi(four: Cluster, tmp_path: Path, profile: str, says: str) -> None:
    """Messages of libfabric to and from n2 go wrong, and there is no MPI."""
    path = tmp_path / "gpuipc-doctor"
    path.write_text(
        f"""#!/bin/sh
case "$SLURMD_NODENAME $*" in *n2*) profile={profile} ;; *) profile=fabric-healthy ;; esac
exec {sys.executable} -m gpuipc_doctor "$@" --simulate $profile --backend cuda
"""
    )
    path.chmod(0o755)
    config = tmp_path / "site.yaml"
    config.write_text("options: {fabric-small-message: {sizes: [16, 64]}}\n")
    asked = ("fabric-small-message", "--config", str(config), "--deadline", "5")
    pairs = (*DOCTOR, "fleet", "pairs", "--tool", str(path), "--", *asked)
    ended = four.run("salloc", "-N4", *pairs, timeout_s=LIMIT_S)
    bad = profile != "fabric-healthy"
    assert (ended.returncode, "bad nodes: n2" in ended.stdout) == (12 * bad, bad), ended
    assert says in ended.stdout, ended


def test_nodes_over_ssh(sshd: list[str], tmp_path: Path) -> None:
    options = [word for option in sshd for word in ("--launch-option", option)]
    command = fleet(tmp_path / "out", "--via", "ssh", "-w", "n[1-3]", "--tool", str(tool(tmp_path)), *options)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.returncode == 12, ended
    assert told(tmp_path / "out")["nodes"] == {"pass": "n[1,3]", "fail": "n2", "unknown": ""}
    again = subprocess.run(
        [*command[:7], "--resume", *command[7:]], env=environment, capture_output=True, text=True
    )
    assert again.returncode == 12, again
    refused = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (refused.returncode, "--resume" in refused.stderr) == (2, True), refused


@pytest.mark.parametrize(
    ("third", "deadline", "state"),
    [
        ("exec /nowhere/gpuipc-doctor", "600", "tool missing"),
        pytest.param("exec sleep 4711", "60", "deadline", marks=pytest.mark.full),
    ],
)
def test_nodes_behind_a_gateway(
    sshd: list[str], tmp_path: Path, third: str, deadline: str, state: str
) -> None:
    """ClusterShell's tree: from here, ssh reaches only the gateway; from the gateway, the nodes."""
    here = socket.gethostname().partition(".")[0]
    (tmp_path / "topology.conf").write_text(f"[routes]\n{here}: gateway\ngateway: n[1-3]\n")
    gateway, used = tmp_path / "python3", tmp_path / "used"
    gateway.write_text(f'#!/bin/sh\ntouch {used}\nexport PATH={tmp_path}:$PATH\nexec {sys.executable} "$@"\n')
    gateway.chmod(0o755)
    path = tool(tmp_path, f"n3) {third} ;;")
    options = [word for option in sshd for word in ("--launch-option", option)]
    command = fleet(tmp_path / "out", "--via", "ssh", "-w", "n[1-3]", "--tool", str(path), *options)
    command[5:5] = ["--deadline", deadline]
    environment = {**os.environ, "CLUSTERSHELL_CFGDIR": str(tmp_path)}
    environment["CLUSTERSHELL_GW_PYTHON_EXECUTABLE"] = str(gateway)
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.returncode == 12, ended
    assert used.exists()
    assert told(tmp_path / "out")["nodes"] == {"pass": "n1", "fail": "n2", "unknown": "n3"}
    [silent] = told(tmp_path / "out")["silent"]  # type: ignore[misc]
    assert silent["state"] == state


def test_unreachable_node_is_reported_as_such(sshd: list[str], tmp_path: Path) -> None:
    options = [word for option in sshd for word in ("--launch-option", option)]
    options = ["1" if word == sshd[1] else word for word in options]
    command = fleet(tmp_path / "out", "--via", "ssh", "-w", "n1", "--tool", str(tool(tmp_path)), *options)
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.returncode == 11, ended
    [silent] = told(tmp_path / "out")["silent"]  # type: ignore[misc]
    assert (silent["state"], "refused" in silent["reason"]) == ("not reachable", True)
