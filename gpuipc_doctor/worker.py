"""The process in which one role of a probe runs: ``python -m gpuipc_doctor.worker DIRECTORY ROLE``.

It may hang, crash or be killed at any moment; whatever its supervisor needs to know of it is in files by
then (see `handover` and `journal`). Only workers load a GPU driver.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import pickle
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from gpuipc_doctor import loader
from gpuipc_doctor.allocator import Allocator
from gpuipc_doctor.allocators import open_allocator
from gpuipc_doctor.backends import Backend, open_backend
from gpuipc_doctor.backends.device import DriverGpu
from gpuipc_doctor.gpu import BackendUnavailable, DriverError
from gpuipc_doctor.handover import Assignment, Desk, Result, device_to_json
from gpuipc_doctor.journal import Journal
from gpuipc_doctor.model import Device, Ending, Json

if TYPE_CHECKING:
    from gpuipc_doctor.mpi.communicator import Communicator

PR_SET_PDEATHSIG = 1


class PeerLost(Exception):
    """The other role of this probe has ended; this one cannot go on, and is not to blame."""


class Unfit(Exception):
    """A GPU of this probe lacks a capability that its check requires."""


class Peer:
    """The other role, at the far end of a socket pair. Values travel pickled, between processes of ours."""

    def __init__(self, fd: int, journal: Journal) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.set_inheritable(False)
        self._stream = self._socket.makefile("rwb")
        self._journal = journal

    def send(self, value: Json | bytes) -> None:
        try:
            pickle.dump(value, self._stream)
            self._stream.flush()
        except OSError as error:
            raise PeerLost from error

    def recv(self) -> Json:
        try:
            with self._journal.waiting():
                return pickle.load(self._stream)  # noqa: S301 - written by a process of ours
        except (EOFError, OSError) as error:
            raise PeerLost from error

    def wait_gone(self) -> None:
        with self._journal.waiting(), contextlib.suppress(OSError):
            while self._stream.read(4096):
                pass

    def hang_up(self) -> None:
        """Let the other role see the end of this one, even if a child of its driver inherited the socket."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)


class StackTimer:
    """Has every Python thread's stack written to a file when one operation takes nearly its deadline.

    `faulthandler` does it from a thread of its own that needs no interpreter lock and sends no signal, so
    it works while a C call hangs and does not wake that call. Arming it starts a thread, so it is renewed
    at most eight times in a deadline: the stack is taken between 70 % and 95 % of the deadline.
    """

    def __init__(self, file: int, deadline_s: float) -> None:
        self._file = file
        self._timeout_s = deadline_s * 0.95
        self._renew_s = deadline_s / 8
        self._set_at = 0.0

    def renew(self) -> None:
        now = time.monotonic()
        if now - self._set_at > self._renew_s:
            faulthandler.dump_traceback_later(self._timeout_s, file=self._file)
            self._set_at = now


class HostMemory:
    """Ordinary memory at an address that stays."""

    def __init__(self, nbytes: int) -> None:
        import ctypes

        self.nbytes = nbytes
        self._array = ctypes.create_string_buffer(nbytes)
        self.address = ctypes.addressof(self._array)

    def write(self, data: bytes, offset: int = 0) -> None:
        memoryview(self._array).cast("B")[offset : offset + len(data)] = data

    def read(self, nbytes: int | None = None, offset: int = 0) -> bytes:
        end = self.nbytes if nbytes is None else offset + nbytes
        return bytes(memoryview(self._array).cast("B")[offset:end])


