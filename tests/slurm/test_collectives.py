"""`fleet collectives` on real slurmds, over a real ssh, and in network namespaces as nodes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuipc_doctor.api import loader
from tests.networks import Networks
from tests.slurm.cluster import Cluster
from tests.slurm.test_fleet import DOCTOR
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.cuda]

TWO, LIMIT_S = "collectives-two", 300.0

TOOL = """#!/bin/sh
node=${{SLURMD_NODENAME:-$FLEET_NODE}}
profile={profile}
case $node in
    {cases}
    *) enter= ;;
esac
export NCCL_HOSTID=$node
exec $enter {python} -m gpuipc_doctor "$@" --simulate $profile --called $node
"""


def tool(directory: Path, networks: Networks | None = None, faults: Mapping[str, str] | None = None) -> str:
    """The nodes' tool: on a simulated node, in the node's network namespace, with these collective faults."""
    cases = []
    for node in networks.nodes if networks else faults or {}:
        words = f'enter="{networks.enter(node)}"' if networks else "enter="
        if fault := (faults or {}).get(node):
            profile = directory / f"{node}.yaml"
            text = f"description: x\nextends: {TWO}\ncollective-faults:\n  - {fault}\nexpect: {{exit: 12}}\n"
            profile.write_text(text)
            words += f" profile={profile}"
        cases.append(f"{node}) {words} ;;")
    path = directory / "gpuipc-doctor"
    text = TOOL.format(cases="\n    ".join(cases), python=sys.executable, profile=TWO)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def collectives(into: Path, *options: str) -> list[str]:
    limits = ("--largest", "65536", "--deadline", "60")
    checks = ("--", "--backend", "cuda", "--simulate", TWO)
    return [*DOCTOR, "fleet", "collectives", "--into", str(into), *limits, *options, *checks]


def together(into: Path) -> list[dict[str, Any]]:
    """The ranks of the round of all nodes."""
    told = [json.loads(line) for line in (into / "rounds.jsonl").read_text().splitlines()]
    (found,) = [one for one in told if one["round"]["name"] == "all together"]
    return [rank for group in found["groups"] for rank in group["ranks"]]


def test_collectives_over_eight_slurmds_in_networks_of_their_own(
    slurm: Callable[..., Cluster], tmp_path: Path
) -> None:
    with Networks([f"n{number}" for number in range(1, 9)]) as networks:
        cluster = slurm(nodes=8)  # whose mount namespace then has the networks
        path = tool(cluster.directory, networks)
        command = collectives(tmp_path / "out", "--tool", path, "--address", networks.address)
        ended = cluster.run("salloc", "-N8", *command, timeout_s=LIMIT_S)
        assert ended.returncode == 0, ended
        ranks = together(tmp_path / "out")
        assert [rank["rank"] for rank in ranks] == list(range(16))
        assert {rank["network"] for rank in ranks} == {f"Socket: eth0:{one}" for one in networks.of.values()}
        cluster.rest()


def test_hanging_node_of_eight_is_named(slurm: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = slurm(nodes=8)
    faults = dict.fromkeys([f"n{number}" for number in range(1, 9)], "")
    path = tool(cluster.directory, None, faults | {"n6": "{call: all-gather, do: hang, transport: NET}"})
    command = collectives(tmp_path / "out", "--tool", path, "--deadline", "8", "--json")
    ended = cluster.run("salloc", "-N8", *command, timeout_s=LIMIT_S)
    assert ended.returncode == 12, ended
    (finding,) = [one["finding"] for one in json.loads(ended.stdout)["results"]]
    assert (finding["key"], finding["values"]["who"]) == ("node", "n6")
    assert "hung in all-gather of 2 B, bfloat16" in finding["evidence"][0]["values"]["what"]
    assert finding["evidence"][1]["values"]["number"] >= 5  # pass together without it
    cluster.rest()


def lacks_interface(cluster: Cluster) -> None:
    """Once there is a file ``faulty``, NCCL_SOCKET_IFNAME names an interface on n2 that it lacks."""
    prolog = cluster.directory / "task-prolog"
    faulty = f"[ $SLURMD_NODENAME != n2 ] || [ ! -e {cluster.directory}/faulty ]"
    prolog.write_text(f"#!/bin/sh\n{faulty} || echo export NCCL_SOCKET_IFNAME=ib7\n")
    prolog.chmod(0o755)


def test_check_over_three_nodes_adds_their_collectives(slurm: Callable[..., Cluster]) -> None:
    cluster = slurm(nodes=3, TaskProlog="{directory}/task-prolog", prepare=lacks_interface)
    ids = {item.check.id for item in loader.load() if isinstance(item, loader.LoadedCheck)}
    slow = ids - {"ipc-peer", "fabric-small-message"}  # one check of this node, and one between nodes
    config = cluster.directory / "site.yaml"
    config.write_text(json.dumps({"disabled": dict.fromkeys(slow, "is slow")}))
    check = [*DOCTOR, "check", "--all", "--nodes", "3", "--backend", "cuda", "--config", str(config)]
    command = ["salloc", "-Q", "-N3", *check, "--simulate", TWO]
    ended = cluster.run(*command, "--json", timeout_s=LIMIT_S)
    assert ended.returncode == 0, ended
    told = json.loads(ended.stdout)
    ours = [one["finding"] for one in told["results"] if one["check"] == "fleet-collectives"]
    assert [(one["status"], one["key"]) for one in ours] == [("PASS", "passed"), ("PASS", "carried")]
    assert "30 operations on 6 ranks of 3 nodes, every element compared" in ours[0]["summary"]
    (cluster.directory / "faulty").touch()
    ended = cluster.run(*command, timeout_s=LIMIT_S)
    assert ended.returncode == 12, ended
    said = " ".join(ended.stdout.split())
    assert "REJECT: fleet-collectives: n2: collectives fail within the node: " in said
    assert "NCCL_SOCKET_IFNAME names ib7, which n2 lacks" in said
    cluster.rest()


def test_collectives_over_ssh(sshd: list[str], tmp_path: Path) -> None:
    options = [word for option in sshd for word in ("--launch-option", option)]
    command = collectives(
        tmp_path / "out", "--via", "ssh", "-w", "n[1-2]", "--tool", tool(tmp_path), *options
    )
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment)
    assert ended.returncode == 0, ended
    assert [rank["node"] for rank in together(tmp_path / "out")] == ["n1", "n1", "n2", "n2"]


def test_collectives_over_ssh_through_a_gateway(sshd: list[str], tmp_path: Path) -> None:
    """ClusterShell's tree: the secret goes through the gateway's standard input."""
    here = socket.gethostname().partition(".")[0]
    (tmp_path / "topology.conf").write_text(f"[routes]\n{here}: gateway\ngateway: n[1-2]\n")
    gateway, used = tmp_path / "python3", tmp_path / "used"
    gateway.write_text(f'#!/bin/sh\ntouch {used}\nexport PATH={tmp_path}:$PATH\nexec {sys.executable} "$@"\n')
    gateway.chmod(0o755)
    options = [word for option in sshd for word in ("--launch-option", option)]
    options += ["--via", "ssh", "-w", "n[1-2]", "--tool", tool(tmp_path)]
    environment = {**os.environ, "CLUSTERSHELL_CFGDIR": str(tmp_path)}
    environment["CLUSTERSHELL_GW_PYTHON_EXECUTABLE"] = str(gateway)
    command = collectives(tmp_path / "out", *options)
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.returncode == 0, ended
    assert used.exists()
    assert len(together(tmp_path / "out")) == 4


def test_job_is_made_for_the_nodes_and_ends_with_ctrl_c(
    slurm: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = slurm(nodes=2)
    hang = {"n2": "{call: all-gather, do: hang, rank: 2}"}
    path = tool(cluster.directory, faults=hang)
    command = collectives(tmp_path / "out", "--tool", path, "-w", "n[1-2]")
    running = subprocess.Popen(
        cluster._inside(tuple(command)),
        env=cluster.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until("the nodes have come", lambda: "fleet take-part" in " ".join(cluster.processes()), 60)
    time.sleep(10)  # then they hang together
    [pid] = cluster.ask("pgrep", "-f", "gpuipc_doctor fleet collectives").split()
    cluster.run("kill", "-INT", pid)
    running.communicate(timeout=100)
    assert running.returncode == 130
    (alone,) = [json.loads(line) for line in (tmp_path / "out/rounds.jsonl").read_text().splitlines()]
    assert alone["round"]["name"] == "each node alone"
    cluster.rest()


def test_dead_slurmd_costs_only_its_own_node(slurm: Callable[..., Cluster], tmp_path: Path) -> None:
    """Slurm cannot start the step on it; those that can are started once more."""
    cluster = slurm(nodes=3, SlurmdTimeout="0", MessageTimeout="5")
    [slurmd] = cluster.ask("pgrep", "-f", "slurmd.* -N n2").split()
    cluster.run("kill", "-9", slurmd)
    command = collectives(tmp_path / "out", "--tool", tool(cluster.directory), "-w", "n[1-3]")
    ended = cluster.run(*command, timeout_s=LIMIT_S)
    assert ended.returncode == 11, ended
    assert "n2 takes no part: " in " ".join(ended.stdout.split())
    ranks = together(tmp_path / "out")
    assert [(rank["node"], rank["ending"]) for rank in ranks] == [
        *[("n1", "done")] * 2,
        *[("n3", "done")] * 2,
    ]


@pytest.fixture
def networks(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Networks]:
    """Two nodes or more, each in a network of its own, which a stand-in for ssh enters."""
    wrapper = tmp_path / "ssh"
    wrapper.write_text(
        '#!/bin/sh\nwhile [ "$1" != -- ]; do FLEET_NODE=$1; shift; done\nshift\n'
        'export FLEET_NODE\nexec sh -c "$*"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with Networks([f"n{number}" for number in range(1, getattr(request, "param", 2) + 1)]) as made:
        yield made


def run(tmp_path: Path, networks: Networks) -> subprocess.CompletedProcess[str]:
    reach = ["--via", "ssh", "-w", "n[1-2]", "--tool", tool(tmp_path, networks)]
    command = collectives(tmp_path / "out", *reach, "--address", networks.address)
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)


def meet(tmp_path: Path, networks: Networks, code: int) -> tuple[list[dict[str, Any]], str]:
    """The ranks of both nodes together, and the screen."""
    nodes = ",".join(networks.nodes)
    reach = ["--via", "ssh", "-w", nodes, "--tool", tool(tmp_path, networks), "--address", networks.address]
    into = tmp_path / f"out{len(list(tmp_path.glob('out*')))}"
    command = collectives(into, *reach)
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.returncode == code, ended
    return together(into), " ".join(ended.stdout.split())


def test_connection_that_fails_is_told_with_both_ends(tmp_path: Path, networks: Networks) -> None:
    networks.run("n2", f"ip route add unreachable {networks.of['n1']}/32")
    ranks, screen = meet(tmp_path, networks, 12)
    failed = [rank for rank in ranks if rank["node"] == "n2"]
    assert {rank["ending"] for rank in failed} == {"failed"}
    for rank in failed:
        own, other = rank["ends"]
        assert own == networks.of["n2"]
        assert other.partition(":")[0] == networks.of["n1"]
    assert {rank["ending"] for rank in ranks if rank["node"] == "n1"} == {"hung"}
    assert "No route to host" in screen


@pytest.mark.parametrize("networks", [4], indirect=True)
def test_link_of_four_nodes_is_named(tmp_path: Path, networks: Networks) -> None:
    networks.run("n2", f"ip route add unreachable {networks.of['n4']}/32")
    networks.run("n4", f"ip route add unreachable {networks.of['n2']}/32")
    _, screen = meet(tmp_path, networks, 12)
    assert screen.startswith("REJECT: fleet-collectives: n2 - n4: collectives fail between them; both pass ")
    assert f"no connection from {networks.of['n2']} to {networks.of['n4']}:" in screen or (
        f"no connection from {networks.of['n4']} to {networks.of['n2']}:" in screen
    )


def test_head_without_a_route_is_told_with_the_address_that_was_tried(
    tmp_path: Path, networks: Networks
) -> None:
    networks.run("n2", f"ip route add unreachable {networks.address}/32")
    ended = run(tmp_path, networks)
    assert ended.returncode == 11, ended
    screen = " ".join(ended.stdout.split())
    assert f"n2 takes no part: the head of this run cannot be reached; tried: {networks.address}:" in screen
    assert "No route to host" in screen


def test_slow_link_is_measured(tmp_path: Path, networks: Networks) -> None:
    fast = _seconds(meet(tmp_path, networks, 0)[0])
    networks.run("n2", "tc qdisc add dev eth0 root tbf rate 20mbit burst 32kbit latency 400ms")
    assert _seconds(meet(tmp_path, networks, 0)[0]) > 3 * fast


def test_lost_packets_slow_it_down_and_change_nothing(tmp_path: Path, networks: Networks) -> None:
    lose = "iptables -A INPUT -i eth0 -m statistic --mode random --probability 0.05 -j DROP"
    try:
        networks.run("n2", lose)
    except subprocess.CalledProcessError:
        pytest.skip("needs iptables with the match statistic")
    assert {rank["wrong_cases"] for rank in meet(tmp_path, networks, 0)[0]} == {0}


def _seconds(ranks: list[dict[str, Any]]) -> float:
    """Of the largest all-reduce, on the slowest rank."""
    return max(rank["speeds"][-1]["seconds"] for rank in ranks)
