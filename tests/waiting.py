"""Wait for what a test is about: for a condition, never for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LIMIT_S = 500.0
"""Longer than any load makes anything take, and short of the limit of a test."""


LOAD_S = 20.0
"""What a busy machine may add to seconds that are promised, where what is ended would else last for ever. How
well the promise is kept, benchmarks/reliability.py shows."""


def until(what: str, look: Callable[[], T], limit_s: float = LIMIT_S) -> T:
    """What ``look`` returns as soon as that is true of it; an assertion fails after ``limit_s``."""
    end = time.monotonic() + limit_s
    while not (seen := look()):
        assert time.monotonic() < end, f"after {limit_s} s still not: {what}"
        time.sleep(0.02)
    return seen
