"""`fleet collectives` on real slurmds, over a real ssh, and in network namespaces as nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.networks import Networks
from tests.slurm.cluster import Cluster
from tests.slurm.test_fleet import DOCTOR

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
exec $enter {python} -m gpuipc_doctor "$@" --simulate $profile
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
    told = json.loads((into / "collectives.json").read_text())
    (found,) = [one for one in told["rounds"] if one["round"]["name"] == "all together"]
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


def test_collectives_over_ssh(sshd: list[str], tmp_path: Path) -> None:
    options = [word for option in sshd for word in ("--launch-option", option)]
    command = collectives(
        tmp_path / "out", "--via", "ssh", "-w", "n[1-2]", "--tool", tool(tmp_path), *options
    )
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment)
    assert ended.returncode == 0, ended
    assert [rank["node"] for rank in together(tmp_path / "out")] == ["n1", "n1", "n2", "n2"]
