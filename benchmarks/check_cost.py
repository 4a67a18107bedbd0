"""Measure `check --all` and the prolog by number of GPUs, compared with C programs that make the same driver
calls; prints Markdown.

    python benchmarks/check_cost.py [--gpus N]... [--rounds N] [--whole] [--busy] [--plans DIR] [--json FILE]

The floor of `check --all` is `visits_floor.c`: the driver calls of all checks that need no MPI, fabric,
array library or NCCL, recorded from a run on a simulated node with as many GPUs, and made by as many C
processes. Tool and floor run in turn; figures are medians. NVML's calls and waiting are not part of the
floor. ``--plans`` keeps the recordings, or uses them if they are there. ``--busy`` measures the tool also
beside a process on each GPU that keeps it busy (`busy_gpu.py`). In a source tree, PYTHONPATH must have what
the package needs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SOURCE = HERE.parent
MOVED = {"checks": "checks", "site_configs": "site-configs"}
"""Part of the installed package → its directory in a source tree."""


def python_finds_package() -> bool:
    """Whether the package is installed, with its checks."""
    looks = "import gpuipc_doctor.checks"
    return not subprocess.run(
        [sys.executable, "-I", "-c", looks], stderr=subprocess.DEVNULL, check=False
    ).returncode


def install(directory: Path) -> Path:
    """Make an environment that has the source tree's package, of links, and what this Python finds.

    Returns its Python, whose isolated mode finds all that: the prolog starts with nothing else.
    """
    venv.create(directory, system_site_packages=True, symlinks=True)
    packages = next(directory.glob("lib/python*/site-packages"))
    package = packages / "gpuipc_doctor"
    package.mkdir()
    for part in (SOURCE / "gpuipc_doctor").iterdir():
        (package / part.name).symlink_to(part)
    for name, place in MOVED.items():
        if not (package / name).exists():
            (package / name).symlink_to(SOURCE / place)
    (packages / "found.pth").write_text("\n".join(filter(os.path.isdir, sys.path[1:])))
    return directory / "bin" / "python"


if not python_finds_package():
    with tempfile.TemporaryDirectory() as place:
        again = [install(Path(place)), __file__, *sys.argv[1:]]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        sys.exit(subprocess.run(again, env=environment, check=False).returncode)

import prolog_cost  # noqa: E402 - only now is the package found
import visits  # noqa: E402

from gpuipc_doctor.api import Tier, loader  # noqa: E402
from gpuipc_doctor.files import python  # noqa: E402
from gpuipc_doctor.simulator.node import prepare  # noqa: E402

KERNELS = SOURCE / "gpuipc_doctor/worker/backends/kernels.ptx"

TIMES_BUDGET = 600
"""Seconds of a tool's run after which it gives up."""


@dataclass
class Measured:
    """Figures of a node with so many GPUs; seconds of each run."""

    gpus: int
    name: str
    driver: str
    tool: list[float]
    floor: list[float]
    whole: list[float]
    busy: list[float]
    """Beside busy GPUs: of `whole` if it was measured, else of `tool`."""
    processes: int
    initialisations: int
    whole_processes: int
    whole_initialisations: int
    floor_processes: int
    calls: int
    worst: list[str]
    prolog: dict[str, list[float]]


def checks() -> list[str]:
    """The checks of `check --all` that only call the driver."""
    checks = (loaded.check for loaded in loader.load() if isinstance(loaded, loader.LoadedCheck))
    return [
        check.id
        for check in checks
        if check.tier is not Tier.SOAK
        and not check.id.startswith("mpi-")
        and not (check.needs_mpi or check.uses_fabric or check.uses_collectives or check.needs_allocators)
    ]


def write_profile(path: Path, gpus: int) -> None:
    path.write_text(
        f"description: {gpus} healthy GPUs.\nextends: healthy-cuda\n"
        f"devices:\n  - {{backend: cuda, name: NVIDIA H200, memory: 139 GiB, count: {gpus}}}\n"
    )


