"""Wait for conditions instead of fixed times."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LIMIT_S = 500.0
"""Longer than anything takes under load, but shorter than the time limit of a test."""


LOAD_S = 120.0
"""Seconds that a busy machine may add to a promised time, in tests where a missing end would last for ever.
With thirty processes on two processors they were more than 20.
benchmarks/reliability.py measures how well the promise is kept."""


def until(what: str, look: Callable[[], T], limit_s: float = LIMIT_S) -> T:
    """Call ``look`` until its result is true, and return the result; an assertion fails after ``limit_s``."""
    end = time.monotonic() + limit_s
    while not (seen := look()):
        assert time.monotonic() < end, f"after {limit_s} s still not: {what}"
        time.sleep(0.02)
    return seen
