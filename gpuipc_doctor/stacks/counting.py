"""Whether a thread in one function advances: a number in its registers or on its stack rises or falls.

A loop that ends changes some number in one direction: a counter, an address, a sum. In a waiting loop,
numbers repeat a few values. An endless loop may also count, so a thread that counts may still be stuck.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from pathlib import Path

from gpuipc_doctor.files.node_files import quietly
from gpuipc_doctor.stacks.proc_files import Stat

MOST_BYTES = 16 << 10
"""Bytes read of the main thread's outermost frames, which include the program's loops."""

ONE_WAY = 8
"""Number of successive changes in one direction after which a number counts. The counter of an inner loop
changes direction sooner, because that loop restarts. If 100 numbers are random, the chance that one of them
counts is 0.05 % (100 × 2/9!)."""

_INTEGER = re.compile(r"-?\d{1,18}")
_FRACTION = re.compile(r"-?\d{1,18}\.\d{1,18}")
_TEXT = ("'", '"', "b'", 'b"')

FEWEST_EQUAL = 3
"""A number that seldom changes counts if it changes at least this often, always by the same amount."""


def counts(values: Sequence[int]) -> bool:
    """Whether a number's ``values``, in order of time, keep rising or falling."""
    steps = [later - earlier for earlier, later in pairwise(values) if later != earlier]
    runs = groupby(step > 0 for step in steps)
    longest = max((len(list(run)) for _, run in runs), default=0)
    return longest >= ONE_WAY or (len(steps) >= FEWEST_EQUAL and len({*steps}) == 1)


def goes_on(values: Sequence[str]) -> bool:
    """Whether a Python variable's ``values``, in order of time, are those of a loop that ends: integers that
    count, or many different texts or fractions, such as the lines of a list. Fractions that only rise or only
    fall may be a clock's. Of a running program some values are misread."""
    texts = {value for value in values if value.startswith(_TEXT)}
    fractions = [float(value) for value in values if _FRACTION.fullmatch(value)]
    is_clock = fractions in (sorted(fractions), sorted(fractions, reverse=True))
    return (
        counts([int(value) for value in values if _INTEGER.fullmatch(value)])
        or len(texts) >= ONE_WAY
        or (len({*fractions}) >= ONE_WAY and not is_clock)
    )


def any_counts(samples: Iterable[Sequence[int]]) -> bool:
    """Whether any number keeps rising or falling; a number's values are at the same index in every sample."""
    return any(len({*values}) > FEWEST_EQUAL and counts(values) for values in zip(*samples, strict=False))


def outer_stack(pid: int) -> array[int]:
    """The outer end of the main thread's stack, as 32-bit numbers. Raises `OSError`."""
    begin = Stat(quietly(Path(f"/proc/{pid}/stat"))).stack_begin
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        return array("I", os.pread(memory.fileno(), MOST_BYTES, begin - MOST_BYTES))
