"""A worker's own Python stack, while it hangs in a call."""

from __future__ import annotations

import contextlib
import faulthandler
import time


class StackTimer:
    """Has every Python thread's stack written to a file when one operation takes nearly its deadline.

    `faulthandler` does it from a thread of its own that needs no interpreter lock and sends no signal, so
    it works while a C call hangs and does not wake that call. Arming it starts a thread, so it is renewed
    at most eight times in a deadline: the stack is taken between 70 % and 95 % of the deadline.
    """

    def __init__(self, file: int, deadline_s: float) -> None:
        self._file = file
        self._timeout_s = deadline_s * 0.95
        self._renew_s = deadline_s / 8
        self._set_at = 0.0

    def rest(self) -> None:
        """Until it is renewed: who waits for his turn has no deadline."""
        faulthandler.cancel_dump_traceback_later()
        self._set_at = 0.0

    def renew(self) -> None:
        now = time.monotonic()
        if now - self._set_at > self._renew_s:
            with contextlib.suppress(RuntimeError):  # no thread to be had: then there is no stack
                faulthandler.dump_traceback_later(self._timeout_s, file=self._file)
            self._set_at = now
