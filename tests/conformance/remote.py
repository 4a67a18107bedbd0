"""One GPU process for a test to drive: ``remote.gpu.alloc(64)`` happens in another process.

The test holds a `Remote`; the process runs this file as a program, opens a backend and does what it is
asked, one JSON line a request and one a reply. Whatever JSON cannot hold (a buffer, a context, a binding's
handle) stays in the process and is named by a number here: an `Object`.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from gpuipc_doctor.api.gpu import BackendUnavailable, DriverError
from gpuipc_doctor.model import Device, DriverFault
from gpuipc_doctor.supervise.assignment import device_from_json, device_to_json
from gpuipc_doctor.worker import descriptors

PATIENCE_S = 60.0
"""How long one request may take; a cold start of a real driver with eight GPUs takes several seconds."""


class Object:
    """Something in the other process: its attributes are fetched and its methods called there."""

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
    """A process with a backend open in it, and one device chosen."""

    def __init__(
        self,
        backend: str,
        *,
        ordinal: int = 0,
        root: str = "/",
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """Start it. ``env`` is added to ours, ``prefix`` put before the command (``unshare …``)."""
        self._armed = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process
        self._descriptors, theirs = socket.socketpair()
        passed = (self._armed.fileno(), theirs.fileno())
        self._process = subprocess.Popen(
            [*prefix, sys.executable, __file__, backend, root, str(ordinal), *map(str, passed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(env or {})},
            pass_fds=passed,
        )
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
        """The `Driver` itself, for calls that a `Gpu` would never make."""
        return self.ask("root", "driver")

    @property
    def backend(self) -> Any:
        """The `Backend` that the process has open."""
        return self.ask("root", "backend")

    @property
    def devices(self) -> list[Device]:
        return list(map(device_from_json, json.loads(self.ask("devices"))))

    def calls(self) -> list[str]:
        """Every driver call made so far, by the name under which it was armed."""
        return list(self.ask("calls"))

    def send_descriptor(self, number: int, to: Remote) -> int:
        """Pass a descriptor of that process on to another by ``SCM_RIGHTS``; its number there."""
        self.ask("send", number)
        passing = descriptors.receive(self._descriptors)
        descriptors.send(to._descriptors, passing)
        os.close(passing)
        return int(to.ask("receive"))

    def ask(self, verb: str, *arguments: Any) -> Any:
        assert self._process.stdin is not None
        request = json.dumps([verb, *map(_send, arguments)])
        try:
            self._process.stdin.write(request.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it died; the reply says so
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
        """End it by SIGKILL and wait until it is gone."""
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def exit(self) -> None:
        """Let it come to its end, with whatever it has open, and wait until it is gone."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process.stdout.close()
        self._descriptors.close()
        self._armed.close()

    def _reply(self) -> tuple[str, Any]:
        assert self._process.stdout is not None
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE_S)
            if not ready:
                self.kill()
                raise TimeoutError(f"process {self.pid} did not answer within {PATIENCE_S} s{self._during()}")
            chunk = os.read(self._process.stdout.fileno(), 1 << 20)
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


def _send(value: Any) -> Any:
    if isinstance(value, Object):
        return {"object": value._number}
    return {"bytes": value.hex()} if isinstance(value, bytes) else value


class _Server:
    """The other side: keeps what cannot travel, and knows it by number."""

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
            from gpuipc_doctor.backends import open_backend

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


if __name__ == "__main__":
    name, root, ordinal, armed_fd, socket_fd = sys.argv[1:]
    _Server(name, root, int(ordinal), int(armed_fd), int(socket_fd)).serve()
