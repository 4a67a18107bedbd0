"""A passive snapshot of processes, through ``/proc`` only: nothing is stopped or woken.

File contents: Linux, Documentation/filesystems/proc.rst. ``syscall``, ``stack`` and ``environ`` need the
right to trace the process (ptrace(2), "Ptrace access mode checking"), although nothing is traced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import pairwise

from gpuipc_doctor.job.document import Process
from gpuipc_doctor.stacks.mappings import mappings
from gpuipc_doctor.stacks.proc_files import RANK_VARIABLES, Gone, Reader, Stat, environment
from gpuipc_doctor.stacks.process_list import PROC
from gpuipc_doctor.stacks.thread import MPI_LIBRARY, Thread

RANKS = (*RANK_VARIABLES, "RANK")
"""Variables in which launchers pass the rank number; the last one is torchrun's."""

OF_TORCH = {"RANK", "WORLD_SIZE", "MASTER_PORT"}
"""Variables of PyTorch's launchers. A rank without MPI that has all of them has its number in RANK: one below
``srun torchrun`` has the SLURM_PROCID and the PMIX_RANK of torchrun."""

SIZES = ("PMIX_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_NTASKS",
         "FLUX_JOB_SIZE", "WORLD_SIZE")  # fmt: skip
"""Variables in which launchers pass the number of ranks."""

LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
               "MV2_COMM_WORLD_LOCAL_RANK", "FLUX_TASK_LOCAL_ID")  # fmt: skip
"""Variables in which launchers pass the number of a rank on its node."""


_LAUNCHES = re.compile(
    r"(^|/)(torchrun|accelerate(-launch)?|deepspeed)$"
    r"|^(torch\.distributed\.(run|launch)|accelerate\.commands\.launch|deepspeed\.launcher\.\w+)$"
)
_CPUS = re.compile(r"^Cpus_allowed_list:\s*([\d,-]+)$", re.MULTILINE)


def read_process(pid: int, used_s: Callable[[int, float], float], names: frozenset[str]) -> Process | None:
    """The present state of a process; None if it has ended. ``names``: environment variables to keep.

    ``used_s(tid, seconds)`` is called with a thread's processor seconds so far, and returns the thread's
    processor share since the previous snapshot.
    """
    reader = Reader(pid)
    with suppress(Gone, FileNotFoundError, ProcessLookupError):
        stat = Stat(reader.text("stat"))
        environ = environment(reader)
        libraries = tuple(sorted(_libraries(reader)))
        ranks: tuple[str, ...] = RANKS
        sizes: tuple[str, ...] = SIZES
        if environ.keys() >= OF_TORCH and not any(map(MPI_LIBRARY.search, libraries)):
            ranks, sizes = ("RANK",), ("WORLD_SIZE",)
        threads = tuple(_threads(pid, reader, used_s))
        status = reader.text(f"task/{pid}/status")
        if not threads:
            reader.refused.setdefault("task", "lists no thread")
        return Process(
            pid=pid,
            parent=stat.parent,
            started=stat.started_ticks,
            uid=(PROC / str(pid)).stat().st_uid,
            program=stat.name,
            rank=_number(environ, ranks),
            size=_number(environ, sizes),
            local=_number(environ, LOCAL_RANKS),
            threads=threads,
            libraries=libraries,
            settings={name: environ[name] for name in sorted(names & environ.keys())},
            descriptors=None if (descriptors := reader.names("fd")) is None else len(descriptors),
            switches=_switches(status),
            transferred=_transferred(reader.text(f"task/{pid}/io")),
            io=_transferred(reader.text("io")),
            resident=stat.resident,
            children_s=stat.children_s,
            cpus=found[1] if (found := _CPUS.search(status)) else "",
            world=environ.get("PMIX_NAMESPACE") or "spawned" * ("PMI_SPAWNED" in environ),
            launches=is_launch(command := reader.text("cmdline")),
            nodes=_nodes(command, environ),
            refused=reader.refused,
        )
    return None


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
    """Bytes moved by read(2) and write(2), pipes and terminals included, and again those that reached a disk,
    which also rise during one long write and by page faults (``io``, proc(5))."""
    counts = re.findall(r"^(?:[rw]char|(?:read|write)_bytes): ([0-9]+)$", text, re.MULTILINE)
    return sum(map(int, counts)) if len(counts) == 4 else None


def is_launch(command: str) -> bool:
    """Whether a command line, with NUL between its words, is that of a launcher of PyTorch's ranks."""
    return any(map(_LAUNCHES.search, command.split("\0")[:4]))


def _nodes(command: str, environ: Mapping[str, str]) -> str:
    """The number of nodes for which torchrun was asked; empty for another program."""
    words = command.replace("=", "\0").split("\0")
    stated = [after for word, after in pairwise(words) if word in ("--nnodes", "--nnode")]
    nodes = [*stated, environ.get("PET_NNODES", "")][0]
    return nodes if re.fullmatch(r"\d+(:\d+)?", nodes) else ""


def _number(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    values = (environ[name] for name in names if name in environ)
    return next((int(value) for value in values if value.isdecimal()), None)
