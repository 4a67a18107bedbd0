"""When this process started, on a clock that nobody can set."""

from __future__ import annotations

import os
import time

MAX_AGE_S = 60.0
"""Nothing of ours takes longer to get here; an older start is that of something that became us by exec."""


def started_at() -> float:
    """`time.monotonic()` seconds at which this process was started, so that Python's own start counts.

    ``/proc/self/stat`` has it in ticks since boot (proc_pid_stat(5), field 22), which is CLOCK_BOOTTIME.
    Where it makes no sense, it is now.
    """
    now = time.monotonic()
    try:
        with open("/proc/self/stat", "rb") as file:  # noqa: PTH123 - each import counts here
            fields = file.read().rpartition(b")")[2].split()
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return now
    return now - age_s if 0 <= age_s <= MAX_AGE_S else now
