"""Processes: find a process's descendants or a run's processes, and end them.

Process groups and sessions are not enough: MPI launchers create their own for ranks. Descendants are found by
walking parents, which is complete because the supervisor is a subreaper; the marker in the environment names
a process's run, also after a supervisor was killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from gpuipc_doctor.files.node_files import quietly
from gpuipc_doctor.stacks.process_list import MARKER, PROC, Process, descendants, read_line

REQUIRED = (os.devnull, str(PROC), f"{PROC}/self")
"""Files without which processes can be neither started nor found."""

PRIORITY = -10
"""Niceness for a run whose ranks use every processor. It gives nine times the processor time of niceness 0
(sched(7))."""

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a run from outside."""


def carries(pid: int, marker: str) -> bool:
    """Whether the environment of the process has this marker. A zombie has no environment."""
    with contextlib.suppress(OSError):
        return carried((PROC / str(pid) / "environ").read_bytes()) == marker
    return False


def exit_code_of_zombie(pid: int) -> int | None:
    """The return code of a zombie, as in `subprocess.Popen`; None if it is no zombie.

    The last field of ``/proc/PID/stat`` is the status of `waitpid` (Linux, filesystems/proc.rst).
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = read_line(pid, "stat").rpartition(")")[2].split()
        if fields[0] == "Z":
            return os.waitstatus_to_exitcode(int(fields[-1]))
    return None


def at_work(pid: int) -> int:
    """The process that does the work of ``pid``: a program that it started, or ``pid`` itself."""
    living = [process.pid for process in descendants(pid) if process.state != "Z"]
    return living[-1] if living else pid


class Timeslices(NamedTuple):
    """A thread's processor time so far: seconds run, seconds waited, and number of timeslices."""

    ran_s: float = 0.0
    wanted_s: float = 0.0
    number: int = 0

    def yields_since(self, before: Timeslices) -> bool:
        """Whether the thread yields the processor repeatedly, as polling MPI ranks do. On two busy cores,
        such a rank had 34,000 timeslices in 41 s and waited for 40 s."""
        number = self.number - before.number
        return number > _FEW and (self.ran_s - before.ran_s) / number < _SHORT_S


_FEW, _SHORT_S = 20, 0.0001
"""A thread yields if it has more than `_FEW` timeslices, on average shorter than `_SHORT_S` seconds. A
computing thread has timeslices of 2.4 ms."""


def timeslices_of(pid: int) -> dict[int, Timeslices]:
    """Timeslices of each thread of ``pid``, from ``/proc/PID/task/TID/schedstat``.

    Empty if the kernel does not count them, or the process is gone. Source: Linux,
    Documentation/scheduler/sched-stats.rst.
    """
    found = {}
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"{PROC}/{pid}/task"):  # noqa: PTH208 - ten times a second for each role
            with contextlib.suppress(OSError, ValueError):
                ran, wanted, number = map(int, read_line(pid, f"task/{thread}/schedstat").split())
                found[int(thread)] = Timeslices(ran / 1e9, wanted / 1e9, number)
    return found


class Starvation:
    """Seconds, counted from a given time, for which a thread of a process was ready to run but had no
    processor.

    All threads of the process count, since a driver call may wait for another thread:
    `hipStreamCreateWithFlags` starts a thread and waits until it has begun. Threads that yield do not count.
    """

    def __init__(self, then: Mapping[int, Timeslices]) -> None:
        self._first = self._latest = then
        self._seconds = 0.0

    def until(self, now: Mapping[int, Timeslices]) -> float:
        """Seconds of starvation so far. Each call adds the longest wait of a thread since the previous
        call."""
        none = Timeslices()
        self._seconds += max(
            (
                had.wanted_s - self._latest.get(thread, none).wanted_s
                for thread, had in now.items()
                if not had.yields_since(self._first.get(thread, none))
            ),
            default=0.0,
        )
        self._latest = now
        return self._seconds


def end(find: Callable[[], list[Process]], *, grace_s: float, limit_s: float) -> list[Process]:
    """Send TERM, then after ``grace_s`` KILL, to all that ``find`` returns, until ``find`` returns nothing.

    Returns the processes that SIGKILL has not ended after ``limit_s`` more seconds, except those in state R:
    on a busy node a killed process stays until it gets a processor.
    """
    signal_all(find(), signal.SIGTERM)
    left = _wait_until_gone(find, grace_s, lambda left: None)
    if left:
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
    """The signal's name: ``SIGKILL``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def reap_orphans() -> None:
    """Collect ended processes that became our children. Not to be called while a worker is waited for."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def name_of(pid: int) -> str:
    """Name of the process's command; empty if it has ended or is in another pid namespace."""
    with contextlib.suppress(OSError):
        return read_line(pid, "comm").strip()
    return ""


def carry_priority(pid: int | None = None) -> None:
    """Give a negative niceness of this process to the session led by ``pid`` or by this process. Needs root.

    Linux schedules each session as a group, and a process's niceness counts only within its group (sched(7),
    "The autogroup feature"). The file ``autogroup`` is missing in a kernel without session groups; it is
    empty if no ancestor of the process has created a session since the node booted.
    """
    if (niceness := os.getpriority(os.PRIO_PROCESS, 0)) < 0:
        with contextlib.suppress(OSError):
            (PROC / str(pid or "self") / "autogroup").write_text(str(niceness))


@contextmanager
def prioritised() -> Iterator[None]:
    """Run this process, its session and its later children at `PRIORITY`, if permitted (root)."""
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    group = PROC / "self" / "autogroup"
    before = quietly(group).partition("nice ")[2]  # "/autogroup-7 nice 0"
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, min(niceness, PRIORITY))
        carry_priority()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, niceness)
            if before:
                group.write_text(before)


@contextmanager
def interruptible(interrupt: Callable[[], None]) -> Iterator[None]:
    """Make Ctrl-C, SIGTERM and a lost terminal only call ``interrupt``. An ignored signal stays ignored, as
    nohup(1) requests."""
    heard = [number for number in INTERRUPTS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda *_: interrupt()) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- whose it is ----------------------------------------------------------------------------------------

_ROOM = 40
"""Bytes reserved in the environment for a marker that `carry` sets later."""


def carried(environ: bytes) -> str:
    """The marker in ``/proc/PID/environ``; empty if there is none."""
    name = f"{MARKER}=".encode()
    found = (variable for variable in environ.split(b"\0") if variable.startswith(name))
    return next(found, name).removeprefix(name).decode(errors="replace")


def with_room(marker: str) -> str:
    """The marker, padded so that the started process can later `carry` another one."""
    return marker.ljust(_ROOM, ".")


def carry(marker: str) -> None:
    """Make ``/proc/PID/environ`` show this marker for this process and its forks.

    The kernel shows the memory that held the environment when the process started. The marker is overwritten
    in that memory, in the room reserved by `with_room`. Call it before `os.environ` is changed.
    """
    import ctypes

    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    value = marker.encode().ljust(_ROOM, b"\0")
    assert len(value) == _ROOM
    ctypes.memmove(libc.getenv(MARKER.encode()), value, _ROOM)
