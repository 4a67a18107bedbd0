"""The process that the batch system waits for; it ends in time, whatever hangs.

All work is done in a child with its own session, which does not hold our standard streams and reports through
a pipe. This process forks, polls, kills and exits; it opens only files in ``/proc``, imports nothing once the
child runs, and shares no lock with other processes. So even if a file system, a driver, a helper or an
unkillable worker blocks the child for ever, the answer is given in time.
"""

from __future__ import annotations

import contextlib
import ctypes  # noqa: TID253 - a millisecond, and later would be too late: its file system may hang
import errno
import json
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NoReturn

from gpuipc_doctor.stacks import process_list
from gpuipc_doctor.supervise import process_limits, tree
from gpuipc_doctor.supervise.tree import INTERRUPTS

if TYPE_CHECKING:  # importing it takes longer than a prolog with a stored result may
    from gpuipc_doctor.model import Json

LATE_S, KILL_S, REST_S, SETTLE_S, LAST_S, WRITE_S = 0.2, 0.25, 0.05, 0.35, 0.95, 0.2
"""Seconds. `LATE_S` after the budget's end, the child is killed; `LAST_S` after the budget's end, this
process exits unconditionally. Each of the others limits one step: the kill, reading the rest of the child's
output, the second child, and writing."""

PRIORITY = -20
"""Niceness of all started processes. The job waits for them, so they get priority."""

MAX_AGE_S = 60.0
"""Maximum plausible seconds since this process started; after an exec, the start may be much older."""

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

UNWRITABLE = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EIO,
)
"""Errors of a disk that cannot be written."""


def started_at() -> float:
    """Start of this process in `time.monotonic()` seconds, including Python's own start-up.

    It is read from ``/proc/self/stat``, in ticks since boot (proc_pid_stat(5), field 22: CLOCK_BOOTTIME). If
    the value there is implausible, the result is the present time.
    """
    now = time.monotonic()
    try:
        with open("/proc/self/stat", "rb") as file:  # noqa: PTH123 - each import counts here
            fields = file.read().rpartition(b")")[2].split()
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return now
    return now - age_s if 0 <= age_s <= MAX_AGE_S else now


Answers = Mapping[str, tuple[int, str]]
"""Kind of loss (see `AnswerFor`) → (exit code, line). An empty line is replaced by one that names the running
activity."""


class Channel:
    """Messages from the child to the guard, which reads them until the child ends."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    def _send(self, **message: Json) -> None:
        data = json.dumps(message).encode() + b"\n"
        with self._lock:  # several threads report their activity
            while data:
                data = data[os.write(self._fd, data) :]

    def answer(self, code: int, line: str) -> None:
        """Set the output line and the exit code; a later call replaces them."""
        self._send(answer=[code, line])

    def say(self, text: str) -> None:
        """Print a line on standard error."""
        self._send(say=text)

    def doing(self, what: str) -> None:
        """Report the current activity, in case it never ends."""
        self._send(doing=what)

    def ends_at(self, at: float) -> None:
        """Set the end of the budget, once the config is known; see `run`."""
        self._send(ends_at=at)

    def keep(self, known: Json, answers: Answers) -> None:
        """Store ``known`` for the second child, which runs if this child is lost. ``answers`` are for the
        case that the second child is also lost."""
        self._send(keep=known, answers=answers)


Work = Callable[[Channel], None]
AnswerFor = Callable[[str, str, "Json", Channel], None]
"""Answers for a child that gave no answer.