class Worker:
    """What a role function sees of its process; implements ``api.Worker``."""

    def __init__(self, desk: Desk, assignment: Assignment, journal: Journal, timer: StackTimer) -> None:
        self.role = desk.role
        self._inbox = desk.inbox
        self._assignment = assignment
        self._journal = journal
        self._timer = timer
        self._backends: dict[str, Backend] = {}

    @property
    def params(self) -> Mapping[str, Json]:
        return self._assignment.params

    @cached_property
    def gpus(self) -> tuple[DriverGpu, ...]:
        return tuple(self._open(device) for device in self._assignment.devices)

    def _open(self, device: Device) -> DriverGpu:
        gpu = self._backend(device.backend).gpu(device)
        check = getattr(loader.module(Path(self._assignment.check_file)), "CHECK", None)
        # Asked here, too: in a prolog nobody has asked before, and an administrator can change the mode.
        if check and check.requires and (lacking := check.requires - gpu.capabilities):
            raise Unfit(f"{device.label} has no {', '.join(sorted(lacking))}")
        return gpu

    @property
    def gpu(self) -> DriverGpu:
        return self.gpus[self._assignment.place % len(self.gpus)]

    def host_memory(self, nbytes: int) -> HostMemory:
        return HostMemory(nbytes)

    def allocator(self, name: str) -> Allocator:
        return open_allocator(name, self.gpu)

    def clock(self) -> float:
        return time.monotonic()

    @cached_property
    def mpi(self) -> Communicator:
        if not self._assignment.ranks:
            raise RuntimeError(f"role {self.role} is no rank: only probes with a launch have MPI")
        from gpuipc_doctor.mpi.communicator import Communicator

        return Communicator(self._assignment.ranks, self.armed)

    def mpi_facts(self, library: str | None, backends: Sequence[str]) -> dict[str, Json]:
        from gpuipc_doctor.mpi import awareness

        return awareness.report(library, backends, self.armed)

    def finish(self) -> None:
        """What a rank owes its job when its role function has returned."""
        if "mpi" in vars(self):
            self.mpi.finalize()

    @cached_property
    def peer(self) -> Peer:
        if self._assignment.peer_fd is None:
            raise RuntimeError(f"role {self.role} has no peer: only probes with two roles connect them")
        return Peer(self._assignment.peer_fd, self._journal)

    def _backend(self, name: str) -> Backend:
        if name not in self._backends:
            self._backends[name] = open_backend(name, self.armed, self._assignment.root)
        return self._backends[name]

    def discover(self, backend: str) -> dict[str, Json]:
        opened = self._backend(backend)
        return {
            "devices": [device_to_json(device) for device in opened.devices()],
            "on_bus": opened.driver.absence.on_bus(),
            "hiding": opened.driver.absence.hiding(),
            "facts": [[fact.name, fact.value, fact.source] for fact in opened.versions()],
        }

    @contextmanager
    def armed(self, operation: str) -> Iterator[None]:
        self._timer.renew()
        with self._journal.armed(operation):
            yield

    def step(self, text: str) -> AbstractContextManager[None]:
        return self._journal.step(text)

    def record(self, **facts: Json) -> None:
        self._journal.record(facts)

    def tell(self, news: Json) -> None:
        self._journal.begin_anew()
        with self._journal.waiting():
            self._mouth.write(json.dumps(news).encode() + b"\n")
            self._mouth.flush()

    @cached_property
    def _mouth(self) -> BinaryIO:
        return self._inbox.open("wb")

    def wait_until(self, condition: Callable[[], bool], limit_s: float) -> bool:
        until = time.monotonic() + limit_s
        while not (holds := condition()) and time.monotonic() < until:
            time.sleep(0.02)
        return holds

    def hang_up(self) -> None:
        if self._assignment.peer_fd is not None:
            self.peer.hang_up()

    def die(self, signal_name: str = "SIGKILL") -> NoReturn:
        self._journal.dying()
        self.hang_up()
        os.kill(os.getpid(), signal.Signals[signal_name])
        os._exit(1)  # not reached by a signal that kills


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends."""
    import ctypes

    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it went before we asked
        os._exit(1)


def run_role(worker: Worker, assignment: Assignment) -> Result:
    """Call the role function and say how that ended."""
    try:
        function = loader.role(Path(assignment.check_file), assignment.function)
        function(worker)
        worker.finish()
    except DriverError as error:
        return Result(Ending.DRIVER_ERROR, error.fault)
    except PeerLost:
        return Result(Ending.PEER_LOST)
    except Unfit as unfit:
        return Result(Ending.UNFIT, exception=str(unfit))
    except BackendUnavailable as error:
        if isinstance(error.__cause__, DriverError):  # the device was found before, so its driver is at fault
            return Result(Ending.DRIVER_ERROR, error.__cause__.fault)
        return Result(Ending.UNAVAILABLE, exception=f"{error.reason}\n{error.remedy}")
    except Exception as error:
        summary = f"{type(error).__name__}: {error}"
        return Result(Ending.EXCEPTION, exception=f"{summary}\n{traceback.format_exc()}")
    return Result(Ending.COMPLETED)


def main(directory: str, role: str) -> None:
    die_with_parent()
    desk = Desk(Path(directory), role)
    assignment = Assignment.read(desk.assignment)
    journal = Journal(desk.journal)
    stacks = os.open(desk.python_stack, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    faulthandler.enable(stacks)
    worker = Worker(desk, assignment, journal, StackTimer(stacks, assignment.deadline_s))
    result = run_role(worker, assignment)
    result.write(desk.result)
    if result.ending is not Ending.COMPLETED:
        os._exit(1)  # a driver that has just failed may hang on the way out, and the blame is known
    worker.hang_up()
    # Left armed: what the driver's exit handlers do wrong after this line is blamed on it.
    worker.armed("process exit").__enter__()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