def plan_for(gpus: int, directory: Path, wanted: Sequence[str]) -> tuple[Path, Mapping[str, int]]:
    """The plan of a run on so many simulated GPUs, and its numbers of processes and calls."""
    plan, facts = directory / f"{gpus}.plan", directory / f"{gpus}.json"
    if not facts.exists():
        profile, report = directory / f"simulated-{gpus}.yaml", directory / f"report-{gpus}.json"
        write_profile(profile, gpus)
        processes = visits.record(
            directory, profile, ["check", *wanted, "--backend", "cuda", "--output", str(report)]
        )
        places = {device["uuid"]: n for n, device in enumerate(json.loads(report.read_text())["devices"])}
        plan.write_text(visits.plan(processes, places))
        counts = {"processes": len(processes), "calls": sum(len(process.calls) for process in processes)}
        facts.write_text(json.dumps(counts))
    return plan, json.loads(facts.read_text())


def run_tool(
    command: Sequence[str], environment: Mapping[str, str], report: Path
) -> tuple[float, dict[str, Any]]:
    """Wall seconds of a run, and its report."""
    started = time.monotonic()
    done = subprocess.run(
        python.module("gpuipc_doctor", "check", *command, "--output", str(report)),
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMES_BUDGET,
    )
    took = time.monotonic() - started
    if not report.exists():
        sys.exit(f"check ended with exit code {done.returncode}: {done.stdout}{done.stderr}")
    return took, json.loads(report.read_text())


def run_floor(floor: Path, plan: Path, environment: Mapping[str, str]) -> float:
    """Wall seconds of the floor. Exits if a call ended otherwise than when it was recorded."""
    started = time.monotonic()
    done = subprocess.run(
        [floor, plan, KERNELS], env=environment, capture_output=True, text=True, timeout=TIMES_BUDGET
    )
    took = time.monotonic() - started
    if done.returncode:
        sys.exit(f"the floor ended with exit code {done.returncode}: {done.stdout}{done.stderr}")
    return took


@contextmanager
def busy_gpus(gpus: int, environment: Mapping[str, str], *, mib: int) -> Iterator[None]:
    """Keep so many GPUs busy during a ``with`` block, in a process for each."""
    with ExitStack() as ended:
        processes = []
        for number in range(gpus):
            command = [sys.executable, str(HERE / "busy_gpu.py"), str(mib)]
            env = {**environment, "CUDA_VISIBLE_DEVICES": str(number)}
            process = ended.enter_context(
                subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
            )
            ended.callback(process.kill)
            processes.append(process)
        for process in processes:
            if process.stdout is None or not process.stdout.readline():
                sys.exit("a GPU could not be kept busy")
        yield
        if any(process.poll() is not None for process in processes):
            sys.exit("a GPU was not kept busy to the end")


