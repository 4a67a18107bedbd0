"""Run mpi-collectives on each MPI library and simulated driver: a table of calls, and what each run cost.

    python benchmarks/mpi_calls.py .prefix --runs 5 > benchmarks/mpi_calls.md

``.prefix`` holds the libraries of `make test`. A cell is the number of cases with every element correct, in
the last run; ``lacks``: the library has no such function; ``–``: not reached.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

LIBRARIES = {"mpich43": 12, "mpich50": 12, "openmpi": 40, "impi": 12}
CHECKS = ("mpi-collectives",)
RESTING = {
    "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_threads_pthreads_yield_strategy": "nanosleep",
    "I_MPI_THREAD_YIELD": "3",
    "I_MPI_THREAD_SLEEP": "100",
    "I_MPI_SPIN_COUNT": "1",
    "I_MPI_FABRICS": "shm",
}
"""Variables that make waiting ranks sleep, since ranks share processors."""


def run(library: Path, backend: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One run: the report, processor seconds, and seconds."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [sys.executable, "-m", "gpuipc_doctor", "check", *arguments.check, "--simulate", arguments.node]
    command += ["--backend", backend, "--mpi-lib", str(library), "--tier", arguments.tier]
    command += ["--no-workarounds", "--json"]
    offload = {"I_MPI_OFFLOAD": "1" if backend == "cuda" else "0"}
    ended = subprocess.run(
        command, env={**os.environ, **RESTING, **offload}, capture_output=True, text=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    report: dict[str, Any] = json.loads(ended.stdout)
    return {"report": report, "processor": used, "seconds": time.monotonic() - begin}


def findings(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [result["finding"] for result in report["results"] if result["check"].startswith("mpi-")]


def cells(report: dict[str, Any]) -> dict[str, str]:
    """Call → its cell."""
    made, wrong, found = Counter[str](), Counter[str](), {}
    for finding in findings(report):
        for line in (item["line"] for item in finding["evidence"]):
            if re.match(r"\d+ × MPI_", line):
                for times, call in re.findall(r"(\d+) × (MPI_\w+(?:, [a-z ]+)?)", line):
                    made[call] = max(made[call], int(times))
            if match := re.match(r"omitted because this node or library has none: (.*)", line):
                found |= dict.fromkeys(re.findall(r"MPI_\w+, [a-z ]+[a-z]", match[1]), "lacks")
        if finding["key"] == "wrong-data":
            wrong.update(finding["values"]["calls"])
    found |= {call: f"{times}{', wrong in place' * (call in wrong)}" for call, times in made.items()}
    return found


def listed(runs: list[dict[str, Any]], figure: str) -> str:
    return ", ".join(f"{run[figure]:.0f}" for run in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("prefix", type=Path)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--tier", default="soak")
    parser.add_argument("--node", default="healthy-both")
    parser.add_argument("--check", nargs="*", default=CHECKS)
    parser.add_argument("--library", nargs="*", default=list(LIBRARIES))
    arguments = parser.parse_args()
    columns: dict[str, dict[str, str]] = {}
    costs = ["| library, driver | processes | initialisations | processor seconds | seconds | not PASS |"]
    costs.append("|---|---|---|---|---|---|")
    for name in arguments.library:
        for backend in ("cuda", "hip"):
            library = arguments.prefix / name / "lib" / f"libmpi.so.{LIBRARIES[name]}"
            runs = [run(library.resolve(), backend, arguments) for _ in range(arguments.runs)]
            title = f"{name}, {backend}"
            columns[title] = cells(runs[-1]["report"])
            bad = Counter(
                f"{finding['status']} {finding['key']}"
                for each in runs
                for finding in findings(each["report"])
                if finding["status"] != "PASS"
            )
            costs.append(
                f"| {title} | {runs[-1]['report']['processes']} | {runs[-1]['report']['initialisations']} | "
                f"{listed(runs, 'processor')} | "
                f"{listed(runs, 'seconds')} | "
                f"{', '.join(f'{times} × {what}' for what, times in bad.items()) or '–'} |"
            )
            print(costs[-1], file=sys.stderr, flush=True)
    calls = dict.fromkeys(call for column in columns.values() for call in column)
    print(f"# MPI calls by library and simulated driver\n\n`benchmarks/mpi_calls.py`, {date.today()}:")
    print(
        f"{', '.join(arguments.check)}, tier {arguments.tier}, {arguments.runs} runs on `{arguments.node}`.\n"
    )
    print(f"| call | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for call in calls:
        print(f"| {call} | {' | '.join(column.get(call, '–') for column in columns.values())} |")
    print("\n" + "\n".join(costs))


if __name__ == "__main__":
    main()
