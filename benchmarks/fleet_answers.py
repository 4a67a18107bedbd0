"""What `fleet check` costs the host it runs on, by answers: summaries, and full reports as before; Markdown.

    python benchmarks/fleet_answers.py [--nodes 10000] [--full 200]

Each node answers at once: an `ssh` on PATH prints what `check` printed on two simulated nodes, one node in a
hundred is bad. Processor seconds and memory are those of the head alone, without the stubs. Full reports are
asked of fewer nodes; what all of them would cost is calculated.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DOCTOR = [sys.executable, "-m", "gpuipc_doctor"]
STUB = r"""#!/bin/sh
case "$*" in *[0-9][0-9][0-9][0-9]00\ --*) exec cat {place}/bad ;; esac
exec cat {place}/well
"""
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


def answers(place: Path, *options: str) -> None:
    """What nodes print, well and bad."""
    for name, profile in {"well": "healthy-cuda", "bad": "nvidia-460.32.03"}.items():
        command = [*DOCTOR, "check", "--all", "--simulate", profile, *options]
        with (place / name).open("wb") as out:
            subprocess.run(command, stdout=out, check=False)


def ask(nodes: int, place: Path) -> tuple[float, float, float, float]:
    """Processor seconds, wall seconds, peak memory in MB and MB on disk."""
    stub = place / "ssh"
    stub.write_text(STUB.format(place=place))
    stub.chmod(0o755)
    into, used = place / f"into-{nodes}", place / "used"
    words = ["fleet", "check", "--via", "ssh", "-w", f"nid[000000-{nodes - 1:06}]", "--into", str(into)]
    environment = {**os.environ, "PATH": f"{place}:{os.environ['PATH']}"}
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
    for name, nodes, option in (
        ("full reports", asked.full, "--json"),
        ("summaries", asked.nodes, "--summary"),
    ):
        with tempfile.TemporaryDirectory() as place:
            answers(Path(place), option)
            cpu, wall, memory, disk = ask(nodes, Path(place))
        calculated = " | ".join(f"{10_000 * each / nodes:.0f}" for each in (cpu, disk))
        print(
            f"| {name} | {nodes} | {cpu:.1f} | {wall:.0f} | {memory:.0f} | {disk:.1f} | {calculated} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
