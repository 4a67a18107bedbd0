"""Which operations are valid, and what each receive of a history must get.

Operations are listed in an order in which they can happen. While a rank waits for a later operation of
another rank, none of its own operations are listed, so no order of ranks and no buffering can cause a
deadlock.
"""

from __future__ import annotations

from gpuipc_doctor.histories.message_operations import TYPES
from gpuipc_doctor.histories.message_state import Expected, Part, Receive, State
from gpuipc_doctor.histories.operations import History, Operation


class Model(State):
    """The state after some operations of a history."""

    def illegal(self, op: Operation) -> str:
        """Why the operation is not valid now; empty if it is valid."""
        known = TYPES.get(op.do)
        if known is None:
            return f"unknown operation {op.do!r}"
        if known.of_all and self.blocked:
            return "another rank is blocked in an operation"
        if not known.of_all and op.by not in self.ranks:
            return f"no process {op.by}"
        if not known.of_all and op.by in self.blocked:
            return f"process {op.by} is blocked in its latest operation"
        return f"needs a new {known.new}" if known.new and not op.makes else known.refuse(self, op)

    def apply(self, op: Operation) -> Expected:
        """Update the state for a valid operation; returns its result, which a later match may complete."""
        expected = TYPES[op.do].apply(self, op) or Expected()
        self.at += 1
        self.blocked = {by: parts for by, parts in self.blocked.items() if not _complete(parts)}
        return expected

    def unmatched(self) -> set[int]:
        """Indices of the sends and receives without a match; a complete history has none."""
        taken = {message.at for message in self.matched.values()}
        return {part.at for part in self.waiting} | taken


def _complete(parts: tuple[Part, ...]) -> bool:
    """Complete these parts if all have their matches."""
    if not all(part.is_matched for part in parts):
        return False
    for part in parts:
        if isinstance(part, Receive):
            part.completed = True
    return True


def legal(history: History) -> list[Operation]:
    """The operations that remain valid after invalid and unmatched ones are omitted."""
    operations = list(history.operations)
    while True:
        model, kept = Model(history), list[Operation]()
        for operation in operations:
            if not model.illegal(operation):
                model.apply(operation)
                kept.append(operation)
        unmatched = model.unmatched()
        if not unmatched:
            return kept
        operations = [operation for place, operation in enumerate(kept) if place not in unmatched]
