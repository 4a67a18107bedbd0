"""A process with the command's modules imported, from which tests fork commands.

Starting Python, importing and reading tables takes longer than most commands do. A fork behaves like a new
process: it runs a module as ``python -m`` does, with its own arguments, environment, directory and streams,
and no other open file. It is a child of the server, which reaps it: the process of the tests does not count
it among its own. Only what is fixed by exec stays the fork server's: ``/proc/PID/cmdline`` and ``environ``.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from gpuipc_doctor import knownissues
from gpuipc_doctor.node import variables

_AT_START = ("LD_", "GLIBC_", "MALLOC_", "PYTHON", "LANG", "LC_", "TZ")
"""Prefixes of variables that the loader, the C library and Python read only once."""

_HANDED_ON = ("Umask", "Uid", "Gid", "Groups", "SigBlk", "SigIgn", "Cap", "NoNewPrivs", "Seccomp", "Cpus_all")
"""Prefixes of lines in ``/proc/self/status`` with properties that child processes inherit."""

_NAME = Path("/proc/self/comm")

_MOST_BYTES = 1 << 20


class ForkServer:
    """Runs commands, one at a time; any thread may ask.

    Started at first use, and restarted if it has ended: tests of supervision kill and reap every child of the
    process of the tests.
    """

    def __init__(self, **variables: str) -> None:
        """``variables``: set in addition to this process's environment."""
        self._turn = threading.Lock()
        self._environment = {**os.environ, **variables}  # no test has changed it yet
        self._process: subprocess.Popen[bytes] | None = None

    def run(
        self, module: str, *arguments: str | Path, timeout: float, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """``python -m module arguments`` as `subprocess.run` runs it, with ``capture_output`` and ``text``.

        Starts a new process instead of a fork if a fork would differ, or while another command runs.
        """
        command = [sys.executable, "-m", module, *map(str, arguments)]
        environment = dict(os.environ if env is None else env)
        if self._turn.acquire(blocking=False):
            try:
                if not self._process or self._process.poll() is not None:
                    self._start()
                if _given(environment) == self._given:
                    return self._run(command, environment, timeout)
            finally:
                self._turn.release()
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=timeout)

    def _start(self) -> None:
        self.close()
        self._given = _given(self._environment)
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.command_server", str(theirs.fileno())],
                cwd=Path(__file__).parents[1],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,  # Python reads the kind of its streams once
                stderr=subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
            )

    def close(self) -> str:
        """End the fork server, if started; returns its standard error."""
        if not self._process:
            return ""
        self._orders.close()
        return self._process.communicate()[1].decode()

    def _run(
        self, command: list[str], environment: dict[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        order = json.dumps([command, environment, str(Path.cwd())]).encode()
        try:
            told, *said = self._fork(order, timeout)
        except TimeoutError:
            raise subprocess.TimeoutExpired(command, timeout) from None
        if len(told.split()) < 2:
            raise RuntimeError(f"the server of commands has ended: {self.close()}")
        output, errors = (text.decode().replace("\r\n", "\n") for text in said)
        return subprocess.CompletedProcess(command, int(told.split()[1]), output, errors)

    def _fork(self, order: bytes, timeout: float) -> list[bytes]:
        """Send an order. Returns the fork's pid and exit code as text, its output and errors."""
        ours, theirs = zip(*(os.pipe() for _ in range(3)), strict=True)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._orders, [order], [*theirs, 0])
        for file in theirs:
            os.close(file)
        said = dict.fromkeys(ours, b"")
        try:
            _read(said, time.monotonic() + timeout)
        except BaseException:
            told = said[ours[0]].split()
            if len(told) == 1:
                os.kill(int(told[0]), signal.SIGKILL)
            raise
        finally:
            for file in ours:
                os.close(file)
        return list(said.values())


SERVER = ForkServer()


def _read(files: dict[int, bytes], until: float) -> None:
    """Read these files to their ends; `TimeoutError` after the time ``until``."""
    with selectors.DefaultSelector() as still_open:
        for file in files:
            still_open.register(file, selectors.EVENT_READ)
        while still_open.get_map():
            ready = still_open.select(max(until - time.monotonic(), 0))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                if part := os.read(key.fd, 1 << 16):
                    files[key.fd] += part
                else:
                    still_open.unregister(key.fd)


def _given(environment: Mapping[str, str]) -> object:
    """Everything that a fork inherits from the fork server instead of from this process."""
    status = Path("/proc/self/status").read_text().splitlines()
    return (
        {name: value for name, value in environment.items() if name.startswith(_AT_START)},
        [line for line in status if line.startswith(_HANDED_ON)],
        Path("/proc/self/limits").read_text(),
        os.getpriority(os.PRIO_PROCESS, 0),
    )


def main(fd: int) -> None:
    for package in ("gpuipc_doctor.cli", "gpuipc_doctor.checks"):
        for module in iter_modules(import_module(package).__path__, f"{package}."):
            if module.name != "gpuipc_doctor.cli.main":  # runpy runs this one
                import_module(module.name)
    for name in ("gpuipc_doctor.run.engine", "gpuipc_doctor.simulator.node", "jsonschema"):
        import_module(name)
    knownissues.load()
    variables.load()
    gc.collect()
    gc.freeze()
    name = _NAME.read_text().strip()
    _NAME.write_text("command-server")  # tests that search for leftover "python" processes must not find it
    if command := _serve(socket.socket(fileno=fd)):
        _NAME.write_text(name)
        sys.orig_argv[:], sys.argv[:] = command, command[2:]
        runpy.run_module(command[2], run_name="__main__", alter_sys=True)


def _serve(orders: socket.socket) -> list[str]:
    """Fork on request until the requester closes its end. Returns the command in a fork, else []."""
    while True:
        order, files, *_ = socket.recv_fds(orders, _MOST_BYTES, 4)
        if not order:
            return []
        if (child := os.fork()) == 0:
            orders.close()
            return _become(order, files[1:])
        for file in files[1:]:
            os.close(file)
        with contextlib.suppress(BrokenPipeError):
            os.write(files[0], str(child).encode())
        status = os.waitpid(child, 0)[1]
        with contextlib.suppress(BrokenPipeError):
            os.write(files[0], f" {os.waitstatus_to_exitcode(status)}".encode())
        os.close(files[0])


def _become(order: bytes, streams: list[int]) -> list[str]:
    """Give this fork the state of a newly started process; returns its command."""
    for number, stream in zip((1, 2, 0), streams, strict=True):
        os.dup2(stream, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    command, environment, directory = json.loads(order)
    os.chdir(directory)
    sys.path[0] = directory
    os.environ.clear()
    os.environ.update(environment)
    return command  # type: ignore[no-any-return]


if __name__ == "__main__":
    main(int(sys.argv[1]))
