"""Stems: processes that have imported the workers' modules but used no driver, from which workers are forked.

Each set of imports and environment has one stem, started at first use (see `worker.stem`). The first stem of
an environment imports our own modules only; the others are forked from it. If a stem is unfit, hangs or has
ended, workers are started without it, and the stem's log says why.
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
from gpuipc_doctor.supervise.assignment import GO, MOST_BYTES, Order, StemOrder
from gpuipc_doctor.supervise.role import ChildProcess, ForkedProcess, WorkerProcess

FORK_LIMIT_S = 10.0
"""Seconds for a stem that has imported everything to fork."""

_LOOK_EVERY_S = 0.05


class Stem:
    """A stem, used from any thread."""

    def __init__(self, orders: socket.socket, log: Path, process: WorkerProcess | None = None) -> None:
        self._orders = orders
        self._log = log
        self._process = process
        """None until the stem has reported its pid."""
        self._lock = threading.Lock()
        self._verdict: str | None = None
        """Why the stem must not be forked; empty if it may be; None while it imports."""

    def fork(self, order: Order, until: float, given_up: Callable[[], bool]) -> int | None:
        """Have the stem fork a worker; returns the worker's pid, or None on failure.

        Waits for the stem's imports until `time.monotonic` reaches ``until``, or ``given_up()`` is true.
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

    def fork_stem(self, imports: Sequence[str], log: Path) -> Stem:
        """Once the stem has finished its own imports, have it fork another stem with these imports."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, log.open("ab") as output, contextlib.suppress(OSError):
            StemOrder(imports, files={"log": output.fileno(), "orders": theirs.fileno()}).send(self._orders)
        return Stem(ours, log)

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
        """End the stem. Its workers continue."""
        while self._process is None and self._verdict is None and self._has_news(0.0):
            self._hear()
        self._orders.close()
        self._kill()
        if self._process:
            self._process.collect(limit_s)


class Stems:
    """The stems (`worker.stem`) of a run, with their logs in ``directory``."""

    def __init__(self, directory: Path, run: str) -> None:
        self._directory = directory
        self._marker = tree.with_room(f"{run}/stem")
        self._lock = threading.Lock()
        self._stems: dict[tuple[tuple[str, ...], frozenset[tuple[str, str]]], Stem] = {}
        # The kernel kills a process with the thread that started it, so start it from one that lives as long
        # as this.
        self._thread = ThreadPoolExecutor(1)

    def of(self, imports: Iterable[str], environment: Mapping[str, str]) -> Stem:
        """The stem with these imports and this environment."""
        names, variables = tuple(sorted(imports)), frozenset(environment.items())
        with self._lock:
            if ((), variables) not in self._stems:
                self._stems[(), variables] = self._thread.submit(self._start, environment).result()
            if (names, variables) not in self._stems:
                self._stems[names, variables] = self._stems[(), variables].fork_stem(names, self._log(names))
            return self._stems[names, variables]

    def _log(self, names: Sequence[str] = ()) -> Path:
        return self._directory / f"{'-'.join(('stem', *names))}.log"

    def _start(self, environment: Mapping[str, str]) -> Stem:
        log = self._log()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, log.open("ab") as output:
            process = subprocess.Popen(
                python.module("gpuipc_doctor.worker.stem", str(theirs.fileno()), environment=environment),
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
        return Stem(ours, log, ChildProcess(process))

    def close(self, limit_s: float) -> None:
        for stem in self._stems.values():
            stem.close(limit_s)
        self._thread.shutdown()
