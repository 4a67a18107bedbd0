"""Count the requests of `fleet check` to slurmctld, by blocks and with one srun a node; prints Markdown.

    python benchmarks/fleet_rpcs.py [--nodes 64]        # as root, with Slurm's daemons installed

A real Slurm with this many slurmd on one machine; the tool on the nodes is a script that prints an answer.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpuipc_doctor.fleet import summary
from tests.sample_fleets import HEALTHY, named
from tests.slurm.cluster import Cluster

DOCTOR = (sys.executable, "-m", "gpuipc_doctor")

OWN = ("REQUEST_STATS_INFO", "REQUEST_PING", "MESSAGE_NODE_REGISTRATION_STATUS")
"""Requests that `fleet check` does not cause."""


def counts(cluster: Cluster) -> dict[str, int]:
    """Number of requests of each type since the start of slurmctld."""
    section = cluster.ask("sdiag").partition("by message type")[2].partition("by user")[0]
    found = re.findall(r"^\s+([A-Z_]+)\s+\(.*?\)\s+count:(\d+)", section, re.M)
    return {name: int(count) for name, count in found if name not in OWN}


def ask(cluster: Cluster, place: Path, name: str, *options: str) -> tuple[dict[str, int], float]:
    before, began = counts(cluster), time.monotonic()
    where = ("--into", str(place / name), "--tool", str(place / "tool"), "--partition", "test")
    ended = cluster.run(*DOCTOR, "fleet", "check", *where, "--rate", "100", *options, timeout_s=900)
    assert ended.returncode == 0, ended
    seconds = time.monotonic() - began
    cluster.run("sh", "-c", "while squeue -h | grep -q .; do sleep 0.5; done", timeout_s=100)
    after = counts(cluster)
    return {
        what: count - before.get(what, 0) for what, count in after.items() if count > before.get(what, 0)
    }, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=64)
    nodes = parser.parse_args().nodes
    with tempfile.TemporaryDirectory(prefix="gpuipc-slurm-") as directory:
        place = Path(directory)
        place.chmod(0o755)
        with Cluster(place, nodes, MessageTimeout="60", SlurmdTimeout="0", TreeWidth="64") as cluster:
            (place / "answer").write_bytes(summary.dumps(named(HEALTHY, "")))
            (place / "tool").write_text(f"#!/bin/sh\nexec cat {place}/answer\n")
            (place / "tool").chmod(0o755)
            by_block, block_s = ask(cluster, place, "blocks")
            by_node, node_s = ask(cluster, place, "nodes", "--block", "1")
    print(f"| request | blocks, {nodes} nodes | an srun a node, {nodes} nodes |")
    print("|---|---|---|")
    for what in sorted({*by_block, *by_node}):
        print(f"| {what} | {by_block.get(what, 0)} | {by_node.get(what, 0)} |")
    print(f"| all | {sum(by_block.values())} | {sum(by_node.values())} |")
    print(f"| wall s | {block_s:.0f} | {node_s:.0f} |")


if __name__ == "__main__":
    main()
