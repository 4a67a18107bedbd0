"""The running probes, on standard error if it is a terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from gpuipc_doctor.cli.stdio import can_redraw
from gpuipc_doctor.model import Result
from gpuipc_doctor.present.text import sanitise
from gpuipc_doctor.run.schedule import Watcher

if TYPE_CHECKING:
    from rich.table import Table

REFRESHES_PER_SECOND = 8

ENOUGH = 5
"""Finished probes from which the remaining time can be estimated."""


@contextmanager
def progress(stream: IO[str] | None = None) -> Iterator[Watcher]:
    """The display for ``stream`` (default: standard error): silent if the stream cannot be redrawn."""
    stream = stream or sys.stderr
    if not can_redraw(stream):
        yield Silent()
        return
    from rich.console import Console
    from rich.live import Live

    display = Display()
    with Live(
        get_renderable=display.table,
        console=Console(file=stream),
        refresh_per_second=REFRESHES_PER_SECOND,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ):
        yield display


class Silent:
    """Shows nothing, because a redrawn display is useless in a log file."""

    def planned(self, total: int) -> None: ...
    def started(self, key: str, text: str, deadline_s: float) -> None: ...
    def finished(self, key: str) -> None: ...
    def concluded(self, result: Result) -> None: ...


class Display(Silent):
    """Counts finished probes and shows a line for each running one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = 0
        self._done = 0
        self._began = 0.0
        self._running: dict[str, tuple[str, float, float]] = {}

    def planned(self, total: int) -> None:
        with self._lock:
            self._done, self._total, self._began = 0, total, time.monotonic()

    def started(self, key: str, text: str, deadline_s: float) -> None:
        with self._lock:
            self._running[key] = (sanitise(text), time.monotonic(), deadline_s)

    def finished(self, key: str) -> None:
        with self._lock:
            if self._running.pop(key, None):
                self._done += 1

    def table(self) -> Table:
        """The lines to show now."""
        from rich.table import Table
        from rich.text import Text

        with self._lock:
            done, total, began = self._done, self._total, self._began
            running = list(self._running.values())
        now = time.monotonic()
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True, overflow="ellipsis")
        table.add_column(justify="right", no_wrap=True)
        table.add_column(no_wrap=True)
        if total:
            # Probes that failed in a tour are repeated: more run than were planned.
            said = f"{done}/{max(total, done + len(running))} probes done"
            if done >= ENOUGH and done < total:
                said += f", about {(now - began) * (total - done) / done:.0f} s left"
        else:
            said = "looking for devices"
        table.add_row(Text(said))
        for text, since, deadline_s in running:
            table.add_row(Text(text), f"{now - since:.1f} s", f"deadline {deadline_s:g} s a call")
        return table
