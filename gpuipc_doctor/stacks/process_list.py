"""Every process of the node, through ``/proc``."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")

MARKER = "GPUIPC_DOCTOR_PROBE"
"""Variable that identifies the processes of a run of ours; its value is ``<run>/<probe>``."""


KEEPER = "gpuipc-keeper"
"""Name of the process that cleans up after a run of ours, as `supervise.keeper` sets it."""


class Process(NamedTuple):
    """One line of ``/proc/PID/stat``. ``state`` is the kernel's letter: D uninterruptible, Z zombie."""

    pid: int
    parent: int
    name: str
    state: str


def processes() -> dict[int, Process]:
    """Every process of the node, by pid, without those whose ``stat`` cannot be read.

    Raises `OSError` about `PROC` if `PROC` cannot be listed or shows another pid namespace, in which the same
    pids are other processes.
    """
    found = {}
    entries = os.listdir(PROC)  # noqa: PTH208 - see `read_line`
    if os.readlink(f"{PROC}/self") != str(os.getpid()):  # noqa: PTH115 - it is no path
        raise OSError(errno.ESRCH, "mounted for another pid namespace", str(PROC))
    for entry in entries:
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError):
                name, _, rest = read_line(entry, "stat").partition("(")[2].rpartition(")")
                state, parent, _ = rest.split(None, 2)
                found[int(entry)] = Process(int(entry), int(parent), name, state)
    return found


def read_line(pid: int | str, name: str) -> str:
    """A one-line file of ``/proc/PID``, read with few calls because there are many processes."""
    file = os.open(f"{PROC}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 4096).decode(errors="replace")
    finally:
        os.close(file)


def descendants(root: int) -> list[Process]:
    """All processes below ``root``, zombies included, nearest first."""
    everyone = processes()
    children: dict[int, list[Process]] = {}
    for process in everyone.values():
        children.setdefault(process.parent, []).append(process)
    below: list[Process] = []
    frontier = [root]
    while frontier:
        frontier = [child.pid for parent in frontier for child in children.get(parent, [])]
        below += [everyone[pid] for pid in frontier]
    return below


def with_descendants(pids: Iterable[int], everyone: Mapping[int, Process]) -> set[int]:
    """These processes and those below them."""
    found = set(pids)
    while more := {pid for pid, each in everyone.items() if each.parent in found} - found:
        found |= more
    return found
