"""The journal: a worker writes what it is about to do before doing it.

For each event a worker appends one JSON line to a file that only its supervisor reads. A line is a single
`write`, so it is complete when the next call hangs, crashes or is killed. Times are `time.monotonic()`
seconds, which all processes of a node share.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from gpuipc_doctor.model import Json
from gpuipc_doctor.probe_types import Calls

CANNOT_WRITE = os.EX_IOERR
"""Exit code of a worker that cannot write its journal."""

PROCESS_EXIT = "process exit"
"""The operation that is armed from the return of the role function until the process has ended."""

MPI_PREFIX = "MPI_"
"""Prefix of operations that are MPI calls."""

COLLECTIVE_PREFIX = "nccl"
"""Prefix of operations that are calls of NCCL or RCCL."""

OF_ONE_RANK = "ncclGetUniqueId"
"""The call of NCCL and RCCL that only one of the ranks makes."""

_line = json.JSONEncoder(separators=(",", ":")).encode
"""A shared encoder: with ``separators``, `json.dumps` would create an encoder for each call."""

_quoted = cache(_line)
"""An operation's name as JSON. A run arms 200,000 operations, so their lines are written without the encoder,
which took half the time of a call that does nothing, and without formatting a float."""


def add(returned: dict[str, Calls], calls: Calls) -> None:
    """Add the counts and seconds of other calls."""
    so_far = returned.get(calls.operation, Calls(calls.operation, 0, 0.0))
    count, seconds = so_far.count + calls.count, so_far.seconds + calls.seconds
    returned[calls.operation] = Calls(calls.operation, count, seconds)


class Journal:
    """The journal as the worker writes it."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._calls: Counter[str] = Counter()
        self._latest = ("", 0)
        self._returned: dict[str, Calls] = {}

    def _write(self, event: str, **fields: Json) -> None:
        self._append(_line({"event": event, "at": time.monotonic_ns() / 1e9, **fields}))

    def _append(self, line: str) -> None:
        data = line.encode() + b"\n"
        try:
            is_written = os.write(self._fd, data) == len(data)
        except OSError:  # the disk is full, or a driver has closed the journal's descriptor
            is_written = False
        if not is_written:
            os._exit(CANNOT_WRITE)  # a finished operation must not be taken for a running one

    def armed(self, operation: str) -> AbstractContextManager[None]:
        """Attribute the end of the process inside the block to ``operation``, which stays armed after an
        exception."""
        return _Armed(self, operation)

    def arm(self, operation: str) -> None:
        self._calls[operation] = occurrence = self._calls[operation] + 1
        self._arm(operation, occurrence)

    def _arm(self, operation: str, occurrence: int) -> None:
        self._latest = operation, occurrence
        begun = f'{{"event":"armed","at":{time.monotonic_ns()}e-9,"operation":{_quoted(operation)}'
        self._append(f'{begun},"occurrence":{occurrence}}}')

    def disarm(self) -> None:
        self._append(f'{{"event":"disarmed","at":{time.monotonic_ns()}e-9}}')

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        self._write("step", text=text)
        yield
        self._write("step", text="")

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Suspend this role's deadline inside the block, in which the role waits for its partner."""
        self._write("waiting")
        yield
        self._write("resumed")

    def record(self, facts: dict[str, Json]) -> None:
        self._write("record", facts=facts)

    def keep(self, name: str, value: Json, key: str | None = None) -> None:
        """Set a field of the role's `RoleOutcome`, or one ``key`` of a field that is a mapping."""
        self._write("keep", name=name, value=value, key=key)

    def add_returned(self, calls: Calls) -> None:
        """Count calls that returned in a process started by this role."""
        add(self._returned, calls)

    def tell_returned(self) -> None:
        """Write the counts of `add_returned` to the journal."""
        for calls in self._returned.values():
            self._write("returned", **asdict(calls))

    def begin_anew(self) -> None:
        """Truncate the journal, so that a long-running worker does not fill the disk."""
        os.ftruncate(self._fd, 0)
        self.disarm()  # the reader may have missed the end of the last operation

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Arm other operations in the block, and the failed operation again after it."""
        failed = self._latest
        yield
        self._arm(*failed)

    def leave(self) -> None:
        """Record that a visit is over, and close the journal; the process goes on with another visit."""
        self._write("visited")
        os.close(self._fd)

    def dying(self) -> None:
        """Record that the process is about to end itself by a signal, as part of its test."""
        self._write("dying")


class _Armed(AbstractContextManager[None]):
    """An armed operation. A generator would take twice as long."""

    __slots__ = ("_journal", "_operation")

    def __init__(self, journal: Journal, operation: str) -> None:
        self._journal = journal
        self._operation = operation

    def __enter__(self) -> None:
        self._journal.arm(self._operation)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._journal.disarm()


@dataclass
class Progress:
    """A worker's state as its supervisor reads it from the journal; ``read`` adds new lines."""

    path: Path
    same_clock: bool = True
    """Whether the writer uses this node's clock; otherwise the journal begins with the difference."""
    started: bool = False
    operation: str = ""
    """The armed operation; empty when nothing is armed."""
    returned_last: str = ""
    occurrences: dict[str, int] = field(default_factory=dict)
    """Number of times that each operation was armed."""
    returned: dict[str, Calls] = field(default_factory=dict)
    """Number of returned calls by operation."""
    step: str = ""
    waiting: bool = False
    dying: bool = False
    visited: bool = False
    """Whether the role has ended, in a process that goes on with another visit."""
    first_at: float = 0.0
    last_at: float = 0.0
    records: dict[str, Json] = field(default_factory=dict)
    kept: dict[str, Json] = field(default_factory=dict)
    """Field of `RoleOutcome` → its value, as the worker set it."""
    _armed_at: float = 0.0
    _ahead: float = 0.0
    """Seconds by which the writer's clock is ahead of ours."""
    _offset: int = 0

    @property
    def is_in_mpi(self) -> bool:
        """Whether the journalled operation in progress is an MPI call."""
        return self.operation.startswith(MPI_PREFIX)

    def made(self, operation: str) -> int:
        """Number of calls of this operation, also in processes that the worker started."""
        returned = self.returned.get(operation)
        return max(self.occurrences.get(operation, 0), returned.count if returned else 0)

    @property
    def mpi_calls(self) -> int:
        """Number of MPI calls that the worker began."""
        return sum(count for name, count in self.occurrences.items() if name.startswith(MPI_PREFIX))

    @property
    def makes_collectives(self) -> bool:
        """Whether the worker has called NCCL or RCCL."""
        return any(name.startswith(COLLECTIVE_PREFIX) for name in self.occurrences)

    @property
    def collective_calls(self) -> int:
        """Number of NCCL's or RCCL's calls that have returned, without the one that a single rank makes."""
        return sum(
            calls.count
            for name, calls in self.returned.items()
            if name.startswith(COLLECTIVE_PREFIX) and name != OF_ONE_RANK
        )

    def read(self) -> None:
        """Read appended lines; an incomplete line waits for the next call."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        for line in complete.decode(errors="replace").splitlines():  # once, and not for each line
            with contextlib.suppress(json.JSONDecodeError):  # truncated: the disk was full
                self._apply(json.loads(line))

    def begin_anew(self) -> None:
        """Read from the journal's start, because the worker has restarted its journal."""
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
                    self.returned_last = self.operation
                self.operation = ""
            case "returned":
                add(self.returned, Calls(line["operation"], line["count"], line["seconds"]))
            case "step":
                self.step = line["text"]
            case "waiting" | "resumed":
                self.waiting = line["event"] == "waiting"
            case "record":
                self.records.update(line["facts"])
            case "keep" if line["key"] is None:
                self.kept[line["name"]] = line["value"]
            case "keep":
                self.kept.setdefault(line["name"], {})[line["key"]] = line["value"]
            case "dying":
                self.dying = True
            case "visited":
                self.visited = True
