"""Whether a thread in one function advances: a number in its registers or on its stack rises or falls.

A loop that ends has something that goes one way: a counter, an address, a sum. Samples of a waiting loop show
the same few values. An endless loop may count as well: such a thread is only perhaps not stuck.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from pathlib import Path

from gpuipc_doctor.job.processes import Stat
from gpuipc_doctor.node_files import quietly

MOST_BYTES = 16 << 10
"""Bytes of the main thread's outer stack frames. Those of the loops around a kernel are there."""

ONE_WAY = 8
"""Changes in one direction, one after the other, of a number that counts. A loop within another one restarts
each time. In 100 random numbers as many are chance in 0.05 % (nine in order: 2 in 9! each).
"""

FEWEST_EQUAL = 3
"""Changes of a slow counter, all by the same step."""


def counts(values: Sequence[int]) -> bool:
    """Whether a number, in order of time, goes up or goes down for a while."""
    steps = [later - earlier for earlier, later in pairwise(values) if later != earlier]
    runs = groupby(step > 0 for step in steps)
    longest = max((len(list(run)) for _, run in runs), default=0)
    return longest >= ONE_WAY or (len(steps) >= FEWEST_EQUAL and len({*steps}) == 1)


def any_counts(samples: Iterable[Sequence[int]]) -> bool:
    """Whether any number does, of samples that each have the same numbers in the same places."""
    return any(len({*values}) > FEWEST_EQUAL and counts(values) for values in zip(*samples, strict=False))


def outer_stack(pid: int) -> array[int]:
    """The outer end of the main thread's stack, as numbers of 32 bits. Raises `OSError`."""
    begin = Stat(quietly(Path(f"/proc/{pid}/stat"))).stack_begin
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        return array("I", os.pread(memory.fileno(), MOST_BYTES, begin - MOST_BYTES))
