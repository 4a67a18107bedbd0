"""What a role tells while it runs: JSON lines through a named pipe in the probe's directory.

A check needs none of this, for what a role found out is in its journal when it has ended. It is for a probe
that goes on until somebody has seen enough.
"""

from __future__ import annotations

import json
import os
import select
from collections.abc import Callable
from pathlib import Path

from gpuipc_doctor.model import Json

Listener = Callable[[Json], None]


class Inbox:
    """Reads the pipe at ``path``, which it makes, and hands each value to ``listener``."""

    def __init__(self, path: Path, listener: Listener) -> None:
        os.mkfifo(path, 0o600)
        # For writing, too: without a writer it would be at its end, and never wait.
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._listener = listener
        self._unread = b""

    def wait(self, limit_s: float) -> bool:
        """Wait until something is told or the time is over, and hand on what there is; says whether."""
        if not select.select([self._pipe], [], [], limit_s)[0]:
            return False
        *lines, self._unread = (self._unread + os.read(self._pipe, 1 << 20)).split(b"\n")
        for line in lines:
            self._listener(json.loads(line))
        return True

    def close(self) -> None:
        os.close(self._pipe)
