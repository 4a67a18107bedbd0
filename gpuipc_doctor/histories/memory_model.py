"""The reference model: which operations are legal, and what memory must contain."""

from __future__ import annotations

from gpuipc_doctor.histories.memory_operations import TYPES
from gpuipc_doctor.histories.memory_state import NOTHING, Expected, Process, State
from gpuipc_doctor.histories.operations import History, Operation

AT_ONCE = 2
"""Maximum processes that perform operations at the same time."""


class Model(State):
    """The state after some operations."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._group: dict[int, tuple[set[int], set[int]]] = {}
        """Process → (storages that it uses, storages that it changes) in operations that may run at the same
        time."""
        self._is_closed = False

    def illegal(self, op: Operation) -> str:
        """Why the operation is not valid now; empty if it is valid."""
        if op.by in self.ended or op.by not in self.plans:
            return f"process {op.by} has ended"
        if op.makes and op.makes in self.made:
            return f"object {op.makes} exists already"
        for number in {op.on, op.of} & self.things.keys():
            if self.things[number].storage.under_way and op.do != "wait-event":
                return f"the copy of {number} is under way"
        if self.device_of(op.by) != self.plans[op.by].device and not TYPES[op.do].anywhere:
            return "the current context is on another device"
        return TYPES[op.do].refuse(self, op)

    def apply(self, op: Operation) -> Expected:
        """Update the state for a valid operation; returns the expected data."""
        if op.by not in self.processes:
            self.processes[op.by] = Process(op.by, self.plans[op.by])
        if op.makes:
            self.made.add(op.makes)
        beside = op.beside and self.joins(op)
        if not beside and self._group.keys() != {op.by}:
            self._group, self._is_closed = {}, False
        used, changed = self._group.setdefault(op.by, (set(), set()))
        if TYPES[op.do].alone:
            self._is_closed = True  # nothing joins its process's operations, before or after it
        else:
            uses, changes = TYPES[op.do].touches(self, op)
            used |= uses
            changed |= changes
        expected = TYPES[op.do].apply(self, op) or NOTHING
        return expected._replace(beside=True) if beside else expected

    def joins(self, op: Operation) -> bool:
        """Whether this operation may begin while another process still performs the latest operations:
        neither process may change memory that the other uses."""
        others = [touched for by, touched in self._group.items() if by != op.by]
        if self._is_closed or not 0 < len(others) < AT_ONCE or TYPES[op.do].alone:
            return False
        uses, changes = TYPES[op.do].touches(self, op)
        return all(
            changes.isdisjoint(used) and changed.isdisjoint(changes) and changed.isdisjoint(uses)
            for used, changed in others
        )


def legal(history: History) -> list[Operation]:
    """The operations that remain valid when invalid ones are omitted."""
    model, kept = Model(history), list[Operation]()
    for op in history.operations:
        if not model.illegal(op):
            model.apply(op)
            kept.append(op)
    return kept
