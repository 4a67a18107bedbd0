"""Ends the processes of a supervisor that was killed.

Started as ``python -I -S keeper.py`` with a pipe on standard input that its supervisor keeps open. It prints
an empty line when ready. Through the pipe it receives the beginning of the variable that marks the run's
processes, the directories as they are created, and `DONE` if the supervisor has cleaned up itself, each
followed by a NUL. Arguments are not used, since every user can read them. If the pipe ends without `DONE`,
the supervisor was killed: the keeper kills every marked process, and removes the directories and leftovers in
shared memory, also those that CUDA made for the killed processes. It uses only the standard library, and
imports slow modules only when they are needed, because it starts with every run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
import time
from collections.abc import Iterator, Mapping

NAME = "gpuipc-keeper"
"""Name of the keeper's process in `ps` and ``/proc``; a run's clean-up spares processes of this name."""

DONE = b"done"

GRACE_S = 0.3
"""Seconds between TERM and KILL: a launcher may have to end ranks on other nodes."""

ROUNDS, PAUSE_S = 500, 0.02

PR_SET_NAME = 15

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - looked at, and files removed that processes of ours made

TICK_S = 0.02
"""Seconds by which file times may lag: a kernel tick."""

SEGMENTS = (
    *(
        "mpich_shm_*",
        "sm_segment.*",
        "vader_segment.*",
        "Intel_MPI_*",
        "psm*_shm*",
        "ucx_shm_*",
        "nccl-??????",
    ),
    *("[0-9]*:[0-9]*:[0-9]*", "0x" + "[0-9a-f]" * 12),
)
"""Names of shared memory of MPICH, Open MPI 5 and 4, Intel MPI, PSM, UCX, NCCL, libfabric's shm provider and
HIP.

Ranks leave it behind if they crash or are killed. HIP 7.2 leaves some for each pool that a process shares,
named after an address in the pool (seen over an emulated kernel driver).
"""


OF_CUDA = "cuda.shm"
"""CUDA's own files are named ``cuda.shm.UID.PID.N``, with the process's id in hexadecimal. They stay if the
process is killed (seen with driver 580.159.04)."""


def main() -> None:
    began, ended = time.time(), dict[int, float]()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    take_name()
    with contextlib.suppress(OSError):
        os.write(1, b"\n")
    *told, last = sys.stdin.buffer.read().split(b"\0")
    if last == DONE or not told:  # without the marker nothing has been started, and any process would match
        return
    wanted, *directories = told
    if kill_all(wanted, ended, signal.SIGTERM):
        time.sleep(GRACE_S)
    for _ in range(ROUNDS):
        if not kill_all(wanted, ended):
            break
        time.sleep(PAUSE_S)
    import shutil

    for directory in filter(None, directories):
        for _ in range(ROUNDS):  # a worker of another run may still write there
            shutil.rmtree(directory, ignore_errors=True)
            if not os.path.lexists(directory):
                break
            time.sleep(PAUSE_S)
    remove_abandoned(began, ended)


def take_name() -> None:
    try:
        with open("/proc/self/comm", "w") as file:  # noqa: PTH123 - pathlib takes as long to import as Python to start
            file.write(NAME)
    except OSError:  # /proc may be read-only; importing ctypes costs milliseconds
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_NAME, NAME.encode(), 0, 0, 0)


def kill_all(wanted: bytes, ended: dict[int, float], number: int = signal.SIGKILL) -> int:
    """Send this signal to every process with a variable that begins with ``wanted``; returns their number.
    ``ended`` receives their pids and when they started.

    Nothing is sent unless ``wanted`` has a name and the beginning of a value: less would match any process.
    """
    name, _, value = wanted.partition(b"=")
    if not (name and value):
        return 0
    found = 0
    for pid, environment in _of_processes("environ"):
        if any(variable.startswith(wanted) for variable in environment.split(b"\0")):
            found += 1
            ended.setdefault(pid, started(pid) or 0.0)
            with contextlib.suppress(OSError):
                os.kill(pid, number)
    return found


def started(pid: int) -> float | None:
    """When a process started (`time.time()`); None if it has ended."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
        fields = file.read().rpartition(b")")[2].split()
        since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        if fields[0] not in b"ZX":
            return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot
    return None


def remove_abandoned(since: float, ended: Mapping[int, float]) -> None:
    """Remove the files that `abandoned` lists."""
    for path in abandoned(since, ended):
        with contextlib.suppress(OSError):
            os.unlink(path)  # noqa: PTH108 - see `take_name`


def abandoned(since: float, ended: Mapping[int, float]) -> set[str]:
    """Files of this user in shared memory that no process maps: `SEGMENTS` created at or after ``since``
    (`time.time()`), and those that CUDA made for processes of ours that have ended.

    ``ended``: pid → when the process started, 0 if unknown. A file that is older, or whose pid lives, is
    another process's.
    """
    candidates = set(_made(since, ended))
    if candidates:
        for _, maps in _of_processes("maps"):  # as far as permissions allow
            for line in maps.decode(errors="replace").splitlines():
                if f" {SHARED_MEMORY}/" in line:
                    path = line[line.index(f" {SHARED_MEMORY}/") + 1 :]
                    candidates.discard(path.removesuffix(" (deleted)"))
    return candidates


def _made(since: float, ended: Mapping[int, float]) -> Iterator[str]:
    from fnmatch import fnmatchcase

    user = os.geteuid()
    of_cuda = {f"{OF_CUDA}.{user}.{pid:x}": pid for pid in ended}
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = os.listdir(SHARED_MEMORY)  # noqa: PTH208
    for name in names:
        owner = of_cuda.get(name.rpartition(".")[0])
        if owner or any(fnmatchcase(name, segment) for segment in SEGMENTS):
            with contextlib.suppress(OSError):
                status = os.lstat(path := f"{SHARED_MEMORY}/{name}")
                first = max(since, ended[owner]) if owner else since
                is_ours = status.st_uid == user and status.st_ctime >= first - TICK_S
                if is_ours and not (
                    owner and (not stat.S_ISREG(status.st_mode) or started(owner) is not None)
                ):
                    yield path


def _of_processes(file: str) -> Iterator[tuple[int, bytes]]:
    """(pid, contents of the named file in ``/proc``) of each process."""
    entries: list[str] = []
    with contextlib.suppress(OSError):
        entries = os.listdir("/proc")  # noqa: PTH208 - see `take_name`
    for entry in filter(str.isdigit, entries):
        with contextlib.suppress(OSError), open(f"/proc/{entry}/{file}", "rb") as opened:  # noqa: PTH123
            yield int(entry), opened.read()


if __name__ == "__main__":
    main()
