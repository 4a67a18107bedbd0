"""The files of one process in ``/proc``: nothing is stopped or woken.

File contents: Linux, Documentation/filesystems/proc.rst. ``syscall``, ``stack`` and ``environ`` need the
right to trace the process (ptrace(2), "Ptrace access mode checking"), although nothing is traced.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from gpuipc_doctor.stacks import rights
from gpuipc_doctor.stacks.process_list import PROC
from gpuipc_doctor.stacks.thread import UNREAD

RANK_VARIABLES = (
    "PMIX_RANK",
    "PMI_RANK",
    "OMPI_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_RANK",
    "SLURM_PROCID",
    "FLUX_TASK_RANK",
)
"""Variables in which launchers pass the rank: PRRTE, Hydra, Open MPI, MVAPICH, Slurm, Flux."""

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_LARGEST = 32 << 20
"""Maximum bytes read from one file of ``/proc``: a process may have 65,530 mappings, each with a path."""


class Gone(Exception):
    """The process has ended."""


class Reader:
    """Reads the files of one process; records why a file could not be read."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._directory = PROC / str(pid)
        self.refused: dict[str, str] = {}

    def text(self, name: str) -> str:
        """Text of a file; empty if unreadable. Raises `Gone`."""
        return self.raw(name).decode(errors="replace")

    def raw(self, name: str) -> bytes:
        try:
            with (self._directory / name).open("rb") as file:
                return file.read(_LARGEST)
        except OSError as error:
            self._refuse(name, error)
            return b""

    def names(self, name: str) -> list[str] | None:
        """Entries of a directory; None if unreadable."""
        try:
            return os.listdir(self._directory / name)  # noqa: PTH208 - not needed as paths
        except OSError as error:
            self._refuse(name, error)
            return None

    def _refuse(self, name: str, error: OSError) -> None:
        """Record the reason. Raises `Gone` if the process or thread has ended. A file may also be missing
        because the kernel was built without it."""
        path = self._directory / name
        if isinstance(error, FileNotFoundError | ProcessLookupError) and not path.parent.exists():
            raise Gone from None
        denied = isinstance(error, PermissionError)
        self.refused[path.name] = rights.reason(self._pid) if denied else error.strerror or str(error)


def environment(reader: Reader) -> Mapping[str, str]:
    """The environment with which the process started. Never put into a document unfiltered."""
    pairs = (pair.partition("=") for pair in reader.text("environ").split("\0"))
    return {name: value for name, separator, value in pairs if separator}


def used_s(pid: int, tid: int) -> float:
    """Processor seconds used by a thread. Raises `Gone`."""
    text = Reader(pid).text(f"task/{tid}/stat")
    return Stat(text).used_s


_FIELDS = 25
"""Number of fields read after the state. Newer kernels write more."""

_STAT = re.compile(rf"[0-9]+ \((.*)\) ([A-Za-z])((?: -?[0-9]+){{{_FIELDS},}})\s*", re.DOTALL)
"""A process's ``stat``: name, state, numbers. The name may contain spaces, brackets and line feeds."""


class Stat:
    """Fields of ``/proc/PID/stat`` (proc(5)). If the file is unreadable, the state is `UNREAD` and numbers
    are 0."""

    def __init__(self, text: str) -> None:
        found = _STAT.fullmatch(text)
        self.name, self.state = (found[1], found[2]) if found else ("", UNREAD)
        numbers = [int(field) for field in found[3].split()] if found else [0] * _FIELDS
        self.parent = numbers[0]
        self.used_s = (numbers[10] + numbers[11]) * _TICK_S
        self.children_s = (numbers[12] + numbers[13]) * _TICK_S
        self.started_ticks = numbers[18]
        self.resident = numbers[20] * _PAGE
        self.stack_begin = numbers[24]
        """Highest address of the main thread's stack, from which it grows down; 0 if hidden."""
