"""Measure start-up and the IPC checks against named references, in one run; prints Markdown.

    python benchmarks/measure.py [--simulate PROFILE] [--rounds N]

References: ``python -c "import click"`` for start-up; `reopen_floor.c`, the steps of `ipc-reopen` in C
without Python, for the check. Each figure is the median of the rounds; the two of a ratio run alternately.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).parent
DOCTOR = [sys.executable, "-m", "gpuipc_doctor.cli.main"]


def seconds(command: list[str], environment: dict[str, str] | None = None) -> float:
    """Wall seconds of a command that must succeed."""
    started = time.monotonic()
    subprocess.run(
        command, check=True, stdout=subprocess.DEVNULL, cwd="/", env={**os.environ, **(environment or {})}
    )
    return time.monotonic() - started


def ratio(
    rounds: int, measured: list[str], reference: list[str], environment: dict[str, str]
) -> tuple[float, float]:
    """Median seconds of both commands, run alternately after one unmeasured round."""
    seconds(reference, environment), seconds(measured, environment)
    pairs = [(seconds(measured, environment), seconds(reference, environment)) for _ in range(rounds)]
    measured_s, reference_s = zip(*pairs, strict=True)
    return statistics.median(measured_s), statistics.median(reference_s)


def start_up(rounds: int) -> None:
    ours, click = ratio(rounds * 4, [*DOCTOR, "--version"], [sys.executable, "-c", "import click"], {})
    print("| command | seconds | reference | seconds | ratio |")
    print("|---|---|---|---|---|")
    print(
        f"| `gpuipc-doctor --version` | {ours:.3f} | `python -c 'import click'` | {click:.3f} "
        f"| {ours / click:.2f} |"
    )


def reopen(rounds: int, node: list[str], environment: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        floor = f"{directory}/reopen_floor"
        compiler = os.environ.get("CC") or shutil.which("cc") or "cc"
        subprocess.run([compiler, "-O2", "-o", floor, str(HERE / "reopen_floor.c"), "-ldl"], check=True)
        command = [*DOCTOR, "check", "ipc-reopen", *node, "--device", "cuda:0"]
        ours, in_c = ratio(rounds, command, [floor], environment)
    print(f"| `check ipc-reopen`, one GPU | {ours:.2f} | `reopen_floor.c` | {in_c:.2f} | {ours / in_c:.2f} |")


def whole_run(rounds: int, node: list[str]) -> None:
    """Measure `check --all`: the whole run, and the sum of each check's probes."""
    totals, per_check, statuses = [], defaultdict(list), set()
    for _ in range(rounds):
        started = time.monotonic()
        ended = subprocess.run(
            [*DOCTOR, "check", "--all", "--json", *node], capture_output=True, text=True, cwd="/"
        )
        totals.append(time.monotonic() - started)
        report = json.loads(ended.stdout)
        statuses |= {(r["check"], r["finding"]["status"]) for r in report["results"]}
        once: dict[tuple[str, str, str], float] = {}
        for result in report["results"]:
            once[result["check"], result["probe"], str(result["devices"])] = result["elapsed_s"]
        for check in {key[0] for key in once}:
            per_check[check].append(sum(s for key, s in once.items() if key[0] == check))
    devices = [device["name"] for device in report["devices"]]
    print(
        f"\n`check --all` on {len(devices)} × {devices[0]}: median {statistics.median(totals):.2f} s, "
        f"longest {max(totals):.2f} s of {rounds} runs\n"
    )
    print("| check | findings | seconds, all its probes together |")
    print("|---|---|---|")
    for check, spent in sorted(per_check.items()):
        seen = ", ".join(sorted({status for name, status in statuses if name == check}))
        print(f"| {check} | {seen} | {statistics.median(spent):.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--simulate", metavar="PROFILE", help="a simulated node instead of this one's GPUs")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    start_up(options.rounds)
    if not options.simulate:
        reopen(options.rounds, [], {"CUDA_VISIBLE_DEVICES": "0"})
        whole_run(options.rounds, [])
        return
    from gpuipc_doctor.cli.options import node

    simulated = ["--simulate", options.simulate]
    with node(options.simulate) as prepared:
        # The floor runs on its own node; the command also creates its own.
        reopen(options.rounds, simulated, {**prepared.env, "CUDA_VISIBLE_DEVICES": "0"})
    whole_run(options.rounds, simulated)


if __name__ == "__main__":
    main()
