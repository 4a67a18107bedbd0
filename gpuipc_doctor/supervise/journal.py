"""The journal: what a worker is about to do, written down before it does it.

A worker appends one JSON line for each event to a file that only its supervisor reads. A line is a single
`write`, so it is there when the next call hangs, crashes or is killed. Times are `time.monotonic()`
seconds, which all processes of a node share.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpuipc_doctor.model import Calls, Json

CANNOT_WRITE = os.EX_IOERR
"""The exit code of a worker that cannot write down what it does, and so does nothing more."""

PROCESS_EXIT = "process exit"
"""The operation that is armed last, and stays so."""

MPI_PREFIX = "MPI_"
"""How the operations begin that are MPI calls."""

_line = json.JSONEncoder(separators=(",", ":")).encode
"""Made once: `json.dumps` makes an encoder each time that it is told how to separate."""


def add(returned: dict[str, Calls], calls: Calls) -> None:
    """Add calls to those of the same operation."""
    so_far = returned.get(calls.operation, Calls(calls.operation, 0, 0.0))
    count, seconds = so_far.count + calls.count, so_far.seconds + calls.seconds
    returned[calls.operation] = Calls(calls.operation, count, seconds)


class Journal:
    """The worker's side."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._calls: Counter[str] = Counter()
        self._latest: dict[str, Json] = {}
        self._returned: dict[str, Calls] = {}

    def _write(self, event: str, **fields: Json) -> None:
        data = _line({"event": event, "at": time.monotonic(), **fields}).encode() + b"\n"
        try:
            is_written = os.write(self._fd, data) == len(data)
        except OSError:  # the disk is full, or a driver has closed what is not its own
            is_written = False
        if not is_written:
            os._exit(CANNOT_WRITE)  # an operation that has come back must not be taken for one that has not

    @contextmanager
    def armed(self, operation: str) -> Iterator[None]:
        """Blame what ends the process inside the block on ``operation``; an exception leaves it armed."""
        self._calls[operation] += 1
        self._latest = {"operation": operation, "occurrence": self._calls[operation]}
        self._write("armed", **self._latest)
        yield
        self._write("disarmed")

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        self._write("step", text=text)
        yield
        self._write("step", text="")

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside the block this role waits for its partner, and the clock does not run against it."""
        self._write("waiting")
        yield
        self._write("resumed")

    def record(self, facts: dict[str, Json]) -> None:
        self._write("record", facts=facts)

    def add_returned(self, calls: Calls) -> None:
        """Count calls that returned in a process which this role started."""
        add(self._returned, calls)

    def tell_returned(self) -> None:
        """Write down what `add_returned` counted."""
        for calls in self._returned.values():
            self._write("returned", **asdict(calls))

    def begin_anew(self) -> None:
        """Forget what was written, so that a worker that goes on and on does not fill the disk."""
        os.ftruncate(self._fd, 0)
        self._write("disarmed")  # the reader may have missed that the last operation came back

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Arm other operations in the block, and then the one again that has failed."""
        failed = self._latest
        yield
        self._write("armed", **failed)

    def dying(self) -> None:
        """The process is about to end itself by a signal, as its procedure asks."""
        self._write("dying")


@dataclass
class Progress:
    """The supervisor's side: what the journal says so far. ``read`` takes in what was appended since."""

    path: Path
    same_clock: bool = True
    """Whether the writer's clock is ours. Another node's is taken to show ours when its first line comes."""
    started: bool = False
    operation: str = ""
    """The armed operation; empty when nothing is armed."""
    occurrences: dict[str, int] = field(default_factory=dict)
    """How often each operation has been armed."""
    returned: dict[str, Calls] = field(default_factory=dict)
    """The calls that came back, by operation."""
    step: str = ""
    waiting: bool = False
    dying: bool = False
    first_at: float = 0.0
    last_at: float = 0.0
    records: dict[str, Json] = field(default_factory=dict)
    _armed_at: float = 0.0
    _ahead: float = 0.0
    """Seconds that the writer's clock is ahead of ours."""
    _offset: int = 0

    @property
    def is_in_mpi(self) -> bool:
        """Whether an MPI call is armed."""
        return self.operation.startswith(MPI_PREFIX)

    @property
    def mpi_calls(self) -> int:
        """How many MPI calls have been armed."""
        return sum(count for name, count in self.occurrences.items() if name.startswith(MPI_PREFIX))

    def read(self) -> None:
        """Follow the file; a line that is not complete yet waits for the next call."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        for line in complete.decode(errors="replace").splitlines():  # once, and not for each line
            with contextlib.suppress(json.JSONDecodeError):  # torn: the disk was full
                self._apply(json.loads(line))

    def begin_anew(self) -> None:
        """The worker has begun its journal anew: read it from its start."""
        self._offset = 0

    def _apply(self, line: dict[str, Any]) -> None:
        if not self.started and not self.same_clock:
            self._ahead = line["at"] - time.monotonic()
        at = line["at"] - self._ahead
        if not self.started:
            self.started, self.first_at = True, at
        self.last_at = at
        match line["event"]:
            case "armed":
                self.operation = line["operation"]
                self.occurrences[line["operation"]] = line["occurrence"]
                self._armed_at = at
            case "disarmed":
                if self.operation:
                    add(self.returned, Calls(self.operation, 1, at - self._armed_at))
                self.operation = ""
            case "returned":
                add(self.returned, Calls(line["operation"], line["count"], line["seconds"]))
            case "step":
                self.step = line["text"]
            case "waiting" | "resumed":
                self.waiting = line["event"] == "waiting"
            case "record":
                self.records.update(line["facts"])
            case "dying":
                self.dying = True
