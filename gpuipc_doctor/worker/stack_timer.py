"""Dump a worker's own Python stack while it hangs in a call."""

from __future__ import annotations

import contextlib
import faulthandler
import time


class StackTimer:
    """Writes every Python thread's stack to a file when an operation has nearly reached its deadline.

    `faulthandler` does so in a thread of its own, without the interpreter's lock and without signals, so it
    works during a hanging C call and does not wake it. Each arming starts such a thread. So the timer is
    armed at most eight times per deadline, and the stack is taken between 70 % and 95 % of the deadline.
    """

    def __init__(self, file: int, deadline_s: float) -> None:
        self._file = file
        self._timeout_s = deadline_s * 0.95
        self._renew_s = deadline_s / 8
        self._set_at = 0.0

    def rest(self) -> None:
        """Suspend the timer until renewed: a waiting worker has no deadline."""
        faulthandler.cancel_dump_traceback_later()
        self._set_at = 0.0

    def renew(self) -> None:
        now = time.monotonic()
        if now - self._set_at > self._renew_s:
            with contextlib.suppress(RuntimeError):  # no thread available: no stack then
                faulthandler.dump_traceback_later(self._timeout_s, file=self._file)
            self._set_at = now
