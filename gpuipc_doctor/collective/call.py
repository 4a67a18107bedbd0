"""A rank's call of a collective, as any source reports it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """How far a rank is with a collective. The value is written into documents."""

    NOT_JOINED = "not joined"
    """The rank has not joined the communicator."""
    NOT_CALLED = "not called"
    QUEUED = "queued"
    """Called, and not known to be complete."""
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A rank's call of a collective in one communicator."""

    rank: int
    operation: str = ""
    """The operation's name in the source's spelling, such as ``ALLREDUCE`` or ``all_reduce``."""
    group: str = ""
    """The communicator (process group)."""
    number: int | None = None
    """The call's number in the order of its communicator; None if the source does not count."""
    sizes: str = ""
    state: State = State.QUEUED
    where: str = ""
    """The program's frame that made the call."""
    seconds: float | None = None
    """Seconds for which the rank has waited in the call."""


def plain(operation: str) -> str:
    """An operation's name without the spelling of its source: ``allreduce`` for ``nccl:all_reduce``."""
    return re.sub(r"[^a-z0-9]", "", operation.rpartition(":")[2].removeprefix("MPI_").lower())
