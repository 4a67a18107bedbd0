"""Measure how often `gpuipc-doctor prolog` finds a known-bad node under load; prints a Markdown row.

    python benchmarks/prolog_under_load.py [--runs N] [--load N] [--cores N] [--simulate PROFILE]

--load busy processes share the processors with the prolog, which has the default policy and budget. Nothing
is stored from one run to the next. Ctrl-C ends the measurement and prints the results so far.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

POLICY = "on_fail: drain, on_error: log, on_budget: log, on_unkillable: drain"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--load", type=int, default=16)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--simulate", metavar="PROFILE", default="nvidia-460.32.03")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.load)]
    try:
        outcomes, seconds = run(options.runs, options.simulate)
    finally:
        for hog in hogs:
            hog.kill()
    print("| processes that compute | processors | runs | drained | other outcomes | median s | longest s |")
    print("|---|---|---|---|---|---|---|")
    others = "; ".join(f"{count} × {line}" for line, count in outcomes.items() if line != "drained") or "none"
    print(
        f"| {options.load} | {options.cores} | {len(seconds)} | {outcomes['drained']} | {others} "
        f"| {statistics.median(seconds):.1f} | {max(seconds):.1f} |"
    )


def run(runs: int, profile: str) -> tuple[collections.Counter[str], list[float]]:
    """The result of each run (its line, if it did not drain), and its duration in seconds."""
    outcomes: collections.Counter[str] = collections.Counter()
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as name, contextlib.suppress(KeyboardInterrupt):
        config = Path(name) / "site.yaml"
        for number in range(runs):
            state = f"state_dir: {name}/state-{number}, syslog: false"
            config.write_text(f"prolog: {{{POLICY}, {state}, simulate: {profile}}}\n")
            started = time.monotonic()
            command = [sys.executable, "-I", "-m", "gpuipc_doctor", "prolog", "--config", str(config)]
            ended = subprocess.run(command, capture_output=True, text=True, env={"SLURM_JOB_GPUS": "0"})
            seconds.append(time.monotonic() - started)
            assert ended.stdout.count("\n") == 1, ended
            outcomes["drained" if ended.returncode == 12 else ended.stdout.strip()[:100]] += 1
    return outcomes, seconds


if __name__ == "__main__":
    main()
