"""What the kernel's log says: of processes that were killed for lack of memory, and of GPUs' errors (Xid).

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

_RECORD = re.compile(rb"^\d+,(\d+),(\d+),[^;\n]*;([^\n]*)", re.MULTILINE)
_TELLING = re.compile(
    rb"Out of memory: Killed process|oom-kill:|Memory cgroup out of memory|NVRM: Xid|amdgpu.*(?:hang|reset)"
)
_LOADING = re.compile(rb"^NVRM: loading NVIDIA UNIX")
_XID = re.compile(rb"^NVRM: Xid \(PCI:([0-9a-fA-F:]+)[^)]*\): (\d+)")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def since(started_ticks: int) -> tuple[str, ...]:
    """The last lines since a process started (clock ticks since boot); empty if the log cannot be read."""
    begin = started_ticks * 1_000_000 // _TICKS_PER_S
    found = [text for _, at, text in _records(LOG) if at >= begin and _TELLING.search(text)]
    return tuple(f"kernel log: {text.decode(errors='replace')}" for text in found[-MOST_LINES:])


Xids = dict[str, list[tuple[int, str]]]


def of_nvidia(log: Path, after: int = -1) -> tuple[Xids, float | None, int | None]:
    """(PCI address without function → numbers and texts of its Xids since the driver was loaded, after this
    record of the log; seconds from boot to the loading, None if the log no longer has that; number of the
    log's last record, None if it cannot be read)."""
    xids: Xids = {}
    loaded_s = None
    records = _records(log)
    for record, at, text in records:
        if _LOADING.match(text):
            xids, loaded_s = {}, at / 1e6
        elif record > after and (found := _XID.match(text)):
            said = int(found[2]), text.decode(errors="replace")
            xids.setdefault(found[1].decode().lower(), []).append(said)
    return xids, loaded_s, records[-1][0] if records else None


def _records(file: Path) -> list[tuple[int, int, bytes]]:
    """(number, microseconds since boot, text) of the records that the log still has."""
    parts: list[bytes] = []
    with suppress(OSError):  # not root, a container, or the end of the log (EAGAIN)
        log = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            while len(parts) < MOST_RECORDS:
                try:
                    raw = os.read(log, 8192)
                except BrokenPipeError:  # a record was overwritten meanwhile
                    continue
                if not raw:
                    break
                parts.append(raw)
        finally:
            os.close(log)
    return [(int(record[1]), int(record[2]), record[3]) for record in _RECORD.finditer(b"".join(parts))]
