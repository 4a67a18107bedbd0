"""Outlives a killed supervisor for as long as it takes to end what that one had started.

Started as ``python -I -S keeper.py MARKER DIRECTORY…`` with a pipe on standard input that its supervisor
keeps open; it prints an empty line when it is ready. A line on the pipe means that the supervisor has cleaned
up itself. The end of the pipe without one means that it is gone (kill -9, out of memory): every process with
the run's marker is then killed and the run's directories are removed. Uses the standard library alone, so
that it starts in milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

GRACE_S = 0.3
"""Between TERM and KILL: a launcher may have ranks to end on other nodes."""

ROUNDS, PAUSE_S = 500, 0.02

NAME = "gpuipc-keeper"
"""What `ps` and ``/proc`` call it (tree.KEEPER): who ends all that a run has left leaves it to its work."""


def main(marker: str, directories: list[str]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(NAME)
        os.write(1, b"\n")
    if sys.stdin.buffer.readline():
        return
    wanted = f"GPUIPC_DOCTOR_PROBE={marker}/".encode()
    if kill_all(wanted, signal.SIGTERM):
        time.sleep(GRACE_S)
    for _ in range(ROUNDS):
        if not kill_all(wanted):
            break
        time.sleep(PAUSE_S)
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


def kill_all(wanted: bytes, number: int = signal.SIGKILL) -> int:
    """Send this signal to every process whose environment holds ``wanted``; returns how many there were."""
    found = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
                if any(variable.startswith(wanted) for variable in environment):
                    found += 1
                    os.kill(int(entry.name), number)
            except OSError:
                continue
    return found


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
