"""Processes that have imported the workers' modules but used no driver, and fork workers.

Each set of imports and environment has one (`worker.fork_server`), started at first use. The first one of an
environment imports our own modules only; the others are forked from it. If one is unfit, hangs or has
ended, workers are started without it, and its log says why.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from gpuipc_doctor.files import python
from gpuipc_doctor.stacks.process_list import MARKER
from gpuipc_doctor.supervise import tree
from gpuipc_doctor.supervise.assignment import GO, MOST_BYTES, ForkServerOrder, Order
from gpuipc_doctor.supervise.role import ChildProcess, ForkedProcess, WorkerProcess

FORK_LIMIT_S = 10.0
"""Seconds for a fork server that has imported everything to fork."""

_LOOK_EVERY_S = 0.05


class ForkServer:
    """A fork server, used from any thread."""

    def __init__(self, orders: socket.socket, log: Path, process: WorkerProcess | None = None) -> None:
        self._orders = orders
        self._log = log
        self._process = process
        """None until the fork server has reported its pid."""
        self._lock = threading.Lock()
        self._verdict: str | None = None
        """Why the fork server must not be forked; empty if it may be; None while it imports."""

    def fork(self, order: Order, until: float, given_up: Callable[[], bool]) -> int | None:
        """Have the fork server fork a worker; returns the worker's pid, or None on failure.

        Waits for its imports until `time.monotonic` reaches ``until``, or ``given_up()`` is true.
        """
        with self._lock:
            while self._verdict is None and not given_up():
                if self._has_news(_LOOK_EVERY_S):
                    self._hear()
                elif time.monotonic() > until:
                    self._give_up("the preloaded process did not finish its imports in time")
            if self._verdict != "":
                return None
        ours, theirs = socket.socketpair()
        with ours:
            ours.settimeout(FORK_LIMIT_S)
            with theirs, contextlib.suppress(OSError):
                files = {"log": order.files["log"], "go": theirs.fileno(), **order.files}
                replace(order, files=files).send(self._orders)
            with contextlib.suppress(OSError):
                if told := ours.recv(32):
                    ours.send(GO)
                    return int(told)
        with self._lock:
            self._give_up("the preloaded process was asked to fork a worker, but did not")
        return None

    def fork_server(self, imports: Sequence[str], log: Path) -> ForkServer:
        """Once this one has finished its own imports, have it fork another with these imports."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, log.open("ab") as output, contextlib.suppress(OSError):
            ForkServerOrder(imports, files={"log": output.fileno(), "orders": theirs.fileno()}).send(
                self._orders
            )
        return ForkServer(ours, log)

    def has_imported(self) -> bool:
        """Whether the imports are over, successful or not."""
        if not self._lock.acquire(blocking=False):  # another thread is waiting for it
            return False
        try:
            while self._verdict is None and self._has_news(0.0):
                self._hear()
            return self._verdict is not None
        finally:
            self._lock.release()

    def _has_news(self, within_s: float) -> bool:
        return bool(select.select([self._orders], [], [], within_s)[0])

    def _hear(self) -> None:
        said = b""
        with contextlib.suppress(OSError):
            said = self._orders.recv(MOST_BYTES)
        told = json.loads(said) if said else "the preloaded process ended during its imports"
        if isinstance(told, int):
            self._process = self._process or ForkedProcess(told)
        elif told:
            self._give_up(told)
        else:
            self._verdict = ""

    def _give_up(self, reason: str) -> None:
        self._verdict = reason
        self._kill()
        with contextlib.suppress(OSError), self._log.open("a") as log:
            log.write(f"gpuipc-doctor: workers start without a preloaded process: {reason}\n")

    def _kill(self) -> None:
        if self._process and not self._process.poll():
            os.kill(self._process.pid, signal.SIGKILL)

    def close(self, limit_s: float) -> None:
        """End the fork server. Its workers continue."""
        while self._process is None and self._verdict is None and self._has_news(0.0):
            self._hear()
        self._orders.close()
        self._kill()
        if self._process:
            self._process.collect(limit_s)


class ForkServers:
    """The fork servers (`worker.fork_server`) of a run, with their logs in ``directory``."""

    def __init__(self, directory: Path, run: str) -> None:
        self._directory = directory
        self._marker = tree.with_room(f"{run}/fork-server")
        self._lock = threading.Lock()
        self._servers: dict[tuple[tuple[str, ...], frozenset[tuple[str, str]]], ForkServer] = {}
        # The kernel kills a process with the thread that started it, so start it from one that lives as long
        # as this.
        self._thread = ThreadPoolExecutor(1)

    def of(self, imports: Iterable[str], environment: Mapping[str, str]) -> ForkServer:
        """The fork server with these imports and this environment."""
        names, variables = tuple(sorted(imports)), frozenset(environment.items())
        with self._lock:
            if ((), variables) not in self._servers:
                self._servers[(), variables] = self._thread.submit(self._start, environment).result()
            if (names, variables) not in self._servers:
                self._servers[names, variables] = self._servers[(), variables].fork_server(
                    names, self._log(names)
                )
            return self._servers[names, variables]

    def _log(self, names: Sequence[str] = ()) -> Path:
        return self._directory / f"{'-'.join(('fork-server', *names))}.log"

    def _start(self, environment: Mapping[str, str]) -> ForkServer:
        log = self._log()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, log.open("ab") as output:
            process = subprocess.Popen(
                python.module(
                    "gpuipc_doctor.worker.fork_server", str(theirs.fileno()), environment=environment
                ),
                cwd=self._directory,
                # OpenBLAS, loaded by array libraries, would start threads that are not needed here.
                env={**environment, "OPENBLAS_NUM_THREADS": "1", MARKER: self._marker},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        tree.carry_priority(process.pid)
        return ForkServer(ours, log, ChildProcess(process))

    def close(self, limit_s: float) -> None:
        for server in self._servers.values():
            server.close(limit_s)
        self._thread.shutdown()
