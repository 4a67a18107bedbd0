"""A passive snapshot of processes, through ``/proc`` only: nothing is stopped or woken.

File contents: Linux, Documentation/filesystems/proc.rst. ``syscall``, ``stack`` and ``environ`` need the
right to trace the process (ptrace(2), "Ptrace access mode checking"), although nothing is traced.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from gpuipc_doctor.job import rights
from gpuipc_doctor.job.document import Process, Thread
from gpuipc_doctor.supervise.rank import RANK_VARIABLES
from gpuipc_doctor.supervise.tree import PROC

RANKS = (*RANK_VARIABLES, "RANK")
"""Variables in which launchers pass the rank number; the last one is torchrun's."""

SIZES = ("PMIX_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_NTASKS",
         "FLUX_JOB_SIZE", "WORLD_SIZE")  # fmt: skip
"""Variables in which launchers pass the number of ranks."""

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_LARGEST = 4 << 20
"""Maximum bytes read from one file of ``/proc``: a process may have 65,530 mappings."""


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
        except (FileNotFoundError, ProcessLookupError):
            raise Gone from None
        except OSError as error:
            self._refuse(name.rpartition("/")[2], error)
            return b""

    def count(self, name: str) -> int | None:
        """Number of entries in a directory; None if unreadable."""
        try:
            return len(os.listdir(self._directory / name))  # noqa: PTH208 - names are not needed as paths
        except (FileNotFoundError, ProcessLookupError):
            raise Gone from None
        except OSError as error:
            self._refuse(name, error)
            return None

    def _refuse(self, name: str, error: OSError) -> None:
        denied = isinstance(error, PermissionError)
        self.refused[name] = rights.reason(self._pid) if denied else error.strerror or str(error)


def environment(reader: Reader) -> Mapping[str, str]:
    """The environment with which the process started. Never put into a document unfiltered."""
    pairs = (pair.partition("=") for pair in reader.text("environ").split("\0"))
    return {name: value for name, separator, value in pairs if separator}


def read_process(pid: int, used_s: Callable[[int, float], float], names: frozenset[str]) -> Process | None:
    """The process now; None if it has ended.

    ``used_s``: called with (thread id, processor seconds so far), returns the thread's processor share since
    the previous snapshot. ``names``: environment variables to keep.
    """
    reader = Reader(pid)
    with suppress(Gone, FileNotFoundError, ProcessLookupError):
        stat = _Stat(reader.text("stat"))
        environ = environment(reader)
        threads = tuple(_threads(pid, reader, used_s))
        return Process(
            pid=pid,
            parent=stat.parent,
            started=stat.started_ticks,
            uid=(PROC / str(pid)).stat().st_uid,
            program=stat.name,
            rank=_number(environ, RANKS),
            size=_number(environ, SIZES),
            threads=threads,
            libraries=tuple(sorted(_libraries(reader))),
            settings={name: environ[name] for name in sorted(names & environ.keys())},
            descriptors=reader.count("fd"),
            transferred=_transferred(reader.text(f"task/{pid}/io")),
            refused=reader.refused,
        )
    return None


def used_s(pid: int, tid: int) -> float:
    """Processor seconds used by a thread. Raises `Gone`."""
    text = Reader(pid).text(f"task/{tid}/stat")
    return _Stat(text).used_s if text else 0.0


class _Stat:
    """Fields of ``/proc/PID/stat``. The name may contain spaces and brackets."""

    def __init__(self, text: str) -> None:
        self.name, _, rest = text.partition("(")[2].rpartition(")")
        fields = rest.split()
        self.state = fields[0]
        self.parent = int(fields[1])
        self.used_s = (int(fields[11]) + int(fields[12])) * _TICK_S
        self.started_ticks = int(fields[19])


def _threads(pid: int, reader: Reader, used_s: Callable[[int, float], float]) -> Iterator[Thread]:
    for entry in os.listdir(PROC / str(pid) / "task"):  # noqa: PTH208 - names are not needed as paths
        with suppress(Gone):
            here = f"task/{entry}"
            stat = _Stat(reader.text(f"{here}/stat"))
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
    lines = reader.text("maps").splitlines()
    paths = {line.split(maxsplit=5)[-1].removesuffix(" (deleted)") for line in lines if "/" in line}
    return {path for path in paths if ".so" in Path(path).name}


def _transferred(text: str) -> int | None:
    """Bytes moved by read(2) and write(2), also on pipes and terminals, from the file ``io``."""
    counts = dict(line.split(": ") for line in text.splitlines())
    return int(counts["rchar"]) + int(counts["wchar"]) if counts else None


def _number(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    values = (environ[name] for name in names if name in environ)
    return next((int(value) for value in values if value.isdecimal()), None)
