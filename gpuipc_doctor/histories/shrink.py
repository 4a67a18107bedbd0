"""The shortest history that still fails: parts are left out as long as what is left fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gpuipc_doctor.histories.model import FIRST_CONTEXT
from gpuipc_doctor.histories.operations import History, Operation

SMALLEST = 4096
"""Bytes to which allocations shrink, where the history still fails then."""

SIMPLER = {"read-in-thread": "read", "copy-across-streams": "copy"}
"""Operation → one that does the same with less."""

Fails = Callable[[Sequence[Operation]], Sequence[Operation] | None]
"""Performs what is legal of some operations; returns those up to the failing one, None where none failed."""


def shrink(failing: Sequence[Operation], fails: Fails, more: Callable[[], bool]) -> list[Operation]:
    """The shortest that was found while ``more`` said that there is time for another try."""
    shortest = _without_objects(_smaller(list(failing), fails, more), fails, more)
    size = max(len(shortest) // 2, 1)
    while more():
        before = len(shortest)
        shortest = _without_parts(shortest, size, fails, more)
        if size > 1:
            size //= 2
        elif len(shortest) == before:
            break
    shortest = _simpler(shortest, fails, more)
    shortest = _without_parts(_fewer_objects(shortest, fails, more), 1, fails, more)
    return _smaller(shortest, fails, more)


def _without_objects(operations: list[Operation], fails: Fails, more: Callable[[], bool]) -> list[Operation]:
    """Leave out objects, half of them, then a quarter …; what is done with them is not legal then."""
    objects = [operation.makes for operation in operations if operation.makes]
    size = len(objects) // 2
    while size and more():
        for begin in reversed(range(0, len(objects), size)):
            tried = set(objects[begin : begin + size])
            kept = [operation for operation in operations if operation.makes not in tried]
            if len(kept) < len(operations) and more() and (shorter := fails(kept)) is not None:
                operations = list(shorter)
        objects = [operation.makes for operation in operations if operation.makes]
        size = min(size, len(objects)) // 2
    return operations


def _without_parts(
    operations: list[Operation], size: int, fails: Fails, more: Callable[[], bool]
) -> list[Operation]:
    """Leave out parts of so many operations, from the end on: the failing operation's needs stand late."""
    end = len(operations) - 1  # the last one is what fails
    while end > 0 and more():
        begin = max(end - size, 0)
        if (shorter := fails(operations[:begin] + operations[end:])) is not None:
            operations = list(shorter)
            begin = min(begin, len(operations) - 1)
        end = begin
    return operations


def _fewer_objects(operations: list[Operation], fails: Fails, more: Callable[[], bool]) -> list[Operation]:
    """Have an earlier object of the same kind stand for a later one, and the first context for another."""
    makers = [operation for operation in operations if operation.makes and operation.do != "open"]
    for later in reversed(makers):
        earlier = [one.makes for one in makers[: makers.index(later)] if one.do == later.do]
        for stands_in in [FIRST_CONTEXT] if later.do == "create-context" else earlier:
            if more():
                others = [operation for operation in operations if operation is not later]
                tried = [_with_object(operation, later.makes, stands_in) for operation in others]
                if (kept := fails(tried)) is not None:
                    operations = list(kept)
                    break
    return operations


def _simpler(operations: list[Operation], fails: Fails, more: Callable[[], bool]) -> list[Operation]:
    """Read in the same thread and copy in one stream, where it fails so, too."""
    for at, operation in enumerate(operations):
        if operation.do in SIMPLER and more():
            tried = [*operations[:at], replace(operation, do=SIMPLER[operation.do]), *operations[at + 1 :]]
            if (kept := fails(tried)) is not None and len(kept) == len(operations):
                operations = list(kept)
    return operations


def _with_object(operation: Operation, old: int, new: int) -> Operation:
    on, of = (new if number == old else number for number in (operation.on, operation.of))
    return replace(operation, on=on, of=of)


def _smaller(operations: list[Operation], fails: Fails, more: Callable[[], bool]) -> list[Operation]:
    """All allocations at once of the smallest size, else one after the other."""
    sized = ("allocate", "allocate-from-pool")
    large = [at for at, one in enumerate(operations) if one.do in sized and one.nbytes > SMALLEST]
    for places in (large, *([at] for at in large)):
        if places and more():
            tried = list(operations)
            for at in places:
                tried[at] = replace(tried[at], nbytes=SMALLEST)
            if (kept := fails(tried)) is not None and len(kept) == len(operations):
                operations = tried
                if places is large:
                    break
    return operations


def renumber(history: History) -> History:
    """The same history with processes, objects and writes numbered from 1, as they come."""
    processes: dict[int, int] = {}
    objects: dict[int, int] = {0: 0}
    stamps: dict[int, int] = {0: 0}
    operations = []
    for operation in history.operations:
        processes.setdefault(operation.by, len(processes) + 1)
        if operation.makes:
            objects.setdefault(operation.makes, len(objects))
        stamps.setdefault(operation.stamp, len(stamps))
        operations.append(
            replace(
                operation,
                by=processes[operation.by],
                on=objects.get(operation.on, 0),
                of=objects.get(operation.of, 0),
                makes=objects[operation.makes],
                stamp=stamps[operation.stamp],
            )
        )
    plans = {new: history.processes[old] for old, new in processes.items()}
    return replace(history, processes=plans, operations=tuple(operations))
