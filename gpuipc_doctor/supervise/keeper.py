"""Outlives a killed supervisor for as long as it takes to end what that one had started.

Started as ``python -I -S keeper.py`` with a pipe on standard input that its supervisor keeps open; it prints
an empty line when it is ready. Through the pipe come, each with a NUL behind it, the run's marker and the
directories as they are made, for a command line is everybody's to read; and in the end `DONE` when the
supervisor has cleaned up itself. Where that is missing the supervisor is gone (kill -9, out of memory): every
process with the marker is then killed, and the directories and what ranks left in shared memory are removed.
Uses the standard library alone, and what of it takes long to import only when there is something to end: it
starts with every run, in milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from types import ModuleType

GRACE_S = 0.3
"""Between TERM and KILL: a launcher may have ranks to end on other nodes."""

ROUNDS, PAUSE_S = 500, 0.02

PR_SET_NAME = 15

NAME = "gpuipc-keeper"
"""What `ps` and ``/proc`` call it (tree.KEEPER): who ends all that a run has left leaves it to its work."""


DONE = b"done"


def main() -> None:
    began = time.time()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    take_name()
    with contextlib.suppress(OSError):
        os.write(1, b"\n")
    marker, *directories = sys.stdin.buffer.read().split(b"\0")
    if DONE in directories[-1:]:
        return
    wanted = b"GPUIPC_DOCTOR_PROBE=" + marker + b"/"
    if kill_all(wanted, signal.SIGTERM):
        time.sleep(GRACE_S)
    for _ in range(ROUNDS):
        if not kill_all(wanted):
            break
        time.sleep(PAUSE_S)
    import shutil

    for directory in filter(None, directories):
        for _ in range(ROUNDS):  # a worker of another run of ours may still write there
            shutil.rmtree(directory, ignore_errors=True)
            if not os.path.lexists(directory):
                break
            time.sleep(PAUSE_S)
    beside("leftovers").remove(since=began)


def beside(name: str) -> ModuleType:
    """A module of this directory, which is on no path here."""
    import importlib.util
    from pathlib import Path

    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def take_name() -> None:
    try:
        with open("/proc/self/comm", "w") as file:  # noqa: PTH123 - pathlib takes as long to import as Python to start
            file.write(NAME)
    except OSError:  # /proc may be read-only; importing ctypes costs milliseconds
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_NAME, NAME.encode(), 0, 0, 0)


def kill_all(wanted: bytes, number: int = signal.SIGKILL) -> int:
    """Send this signal to every process whose environment holds ``wanted``; returns how many there were."""
    found = 0
    for entry in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - see `take_name`
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:  # noqa: PTH123 - see `take_name`
                environment = file.read().split(b"\0")
            if any(variable.startswith(wanted) for variable in environment):
                found += 1
                os.kill(int(entry), number)
        except OSError:
            continue
    return found


if __name__ == "__main__":
    main()
