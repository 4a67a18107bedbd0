"""A role while its worker runs, and how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field

from gpuipc_doctor.probe_types import Ending
from gpuipc_doctor.supervise import tree
from gpuipc_doctor.supervise.assignment import RoleFiles, RoleResult
from gpuipc_doctor.supervise.journal import CANNOT_WRITE, PROCESS_EXIT, Progress
from gpuipc_doctor.supervise.rank import boot_id

_KILLED = (-signal.SIGKILL, -signal.SIGTERM)


class ChildProcess:
    """A worker that is our child process."""

    is_elsewhere = False

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen
        self.pid = popen.pid

    @property
    def returncode(self) -> int | None:
        return self._popen.returncode

    def poll(self) -> bool:
        return self._popen.poll() is not None

    def collect(self, limit_s: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(limit_s)


class ForkedProcess:
    """A worker that a fork server forked through an intermediate process. When that process ends, the worker
    becomes our child."""

    is_elsewhere = False

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> bool:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode is not None

    def collect(self, limit_s: float) -> None:
        until = time.monotonic() + limit_s
        while not self.poll() and time.monotonic() < until:
            time.sleep(0.005)


class LaunchedProcess:
    """A worker that an MPI launcher started, known only from the files of its starter (`rank`).

    The files are missing if the launcher has killed the starter. The worker's exit status is then known to
    the kernel until the worker is reaped. ``launcher`` is None if the launcher could not be started.
    """

    def __init__(self, launcher: ChildProcess | None, files: RoleFiles) -> None:
        self._launcher = launcher
        self._desk = files
        self._here = boot_id()
        self._written = ""
        self.returncode: int | None = None

    @property
    def pid(self) -> int:
        number, _, kernel = self._named.partition(" ")
        return int(number) if number and kernel == self._here else 0

    @property
    def is_elsewhere(self) -> bool:
        """Whether the worker runs on another node."""
        return bool(self._named) and not self.pid

    @property
    def _named(self) -> str:
        """The worker's pid and its node's boot id, as its starter wrote them; empty until then."""
        self._written = self._written or _read(self._desk.pid)
        return self._written

    def poll(self) -> bool:
        launcher_ended = self._launcher is None or self._launcher.poll()
        if text := _read(self._desk.exit_status):
            self.returncode = int(text)
            return True
        self.returncode = tree.exit_code_of_zombie(self.pid) if self.pid else None
        if self.returncode is not None:
            return True
        return launcher_ended and not (self.pid and _exists(self.pid))

    def collect(self, limit_s: float) -> None:
        if self._launcher:
            self._launcher.collect(limit_s)
        self.poll()

    @property
    def launcher_code(self) -> int | None:
        """The launcher's exit code; None while it runs."""
        return self._launcher.returncode if self._launcher else None


def _read(path: os.PathLike[str]) -> str:
    try:
        with open(path) as file:  # noqa: PTH123 - polled
            return file.read()
    except FileNotFoundError:
        return ""


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


WorkerProcess = ChildProcess | ForkedProcess | LaunchedProcess
"""A worker's process. ``pid`` is 0 while unknown, and on another node (``is_elsewhere``). ``returncode`` is
as in `subprocess.Popen`; None while running or if unknown. ``poll`` returns whether the process has ended;
``collect`` waits for the end of a killed process, so that no zombie stays."""


@dataclass
class RunningRole:
    """The supervisor's state for a role."""

    process: WorkerProcess
    files: RoleFiles
    progress: Progress
    started_at: float
    ending: Ending | None = None
    ended_at: float = 0.0
    result: RoleResult | None = None
    kernel: tuple[str, ...] = ()
    native_stack: tuple[str, ...] = ()
    _line_at: float = 0.0
    _seen_at: float = 0.0
    _starvation: tree.Starvation = field(default_factory=lambda: tree.Starvation({}))

    def silent_for(self, now: float, allowed_s: float = 0.0) -> float:
        """Seconds since the last journal line was first seen, minus the time spent waiting for a processor.

        On two busy cores a healthy worker took more than 1.5 s to exit. The time before the line was seen
        does not count, because the supervisor itself may have had no processor. After ``allowed_s``, the
        waits of a program that the worker has started are also subtracted. Finding this program is slow: it
        reads all processes of the node.
        """
        had = tree.timeslices_of(self.process.pid)
        if self._line_at != self.progress.last_at:
            self._line_at, self._seen_at = self.progress.last_at, now
            self._starvation = tree.Starvation(had)
        silent_s = now - self._seen_at - self._starvation.until(had)
        if silent_s <= allowed_s or not self.process.pid:
            return silent_s
        program = tree.at_work(self.process.pid)  # a program that it started since then, if another
        if program == self.process.pid:
            return silent_s
        return silent_s - tree.Starvation({}).until(tree.timeslices_of(program))

    def poll(self, now: float) -> None:
        """Check whether the process has ended, and how."""
        if self.ending is None and self.process.poll():
            self.progress.read()
            self.result = RoleResult.read(self.files.result)
            self.ending = self._ending()
            self.ended_at = now

    def _ending(self) -> Ending:
        code = self.process.returncode
        if code is None:
            return Ending.PEER_LOST if self.progress.started else Ending.NOT_STARTED
        if code < 0:
            return Ending.COMPLETED if self.progress.dying else Ending.CRASHED
        if code == CANNOT_WRITE:
            return Ending.UNRECORDED
        if self.result is None:
            return Ending.CRASHED if self.progress.started else Ending.NOT_STARTED
        if self.result.ending is Ending.COMPLETED and code != 0:
            return Ending.CRASHED
        if self.result.ending is Ending.COMPLETED and not self._is_recorded:
            return Ending.UNRECORDED
        return self.result.ending

    @property
    def _is_recorded(self) -> bool:
        """Whether the journal is complete; false if a driver has closed the journal's descriptor."""
        begins_anew = self.files.inbox.exists()  # so the end may have been missed
        return begins_anew or self.progress.operation == PROCESS_EXIT

    @property
    def went_wrong(self) -> bool:
        return self.ending not in (None, Ending.COMPLETED)

    @property
    def went_wrong_at(self) -> float:
        """Time of the failure on the role's own node. The supervisor may notice it much later.

        If the role reported no time, the time of a crash is the role's last sign of life, because failures
        elsewhere may be consequences of the crash. For a rank with an exit code, the time is that of its end,
        because an MPI library may end its rank after another rank's failure.
        """
        if self.result and self.result.ending is self.ending:
            return self.result.at
        is_rank = isinstance(self.process, LaunchedProcess)
        if self.ending is Ending.CRASHED and not (is_rank and (self.process.returncode or 0) > 0):
            return max(self.progress.last_at, self._stack_written_at)
        return self.ended_at

    @property
    def _stack_written_at(self) -> float:
        """Time of the stack dump that the worker wrote when it crashed."""
        try:
            written = self.files.python_stack.stat().st_mtime
        except FileNotFoundError:
            return 0.0
        return written - time.time() + time.monotonic()

    @property
    def is_casualty(self) -> bool:
        """Whether the role ended because another role had ended: launchers kill the remaining ranks."""
        was_killed = isinstance(self.process, LaunchedProcess) and self.process.returncode in _KILLED
        return self.ending is Ending.PEER_LOST or was_killed
