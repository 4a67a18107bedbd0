"""Who goes first on a busy node."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def carry_over(pid: int | None = None) -> None:
    """Have the session that ``pid`` leads, or that we lead, scheduled by our niceness, if we may go first.

    Linux schedules sessions as groups, and the niceness of a process counts within its group alone; that of
    a new session's group is 0 (sched(7), "The autogroup feature"). It takes root, and where the kernel does
    not group sessions there is no such file.
    """
    if (niceness := os.getpriority(os.PRIO_PROCESS, 0)) < 0:
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid or 'self'}/autogroup").write_text(str(niceness))
