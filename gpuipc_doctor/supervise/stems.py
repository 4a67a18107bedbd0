"""Stems: processes that have imported what workers need and touched no driver, to fork workers from.

There is one for each set of imports and environment, started when it is first wanted (see `worker.stem`).
Where one is not fit to be forked, hangs or is gone, workers are spawned without it, and its log says why.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpuipc_doctor.supervise import priority
from gpuipc_doctor.supervise.marker import MARKER, with_room

GO = b"go"
"""What a worker that has told its process number waits for."""

FORK_LIMIT_S = 10.0
"""For a stem that has imported everything to fork."""

_LOOK_EVERY_S = 0.05

_MOST_FILES = 16
_MOST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Order:
    """What a worker is to be: its role, its marker, and what its environment has beside the stem's.

    ``files``: descriptors of its log, of a socket to its supervisor, and of one to each peer, ``peer 1`` and
    so on.
    """

    directory: str
    role: str
    marker: str
    environment: Mapping[str, str]
    files: Mapping[str, int] = field(default_factory=dict)

    def send(self, to: socket.socket) -> None:
        text = json.dumps({**asdict(self), "files": list(self.files)})
        socket.send_fds(to, [text.encode()], list(self.files.values()))

    def close(self) -> None:
        for fd in self.files.values():
            os.close(fd)


def receive_order(stream: socket.socket) -> Order | None:
    """The next order; None at the end."""
    data, fds, _, _ = socket.recv_fds(stream, _MOST_BYTES, _MOST_FILES, socket.MSG_CMSG_CLOEXEC)
    if not data:
        return None
    told = json.loads(data)
    return Order(**{**told, "files": dict(zip(told["files"], fds, strict=True))})


class Stem:
    """One stem. Any thread may ask it for workers."""

    def __init__(self, process: subprocess.Popen[bytes], orders: socket.socket, log: Path) -> None:
        self._process = process
        self._orders = orders
        self._log = log
        self._lock = threading.Lock()
        self._verdict: str | None = None
        """Why it is not to be forked, empty if it is; None as long as it imports."""

    def fork(self, order: Order, until: float, given_up: Callable[[], bool]) -> int | None:
        """Have it fork a worker; returns that one's process number, or None where there is none to be had.

        Waits for the stem's imports until `time.monotonic` is ``until``, or ``given_up`` says so.
        """
        with self._lock:
            while self._verdict is None and not given_up():
                if select.select([self._orders], [], [], _LOOK_EVERY_S)[0]:
                    self._hear()
                elif time.monotonic() > until:
                    self._give_up("it had not imported everything in time")
            if self._verdict != "":
                return None
        ours, theirs = socket.socketpair()
        with ours:
            ours.settimeout(FORK_LIMIT_S)
            with theirs, contextlib.suppress(OSError):
                files = {"log": order.files["log"], "go": theirs.fileno(), **order.files}
                Order(order.directory, order.role, order.marker, order.environment, files).send(self._orders)
            with contextlib.suppress(OSError):
                if told := ours.recv(32):
                    ours.send(GO)
                    return int(told)
        with self._lock:
            self._give_up("it forked no worker when it was asked to")
        return None

    def _hear(self) -> None:
        said = b""
        with contextlib.suppress(OSError):
            said = self._orders.recv(_MOST_BYTES)
        if said == b'""':
            self._verdict = ""
        else:
            self._give_up(json.loads(said) if said else "it ended while it imported")

    def _give_up(self, reason: str) -> None:
        self._verdict = reason
        self._process.kill()
        with contextlib.suppress(OSError), self._log.open("a") as log:
            log.write(f"gpuipc-doctor: no worker is forked from this stem: {reason}\n")

    def close(self, limit_s: float) -> None:
        """End it. Workers that it forked are not concerned."""
        self._orders.close()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(limit_s)


class Stems:
    """The stems of a run, whose logs are in ``directory``."""

    def __init__(self, directory: Path, run: str) -> None:
        self._directory = directory
        self._marker = with_room(f"{run}/stem")
        self._lock = threading.Lock()
        self._stems: dict[tuple[tuple[str, ...], frozenset[tuple[str, str]]], Stem] = {}
        # A process is killed with the thread that started it, so with one that lives as long as this.
        self._thread = ThreadPoolExecutor(1)

    def of(self, imports: Iterable[str], environment: Mapping[str, str]) -> Stem:
        """The stem with these imports and this environment."""
        names = tuple(sorted(imports))
        key = (names, frozenset(environment.items()))
        with self._lock:
            if key not in self._stems:
                self._stems[key] = self._thread.submit(self._start, names, environment).result()
            return self._stems[key]

    def _start(self, names: tuple[str, ...], environment: Mapping[str, str]) -> Stem:
        log = self._directory / f"{'-'.join(('stem', *names))}.log"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        isolated = ["-I"] if sys.flags.isolated else []
        with theirs, log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, *isolated, "-m", "gpuipc_doctor.worker.stem", str(theirs.fileno()), *names],
                cwd=self._directory,
                # OpenBLAS, which array libraries load, would start threads; they compute nothing here.
                env={**environment, "OPENBLAS_NUM_THREADS": "1", MARKER: self._marker},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        priority.carry_over(process.pid)
        return Stem(process, ours, log)

    def close(self, limit_s: float) -> None:
        for stem in self._stems.values():
            stem.close(limit_s)
        self._thread.shutdown()
