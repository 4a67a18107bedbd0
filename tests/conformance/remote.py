"""One GPU process for a test to drive: ``remote.gpu.alloc(64)`` happens in another process.

The test holds a `Remote`; the process runs this file as a program, opens a backend and executes requests, one
JSON line for each request and reply. Values that JSON cannot hold (a buffer, a context, a binding's handle)
stay in the process, and the test refers to them by number: an `Object`.

On a simulated node, the processes are forked from one that has imported the bindings but not called a driver,
like workers: importing in each process would take most of the time of these tests.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from gpuipc_doctor.api.driver_errors import BackendUnavailable, DriverError
from gpuipc_doctor.model import Device, DriverFault
from gpuipc_doctor.supervise.assignment import device_from_json, device_to_json
from gpuipc_doctor.worker import descriptors

PATIENCE_S = 60.0
"""Time limit of one request; a cold start of a real driver with eight GPUs takes several seconds."""


class Object:
    """An object in the other process; its attributes are fetched and its methods called there."""

    def __init__(self, remote: Remote, number: int) -> None:
        self._remote = remote
        self._number = number

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._remote.ask("get", self, name)

    def __call__(self, *arguments: Any) -> Any:
        return self._remote.ask("call", self, *arguments)


class Remote:
    """A process with an open backend and one chosen device."""

    def __init__(
        self,
        backend: str,
        *,
        ordinal: int = 0,
        root: str = "/",
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        enter: Sequence[str] = (),
    ) -> None:
        """Start the process. ``env``: additional variables; ``prefix``: before the command (``unshare …``).

        ``enter`` is the command that enters an emulated node, which many processes share.
        """
        self._armed = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process
        self._requests, asked = socket.socketpair()
        self._descriptors, theirs = socket.socketpair()
        arguments = (backend, root, str(ordinal))
        environment = {**os.environ, **(env or {})}
        files = (asked.fileno(), self._armed.fileno(), theirs.fileno())
        self._process = (
            _spawned((*enter, *prefix), arguments, environment, files)
            if prefix or os.environ.get("GPUIPC_TEST_REAL") == "1"
            else _forked(tuple(enter), arguments, environment, files)
        )
        asked.close()
        theirs.close()
        self._unread = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def gpu(self) -> Any:
        """The `Gpu` with the ordinal that the process was started for."""
        return self.ask("root", "gpu")

    @property
    def driver(self) -> Any:
        """The `Driver` itself, for calls that `Gpu` never makes."""
        return self.ask("root", "driver")

    @property
    def backend(self) -> Any:
        """The open `Backend` of the process."""
        return self.ask("root", "backend")

    @property
    def devices(self) -> list[Device]:
        return list(map(device_from_json, json.loads(self.ask("devices"))))

    def calls(self) -> list[str]:
        """The names of all driver calls so far, as they were armed."""
        return list(self.ask("calls"))

    def send_descriptor(self, number: int, to: Remote) -> int:
        """Pass a descriptor of the process to another one by ``SCM_RIGHTS``; returns its number there."""
        self.ask("send", number)
        passing = descriptors.receive(self._descriptors)
        descriptors.send(to._descriptors, passing)
        os.close(passing)
        return int(to.ask("receive"))

    def ask(self, verb: str, *arguments: Any) -> Any:
        request = json.dumps([verb, *map(_send, arguments)])
        with suppress(BrokenPipeError, ConnectionResetError):  # the process has died; the reply says so
            self._requests.sendall(request.encode() + b"\n")
        kind, value = self._reply()
        if kind == "fault":
            raise DriverError(DriverFault(*value))
        if kind == "unavailable":
            reason, remedy, broken = value
            raise BackendUnavailable(reason, remedy, broken=broken)
        if kind == "error":
            raise AssertionError(f"in process {self.pid}:\n{value}")
        return self._receive(value)

    def kill(self) -> None:
        """Kill the process with SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def exit(self) -> None:
        """Let the process exit without closing anything, and wait until it is gone."""
        with suppress(OSError):  # the process has ended
            self._requests.shutdown(socket.SHUT_WR)
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._requests.close()
        self._descriptors.close()
        self._armed.close()

    def _reply(self) -> tuple[str, Any]:
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._requests], [], [], PATIENCE_S)
            if not ready:
                self.kill()
                raise TimeoutError(f"process {self.pid} did not answer within {PATIENCE_S} s{self._during()}")
            chunk = b""
            with suppress(ConnectionResetError):
                chunk = self._requests.recv(1 << 20)
            if not chunk:
                code = self._process.wait(PATIENCE_S)
                raise EOFError(f"process {self.pid} ended with {code}{self._during()}")
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        kind, value = json.loads(line)
        return kind, value

    def _during(self) -> str:
        operation = os.pread(self._armed.fileno(), 200, 0).strip(b"\0").decode()
        return f", in {operation}" if operation else ""

    def _receive(self, value: Any) -> Any:
        if isinstance(value, dict):
            return bytes.fromhex(value["bytes"]) if "bytes" in value else Object(self, value["object"])
        return [self._receive(item) for item in value] if isinstance(value, list) else value


