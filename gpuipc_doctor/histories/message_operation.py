"""What an operation of message histories is: one class for each, with all that is known of it."""

from __future__ import annotations

from typing import ClassVar

from gpuipc_doctor.histories.message_rank import Rank
from gpuipc_doctor.histories.message_state import Expected, State
from gpuipc_doctor.histories.operations import Operation


class MessageOperation:
    """An operation of a rank: when it may happen, what it changes, how it is performed, said and printed in
    C. It is drawn by `message_draws`."""

    do: ClassVar[str]
    """Its name in histories."""
    says: ClassVar[str]
    """Its sentence, with the values of `message_steps`."""
    c: ClassVar[str]
    """Its C statements, with the values of `mpi_program`."""
    simpler: ClassVar[str] = ""
    """An operation with the same effect that a shrunk history should rather have."""
    of_all: ClassVar[bool] = False
    """Whether all ranks perform it together."""
    new: ClassVar[str] = ""
    """What it makes, besides a buffer; empty: nothing."""

    def refuse(self, m: State, op: Operation) -> str:
        """Why it is not valid now; empty if it is valid."""
        return ""

    def apply(self, m: State, op: Operation) -> Expected | None:
        """Update the state; returns the result, if there is one."""
        return None

    def perform(self, r: Rank, op: Operation, expected: Expected) -> None:
        """Perform this rank's part."""
        raise NotImplementedError(self.do)
