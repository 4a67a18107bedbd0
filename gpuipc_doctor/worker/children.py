"""Processes that a role starts while it runs: forked from it, each with its own driver."""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import pickle
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from struct import pack
from typing import NoReturn

from gpuipc_doctor.api.worker import ChildGone, ChildHangs
from gpuipc_doctor.model import Json
from gpuipc_doctor.probe_types import Calls
from gpuipc_doctor.supervise import keeper, tree
from gpuipc_doctor.supervise.assignment import Assignment
from gpuipc_doctor.supervise.journal import PROCESS_EXIT
from gpuipc_doctor.worker import process
from gpuipc_doctor.worker.backends import open_backend, rules
from gpuipc_doctor.worker.backends.device import DriverGpu

MESSAGE_BYTES = 64 << 10
DESCRIPTORS = 8
"""Maximum file descriptors per message."""

SOON_S, LOOK_S = 0.1, 0.25
"""Seconds to wait for a message before the child is examined, and between later examinations."""

CALL_BYTES = 128
"""Bytes for the current call's name, in memory shared by parent and child. The child's progress and number of
calls follow, 4 bytes each."""
_PROGRESS, _CALLS = slice(CALL_BYTES, CALL_BYTES + 4), slice(CALL_BYTES + 4, CALL_BYTES + 8)


class Child:
    """A child as its own function sees it; implements ``api.Child``."""

    def __init__(self, channel: socket.socket, call: mmap.mmap, assignment: Assignment) -> None:
        self._channel = channel
        self._call = call
        self._assignment = assignment
        self._returned: dict[str, list[float]] = {}
        self._calls = 0
        self.descriptors: list[int] = []

    @cached_property
    def gpus(self) -> tuple[DriverGpu, ...]:
        devices = self._assignment.devices
        backends = {
            name: open_backend(name, self.armed, self._assignment.root)
            for name in sorted({device.backend for device in devices})
        }
        by_process = self._assignment.by_process
        return tuple(backends[device.backend].gpu(device, by_process=by_process) for device in devices)

    @contextmanager
    def armed(self, operation: str) -> Iterator[None]:
        """Publish the current driver call to the parent. Not journalled, since a call takes 5 µs."""
        name = operation.encode()[: CALL_BYTES - 1]
        self._call[: len(name) + 1] = name + b"\0"
        self._calls += 1
        self._call[_CALLS] = pack("<I", self._calls & 0xFFFFFFFF)
        began = time.perf_counter()
        yield
        returned = self._returned.setdefault(operation, [0, 0.0])
        returned[0] += 1
        returned[1] += time.perf_counter() - began

    def progress(self, number: int) -> None:
        self._call[_PROGRESS] = number.to_bytes(4, "little")

    def recv(self) -> Json:
        data, self.descriptors = _receive(self._channel)
        if not data:  # the role has ended this process, or has ended itself
            self.armed(PROCESS_EXIT).__enter__()
            process.exit_as_programs_do()
        return pickle.loads(data)  # noqa: S301 - written by a process of ours

    def send(self, value: Json, descriptors: Sequence[int] = ()) -> None:
        _send(self._channel, (value, self._returned), descriptors)
        self._returned = {}


