"""Messages without MPI between two nodes of a real Slurm; a plain srun starts the processes."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuipc_doctor.simulator import fabric_programs
from tests.slurm.cluster import Cluster
from tests.waiting import until

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif("fi_pingpong" not in fabric_programs.here(), reason="no fi_pingpong on PATH"),
]


def between(slurm: Callable[..., Cluster], tmp_path: Path, node: str, *options: str) -> dict[str, Any]:
    """The finding of fabric-small-message over two nodes, through libfabric."""
    cluster = slurm(nodes=2)
    config = tmp_path / "site.yaml"
    config.write_text("options: {fabric-small-message: {sizes: [1, 16]}}\n")
    command = [
        *(sys.executable, "-m", "gpuipc_doctor", "check", "fabric-small-message", "--nodes", "2"),
        *("--simulate", node, "--backend", "cuda", "--json", "--config", str(config)),
        *("--keep-logs", str(cluster.directory / "logs"), *options),
    ]
    ended = cluster.run("salloc", "-N2", *command)
    assert ended.stdout, (ended, shlex.join(command))
    until("nothing is left", lambda: not cluster.left())
    results = json.loads(ended.stdout)["results"]
    [told] = [result for result in results if result["probe"] == "libfabric, between nodes"]
    return {**told["finding"], "roles": told["roles"]}


def test_messages_arrive_between_two_nodes_without_mpi(slurm: Callable[..., Cluster], tmp_path: Path) -> None:
    """Only tcp is used, because shared memory does not reach another node."""
    told = between(slurm, tmp_path, "fabric-healthy")
    assert (told["status"], told["summary"]) == ("PASS", "messages of 2 sizes arrived correct over tcp"), told


def test_hang_between_nodes_is_reported_with_its_size_and_leaves_nothing(
    slurm: Callable[..., Cluster], tmp_path: Path
) -> None:
    told = between(slurm, tmp_path, "fabric-hang-16", "--deadline", "5")
    assert told["status"] == "FAIL"
    assert told["summary"].endswith("(16 B over tcp) hung (5 s)"), told
