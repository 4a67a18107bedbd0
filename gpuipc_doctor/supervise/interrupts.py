"""What ends a run from outside."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interruptible(interrupt: Callable[[], None]) -> Iterator[None]:
    """Have Ctrl-C, SIGTERM and a lost terminal call ``interrupt`` and do no more."""
    before = {number: signal.signal(number, lambda *_: interrupt()) for number in INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
