"""Measure merging reports of N nodes; prints Markdown.

    python benchmarks/fleet_scale.py [--nodes 100 1000 10000]

Node reports are copies of two of this tool's own runs on simulated nodes, with seeded faults, drift, slow
nodes and nodes without a report. Each figure is of a separate process, as a user starts it: CPU seconds, wall
seconds (on a busy machine, these mostly show the other load) and peak memory.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gpuipc_doctor.fleet import directory, summary
from gpuipc_doctor.fleet.summary import Figure, NodeReport, State
from gpuipc_doctor.report import report_json

DOCTOR = [sys.executable, "-m", "gpuipc_doctor"]
BAD, SLOW, SILENT, OTHER_DRIVER = 0.01, 0.002, 0.002, 0.005
"""Fractions of the nodes."""


def template(profile: str) -> NodeReport:
    """The node report of `check --all` on a simulated node."""
    command = [*DOCTOR, "check", "--all", "--simulate", profile, "--json"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return summary.of(report_json.loads(ended.stdout), "", ended.returncode)


def fleet(nodes: int, healthy: NodeReport, bad: NodeReport, *, upgraded: bool = False) -> list[NodeReport]:
    """The same reports in each call; if ``upgraded``, with another driver and other bad nodes."""
    chaos = random.Random(nodes + upgraded)
    made = []
    for number in range(nodes):
        node, luck = f"nid{number:06}", chaos.random()
        if luck < SILENT:
            made.append(summary.silent(node, State.UNREACHABLE, f"ssh: connect to host {node}: timed out"))
            continue
        one = bad if luck < SILENT + BAD else healthy
        latency = chaos.gauss(2.0, 0.1) * (4 if chaos.random() < SLOW else 1)
        driver = "570.86.15" if chaos.random() < OTHER_DRIVER else "590.10" if upgraded else "580.95.05"
        made.append(
            msgspec.structs.replace(
                one,
                node=node,
                host=node,
                simulated="",
                facts={**one.facts, "nvidia-driver": (driver,), "boot-id": (f"{chaos.random()}",)},
                figures={**one.figures, "mpi-small-message: latency": Figure(latency, "µs", False)},
            )
        )
    return made


def cost(command: Sequence[str]) -> tuple[float, float, float]:
    """CPU seconds, wall seconds and peak memory in MB of a command."""
    started = time.monotonic()
    with Path(os.devnull).open("w") as nowhere:
        process = subprocess.Popen(command, stdout=nowhere)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode in (0, 10, 11, 12), command
    return used.ru_utime + used.ru_stime, time.monotonic() - started, used.ru_maxrss / 1024


def folding(sizes: Sequence[int]) -> None:
    healthy, bad = template("healthy-cuda"), template("nvidia-460.32.03")
    print("| nodes | | CPU s | wall s | MB | CPU ms a node |")
    print("|---|---|---|---|---|---|")
    for size in sizes:
        with tempfile.TemporaryDirectory() as place:
            runs = [Path(place, name) for name in ("before", "after")]
            for path in runs:
                path.mkdir()
                for report in fleet(size, healthy, bad, upgraded=path.name == "after"):
                    directory.save(path, report)
            words = {
                f"`fleet report{option}`": ["report", str(runs[0]), *option.split()]
                for option in ("", " --json", " --format html")
            }
            words["`fleet compare`"] = ["compare", *map(str, runs)]
            for name, arguments in words.items():
                best = min(cost([*DOCTOR, "fleet", *arguments]) for _ in range(3))
                cpu, wall, memory = best
                each = 1000 * cpu / size
                print(f"| {size} | {name} | {cpu:.2f} | {wall:.2f} | {memory:.0f} | {each:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1000, 10_000])
    folding(parser.parse_args().nodes)


if __name__ == "__main__":
    main()
