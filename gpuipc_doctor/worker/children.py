"""Processes that a role starts while it runs: forked from it, each with a driver of its own."""

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
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import NoReturn

from gpuipc_doctor.api.worker import ChildGone, ChildHangs
from gpuipc_doctor.backends import open_backend
from gpuipc_doctor.backends.device import DriverGpu
from gpuipc_doctor.model import Calls, Json
from gpuipc_doctor.supervise.assignment import Assignment
from gpuipc_doctor.supervise.journal import PROCESS_EXIT
from gpuipc_doctor.worker import process

MESSAGE_BYTES = 64 << 10
DESCRIPTORS = 8
"""The most file descriptors that travel with one message."""

CALL_BYTES = 128
"""For the name of the call under way, in memory that parent and child share; behind it, for its progress."""


class Child:
    """What the function of a child sees of its process; implements ``api.Child``."""

    def __init__(self, channel: socket.socket, call: mmap.mmap, assignment: Assignment) -> None:
        self._channel = channel
        self._call = call
        self._assignment = assignment
        self._returned: dict[str, list[float]] = {}
        self.descriptors: list[int] = []

    @cached_property
    def gpus(self) -> tuple[DriverGpu, ...]:
        devices = self._assignment.devices
        backends = {
            name: open_backend(name, self.armed, self._assignment.root)
            for name in sorted({device.backend for device in devices})
        }
        return tuple(backends[device.backend].gpu(device) for device in devices)

    @contextmanager
    def armed(self, operation: str) -> Iterator[None]:
        """Name the driver call under way where the parent can read it. No journal: a call takes 5 µs."""
        name = operation.encode()[: CALL_BYTES - 1]
        self._call[: len(name) + 1] = name + b"\0"
        began = time.perf_counter()
        yield
        returned = self._returned.setdefault(operation, [0, 0.0])
        returned[0] += 1
        returned[1] += time.perf_counter() - began

    def progress(self, number: int) -> None:
        self._call[CALL_BYTES:] = number.to_bytes(4, "little")

    def recv(self) -> Json:
        data, self.descriptors = _receive(self._channel)
        if not data:  # the role has ended it, or has ended
            self.armed(PROCESS_EXIT).__enter__()
            process.exit_as_programs_do()
        return pickle.loads(data)  # noqa: S301 - written by a process of ours

    def send(self, value: Json, descriptors: Sequence[int] = ()) -> None:
        _send(self._channel, (value, self._returned), descriptors)
        self._returned = {}


class ChildProcess:
    """A child as the role that started it sees it; implements ``api.ChildProcess``."""

    def __init__(
        self, pid: int, channel: socket.socket, call: mmap.mmap, returned: Callable[[Calls], None]
    ) -> None:
        self.pid = pid
        self._returned = returned
        self.descriptors: list[int] = []
        self._channel = channel
        self._call = call
        self._ended: int | None = None

    @property
    def call(self) -> str:
        return self._call[:CALL_BYTES].partition(b"\0")[0].decode()

    @property
    def progress(self) -> int:
        return int.from_bytes(self._call[CALL_BYTES:], "little")

    def send(self, value: Json, descriptors: Sequence[int] = ()) -> None:
        try:
            _send(self._channel, value, descriptors)
        except OSError:
            raise ChildGone(self._reap()) from None

    def recv(self, limit_s: float) -> Json:
        if not select.select([self._channel], [], [], limit_s)[0]:
            raise ChildHangs
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

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._ended is None:
                os.kill(self.pid, signal.SIGKILL)
        self._reap()

    def end(self, limit_s: float) -> str:
        self._channel.shutdown(socket.SHUT_RDWR)
        return self._reap(limit_s)

    def _reap(self, limit_s: float = 5.0) -> str:
        """How it ended: a signal's name, ``exit 1``, or empty where it has not."""
        until = time.monotonic() + limit_s
        while self._ended is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._ended = os.waitstatus_to_exitcode(status)
                self._channel.close()
            elif time.monotonic() > until:
                raise ChildHangs
            else:
                time.sleep(0.0005)
        return signal.Signals(-self._ended).name if self._ended < 0 else f"exit {self._ended}"


def start(
    act: Callable[[Child], None], assignment: Assignment, returned: Callable[[Calls], None] = lambda _: None
) -> ChildProcess:
    """Fork a process that calls ``act`` and then exits. This process must have loaded no driver.

    ``returned`` gets the driver calls that the child has made, with each message.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    call = mmap.mmap(-1, CALL_BYTES + 4)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_BYTES)
    pid = os.fork()
    if pid == 0:
        _be_child(theirs, call, act, assignment)
    theirs.close()
    return ChildProcess(pid, ours, call, returned)


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
        traceback.print_exc()
    finally:
        os._exit(1)


def _send(channel: socket.socket, value: Json, descriptors: Sequence[int]) -> None:
    socket.send_fds(channel, [pickle.dumps(value)], list(descriptors))


def _receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    data, descriptors, _, _ = socket.recv_fds(channel, MESSAGE_BYTES, DESCRIPTORS)
    return data, descriptors


def _close_all_but(kept: int) -> None:
    """A child must not keep its role's partners from seeing the role end."""
    for number in [int(file.name) for file in Path("/proc/self/fd").iterdir()]:
        if number > 2 and number != kept:
            with contextlib.suppress(OSError):
                os.close(number)
