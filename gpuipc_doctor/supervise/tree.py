"""Processes: who descends from whom, who belongs to a run, and how to end them all.

A group or a session is not enough: MPI launchers give ranks groups and sessions of their own. Every process
below us is found by walking parents, which is complete because the supervisor is a subreaper; the run's
marker in the environment tells whose it is, and finds what a killed supervisor left behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from gpuipc_doctor.supervise import keeper
from gpuipc_doctor.supervise.keeper import MARKER

KEEPER = keeper.NAME
"""The name of the process that ends what a killed supervisor had started, and of no other."""

PROC = Path("/proc")

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What ends a run from outside."""


class Process(NamedTuple):
    """One line of ``/proc/PID/stat``. ``state`` is the kernel's letter: D uninterruptible, Z zombie."""

    pid: int
    parent: int
    name: str
    state: str


def processes() -> dict[int, Process]:
    """Every process of the node, by pid."""
    found = {}
    for entry in os.listdir(PROC):  # noqa: PTH208 - see `_read`
        if entry.isdigit():
            with contextlib.suppress(OSError):
                name, _, rest = _read(entry, "stat").partition("(")[2].rpartition(")")
                state, parent = rest.split(None, 2)[:2]
                found[int(entry)] = Process(int(entry), int(parent), name, state)
    return found


def _read(pid: int | str, name: str) -> str:
    """A file of ``/proc/PID`` that is one line; every process has one, so it is read without layers."""
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


def carries(pid: int, marker: str) -> bool:
    """Whether the environment of ``pid`` has that marker. A zombie has no environment left."""
    with contextlib.suppress(OSError):
        return carried((PROC / str(pid) / "environ").read_bytes()) == marker
    return False


def exit_code_of_zombie(pid: int) -> int | None:
    """How a process ended that waits to be reaped, as `subprocess.Popen` says it; None where it is no zombie.

    The last number of ``/proc/PID/stat`` is what `waitpid` will say (Linux, filesystems/proc.rst).
    """
    with contextlib.suppress(OSError):
        fields = _read(pid, "stat").rpartition(")")[2].split()
        if fields[0] == "Z":
            return os.waitstatus_to_exitcode(int(fields[-1]))
    return None


def at_work(pid: int) -> int:
    """The process that does the work of ``pid``: the program below it that it has started, else itself."""
    living = [process.pid for process in descendants(pid) if process.state != "Z"]
    return living[-1] if living else pid


class Timeslices(NamedTuple):
    """What a thread has had of the processors so far: seconds, seconds in want of one, and how often."""

    ran_s: float = 0.0
    wanted_s: float = 0.0
    number: int = 0

    def starved_since(self, before: Timeslices) -> float:
        """Seconds since then for which it was ready to run and no processor was free for it.

        None of them where it gives its timeslices away, as MPI's ranks do that poll and yield: each time they
        go to the end of the line. On two busy cores one had 34,000 in 41 s, and stood in line for 40.
        """
        number = self.number - before.number
        if number > _FEW and (self.ran_s - before.ran_s) / number < _SHORT_S:
            return 0.0
        return max(self.wanted_s - before.wanted_s, 0.0)


_FEW, _SHORT_S = 20, 0.0001
"""A thread that computes has timeslices of 2.4 ms beside others; of few, nothing can be told."""


def timeslices_of(pid: int) -> Timeslices:
    """Of the main thread of ``pid``, from ``/proc/PID/schedstat``.

    None where the kernel does not count them, or the process is gone. Source: Linux,
    Documentation/scheduler/sched-stats.rst.
    """
    with contextlib.suppress(OSError, ValueError):
        ran, wanted, number = map(int, _read(pid, "schedstat").split())
        return Timeslices(ran / 1e9, wanted / 1e9, number)
    return Timeslices()


def end(find: Callable[[], list[Process]], *, grace_s: float, limit_s: float) -> list[Process]:
    """TERM, then after ``grace_s`` KILL all that ``find`` returns, until it returns nothing.

    Returns what even SIGKILL has not ended after ``limit_s`` more seconds. What is in state R is not among
    it: on a busy node a killed process is there until it is given a processor to end on.
    """
    signal_all(find(), signal.SIGTERM)
    _wait_until_gone(find, grace_s, lambda left: None)
    left = _wait_until_gone(find, limit_s, lambda left: signal_all(left, signal.SIGKILL))
    return [process for process in left if process.state != "R"]


def _wait_until_gone(
    find: Callable[[], list[Process]], limit_s: float, each_round: Callable[[list[Process]], None]
) -> list[Process]:
    until = time.monotonic() + limit_s
    while True:
        left = [process for process in find() if process.state != "Z"]
        if not left or time.monotonic() > until:
            return left
        each_round(left)
        time.sleep(0.01)


def signal_all(targets: list[Process], number: signal.Signals) -> None:
    for process in targets:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)


def signal_name(number: int) -> str:
    """``SIGKILL``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def reap_orphans() -> None:
    """Collect ended processes that the kernel made our children. Only when no worker is left to wait for."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def name_of(pid: int) -> str:
    """Its command's name; empty when it has ended, or is in another pid namespace than this one."""
    with contextlib.suppress(OSError):
        return _read(pid, "comm").strip()
    return ""


def carry_priority(pid: int | None = None) -> None:
    """Have the session that ``pid`` leads, or that we lead, scheduled by our niceness, if we may go first.

    Linux schedules sessions as groups, and the niceness of a process counts within its group alone; that of
    a new session's group is 0 (sched(7), "The autogroup feature"). It takes root, and where the kernel does
    not group sessions there is no such file.
    """
    if (niceness := os.getpriority(os.PRIO_PROCESS, 0)) < 0:
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid or 'self'}/autogroup").write_text(str(niceness))


@contextmanager
def interruptible(interrupt: Callable[[], None]) -> Iterator[None]:
    """Have Ctrl-C, SIGTERM and a lost terminal call ``interrupt`` and do no more."""
    before = {number: signal.signal(number, lambda *_: interrupt()) for number in INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- whose it is ----------------------------------------------------------------------------------------

_ROOM = 40
"""Bytes that a process which is to `carry` other markers later needs for them from its start."""


def carried(environ: bytes) -> str:
    """The marker in what ``/proc/PID/environ`` holds; empty where there is none."""
    name = f"{MARKER}=".encode()
    found = (variable for variable in environ.split(b"\0") if variable.startswith(name))
    return next(found, name).removeprefix(name).decode(errors="replace")


def with_room(marker: str) -> str:
    """The marker to start a process with that will `carry` others."""
    return marker.ljust(_ROOM, ".")


def carry(marker: str) -> None:
    """Have ``/proc/PID/environ`` show this marker for this process, and for those that it forks.

    The kernel shows the memory in which the environment was when the process started, whatever `os.environ`
    has become; so it is overwritten there, in the room that `with_room` made. Before `os.environ` is changed.
    """
    import ctypes

    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    value = marker.encode().ljust(_ROOM, b"\0")
    assert len(value) == _ROOM
    ctypes.memmove(libc.getenv(MARKER.encode()), value, _ROOM)
