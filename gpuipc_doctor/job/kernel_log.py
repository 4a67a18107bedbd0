"""What the kernel's log says of processes that ended: killed for lack of memory, or a GPU's error (Xid).

``/dev/kmsg`` gives a record at each read: ``priority,number,microseconds since boot,flags;text`` (Linux,
Documentation/ABI/testing/dev-kmsg).
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

LOG = Path("/dev/kmsg")
MOST_RECORDS = 1 << 17
MOST_LINES = 3

_RECORD = re.compile(rb"\d+,\d+,(\d+),[^;]*;([^\n]*)")
_TELLING = re.compile(
    rb"Out of memory: Killed process|oom-kill:|Memory cgroup out of memory|NVRM: Xid|amdgpu.*(?:hang|reset)"
)
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def since(started_ticks: int) -> tuple[str, ...]:
    """The last lines since a process started (clock ticks since boot); empty if the log cannot be read."""
    begin = started_ticks * 1_000_000 // _TICKS_PER_S
    found = [text for at, text in _records() if at >= begin and _TELLING.search(text)]
    return tuple(f"kernel log: {text.decode(errors='replace')}" for text in found[-MOST_LINES:])


def _records() -> list[tuple[int, bytes]]:
    """(microseconds since boot, text) of the records that the log still has."""
    records: list[tuple[int, bytes]] = []
    with suppress(OSError):  # not root, a container, or the end of the log (EAGAIN)
        log = os.open(LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            while len(records) < MOST_RECORDS:
                try:
                    raw = os.read(log, 8192)
                except BrokenPipeError:  # a record was overwritten meanwhile
                    continue
                if not raw:
                    break
                if record := _RECORD.match(raw):
                    records.append((int(record[1]), record[2]))
        finally:
            os.close(log)
    return records
