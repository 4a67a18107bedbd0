"""The running probes, on standard error if it is a terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from gpuipc_doctor.cli.seconds import OTHERS_PROBE_S, PROBE_S
from gpuipc_doctor.cli.stdio import can_redraw
from gpuipc_doctor.present.text import sanitise, shorten
from gpuipc_doctor.report_types import Result
from gpuipc_doctor.run.request import Watcher

REFRESHES_PER_SECOND = 8

GAP = 2
"""Columns between two columns of a table."""

ENOUGH = 5
"""Finished probes from which this node's pace counts, not that of the node of `PROBE_S`."""


@contextmanager
def progress(stream: IO[str] | None = None) -> Iterator[Watcher]:
    """The display for ``stream`` (default: standard error): silent if the stream cannot be redrawn."""
    stream = stream or sys.stderr
    if not can_redraw(stream):
        yield Silent()
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    display, console = Display(), Console(file=stream)
    with Live(
        get_renderable=lambda: Text(display.text(console.width), no_wrap=True, overflow="ellipsis"),
        console=console,
        refresh_per_second=REFRESHES_PER_SECOND,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ):
        yield display


class Silent:
    """Shows nothing, because a redrawn display is useless in a log file."""

    def planned(self, checks: Sequence[str]) -> None: ...
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
        self._left_s = self._done_s = 0.0
        """Seconds that the probes would take on the measured node, of those to do and done."""
        self._running: dict[str, tuple[str, float, float]] = {}

    def planned(self, checks: Sequence[str]) -> None:
        with self._lock:
            self._done, self._total, self._began = 0, len(checks), time.monotonic()
            self._left_s, self._done_s = sum(map(_took_s, checks)), 0.0

    def started(self, key: str, text: str, deadline_s: float) -> None:
        with self._lock:
            self._running[key] = (sanitise(text), time.monotonic(), deadline_s)

    def finished(self, key: str) -> None:
        with self._lock:
            if self._running.pop(key, None):
                self._done += 1
                self._done_s += _took_s(key.partition(" ")[0])

    def text(self, width: int) -> str:
        """The lines to show now, in a terminal with this number of columns."""
        from tabulate import tabulate

        with self._lock:
            done, total, began = self._done, self._total, self._began
            left_s, done_s = max(self._left_s - self._done_s, 0.0), self._done_s
            running = list(self._running.values())
        now = time.monotonic()
        if not total:
            head = "looking for devices"
        elif done >= total:  # probes that failed in a tour are repeated, and failures are rerun
            head = f"{total} probes done, {'repeating what failed' if running else 'concluding'}"
        else:
            pace = (now - began) / done_s if done >= ENOUGH else 1.0
            head = f"{done}/{total} probes done, about {max(left_s * pace, 1):.0f} s left"
        if not running:
            return head
        names, since, deadlines_s = zip(*running, strict=True)
        times = [f"{now - began:.1f} s" for began in since]
        limits = [f"deadline {limit_s:g} s a call" for limit_s in deadlines_s]
        room = width - sum(max(map(len, column)) + GAP for column in (times, limits))
        short = [shorten(name, max(room, 1)) for name in names]
        rows, aligned = list(zip(short, times, limits, strict=True)), ("left", "right", "left")
        return f"{head}\n{tabulate(rows, tablefmt='plain', colalign=aligned, disable_numparse=True)}"


def _took_s(check: str) -> float:
    return PROBE_S.get(check, OTHERS_PROBE_S)