def _spawned(
    prefix: Sequence[str], arguments: Sequence[str], env: Mapping[str, str], files: Sequence[int]
) -> subprocess.Popen[bytes]:
    """Start a process; ``files``: descriptors of requests, the armed-call file and the descriptor socket."""
    asked, *passed = files
    command = [*prefix, sys.executable, __file__, *arguments, *map(str, passed)]
    return subprocess.Popen(command, stdin=asked, stdout=asked, env=env, pass_fds=passed)


def _forked(
    enter: tuple[str, ...], arguments: Sequence[str], env: Mapping[str, str], files: Sequence[int]
) -> _Fork:
    """Fork a process from the fork server of this backend and node with the same variables for the loader."""
    loads = frozenset(item for item in env.items() if item[0].startswith(("LD_", "PYTHON", "KFD_")))
    if not _server(enter, arguments[0], loads).lives():  # tests of supervision kill all descendants
        _server.cache_clear()
    return _server(enter, arguments[0], loads).fork(arguments, env, files)


@cache
def _server(enter: tuple[str, ...], backend: str, loads: frozenset[tuple[str, str]]) -> _ForkServer:
    server = _ForkServer(enter, backend, dict(loads))
    atexit.register(server.end)
    return server


class _ForkServer:
    """The process from which others are forked."""

    def __init__(self, enter: Sequence[str], backend: str, loads: Mapping[str, str]) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [*enter, sys.executable, __file__, backend, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **loads},
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def fork(self, arguments: Sequence[str], env: Mapping[str, str], files: Sequence[int]) -> _Fork:
        socket.send_fds(self._orders, [json.dumps([list(arguments), dict(env)]).encode()], list(files))
        return _Fork(self, int(self._orders.recv(32)))

    def exit_code(self, pid: int) -> int:
        """Exit code of a fork that has ended."""
        self._orders.send(json.dumps(pid).encode())
        return int(self._orders.recv(32))

    def lives(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        self._orders.close()
        self._process.wait(PATIENCE_S)


class _Fork:
    """A forked process with the part of `subprocess.Popen` that `Remote` uses."""

    def __init__(self, server: _ForkServer, pid: int) -> None:
        self.pid = pid
        self._server = server
        self._file: int | None = os.pidfd_open(pid)
        self._code = 0

    def kill(self) -> None:
        if self._file is not None:
            signal.pidfd_send_signal(self._file, signal.SIGKILL)

    def wait(self, timeout: float) -> int:
        if self._file is not None:
            if not select.select([self._file], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(["a fork"], timeout)
            os.close(self._file)
            self._file = None
            self._code = self._server.exit_code(self.pid)
        return self._code


def _send(value: Any) -> Any:
    if isinstance(value, Object):
        return {"object": value._number}
    return {"bytes": value.hex()} if isinstance(value, bytes) else value


class _Server:
    """The process's side: keeps objects that JSON cannot hold, and refers to them by number."""

    def __init__(self, backend: str, root: str, ordinal: int, armed_fd: int, socket_fd: int) -> None:
        self._descriptors = socket.socket(fileno=socket_fd)
        self._descriptors.set_inheritable(False)
        self._objects: list[Any] = []
        self._calls: list[str] = []
        self._armed_fd = armed_fd
        self._backend_name, self._root, self._ordinal = backend, root, ordinal
        self._backend: Any = None
        self._gpu: Any = None

    @contextmanager
    def _arm(self, operation: str) -> Iterator[None]:
        self._calls.append(operation)
        os.pwrite(self._armed_fd, operation.encode().ljust(200, b"\0"), 0)
        yield
        os.pwrite(self._armed_fd, bytes(200), 0)

    def serve(self) -> None:
        for line in sys.stdin:
            verb, *arguments = json.loads(line)
            try:
                reply = ["ok", self._pack(self._do(verb, *map(self._unpack, arguments)))]
            except DriverError as error:
                reply = ["fault", [error.fault.call, error.fault.code, error.fault.name]]
            except BackendUnavailable as error:
                reply = ["unavailable", [error.reason, error.remedy, error.broken]]
            except Exception:
                reply = ["error", traceback.format_exc()]
            print(json.dumps(reply), flush=True)  # noqa: T201  # the reply

    def _do(self, verb: str, *arguments: Any) -> Any:
        if verb == "get":
            return getattr(arguments[0], arguments[1])
        if verb == "call":
            return arguments[0](*arguments[1:])
        if verb == "calls":
            return self._calls
        if verb == "send":
            return descriptors.send(self._descriptors, arguments[0])
        if verb == "receive":
            return descriptors.receive(self._descriptors)
        if verb == "fetch":
            return descriptors.fetch(*arguments)
        if verb == "os":
            return getattr(os, arguments[0])(*arguments[1:])
        if self._backend is None:
            from gpuipc_doctor.worker.backends import open_backend

            self._backend = open_backend(self._backend_name, self._arm, self._root)
        if verb == "devices":
            return json.dumps([device_to_json(device) for device in self._backend.devices()])
        assert verb == "root"
        if arguments[0] == "backend":
            return self._backend
        if arguments[0] == "driver":
            return self._backend.driver
        if self._gpu is None:
            self._gpu = self._backend.gpu(self._backend.devices()[self._ordinal])
        return self._gpu

    def _pack(self, value: Any) -> Any:
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, bytes):
            return {"bytes": value.hex()}
        if isinstance(value, (list, tuple)):
            return [self._pack(item) for item in value]
        self._objects.append(value)
        return {"object": len(self._objects) - 1}

    def _unpack(self, value: Any) -> Any:
        if isinstance(value, dict):
            return bytes.fromhex(value["bytes"]) if "bytes" in value else self._objects[value["object"]]
        return value


def _be_server(backend: str, fd: int) -> list[str]:
    """Fork on request until the requester closes its end. Returns the arguments in a fork, else []."""
    from gpuipc_doctor.worker import fork_server

    comm = Path("/proc/self/comm")
    name = comm.read_text()
    comm.write_text("conformance")  # the fork server stays, and tests search for leftover processes by name
    fork_server.load([backend])  # an error here recurs where the module is used
    gc.collect()
    gc.freeze()
    orders = socket.socket(fileno=fd)
    while data := (received := socket.recv_fds(orders, 1 << 18, 3))[0]:
        match json.loads(data):
            case int(pid):
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                orders.send(json.dumps(code).encode())
            case [arguments, environment]:
                files = received[1]
                if (pid := os.fork()) == 0:
                    orders.close()
                    comm.write_text(name)
                    os.environ.clear()
                    os.environ.update(environment)
                    for standard in (0, 1):
                        os.dup2(files[0], standard)
                    os.close(files[0])
                    return [*arguments, *map(str, files[1:])]
                for file in files:
                    os.close(file)
                orders.send(json.dumps(pid).encode())
    return []


if __name__ == "__main__":
    what = sys.argv[1:]
    if len(what) == 2:
        what = _be_server(what[0], int(what[1]))
    if what:
        name, root, ordinal, armed_fd, socket_fd = what
        _Server(name, root, int(ordinal), int(armed_fd), int(socket_fd)).serve()
