"""Measure `gpuipc-doctor job --sweep` beside eight jobs on eight simulated GPUs; prints Markdown.

    GPUIPC_TEST_MPI=$PWD/.prefix python -m benchmarks.sweep [--calls N]

Seven jobs train (97 %, 610 W of 700 W), one is inference that is bound by memory (98 %, 315 W); each is a
process that computes and sleeps in turn. In the second half of the calls one of the seven is four ranks of
Open MPI of which one never arrives (100 %, 178 W). NVML is simulated; its Python package, py-spy and all
processes are real.
Calls follow each other at once; `over_s` is 0.01 instead of 600, so that three calls in a row are enough.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from gpuipc_doctor.cli import options
from gpuipc_doctor.supervise import tree
from tests.e2e.test_job import job

JOB = """
import ctypes, hashlib, time
ctypes.CDLL("libcuda.so.1")  # by which `job` knows that it uses a GPU
def forward(): return [hashlib.sha256(bytes(999)).digest() for _ in range(500)]
def backward(): time.sleep(0.02)
while True: forward(); backward()
"""
EXAMINES_S = 0.3
"""Processor seconds that a call without an examination may take."""

TRAINS, INFERS, SPINS = (97, 610), (98, 315), (100, 178)


def profile(place: Path, jobs: list[tuple[int, tuple[int, int]]]) -> str:
    """The file of a node with a GPU for each job: (pid, (percent, watts))."""
    text = "description: eight jobs\nextends: healthy-cuda\ndevices:\n"
    for pid, (busy, watts) in jobs:
        nvml = f"{{busy: {busy}, watts: {watts}, watts-limit: 700}}"
        text += (
            f"  - {{backend: cuda, name: H200, memory: 139 GiB, held: 1 GiB, holder: {pid}, nvml: {nvml}}}\n"
        )
    file = place / "eight.yaml"
    file.write_text(text)
    return str(file)


def call(place: Path, node: str) -> tuple[int, float, float, str]:
    """Exit code, processor seconds and seconds of a sweep, and its line."""
    with options.node(node) as simulated:
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        command = [
            sys.executable,
            "-m",
            "gpuipc_doctor",
            "job",
            "--sweep",
            "--config",
            str(place / "site.yaml"),
        ]
        ended = subprocess.run(command, env={**os.environ, **simulated.env}, capture_output=True, text=True)
        took, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return ended.returncode, used, took, ended.stdout.removeprefix("gpuipc-doctor: ").strip()


def row(what: str, calls: list[tuple[int, float, float, str]]) -> str:
    """A line of the table. A call that uses more of the processor than `EXAMINES_S` has examined a job."""
    long = [took for _, used, took, _ in calls if used > EXAMINES_S]
    used = [used for _, used, *_ in calls if used <= EXAMINES_S]
    counts = Counter(code for code, *_ in calls)
    codes = ", ".join(f"{count} × {code}" for code, count in sorted(counts.items()))
    examined = f"{len(long)} ({', '.join(f'{took:.1f} s' for took in long)})" if long else "0"
    figures = f"{statistics.median(used):.2f} (at most {max(used):.2f})"
    return f"| {what} | {len(calls)} | {codes} | {examined} | {figures} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=24, help="Calls, half of them beside a stuck job.")
    given = parser.parse_args()
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=Path.home())))
        (place / "site.yaml").write_text(f"sweep: {{over_s: 0.01, state_dir: {place / 'state'}}}\n")
        environment = {**os.environ, **stack.enter_context(options.node("healthy-cuda")).env}
        running = [subprocess.Popen([sys.executable, "-c", JOB], env=environment) for _ in range(8)]
        for process in running:
            stack.callback(process.kill)
        jobs = [(process.pid, INFERS if n == 3 else TRAINS) for n, process in enumerate(running)]
        healthy = [call(place, profile(place, jobs)) for _ in range(given.calls // 2)]
        with job("openmpi", "one-late", 4, place / "log") as launcher:
            ranks = [process.pid for process in tree.descendants(launcher) if "python" in process.name]
            jobs[7] = (ranks[0], SPINS)
            stuck = [call(place, profile(place, jobs)) for _ in range(given.calls // 2)]
    print("| eight jobs | calls | exit codes | examinations | processor seconds of the other calls, median |")
    print("|---|---|---|---|---|")
    print(row("seven that train, one inference", healthy))
    print(row("six that train, one inference, one stuck", stuck))
    print(f"\n    {stuck[-1][3].partition('; see')[0]}")


if __name__ == "__main__":
    main()
