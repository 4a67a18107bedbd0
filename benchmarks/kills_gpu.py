"""SIGKILL an exporter, an importer or the tool on a real GPU, and report what is left.

    python -m benchmarks.kills_gpu [--kills 20] [--seed N] [--simulate PROFILE]

Each run is `check` with the checks that share memory. One of its processes is killed at a random moment; 5 s
after the tool has ended, there must be no process or file of it, and as much device memory in use as before
(NVML; not measured with --simulate). A further run without a kill must then pass. Prints a table in Markdown;
exits with 1 if anything was left. No other process may write to the directories for temporary files
meanwhile. `kills.py` does the same on simulated nodes, each in its own namespaces.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.kills import FOUND_NOTHING_BAD, kill_one, role_of
from benchmarks.reliability import PLACES, VANISH_S, await_nothing, below, left_running

CHECKS = ["ipc-handles"]
TAG = "GPUIPC_KILLS"
SLACK_BYTES = 4 << 20
"""The driver's own use of a device changes by one or two granules of 2 MiB."""


def used_bytes() -> list[int]:
    from gpuipc_doctor.nvml import Nvml

    nvml = Nvml(contextlib.nullcontext)
    return [nvml.memory(nvml.by_index(index))[1] for index in range(nvml.count())]


def files() -> set[Path]:
    return {path for place in PLACES for path in place.iterdir() if path.name != "hsperfdata_root"}


def run(
    node: list[str], victim: str, after_s: float, measure: Callable[[], list[int]]
) -> tuple[bool, list[str]]:
    """Whether a process of kind ``victim`` was killed, and problems afterwards; "" kills none."""
    before, there_before, tag = measure(), files(), f"{os.getpid()}{random.getrandbits(30)}"
    process = subprocess.Popen(
        [sys.executable, "-m", "gpuipc_doctor", "check", *CHECKS, "--no-workarounds", *node],
        env={**os.environ, TAG: tag},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    killed = bool(victim) and kill_one(process, lambda pid: those(pid, victim), time.monotonic() + after_s)
    printed, _ = process.communicate(timeout=300)
    wrong = []
    if (
        process.returncode not in (FOUND_NOTHING_BAD if victim else (0,))
        and process.returncode != -signal.SIGKILL
    ):
        wrong.append(f"exit code {process.returncode}: {printed[-2000:].decode(errors='replace')}")
    until = time.monotonic() + VANISH_S

    def rest_s() -> float:
        return max(0.0, until - time.monotonic())

    wrong += await_nothing(lambda: left_running(tag, TAG), rest_s())
    wrong += await_nothing(lambda: sorted(map(str, files() - there_before)), rest_s())
    wrong += await_nothing(lambda: more_memory(before, measure()), rest_s())
    return killed, wrong


def more_memory(before: list[int], after: list[int]) -> list[str]:
    pairs = enumerate(zip(before, after, strict=True))
    return [f"{now - then} B of GPU {index}" for index, (then, now) in pairs if now > then + SLACK_BYTES]


def those(tool: int, victim: str) -> list[int]:
    return [tool] if victim == "tool" else [pid for pid in below(tool) if role_of(pid) == victim]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20, help="of each kind of process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--simulate", metavar="PROFILE")
    options = parser.parse_args()
    random.seed(options.seed)
    node = ["--simulate", options.simulate] if options.simulate else []
    measure = (lambda: []) if options.simulate else used_bytes
    started = time.monotonic()
    _, wrong = run(node, "", 0.0, measure)
    seconds, missed = time.monotonic() - started, len(wrong)
    print(*wrong, sep="\n", file=sys.stderr)
    print("| killed | kills | something left |\n|---|---|---|")
    for victim in ("exporter", "importer", "tool"):
        kills = bad = 0
        while kills < options.kills:
            killed, wrong = run(node, victim, random.uniform(0.0, 0.8 * seconds), measure)
            kills += killed
            bad += bool(wrong)
            print(
                *(f"{victim}: {text}" for text in wrong), sep="\n", end="\n" if wrong else "", file=sys.stderr
            )
        missed += bad
        print(f"| {victim} | {kills} | {bad} |", flush=True)
    _, wrong = run(node, "", 0.0, measure)
    print(f"a run without a kill afterwards: {'; '.join(wrong) or 'passed, nothing left'}")
    sys.exit(bool(missed + len(wrong)))


if __name__ == "__main__":
    main()
