"""Calls of all ranks that take time: requests started many times, two threads at once, after idling."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from threading import Thread

from gpuipc_doctor.histories.mpi.group_calls import SENDRECV, Buffers, Case, GroupCalls

STARTS = 60
"""Starts of a persistent request."""

PARTS = 4
"""Parts of a partitioned message."""

IDLE_S = 2.5

NBYTES = 65_536


def perform_in_soak(group: GroupCalls, call: str) -> bool:
    """Perform one of `SOAK_CALLS`; returns whether this library has it."""
    try:
        SOAK_CALLS[call](group)
    except NotImplementedError:  # mpi4py: the library lacks the function
        return False
    return True


def _start_often(group: GroupCalls) -> None:
    """A ring of persistent requests."""


SOAK_CALLS: Mapping[str, Callable[[GroupCalls], None]] = {}