class ChildProcess:
    """A child as the role that started it sees it; implements ``api.ChildProcess``."""

    def __init__(
        self,
        pid: int,
        channel: socket.socket,
        call: mmap.mmap,
        returned: Callable[[Calls], None],
        still_waits: Callable[[], None],
    ) -> None:
        self.pid = pid
        self._returned = returned
        self._still_waits = still_waits
        self.descriptors: list[int] = []
        self._channel = channel
        self._call = call
        self._ended: int | None = None
        self._began = time.time()

    @property
    def call(self) -> str:
        return self._call[:CALL_BYTES].partition(b"\0")[0].decode()

    @property
    def progress(self) -> int:
        return int.from_bytes(self._call[_PROGRESS], "little")

    def send(self, value: Json, descriptors: Sequence[int] = ()) -> None:
        try:
            _send(self._channel, value, descriptors)
        except OSError:
            raise ChildGone(self._reap()) from None

    def recv(self, limit_s: float) -> Json:
        self._await_message(limit_s)
        try:
            data, self.descriptors = _receive(self._channel)
        except OSError:
            data = b""
        if not data:
            raise ChildGone(self._reap())
        value, returned = pickle.loads(data)  # noqa: S301 - written by a process of ours
        for operation, (count, seconds) in returned.items():
            self._returned(Calls(operation, count, seconds))
        return value

    def _await_message(self, limit_s: float) -> None:
        """Wait for a message. Raises `ChildHangs` if for ``limit_s`` seconds the child sends none, makes no
        progress and begins no other call. Its waits for a processor do not count."""
        last, began, starvation, wait_s = b"", 0.0, tree.Starvation({}), min(limit_s, SOON_S)
        while not select.select([self._channel], [], [], wait_s)[0]:
            now, had, latest = time.monotonic(), tree.timeslices_of(self.pid), self._call[:]
            if latest != last:  # or the first look: earlier, this process may have had no processor
                last, began, starvation = latest, now, tree.Starvation(had)
            silent_s = now - began - starvation.until(had)
            if silent_s >= limit_s:
                raise ChildHangs
            wait_s = min(limit_s - silent_s, LOOK_S)
            self._still_waits()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._ended is None:
                os.kill(self.pid, signal.SIGKILL)
        self._reap()

    def end(self, limit_s: float) -> str:
        self._still_waits()
        self._channel.shutdown(socket.SHUT_RDWR)
        return self._reap(limit_s)

    def _reap(self, limit_s: float = 5.0) -> str:
        """How the process ended: a signal's name, ``exit 1``, or empty if it is running."""
        until = time.monotonic() + limit_s
        while self._ended is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._ended = os.waitstatus_to_exitcode(status)
                _ended[self.pid] = self._began
                self._channel.close()
            elif time.monotonic() > until:
                raise ChildHangs
            else:
                time.sleep(0.0005)
        return signal.Signals(-self._ended).name if self._ended < 0 else f"exit {self._ended}"


_ended: dict[int, float] = {}
"""Children of this process that have ended, and when they were started (`time.time()`)."""


def remove_files_of_ended() -> None:
    """Remove what CUDA left in shared memory for children that were killed, or exited without clean-up."""
    if _ended:
        keeper.remove_abandoned(min(_ended.values()), _ended)


def start(
    act: Callable[[Child], None],
    assignment: Assignment,
    returned: Callable[[Calls], None] = lambda _: None,
    still_waits: Callable[[], None] = lambda: None,
) -> ChildProcess:
    """Fork a process that calls ``act`` and then exits. This process must not have loaded a driver.

    ``returned`` is called with the driver calls that the child reports in its messages. ``still_waits`` is
    called while the role waits for the child, so that the role does not count as silent.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    call = mmap.mmap(-1, CALL_BYTES + 8)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_BYTES)
    rules.cases()  # read once here instead of in thousands of forks
    if assignment.by_process:
        with contextlib.suppress(ImportError):
            import pynvml  # noqa: F401
    pid = os.fork()
    if pid == 0:
        _be_child(theirs, call, act, assignment)
    theirs.close()
    return ChildProcess(pid, ours, call, returned, still_waits)


def _be_child(
    channel: socket.socket, call: mmap.mmap, act: Callable[[Child], None], assignment: Assignment
) -> NoReturn:
    process.die_with_parent()
    faulthandler.enable(2)
    _close_all_but(channel.fileno())
    child = Child(channel, call, assignment)
    try:
        act(child)
        process.exit_as_programs_do()
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(1)


def _send(channel: socket.socket, value: Json, descriptors: Sequence[int]) -> None:
    socket.send_fds(channel, [pickle.dumps(value)], list(descriptors))


def _receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    data, descriptors, _, _ = socket.recv_fds(channel, MESSAGE_BYTES, DESCRIPTORS)
    return data, descriptors


def _close_all_but(kept: int) -> None:
    """Close inherited sockets, so that the role's partners notice when the role ends."""
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd") if name.isdecimal()]  # noqa: PTH208
    except OSError:  # a limit may be a thousand million
        numbers = list(range(min(os.sysconf("SC_OPEN_MAX"), 1 << 16)))
    for number in numbers:
        if number > 2 and number != kept:
            with contextlib.suppress(OSError):
                os.close(number)