def measure(gpus: int, options: argparse.Namespace, work: Path, floors: Mapping[str, Path]) -> Measured:
    wanted = checks()
    plan, facts = plan_for(gpus, options.plans or work, wanted)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(gpus)))}
    node: Mapping[str, str] = {}
    simulate: list[str] = []
    if options.simulate:
        profile, state = work / f"node-{gpus}.yaml", work / f"state-{gpus}"
        write_profile(profile, gpus)
        state.mkdir()
        node = prepare(str(profile), state).env
        simulate = ["--simulate", str(profile)]
    base = ["--backend", "cuda", *simulate]
    tool, floor, whole, busy, report, all_of_it = [], [], [], [], {}, {}
    for number in range(options.rounds):
        floor.append(run_floor(floors["visits"], plan, {**environment, **node}))
        took, report = run_tool([*wanted, *base], environment, work / f"tool-{gpus}-{number}.json")
        tool.append(took)
        if options.whole:
            took, all_of_it = run_tool(["--all", *base], environment, work / f"all-{gpus}-{number}.json")
            whole.append(took)
        if options.busy:
            command = ["--all"] if options.whole else wanted
            with busy_gpus(gpus, {**environment, **node}, mib=1 if options.simulate else 64):
                took, _ = run_tool([*command, *base], environment, work / f"busy-{gpus}-{number}.json")
            busy.append(took)
    prolog: dict[str, list[float]] = {}
    if not options.no_prolog:
        site = work / f"site-{gpus}" / "site.yaml"
        site.parent.mkdir()
        prolog_cost.write_site(site, simulate[1] if simulate else "")
        prolog = prolog_cost.seconds_of(gpus, options.rounds, str(floors["reopen"]), site, node)
    kinds = [result["finding"]["status"] for result in report["results"]]
    facts_seen = {fact["name"]: fact["value"] for fact in report["inventory"]}
    return Measured(
        gpus=gpus,
        name=report["devices"][0]["name"],
        driver=facts_seen.get("nvidia-driver", ""),
        tool=tool,
        floor=floor,
        whole=whole,
        busy=busy,
        processes=report["processes"],
        initialisations=report["initialisations"],
        whole_processes=all_of_it.get("processes", 0),
        whole_initialisations=all_of_it.get("initialisations", 0),
        floor_processes=facts["processes"],
        calls=facts["calls"],
        worst=sorted({kind for kind in kinds if kind not in ("PASS", "SKIP")}),
        prolog=prolog,
    )


def table(rows: Sequence[Measured]) -> None:
    first = rows[0]
    date = datetime.now(timezone.utc).date().isoformat()
    print(f"{first.name}, driver {first.driver or 'unknown'}, {date}, {os.cpu_count()} cores\n")
    print("| GPUs | tool, s | floor, s | ratio | processes | initialisations | of the floor | its calls |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        tool, floor = statistics.median(row.tool), statistics.median(row.floor)
        counts = f"{row.processes} | {row.initialisations} | {row.floor_processes} | {row.calls}"
        print(f"| {row.gpus} | {tool:.1f} | {floor:.1f} | {tool / floor:.2f} | {counts} |")
    if any(row.whole for row in rows):
        print("\n| GPUs | `check --all`, s | processes | initialisations |\n|---|---|---|---|")
        for row in rows:
            counts = f"{row.whole_processes} | {row.whole_initialisations}"
            print(f"| {row.gpus} | {statistics.median(row.whole):.1f} | {counts} |")
    if any(row.busy for row in rows):
        print("\n| GPUs | beside busy GPUs, s | ratio to idle |\n|---|---|---|")
        for row in rows:
            took = statistics.median(row.busy)
            print(f"| {row.gpus} | {took:.1f} | {took / statistics.median(row.whole or row.tool):.2f} |")
    if any(row.prolog for row in rows):
        print()
        prolog_cost.table_of_seconds([(row.gpus, row.prolog) for row in rows])
    for row in rows:
        if row.worst:
            print(f"\nThe tool on {row.gpus}: {', '.join(row.worst)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument(
        "--gpus", type=int, action="append", help="how many GPUs; may be repeated  [default: 1]"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--plans", type=Path, metavar="DIR", help="where the recordings are kept")
    parser.add_argument("--whole", action="store_true", help="measure `check --all` as it is, too")
    parser.add_argument("--busy", action="store_true", help="measure it beside busy GPUs, too")
    parser.add_argument("--no-prolog", action="store_true")
    parser.add_argument("--record-only", action="store_true", help="only record, to --plans")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, too")
    parser.add_argument("--simulate", action="store_true", help="on a simulated node, to try this program")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        if options.plans:
            options.plans = options.plans.resolve()
            options.plans.mkdir(exist_ok=True)
        if options.record_only:
            for gpus in options.gpus or [1]:
                plan_for(gpus, options.plans, checks())
            return
        floors = {name: prolog_cost.build_floor(work, f"{name}_floor") for name in ("visits", "reopen")}
        rows = []
        for gpus in options.gpus or [1]:
            rows.append(measure(gpus, options, work, floors))
            if options.json:  # after each, in case the time is up
                options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    table(rows)


if __name__ == "__main__":
    main()
