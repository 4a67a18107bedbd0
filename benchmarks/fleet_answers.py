"""Measure the cost of `fleet check` on its host, with summaries and with full reports; prints Markdown.

    python benchmarks/fleet_answers.py [--nodes 10000] [--full 200]

Each node answers at once: an `ssh` or `srun` on PATH prints the output of `check` on two simulated nodes, and
one node in a hundred is bad; `srun` answers for the 128 nodes of a block. Processor seconds and memory
exclude these stand-ins. Fewer nodes send full reports; the cost for all nodes is extrapolated.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import msgspec

from gpuipc_doctor.fleet import summary

DOCTOR = [sys.executable, "-m", "gpuipc_doctor"]
STUB = r"""#!/bin/sh
case "$*" in *[0-9][0-9][0-9][0-9]00\ --*) exec cat {place}/bad ;; esac
exec cat {place}/well
"""
SRUN = r"""#!/bin/sh
exec awk -f {place}/answers.awk -- "$@"
"""
ANSWERS = r"""
function show(node, file,  line) {{
    print "@gpuipc-doctor " node " begins"
    while ((getline line < file) > 0) print "@gpuipc-doctor " node " " line
    close(file)
    print "@gpuipc-doctor " node " ends"
}}
BEGIN {{
    for (i = 1; i < ARGC; i++) if (ARGV[i] == "-w") count = split(ARGV[i + 1], nodes, ",")
    for (i = 1; i <= count; i++) show(nodes[i], "{place}/" (nodes[i] ~ /00$/ ? "bad" : "well") ".base64")
}}
"""
"""Awk functions that print a step's output over a block: answers (`fleet.node_blocks`) and exit codes."""
HEAD = """
import atexit, json, resource, sys
from gpuipc_doctor.__main__ import main
def cost(path):
    used = resource.getrusage(resource.RUSAGE_SELF)
    with open(path, "w") as out:
        json.dump([used.ru_utime + used.ru_stime, used.ru_maxrss / 1024], out)
path = sys.argv.pop()
sys.argv[0] = "gpuipc-doctor"
atexit.register(cost, path)
main()
"""


def answers(place: Path, option: str, facts: int) -> None:
    """Write the output of a healthy and of a bad node; the healthy one has ``facts`` further random facts."""
    chaos = random.Random(0)
    more = {f"env:UCX_OPTION_{n}": (f"rc,ud,{chaos.randrange(10**9)}",) for n in range(facts)}
    for name, profile in {"well": "healthy-cuda", "bad": "nvidia-460.32.03"}.items():
        command = [*DOCTOR, "check", "--all", "--simulate", profile, option]
        with (place / name).open("wb") as out:
            ended = subprocess.run(command, stdout=out, check=False)
        if more and name == "well":
            report = summary.loads((place / name).read_bytes())
            report = msgspec.structs.replace(report, facts={**report.facts, **more})
            (place / name).write_bytes(summary.dumps(report))
        task = (place / name).read_bytes() + f"\0\n{ended.returncode}".encode()
        coded = base64.b64encode(task).decode()
        (place / f"{name}.base64").write_text("\n".join(textwrap.wrap(coded, 400)) + "\n")


def ask(nodes: int, place: Path, via: str) -> tuple[float, float, float, float]:
    """Processor seconds, wall seconds, peak memory in MB and MB on disk."""
    for name, text in {"ssh": STUB, "srun": SRUN, "answers.awk": ANSWERS}.items():
        stub = place / name
        stub.write_text(text.format(place=place))
        stub.chmod(0o755)
    into, used = place / f"into-{nodes}", place / "used"
    words = ["fleet", "check", "--via", via, "-w", f"nid[000000-{nodes - 1:06}]", "--into", str(into)]
    environment = {**os.environ, "PATH": f"{place}:{os.environ['PATH']}", "SLURM_JOB_ID": "1"}
    began = time.monotonic()
    command = [sys.executable, "-c", HEAD, *words, str(used)]
    ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 12, ended
    cpu, memory = json.loads(used.read_text())
    disk = sum(512 * path.stat().st_blocks for path in into.iterdir()) / 1e6
    return cpu, time.monotonic() - began, memory, disk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--full", type=int, default=200)
    asked = parser.parse_args()
    print("| answers | nodes | CPU s | wall s | MB | MB on disk | CPU s, 10,000 nodes | MB on disk |")
    print("|---|---|---|---|---|---|---|---|")
    for name, nodes, option, via, facts in (
        ("full reports, an ssh each", asked.full, "--json", "ssh", 0),
        ("summaries, an ssh each", asked.nodes, "--summary", "ssh", 0),
        ("summaries, an srun for 128", asked.nodes, "--summary", "slurm", 0),
        ("summaries of 100 more facts, an srun for 128", asked.nodes, "--summary", "slurm", 100),
    ):
        with tempfile.TemporaryDirectory() as place:
            answers(Path(place), option, facts)
            cpu, wall, memory, disk = ask(nodes, Path(place), via)
        calculated = " | ".join(f"{10_000 * each / nodes:.0f}" for each in (cpu, disk))
        print(
            f"| {name} | {nodes} | {cpu:.1f} | {wall:.0f} | {memory:.0f} | {disk:.1f} | {calculated} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
