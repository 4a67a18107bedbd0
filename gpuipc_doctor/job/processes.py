"""A passive snapshot of processes, through ``/proc`` only: nothing is stopped or woken.

File contents: Linux, Documentation/filesystems/proc.rst. ``syscall``, ``stack`` and ``environ`` need the
right to trace the process (ptrace(2), "Ptrace access mode checking"), although nothing is traced.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from gpuipc_doctor.job import rights
from gpuipc_doctor.job.document import UNREAD, Process, Thread
from gpuipc_doctor.job.mappings import mappings
from gpuipc_doctor.supervise.rank import RANK_VARIABLES
from gpuipc_doctor.supervise.tree import PROC

RANKS = (*RANK_VARIABLES, "RANK")
"""Variables in which launchers pass the rank number; the last one is torchrun's."""

SIZES = ("PMIX_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_NTASKS",
         "FLUX_JOB_SIZE", "WORLD_SIZE")  # fmt: skip
"""Variables in which launchers pass the number of ranks."""

LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
               "MV2_COMM_WORLD_LOCAL_RANK", "FLUX_TASK_LOCAL_ID")  # fmt: skip
"""Variables in which launchers pass the number of a rank on its node."""

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


def read_process(pid: int, used_s: Callable[[int, float], float], names: frozenset[str]) -> Process | None:
    """The present state of a process; None if it has ended. ``names``: environment variables to keep.

    ``used_s(tid, seconds)`` is called with a thread's processor seconds so far, and returns the thread's
    processor share since the previous snapshot.
    """
    reader = Reader(pid)
    with suppress(Gone, FileNotFoundError, ProcessLookupError):
        stat = Stat(reader.text("stat"))
        environ = environment(reader)
        threads = tuple(_threads(pid, reader, used_s))
        if not threads:
            reader.refused.setdefault("task", "lists no thread")
        return Process(
            pid=pid,
            parent=stat.parent,
            started=stat.started_ticks,
            uid=(PROC / str(pid)).stat().st_uid,
            program=stat.name,
            rank=_number(environ, RANKS),
            size=_number(environ, SIZES),
            local=_number(environ, LOCAL_RANKS),
            threads=threads,
            libraries=tuple(sorted(_libraries(reader))),
            settings={name: environ[name] for name in sorted(names & environ.keys())},
            descriptors=None if (descriptors := reader.names("fd")) is None else len(descriptors),
            switches=_switches(reader.text(f"task/{pid}/status")),
            transferred=_transferred(reader.text(f"task/{pid}/io")),
            refused=reader.refused,
        )
    return None


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
        self.started_ticks = numbers[18]
        self.stack_begin = numbers[24]
        """Highest address of the main thread's stack, from which it grows down; 0 if hidden."""


def _threads(pid: int, reader: Reader, used_s: Callable[[int, float], float]) -> Iterator[Thread]:
    for entry in filter(str.isdecimal, reader.names("task") or ()):
        with suppress(Gone):
            here = f"task/{entry}"
            stat = Stat(reader.text(f"{here}/stat"))
            wchan = reader.text(f"{here}/wchan")
            stack = reader.text(f"{here}/stack").splitlines()
            yield Thread(
                tid=int(entry),
                name=stat.name,
                state=stat.state,
                busy=used_s(int(entry), stat.used_s),
                wchan="" if wchan == "0" else wchan,
                syscall=reader.text(f"{here}/syscall").split(" ")[0].strip(),
                kernel=tuple(line.split("] ")[-1].partition("+")[0] for line in stack),
            )


def _libraries(reader: Reader) -> set[str]:
    files = {each.file for each in mappings(reader.text("maps"))}
    return {file for file in files if ".so" in file.rpartition("/")[2]}


def _switches(text: str) -> int | None:
    """Voluntary context switches of a thread (``status``, proc(5))."""
    found = re.search(r"^voluntary_ctxt_switches:\s+([0-9]+)$", text, re.MULTILINE)
    return int(found[1]) if found else None


def _transferred(text: str) -> int | None:
    """Bytes moved by read(2) and write(2), pipes and terminals included (``io``, proc(5))."""
    counts = re.findall(r"^[rw]char: ([0-9]+)$", text, re.MULTILINE)
    return sum(map(int, counts)) if len(counts) == 2 else None


def _number(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    values = (environ[name] for name in names if name in environ)
    return next((int(value) for value in values if value.isdecimal()), None)
