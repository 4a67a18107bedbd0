"""Measure the cost of `gpuipc-doctor memory --watch`: processor time, memory, device memory; prints Markdown.

    python benchmarks/watch_cost.py [--simulate PROFILE] [--seconds N] [--interval N]

The processor time is of its whole process tree (itself, its keeper, its worker), without its start-up; it
runs on a terminal, as for a user. On a real GPU, another process that already has a context reads the used
memory, so that device memory taken by the command would show.
"""

from __future__ import annotations

import argparse
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
SETTLE_S = 3.0
"""Time for its start, which is not measured."""


def tree(root: int) -> list[int]:
    """The pids of a process and all its descendants."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # the process has ended meanwhile
            continue
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def processor_seconds(pids: list[int]) -> float:
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(field[11]) + int(field[12]) for field in fields) / TICKS


def resident_mib(pids: list[int]) -> float:
    """Memory of these processes in MiB, shared pages counted once (the sum of Pss)."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total / 1024


def device_used() -> int | None:
    """Bytes in use on the first real GPU; the first call creates a context, before the measurement."""
    try:
        from gpuipc_doctor.api.gpu import BackendUnavailable
        from gpuipc_doctor.backends import open_backend

        backend = open_backend("cuda", lambda _: nullcontext())
        (device, *_) = backend.devices()
        return backend.gpu(device).memory_used()
    except BackendUnavailable:
        return None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--simulate", metavar="PROFILE")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--interval", type=float, default=2.0)
    asked = parser.parse_args()
    simulate = ["--simulate", asked.simulate] if asked.simulate else []
    command = [sys.executable, "-m", "gpuipc_doctor.cli.main", "memory", "--watch", *simulate]

    before = None if asked.simulate else device_used()
    screen, end = pty.openpty()
    threading.Thread(target=drain, args=(screen,), daemon=True).start()
    started = time.monotonic()
    watching = subprocess.Popen(
        [*command, "--interval", f"{asked.interval:g}"], stdout=end, env={**os.environ, "TERM": "xterm"}
    )
    time.sleep(SETTLE_S)
    pids = tree(watching.pid)
    at_start, began = processor_seconds(pids), time.monotonic()
    during = None if asked.simulate else device_used()
    time.sleep(asked.seconds)
    used, seconds = processor_seconds(pids) - at_start, time.monotonic() - began
    memory = resident_mib(pids)
    watching.send_signal(signal.SIGINT)
    code = watching.wait()
    print("| | |")
    print("|---|---|")
    print(f"| watched, every {asked.interval:g} s | {seconds:.1f} s |")
    print(f"| processes; exit code | {len(pids)}; {code} |")
    print(f"| processor time to start | {at_start:.2f} s |")
    print(f"| processor time for each hour | {used / seconds * 3600:.1f} s |")
    print(f"| memory, Pss of all its processes | {memory:.1f} MiB |")
    if before is not None and during is not None:
        print(f"| device memory | {during - before} B |")
    print(f"| wall time in all | {time.monotonic() - started:.1f} s |")


def drain(screen: int) -> None:
    try:
        while os.read(screen, 65536):
            pass
    except OSError:
        pass


if __name__ == "__main__":
    main()
