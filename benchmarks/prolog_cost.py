"""Measure `gpuipc-doctor prolog` compared with the driver's own cost; prints Markdown.

    python benchmarks/prolog_cost.py [--rounds N] [--gpus N]... [--json FILE] [--simulate PROFILE]

The floor is `reopen_floor.c`, the steps of the prolog's one probe in C, as one tour of all GPUs; and the same
with contexts of one queue, as in the prolog. Floors, cold prolog (no stored pass) and fresh prolog (the node
has just passed) run in turn; figures are medians.
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
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from gpuipc_doctor.files import python

HERE = Path(__file__).parent
POLICY = "on_fail: drain, on_error: drain, on_budget: drain, on_unkillable: drain"


def median_of(rounds: int, measured: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Sorted seconds of each command, run alternately after a warm-up round."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds + 1):
        for name, measure in measured.items():
            took = measure()
            if number:
                seconds[name].append(took)
    return {name: sorted(took) for name, took in seconds.items()}


def timed(commands: Iterable[tuple[list[str], Mapping[str, str]]]) -> float:
    """Wall seconds of commands that run at the same time and must all succeed."""
    started = time.monotonic()
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/")
        for command, environment in commands
    ]
    for process in running:
        said, _ = process.communicate()
        if process.returncode or b"ERROR" in said or b"FAIL" in said:
            sys.exit(f"{process.args}: exit code {process.returncode}: {said.decode()}")
    return time.monotonic() - started


def build_floor(directory: Path, name: str = "reopen_floor") -> str:
    floor = directory / name
    compiler = os.environ.get("CC") or shutil.which("cc") or "cc"
    subprocess.run([compiler, "-O2", "-o", floor, HERE / f"{name}.c", "-ldl"], check=True)
    return str(floor)


def write_site(site: Path, simulate: str = "") -> None:
    """Write the site config of a prolog that remembers a pass, on a simulated node if one is named."""
    remembered = f"fresh_for_s: 600, state_dir: {site.with_name('state')}, syslog: false"
    node = f", simulate: {simulate}" if simulate else ""
    site.write_text(f"prolog: {{{POLICY}, {remembered}{node}}}\n")


def seconds_of(
    gpus: int, rounds: int, floor: str, site: Path, node_env: Mapping[str, str]
) -> dict[str, list[float]]:
    """Sorted seconds of the floors, the cold and the fresh prolog on the first ``gpus`` GPUs."""
    prolog = python.module("gpuipc_doctor", "prolog", "--config", str(site))
    source_tree = {name: os.environ[name] for name in ("PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ}
    ids = ",".join(map(str, range(gpus)))
    state = site.with_name("state")

    def floors(**more: str) -> float:
        environment = {**os.environ, **node_env, **more}
        return timed([([floor, str(gpus)], {**environment, "CUDA_VISIBLE_DEVICES": ids})])

    def frugal() -> float:
        return floors(CUDA_DEVICE_MAX_CONNECTIONS="1")

    def cold() -> float:
        shutil.rmtree(state, ignore_errors=True)
        return fresh()

    def fresh() -> float:
        return timed([(prolog, {"SLURM_JOB_GPUS": ids, **source_tree})])

    return median_of(rounds, {"floor": floors, "frugal": frugal, "cold": cold, "fresh": fresh})


# -- the screen -------------------------------------------------------------------------------------------


def table_of_seconds(measured: Iterable[tuple[int, Mapping[str, list[float]]]]) -> None:
    print("| GPUs | floor, s | with one queue, s | prolog cold, s | ratio to each floor | prolog fresh, s |")
    print("|---|---|---|---|---|---|")
    for gpus, every in measured:
        median = {name: statistics.median(seconds) for name, seconds in every.items()}
        floor, frugal, cold = median["floor"], median["frugal"], median["cold"]
        ratios = f"{cold / floor:.2f}, {cold / frugal:.2f}"
        print(f"| {gpus} | {floor:.2f} | {frugal:.2f} | {cold:.2f} | {ratios} | {median['fresh']:.3f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--gpus", type=int, action="append", help="how many GPUs; may be repeated  [default: 1]"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, too")
    parser.add_argument("--simulate", metavar="PROFILE", help="a simulated node instead of this one's GPUs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        site = Path(directory) / "site.yaml"
        write_site(site, options.simulate or "")
        floor = build_floor(Path(directory))
        node_env: Mapping[str, str] = {}
        if options.simulate:
            from gpuipc_doctor.simulator.node import prepare

            (Path(directory) / "node").mkdir()
            node_env = prepare(options.simulate, Path(directory) / "node").env
        measured = [(n, seconds_of(n, options.rounds, floor, site, node_env)) for n in options.gpus or [1]]
    table_of_seconds(measured)
    if options.json:
        options.json.write_text(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()
