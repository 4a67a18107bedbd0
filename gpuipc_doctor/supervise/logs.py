"""Keep what workers and launchers print within bounds: they may print without end, into the node's memory."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

MAX_BYTES = 64 << 20
"""A log that has grown beyond it loses its middle."""

KEPT_BYTES = 8 << 20
"""What then stays of each end."""

EVERY_S = 0.2


@contextmanager
def bounded(directory: Path) -> Iterator[None]:
    """Until the block is left, and when it is, see that no log in the directory is too large.

    Whoever writes a log must append (``O_APPEND``), so that he goes on at its new end. Ranks on other nodes
    write through a file system that may learn of that end late: for theirs the bound is a rough one.
    """
    over = threading.Event()

    def watch() -> None:
        last = False
        while not last:
            last = over.wait(EVERY_S)
            with contextlib.suppress(OSError):
                for log in directory.glob("*.log"):
                    if log.stat().st_size > MAX_BYTES:
                        _leave_out_the_middle(log)

    with ThreadPoolExecutor(1) as thread:  # not the supervisor's own, which is busy while it takes evidence
        watching = thread.submit(watch)
        try:
            yield
        finally:
            over.set()
    watching.result()


def _leave_out_the_middle(log: Path) -> None:
    with log.open("rb+", buffering=0) as file:
        file.seek(-KEPT_BYTES, os.SEEK_END)
        end = b""
        for _ in range(8):  # it may grow faster than it is read; else the last words are in time
            if not (more := file.read(KEPT_BYTES)):
                break
            end = (end + more)[-KEPT_BYTES:]
        file.truncate(KEPT_BYTES)
    with log.open("ab") as file:
        file.write(b"\ngpuipc-doctor: the middle of this log is left out\n" + end)
