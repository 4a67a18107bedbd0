"""Memory shared by fabric handle between two nodes of a real Slurm, over their simulated fabric."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.cluster import Cluster
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.cuda]


STALE = """
description: An import shows what lay there before.
extends: healthy-imex
faults: [{call: vmm-import, do: stale}]
expect: {exit: 12, findings: []}
"""


@pytest.mark.parametrize(
    ("fault", "status", "key"),
    [("", "PASS", "right"), (STALE, "FAIL", "wrong-data")],
    ids=["healthy", "stale"],
)
def test_fabric_handles_work_between_two_nodes(
    slurm: Callable[..., Cluster], tmp_path: Path, fault: str, status: str, key: str
) -> None:
    cluster, node = slurm(nodes=2), "healthy-imex"
    if fault:
        node = str(tmp_path / "stale.yaml")
        Path(node).write_text(fault)
    ended = cluster.run(
        *("salloc", "-N2", sys.executable, "-m", "gpuipc_doctor", "check", "ipc-fabric", "--nodes", "2"),
        *("--simulate", node, "--backend", "cuda", "--json"),
        *("--keep-logs", str(cluster.directory / "logs")),
    )
    assert ended.stdout, ended
    until("nothing is left", lambda: not cluster.left())
    results: list[dict[str, Any]] = json.loads(ended.stdout)["results"]
    told = [result["finding"] for result in results if result["probe"] == "between nodes"]
    assert {finding["status"] for finding in told} == {status}, told
    assert key in {finding["key"] for finding in told}
