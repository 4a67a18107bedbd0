"""Stack of a thread that sleeps in a system call, read from its memory without stopping it.

``/proc/PID/task/TID/syscall`` has the stack pointer of a sleeping thread, whose stack does not change until
the call returns. Reading this file needs the right to trace the process, but traces nothing (proc(5)).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

from gpuipc_doctor.stacks import rights
from gpuipc_doctor.stacks.code import Code
from gpuipc_doctor.stacks.thread import Stack

DEPTH_BYTES = 32 << 10
"""Bytes of stack read from the stack pointer on."""


ATTEMPTS, BETWEEN_S = 8, 0.001
"""Number of attempts, and seconds between them. Half of the attempts fail for a rank that polls with short
sleeps, because it wakes up during the attempt."""


_POINTERS = re.compile(r" (0x[0-9a-f]{1,15}) (0x[0-9a-f]{1,16})$", re.MULTILINE)
"""Stack pointer and instruction pointer, the last fields of ``syscall`` (proc(5))."""


def stacks(pid: int, tids: Iterable[int]) -> tuple[dict[int, tuple[Stack, ...]], dict[str, str]]:
    """Approximate stacks of these threads, and what could not be read → the reason."""
    found: dict[int, tuple[Stack, ...]] = {}
    refused: dict[str, str] = {}
    code = None
    for tid in tids:
        try:
            code = code or Code(pid)
            found[tid] = tuple(filter(None, [stack(pid, tid, code)]))
        except OSError as error:
            denied = isinstance(error, PermissionError)
            refused["stack of a sleeping thread"] = rights.reason(pid) if denied else str(error)
    return found, refused


def stack(pid: int, tid: int, code: Code | None = None) -> Stack:
    """The frames, innermost first; empty for a running thread. Raises `OSError` if memory is unreadable.

    ``code``: the process's mappings, if they have been read.
    """
    code = code or Code(pid)
    for _ in range(ATTEMPTS):
        if frames := _stack(pid, tid, code):
            return frames
        time.sleep(BETWEEN_S)
    return ()


def _stack(pid: int, tid: int, code: Code) -> Stack:
    """One attempt of `stack`; empty if the thread runs, or woke up while its stack was read."""
    syscall = Path(f"/proc/{pid}/task/{tid}/syscall")
    before = syscall.read_text(errors="replace")
    found = _POINTERS.search(before)
    if found is None:
        return ()
    pointer, counter = (int(number, 16) for number in found.groups())
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        words = os.pread(memory.fileno(), DEPTH_BYTES, pointer)
    return code.frames(counter, words) if syscall.read_text(errors="replace") == before else ()
