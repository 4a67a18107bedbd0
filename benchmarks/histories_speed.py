"""Measure operations per second of random histories, on simulated nodes; prints Markdown.

    python benchmarks/histories_speed.py [--rounds N] [--mpi-lib FILE]

The operations per processor second of the whole command, minus those of a short run, which excludes start-up.
The wall seconds are the check's own; on a busy machine they mean little.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SHORT, LONG = 1500, 12_000


def run(check: str, node: str, operations: int, *more: str) -> tuple[int, float, float]:
    """Operations performed, processor seconds of the command, and seconds that the check reports."""
    with tempfile.TemporaryDirectory() as folder:
        config, report = Path(folder, "site.yaml"), Path(folder, "report.json")
        config.write_text(f"options: {{{check}: {{seconds: 300}}}}\n")
        asked = [check, "--simulate", node, "--device", "0", "--operations", str(operations)]
        asked += ["--config", str(config), "--output", str(report), "--budget", "400", *more]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "gpuipc_doctor", "check", *asked]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found = next(
            result["finding"]["values"]
            for result in json.loads(report.read_text())["results"]
            if result["check"] == check
        )
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return found["operations"], spent, found["elapsed_s"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mpi-lib")
    arguments = parser.parse_args()
    cases = [("ipc-histories", "healthy-cuda", []), ("ipc-histories", "healthy-hip", [])]
    if arguments.mpi_lib:
        cases.append(("mpi-histories", "healthy-cuda", ["--mpi-lib", arguments.mpi_lib]))
    print("| check | node | operations a processor second | a second | processor s of the short run |")
    print("|---|---|---|---|---|")
    for check, node, more in cases:
        rates, clock, costs = list[float](), list[float](), list[float]()
        for _ in range(arguments.rounds):
            few, little, _ = run(check, node, SHORT, *more)
            many, much, elapsed_s = run(check, node, LONG, *more)
            rates.append((many - few) / (much - little))
            clock.append(many / elapsed_s)
            costs.append(little)
        middle = map(statistics.median, (rates, clock, costs))
        print(f"| {check} | {node} | {next(middle):,.0f} | {next(middle):,.0f} | {next(middle):.1f} |")


if __name__ == "__main__":
    main()
