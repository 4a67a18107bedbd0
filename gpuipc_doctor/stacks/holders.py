"""For what a sleeping thread waits that another process holds: a lock on a file, the other end of a pipe."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gpuipc_doctor.stacks.process_list import PROC, processes

_LOCK = re.compile(r"locks_lock|flock_lock|fcntl_setlk|posix_lock|do_lock_file_wait")
_WRITES, _READS, _OPENS = (
    re.compile(r"pipe_write$"),
    re.compile(r"pipe_read$"),
    ("wait_for_partner", "fifo_open"),
)
"""Kernel functions in which a thread waits for a lock or at a pipe (Linux, fs/locks.c, fs/pipe.c)."""

_ENTRY = re.compile(r"(\d+):(\s+(?:-> )*)\w+ +\S+ +\S+ +(-?\d+) ", re.MULTILINE)
"""A line of /proc/locks: its number, arrows if it waits for the first of that number, and its pid."""

_MOST = 3


def waits_for(pid: int, wchan: str) -> str:
    """For what the main thread waits and who holds it: ``waits for a lock on the file a, held by app (7)``.

    Empty if ``wchan``, the kernel function in which it sleeps, is none of these waits.
    """
    with suppress(OSError, ValueError, IndexError):
        if _LOCK.search(wchan):
            holders = (
                _named(lock_holders((PROC / "locks").read_text(), pid)) or "a process that is not visible"
            )
            return f"waits for a lock on the file {_file(pid).name}, held by {holders}"
        if _WRITES.search(wchan):
            readers = _named(_at_other_end(pid, os.O_RDONLY))
            of = f"pipe which {readers} {'does' if ',' not in readers else 'do'} not read"
            return f"writes to a full {of}" if readers else "writes to a pipe that no process reads"
        if _READS.search(wchan):
            writers = _named(_at_other_end(pid, os.O_WRONLY))
            to = f"{writers} may write" if writers else "no other process writes"
            return f"reads from a pipe to which {to}"
    return "opens a FIFO whose other end no process opens" if wchan in _OPENS else ""


def lock_holders(locks: str, pid: int) -> Iterator[int]:
    """Pids of the processes for whose locks a process waits, from the text of ``/proc/locks``."""
    entries = [(number, "->" in arrows, int(holder)) for number, arrows, holder in _ENTRY.findall(locks)]
    awaited = {number for number, waits, waiter in entries if waits and waiter == pid}
    yield from (holder for number, waits, holder in entries if number in awaited and not waits and holder > 0)


def _file(pid: int) -> Path:
    """The file on which the main thread's system call works: its first argument."""
    call = (PROC / str(pid) / "syscall").read_text().split()
    return (PROC / str(pid) / "fd" / str(int(call[1], 16))).readlink()


def _at_other_end(pid: int, access: int) -> Iterator[int]:
    """Other processes that have the main thread's pipe open for reading or writing only, or for both."""
    pipe = str(_file(pid))
    for other in sorted(processes().keys() - {pid}):
        with suppress(OSError):
            for entry in (PROC / str(other) / "fd").iterdir():
                if str(entry.readlink()) == pipe and _access(other, entry.name) in (access, os.O_RDWR):
                    yield other
                    break


def _access(pid: int, descriptor: str) -> int:
    text = (PROC / str(pid) / "fdinfo" / descriptor).read_text()
    flags = re.search(r"^flags:\s+([0-7]+)$", text, re.MULTILINE)
    return int(flags[1], 8) & os.O_ACCMODE if flags else -1


def _named(pids: Iterator[int]) -> str:
    """Processes as ``python (7), stopped``; of many, the first ones."""
    everyone = processes()
    found = [everyone[pid] for pid in dict.fromkeys(pids) if pid in everyone]
    return ", ".join(
        f"{each.name} ({each.pid}){', stopped' * (each.state in 'Tt')}" for each in found[:_MOST]
    )
