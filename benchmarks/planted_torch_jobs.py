"""Run planted PyTorch jobs over NCCL on a node's GPUs: the right answer and that of `gpuipc-doctor job`.

``python3 -m benchmarks.planted_torch_jobs --out OUT [--wheels DIRECTORY] [MODE…]`` needs Python, PyTorch and
four GPUs; with ``--backend gloo``, no GPU. ``--wheels`` has the wheels of gpuipc-doctor, of what it needs and
of py-spy, for a machine on which nothing can be installed. Each job is examined without and with ``--ras``,
both at the same time; the next jobs import PyTorch meanwhile. OUT gets the table (``table.md``) and screens.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests import torch_jobs
from tests.torch_jobs import HEALTHY, JOBS, OPEN, PASS, STUCK, Answer, Job, Started

AHEAD = 3
"""Jobs that import PyTorch while another one is examined."""
READY_S, SETTLED_S = 60.0, 2.0
LIMIT_S = 60.0
WHOLE_S = 540.0
"""Seconds after which no further job is examined."""


def unpack(wheels: Path, place: Path) -> dict[str, str]:
    """The environment for the tool, with the wheels' modules on PYTHONPATH and their programs on PATH."""
    modules, programs = place / "modules", place / "programs"
    programs.mkdir(parents=True)
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as file:
            file.extractall(modules)
    for script in modules.glob("*.data/scripts/*"):
        script.chmod(0o755)
        script.rename(programs / script.name)
    return {
        **os.environ,
        "PYTHONPATH": str(modules),
        "PYTHONSAFEPATH": "1",  # the tool's own modules are those of its wheel, not those of this directory
        "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
    }


def examine(job: Started, environ: Mapping[str, str], out: Path, *, ras: bool) -> Answer:
    name = f"{job.job.mode}{'.ras' if ras else ''}"
    saved = out / f"{name}.json"
    tool = [sys.executable, "-m", "gpuipc_doctor"]
    options = ["--ras"] if ras else []
    began = time.monotonic()
    try:
        done = subprocess.run(
            torch_jobs.command(tool, job.pids, saved, *options),
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
            stdin=subprocess.DEVNULL,
            env=environ,
        )
    except subprocess.TimeoutExpired as late:
        done = subprocess.CompletedProcess([], 124, f"no answer in {late.timeout:g} s", "")
    seconds = time.monotonic() - began
    (out / f"{name}.txt").write_text(f"{done.stdout}{done.stderr}\nexit {done.returncode}, {seconds:.1f} s\n")
    return torch_jobs.answer(done, saved, seconds)


def both(job: Started, environ: Mapping[str, str], out: Path) -> tuple[Answer, Answer]:
    """The answers without and with RAS."""
    found: dict[bool, Answer] = {}
    threads = [
        threading.Thread(target=lambda ras=ras: found.update({ras: examine(job, environ, out, ras=ras)}))
        for ras in (False, True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found[False], found[True]


def is_ready(job: Started) -> bool:
    job.go()
    until = time.monotonic() + READY_S
    while not job.is_ready() and time.monotonic() < until and job.pids:
        time.sleep(0.1)
    time.sleep(SETTLED_S)
    return job.is_ready()


def row(job: Job, name: str, answer: Answer, *, ras: bool) -> tuple[str, bool]:
    right = job.is_right(answer.code, answer.blamed, answer.screen, ras=ras)
    cause = answer.report.get("verdict", {}).get("cause", "-")
    blamed = ",".join(map(str, answer.blamed)) or "-"
    cells = (
        name,
        job.says,
        f"{cause}, {answer.code}",
        blamed,
        f"{answer.seconds:.1f}",
        "yes" if right else "**no**",
    )
    return "| " + " | ".join(cells) + " |", right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--python", default=sys.executable, help="Python with PyTorch.")
    parser.add_argument("modes", nargs="*")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    wanted = [job for job in JOBS if job.mode in (given.modes or [job.mode])]
    with tempfile.TemporaryDirectory() as place:
        environ = unpack(given.wheels, Path(place)) if given.wheels else dict(os.environ)
        report(wanted, given.backend, given.python, environ, Path(place), given.out)


def report(
    wanted: Sequence[Job], backend: str, python: str, environ: Mapping[str, str], place: Path, out: Path
) -> None:
    began = time.monotonic()
    lines = ["| planted | an expert says | said | blamed | seconds | right |", "|---|---|---|---|---|---|"]
    results: list[tuple[Job, Answer, bool]] = []
    waiting: list[Started] = []
    left = list(wanted)
    print(*lines, sep="\n", flush=True)
    try:
        while (left or waiting) and time.monotonic() - began < WHOLE_S:
            while left and len(waiting) <= AHEAD:
                waiting.append(torch_jobs.start(left[0], backend, python, place / left.pop(0).mode))
            job = waiting.pop(0)
            try:
                ready = is_ready(job)
                answers = both(job, environ, out)
            finally:
                job.end()
                (out / f"{job.job.mode}.log").write_text(job.output()[-20_000:])
            for answer, ras in zip(answers, (False, True), strict=True):
                name = f"{job.job.mode}{' --ras' if ras else ''}{'' if ready else ' (not ready)'}"
                line, right = row(job.job, name, answer, ras=ras)
                results.append((job.job, answer, right))
                lines.append(line)
                print(line, flush=True)
                (out / "table.md").write_text("\n".join(lines) + "\n")
    finally:
        for job in waiting:
            job.end()
        lines += ["", *summary(results, time.monotonic() - began)]
        (out / "table.md").write_text("\n".join(lines) + "\n")
        print(*lines[-2:], sep="\n")


def summary(results: Sequence[tuple[Job, Answer, bool]], seconds: float) -> list[str]:
    right = sum(right for _, _, right in results)
    wrong = [job.mode for job, answer, _ in results if job.mode in HEALTHY and answer.code == STUCK]
    passed = [job.mode for job, answer, _ in results if job.mode not in HEALTHY and answer.code == PASS]
    slowest = max((answer.seconds for _, answer, _ in results), default=0.0)
    unsure = sum(answer.code == OPEN for _, answer, _ in results)
    return [
        f"{right} of {len(results)} right, {unsure} open; "
        f"healthy told as stuck: {', '.join(wrong) or 'none'}; "
        f"stuck told as PASS: {', '.join(passed) or 'none'}",
        f"slowest answer {slowest:.1f} s; {seconds:.0f} s in all; both answers of a job at the same time",
    ]


if __name__ == "__main__":
    main()
