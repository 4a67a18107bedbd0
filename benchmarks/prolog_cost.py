"""Measure `gpuipc-doctor prolog` and each of its parts, compared with the driver's own cost; prints Markdown.

    python benchmarks/prolog_cost.py [--rounds N] [--gpus N]... [--json FILE] [--simulate PROFILE]

The floor is `reopen_floor.c`, the steps of the prolog's one probe in C, as one tour of all GPUs; and the same
with contexts of one queue, as in the prolog. Floors, cold prolog (no stored pass) and fresh prolog (the node
has just passed) run in turn; figures are medians. The parts are measured in one further cold run, from its
journals.
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
from typing import TYPE_CHECKING, Any

from gpuipc_doctor.files import python

if TYPE_CHECKING:
    from gpuipc_doctor.model import RoleOutcome

HERE = Path(__file__).parent
POLICY = "on_fail: drain, on_error: drain, on_budget: drain, on_unkillable: drain"

CONTEXTS = ("cuCtxCreate", "cuCtxDestroy", "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxReset")
COPIES = ("cuMemcpyHtoD", "cuMemcpyDtoH", "cuStreamSynchronize")


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


def measure(gpus: int, rounds: int, floor: str, site: Path, node_env: Mapping[str, str]) -> dict[str, Any]:
    """`seconds_of`, and the parts of a further cold run."""
    seconds = seconds_of(gpus, rounds, floor, site, node_env)
    ids = ",".join(map(str, range(gpus)))
    once = [sys.executable, __file__, "--once", str(site), ids]
    parts = json.loads(subprocess.run(once, check=True, capture_output=True, text=True, cwd="/").stdout)
    return {"gpus": gpus, "seconds": seconds, "parts": parts}


# -- cost of each part: a process of its own, which does the same as the prolog's child --------------------


def once(site: Path, ids: str) -> None:
    """Run one cold prolog with its journals kept, and print the seconds of each part as JSON."""
    entered = time.monotonic()
    from gpuipc_doctor.cli import options
    from gpuipc_doctor.cli.progress import Silent
    from gpuipc_doctor.model import Tier
    from gpuipc_doctor.prolog import guard
    from gpuipc_doctor.run import engine
    from gpuipc_doctor.run.request import Request
    from gpuipc_doctor.site import config

    imported = time.monotonic()
    loaded = config.load(site)
    configured = time.monotonic()
    with options.node(loaded.prolog.simulate or None) as node, tempfile.TemporaryDirectory() as logs:
        started = time.monotonic()
        request = Request(tier=Tier.PROLOG, job_gpus=ids, keep_logs=Path(logs), workarounds=False)
        report = engine.run(request, loaded, node, Silent())
        ended = time.monotonic()
        journals = [file.read_text().splitlines() for file in Path(logs).rglob("*.journal")]
    roles = [role for result in report.results for role in result.roles]
    began = min(json.loads(lines[0])["at"] for lines in journals) - min(role.start_up_s for role in roles)
    last_call = max(json.loads(lines[-1])["at"] for lines in journals)
    whole = {
        "interpreter": entered - guard.started_at(),
        "imports": imported - entered,
        "config": configured - imported,
        "known issues, inventory, plan, until the first worker starts": began - started,
        "workers, from the first's start to the last call of the last": last_call - began,
        "end of the last worker's process, the rest of the tool": ended - last_call,
    }
    workers = {
        name: medians(parts_of(role) for role in roles if role.role == name)
        for name in dict.fromkeys(role.role for role in roles)
    }
    statuses = sorted({result.finding.status.value for result in report.results})
    devices = [device.name for device in report.devices]
    print(json.dumps({"whole": whole, "workers": workers, "statuses": statuses, "devices": devices}))


def parts_of(role: RoleOutcome) -> dict[str, float]:
    """Seconds of a worker's life, by activity."""
    calls = {call.operation: call.seconds for call in role.calls}
    named = {
        "cuInit": calls.get("cuInit", 0.0),
        "contexts": sum(calls.get(name, 0.0) for name in CONTEXTS),
        "copies": sum(calls.get(name, 0.0) for name in COPIES),
    }
    in_calls = sum(calls.values())
    return {
        "interpreter, imports": role.start_up_s,
        **named,
        "other calls": in_calls - sum(named.values()),
        "binding, verifying, waiting for the other role, end of the process": role.elapsed_s
        - role.start_up_s
        - in_calls,
        "all of it": role.elapsed_s,
    }


def medians(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    every = list(parts)
    return {name: statistics.median(seconds[name] for seconds in every) for name in every[0]}


# -- the screen -------------------------------------------------------------------------------------------


def table_of_seconds(measured: Iterable[tuple[int, Mapping[str, list[float]]]]) -> None:
    print("| GPUs | floor, s | with one queue, s | prolog cold, s | ratio to each floor | prolog fresh, s |")
    print("|---|---|---|---|---|---|")
    for gpus, every in measured:
        median = {name: statistics.median(seconds) for name, seconds in every.items()}
        floor, frugal, cold = median["floor"], median["frugal"], median["cold"]
        ratios = f"{cold / floor:.2f}, {cold / frugal:.2f}"
        print(f"| {gpus} | {floor:.2f} | {frugal:.2f} | {cold:.2f} | {ratios} | {median['fresh']:.3f} |")


def table_of_parts(measured: Iterable[Mapping[str, Any]]) -> None:
    for one in measured:
        parts = one["parts"]
        print(f"\n{one['gpus']} × {parts['devices'][0]} ({', '.join(parts['statuses'])}):\n")
        print("| part | seconds |\n|---|---|")
        for part, took in parts["whole"].items():
            print(f"| {part} | {took:.3f} |")
        for role, spent in parts["workers"].items():
            for part, took in spent.items():
                print(f"| {role}: {part} | {took:.3f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--gpus", type=int, action="append", help="how many GPUs; may be repeated  [default: 1]"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, too")
    parser.add_argument("--simulate", metavar="PROFILE", help="a simulated node instead of this one's GPUs")
    parser.add_argument("--once", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        once(Path(options.once[0]), options.once[1])
        return
    with tempfile.TemporaryDirectory() as directory:
        site = Path(directory) / "site.yaml"
        write_site(site, options.simulate or "")
        floor = build_floor(Path(directory))
        node_env: Mapping[str, str] = {}
        if options.simulate:
            from gpuipc_doctor.simulator.node import prepare

            (Path(directory) / "node").mkdir()
            node_env = prepare(options.simulate, Path(directory) / "node").env
        measured = [measure(n, options.rounds, floor, site, node_env) for n in options.gpus or [1]]
    table_of_seconds((row["gpus"], row["seconds"]) for row in measured)
    table_of_parts(measured)
    if options.json:
        options.json.write_text(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()
