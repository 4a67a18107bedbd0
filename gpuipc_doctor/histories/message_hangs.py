"""Which of several hung ranks caused the hang: the rank that waits for no other rank.

A rank may block in a valid operation because its partner hangs before the matching one, so the earliest
pending operation of a history need not be the cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

from gpuipc_doctor.histories.message_operations import OF_ALL
from gpuipc_doctor.histories.message_performer import END, Steps
from gpuipc_doctor.histories.message_state import Message, Part
from gpuipc_doctor.probe_types import ProbeOutcome, Reached, RoleOutcome

_LOCAL = frozenset({"isend", "issend", "irecv", "start"})
"""Operations that return before their messages are matched."""


def lost(ended: ProbeOutcome, steps: Callable[[int], Steps]) -> RoleOutcome:
    """The hung rank whose operation could have completed; if there are several, the first in the history.

    A rank in a call of the GPU's driver comes first: that call waits for no other rank. ``steps`` returns the
    operations of the launch's history with the given index. At least one rank must have hung.
    """
    steps = cache(steps)
    pending = {
        process: (role, role.reached)
        for process, role in enumerate(ended.roles.values(), 1)
        if role.operation and role.reached
    }

    def waits(role: RoleOutcome, reached: Reached, process: int) -> bool:
        needs = (
            [(other, reached.at) for other in pending]
            if _is_collective(role)
            else _matching(process, reached.do, steps(reached.trying)[reached.at][1].parts)
        )
        return any(pending[by][1][:2] < (reached.trying, needed) for by, needed in needs if by in pending)

    def order(process: int) -> tuple[bool, bool, tuple[int, int], bool]:
        role, reached = pending[process]
        is_of_mpi = role.operation.startswith("MPI_")
        return is_of_mpi, waits(role, reached, process), reached[:2], _is_collective(role)

    return pending[min(pending, key=order)][0]


def is_last_wait(role: RoleOutcome) -> bool:
    """Whether the rank has performed its part of the history and waits for a request that is still
    pending."""
    return _do(role) == END and role.operation == "MPI_Wait"


def _is_collective(role: RoleOutcome) -> bool:
    do = _do(role)
    return do in OF_ALL or (do == END and not is_last_wait(role))


def _do(role: RoleOutcome) -> str:
    return role.reached.do if role.reached else ""


def _matching(process: int, do: str, parts: tuple[Part, ...]) -> Iterator[tuple[int, int]]:
    """Process and index of each operation without which this one cannot complete."""
    if do in _LOCAL or do == END:
        return
    for part in parts:
        message = part if isinstance(part, Message) else part.message
        assert message is not None
        if message is part and message.sent.by == process and message.receive:
            yield message.receive.posted.by, message.receive.at
        else:
            yield message.sent.by, message.at
