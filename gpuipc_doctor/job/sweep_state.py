"""The sweep's state: what was seen of each GPU in earlier calls, and reports of jobs that may be stuck.

All is in a directory that only this user can use. Times are seconds since boot (CLOCK_BOOTTIME), which nobody
can set; the state of another boot does not count.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gpuipc_doctor.files import private, reading
from gpuipc_doctor.model import Exit
from gpuipc_doctor.report import json_documents
from gpuipc_doctor.report.json_documents import BadDocument

if TYPE_CHECKING:
    from gpuipc_doctor.job.document import JobReport

FILE = "state.json"

MAX_BYTES, MAX_REPORT_BYTES = 1 << 18, 64 << 20

MAX_GPUS, MAX_USERS = 64, 32
"""Maximum number of GPUs, and of processes of a GPU, that are stored."""

KEPT = 20
"""Number of reports that are kept; the oldest go."""


@dataclass(frozen=True, slots=True)
class Watch:
    """What was seen of one GPU. ``users``: its processes, as ``PID.START`` (clock ticks since boot)."""

    users: tuple[str, ...] = ()
    kind: str = ""
    """How it looks stuck: ``busy``, ``idle``, ``blind`` (it has no figures); empty if it does not."""
    since: float = 0.0
    calls: int = 0
    """First call with this ``kind`` in a row, and number of these calls."""
    worked: bool = False
    """Whether it was seen at work while it had these users."""
    most_watts: float = 0.0
    """The most that it drew in use by these users."""
    again: float = 0.0
    """Its job is not examined before this time."""
    healthy_watts: float = 0.0
    """What it drew when its job was found healthy; 0 if it was not."""
    code: Exit = Exit.OK
    line: str = ""
    report: str = ""
    """Exit code, line and file name of the last examination of a job that may be stuck."""
    examined: float = 0.0


@dataclass(frozen=True, slots=True)
class State:
    """What was seen of each GPU, by PCI address, since a boot."""

    boot: str
    gpus: dict[str, Watch]
    format: Literal[1] = 1


class Unusable(Exception):
    """The state cannot be used; the message is one line with the reason."""


class Store:
    """The open and locked directory."""

    def __init__(self, directory: Path, within: int) -> None:
        self.directory, self._within = directory, within

    def read(self, boot: str) -> dict[str, Watch]:
        """PCI address → what was seen of this GPU since the boot. Raises `Unusable`."""
        try:
            data = private.read(FILE, MAX_BYTES, within=self._within)
        except FileNotFoundError:
            return {}
        except private.NotOurs as reason:
            raise Unusable(f"{self.directory}: {reason}") from None
        try:
            state = json_documents.load(State, json_documents.parse(data))
        except (BadDocument, AttributeError) as error:  # AttributeError: it is no object
            raise Unusable(f"{self.directory / FILE} is damaged or of another version: {error}") from None
        return state.gpus if state.boot == boot else {}

    def write(self, boot: str, watches: dict[str, Watch]) -> None:
        """Raises `Unusable`; the state is then as before."""
        state = State(boot, dict(list(watches.items())[:MAX_GPUS]))
        self._replace(FILE, json_documents.dumps(state).encode())

    def keep(self, report: JobReport) -> str:
        """Store a report under a new name, which is returned; remove the oldest. Raises `Unusable`."""
        from gpuipc_doctor.job import document

        numbers = sorted(self._numbers())
        name = f"job-{(numbers or [0])[-1] + 1:06d}.json"
        self._replace(name, document.dumps(report).encode())
        for number in numbers[: -KEPT + 1]:
            with suppress(FileNotFoundError):
                os.unlink(f"job-{number:06d}.json", dir_fd=self._within)
        return name

    def earlier(self, name: str) -> JobReport | None:
        """A report that was kept; None if it is gone or damaged."""
        from gpuipc_doctor.job import document

        with suppress(reading.Unreadable, BadDocument):
            return document.loads(reading.read(name, MAX_REPORT_BYTES, within=self._within, follow=False))
        return None

    def _numbers(self) -> Iterator[int]:
        for name in os.listdir(self._within):  # noqa: PTH208 - a descriptor
            if name.startswith("job-") and name.endswith(".json") and name[4:-5].isdecimal():
                yield int(name[4:-5])

    def _replace(self, name: str, data: bytes) -> None:
        try:
            private.replace(name, data, within=self._within)
        except (OSError, private.NotOurs) as error:
            raise Unusable(f"cannot write {self.directory / name}: {error}") from None


@contextmanager
def opened(directory: Path) -> Iterator[Store]:
    """The directory, created if needed. Raises `Unusable`, also if another sweep has it.

    The lock is of the open directory: processes that this one forks hold it until they end.
    """
    with ExitStack() as stack:
        try:
            within = stack.enter_context(private.directory(directory))
            fcntl.flock(within, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unusable("another sweep has not ended, or its reader hangs in the driver") from None
        except private.NotOurs as reason:
            raise Unusable(str(reason)) from None
        except OSError as error:
            cure = "run as root, or set sweep.state_dir in the site config"
            raise Unusable(f"cannot use {directory}: {error.strerror}; {cure}") from None
        yield Store(directory, within)