Receives the kind (``budget``, ``error`` or ``unkillable``), the activity in words, and the child's kept data.
The function runs in a second child, because it may also hang; it should first answer and then log.
"""


class _Interrupted(Exception):
    pass


def run(work: Work, answer_for: AnswerFor, *, ends_at: float) -> NoReturn:
    """Run ``work`` in a child, print its answer and exit with its code.

    ``ends_at``: `time.monotonic()` seconds at which the budget ends; this process ends within a second of
    that time.
    """
    guard = _Guard(ends_at)
    try:
        guard.watch(work, answer_for)
    except BaseException as error:
        guard.line = guard.line or f"gpuipc-doctor: ERROR in the prolog's guard: {error!r}"
    guard.leave()


class _Guard:
    def __init__(self, ends_at: float) -> None:
        self.ends_at = ends_at
        self.code, self.line = 0, ""
        self.said = ""
        self._doing = "it started"
        self._kept: Json = None
        self._answers: Answers = {}
        self._torn = b""
        self._told_to_end = self._may_be_interrupted = False

    def watch(self, work: Work, answer_for: AnswerFor) -> None:
        signal.signal(signal.SIGALRM, self._ring)
        self._set_alarm()
        with contextlib.suppress(OSError):  # needs root; a job is waiting for us
            os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

        def interrupt(*_: object) -> None:
            self._told_to_end = True
            if self._may_be_interrupted:
                raise _Interrupted

        for number in INTERRUPTS:
            signal.signal(number, interrupt)
        kind, what = "error", "ended without a result"
        child = _start(work, libc)
        try:
            if not self._listen(child, lambda: self.ends_at + LATE_S):
                kind, what = "budget", "the budget was exhausted"
            elif self.line:
                return
        except _Interrupted:
            kind, what = "budget", "was terminated"
        for number in INTERRUPTS:
            signal.signal(number, signal.SIG_IGN)
        self._told_to_end = False
        if left := tree.end(_left_behind, grace_s=0.0, limit_s=KILL_S):
            kind, what = "unkillable", f"pid {left[0].pid} ({left[0].name}) cannot be killed"
        self._listen_for(REST_S, child)
        if self.line:
            return
        what = f"{what} while {self._doing}"
        if kind == "error" and "ulimit" not in what:  # a library may have ended the child without memory
            what += process_limits.in_words()
        self._answer_for_lost(kind, what)
        self._torn = b""
        self._listen_for(SETTLE_S, _start(lambda channel: answer_for(kind, what, self._kept, channel), libc))
        tree.signal_all(_left_behind(), signal.SIGKILL)

    def _answer_for_lost(self, kind: str, what: str) -> None:
        self.code, line = self._answers.get(kind, (0, ""))
        self.line = line or f"gpuipc-doctor: ERROR {what}"

    def _ring(self, *_: object) -> NoReturn:
        if not self.line:
            self._answer_for_lost("budget", f"the budget was exhausted while {self._doing}")
        self.leave()

    def _set_alarm(self) -> None:
        """Set an alarm as the last resort, in case this process itself is blocked."""
        signal.setitimer(signal.ITIMER_REAL, max(self.ends_at + LAST_S - time.monotonic(), 0.01), 0.05)

    def _listen(self, pipe: int, until: Callable[[], float]) -> bool:
        """Handle the child's messages until it ends or the time is over. Returns whether it ended."""
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        while (left_s := until() - time.monotonic()) > 0:
            if not self._is_readable(poll, left_s):
                continue
            data = os.read(pipe, 65536)
            if not data:
                _reap()
                return True
            *lines, self._torn = (self._torn + data).split(b"\n")
            for line in lines:
                self._take(json.loads(line))
        return False

    def _is_readable(self, poll: select.poll, left_s: float) -> bool:
        """Wait for input; interrupts are handled only here, so that no data is lost."""
        self._may_be_interrupted = True
        try:
            if self._told_to_end:
                raise _Interrupted
            return bool(poll.poll(left_s * 1000))
        finally:
            self._may_be_interrupted = False

    def _listen_for(self, seconds: float, pipe: int) -> None:
        until = time.monotonic() + seconds
        self._listen(pipe, lambda: until)

    def _take(self, message: Json) -> None:
        if "answer" in message:
            self.code, self.line = message["answer"]
        self.said += f"{message['say']}\n" if "say" in message else ""
        self._doing = message.get("doing", self._doing)
        self._kept = message.get("keep", self._kept)
        self._answers = message.get("answers", self._answers)
        if "ends_at" in message:
            self.ends_at = message["ends_at"]
            self._set_alarm()

    def leave(self) -> NoReturn:
        """Write the output, as far as it is being read, and exit."""
        for number in (signal.SIGALRM, *INTERRUPTS):
            signal.signal(number, signal.SIG_IGN)
        until = min(time.monotonic() + WRITE_S, self.ends_at + LAST_S)
        _write(1, self.line and f"{self.line}\n", until)
        _write(2, self.said, until)
        os._exit(self.code)


def _start(work: Work, libc: ctypes.CDLL) -> int:
    reader, writer = os.pipe()
    parent = os.getpid()
    if os.fork():
        os.close(writer)
        return reader
    try:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.setsid()
        tree.carry_priority()
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in (signal.SIGALRM, *INTERRUPTS):
            signal.signal(number, signal.SIG_DFL)
        channel = Channel(writer)
        try:
            null = os.open(os.devnull, os.O_RDWR)
            for fd in range(3):  # the batch system waits for the end of these streams
                os.dup2(null, fd)
            work(channel)
        except Exception as error:
            if is_scarce := process_limits.is_scarcity(error):
                channel.doing(process_limits.of_error(error))
            else:
                channel.doing(f"{type(error).__name__}: {error} was raised")
            if not (is_scarce or _is_the_nodes(error)):
                import traceback

                channel.say("".join(traceback.format_exception(error)).rstrip())
    finally:
        os._exit(0)


def _is_the_nodes(error: Exception) -> bool:
    """Whether the error is due to the node's disks or kernel files rather than to this tool."""
    return isinstance(error, OSError) and (error.errno in UNWRITABLE or error.filename in tree.REQUIRED)


def _reap() -> None:
    """Collect the child's exit status; it has closed its pipe, so it ends soon if the kernel lets it."""
    for _ in range(500):
        tree.reap_orphans()
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            time.sleep(0.0001)
            continue
        return


def _left_behind() -> list[process_list.Process]:
    """Our descendants, except those that clean up and end by themselves."""
    tree.reap_orphans()
    below: list[process_list.Process] = []
    with contextlib.suppress(OSError):  # without /proc none is found; the kernel ends the child with us
        below = process_list.descendants(os.getpid())
    return [process for process in below if process.name != process_list.KEEPER]


def _write(fd: int, text: str, until: float) -> None:
    """Write until a deadline, because writing to a full pipe without a reader blocks."""
    data = text.encode(errors="replace")
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    with contextlib.suppress(OSError):
        while data and poll.poll(max(until - time.monotonic(), 0) * 1000):
            data = data[os.write(fd, data[: select.PIPE_BUF]) :]
