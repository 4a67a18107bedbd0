"""One rank of a history: performs its operations and compares received data."""

from __future__ import annotations

from collections.abc import Sequence

from gpuipc_doctor.histories.message_operations import OF_ALL, TYPES
from gpuipc_doctor.histories.message_rank import Rank
from gpuipc_doctor.histories.message_state import Expected
from gpuipc_doctor.histories.operations import Operation

END = "end"
"""Recorded in place of an operation by a rank that has performed all of its part."""

Steps = Sequence[tuple[Operation, Expected]]


class Performer(Rank):
    """A rank that performs histories."""

    def perform(self, steps: Steps, first: int = 0) -> None:
        """Perform this rank's part of ``steps``, which start at index ``first`` of its history."""
        for at, (operation, expected) in enumerate(steps, first):
            if operation.by == self.me or operation.do in OF_ALL:
                self.at, self.do = at, operation.do
                self.worker.reach(self.trying, at, operation.do)
                TYPES[operation.do].perform(self, operation, expected)
        self.at = first + len(steps) - 1
        self.worker.reach(self.trying, self.at, END)

    def end(self) -> None:
        """Complete pending requests and release all objects.

        Before each wait, the operation that began the request is recorded, to attribute a hang or wrong data
        to this operation.
        """
        ended_at = self.at
        for number, parts in list(self.parts.items()):
            self.at = parts[0].at
            self.worker.reach(self.trying, ended_at, END, self.at)
            self.complete_request("MPI_Wait", self.requests[number].Wait, number, Expected(parts))
        self.release()
