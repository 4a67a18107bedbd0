"""Shrink a failing history by omitting parts while it still fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gpuipc_doctor.histories.memory_model import FIRST_CONTEXT
from gpuipc_doctor.histories.operations import History, Operation

SMALLEST = 4096
"""Bytes to which allocations are reduced if the history then still fails."""

SIMPLER = {
    "read-in-thread": "read",
    "write-in-thread": "write",
    "open-in-thread": "open",
    "close-in-thread": "close",
    "free-in-thread": "free",
    "fill": "write",
    "write-by-kernel": "write",
    "read-by-kernel": "read",
    "copy-across-streams": "copy",
    "isend": "send",
    "issend": "send",
    "ssend": "send",
    "irecv": "recv",
    "test": "wait",
}
"""Operation → a simpler operation with the same effect."""

Fails = Callable[[Sequence[Operation]], Sequence[Operation] | None]
"""Runs the valid operations of a history; returns those up to the failing one, or None if none failed."""


def shrink(
    failing: Sequence[Operation], fails: Fails, more: Callable[[], bool], *, keep_last: bool = True
) -> list[Operation]:
    """The shortest failing history found; the search goes on while ``more()`` is true.

    ``keep_last``: only try histories that end with the last operation. It is ignored if processes act at the
    same time, because another operation may then be the failing one.
    """
    keep_last = keep_last and not any(operation.beside for operation in failing)
    shortest = _in_turn(list(failing), fails, more)
    shortest = _without_objects(_all_smaller(shortest, fails, more), fails, more)
    size = max(len(shortest) // 2, 1)
    while more():
        before = len(shortest)
        shortest = _without_parts(shortest, size, fails, more, keep_last=keep_last)
        if size > 1:
            size //= 2
        elif len(shortest) == before:
            break
    shortest = _simpler(shortest, fails, more)
    shortest = _fewer_objects(shortest, fails, more)
    shortest = _without_parts(shortest, 1, fails, more, keep_last=keep_last)
    return _smaller(shortest, fails, more)


def _in_turn(operations: list[Operation], fails: Fails, more: Callable[[], bool]) -> list[Operation]:
    """Make the operations run one after the other; returns them unchanged if the history then passes."""
    if any(operation.beside for operation in operations) and more():
        kept = fails([replace(operation, beside=False) for operation in operations])
        return operations if kept is None else list(kept)
    return operations


def _without_objects(operations: list[Operation], fails: Fails, more: Callable[[], bool]) -> list[Operation]:
    """Omit half of the objects, then a quarter, and so on, together with the operations on them."""
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
    operations: list[Operation], size: int, fails: Fails, more: Callable[[], bool], *, keep_last: bool
) -> list[Operation]:
    """Omit ``size`` successive operations at a time, last ones first."""
    end = len(operations) - keep_last
    while end > 0 and more():
        begin = max(end - size, 0)
        if (shorter := fails(operations[:begin] + operations[end:])) is not None:
            operations = list(shorter)
            begin = min(begin, len(operations) - 1)
        end = begin
    return operations


def _fewer_objects(operations: list[Operation], fails: Fails, more: Callable[[], bool]) -> list[Operation]:
    """Replace later objects by earlier ones of the same kind, and other contexts by the first."""
    makers = [operation for operation in operations if operation.makes and operation.do != "open"]
    for later in reversed(makers):
        earlier = [maker.makes for maker in makers[: makers.index(later)] if maker.do == later.do]
        for stands_in in [FIRST_CONTEXT] if later.do == "create-context" else earlier:
            if more():
                others = [operation for operation in operations if operation is not later]
                tried = [_with_object(operation, later.makes, stands_in) for operation in others]
                if (kept := fails(tried)) is not None:
                    operations = list(kept)
                    break
    return operations


def _simpler(operations: list[Operation], fails: Fails, more: Callable[[], bool]) -> list[Operation]:
    """Try simpler operations: read in the same thread, copy in one stream, send without a request."""
    for operation in list(operations):
        if operation.do in SIMPLER and operation in operations and more():
            at = operations.index(operation)
            simpler = replace(operation, do=SIMPLER[operation.do])
            tried = [*operations[:at], simpler, *operations[at + 1 :]]
            if (kept := fails(tried)) is not None and len(kept) <= len(operations):
                operations = list(kept)
    return operations


def _with_object(operation: Operation, old: int, new: int) -> Operation:
    on, of = (new if number == old else number for number in (operation.on, operation.of))
    return replace(operation, on=on, of=of)


def _all_smaller(operations: list[Operation], fails: Fails, more: Callable[[], bool]) -> list[Operation]:
    """Reduce all allocations to the smallest size at once, without operations on parts beyond it.

    This comes first: replays of large allocations take longest.
    """
    tried = [replace(one, nbytes=SMALLEST) if _is_large(one) else one for one in operations]
    if tried != operations and more() and (kept := fails(tried)) is not None:
        return list(kept)
    return operations


def _smaller(operations: list[Operation], fails: Fails, more: Callable[[], bool]) -> list[Operation]:
    """Reduce all allocations to the smallest size at once; if the history then passes, one by one."""
    operations = _all_smaller(operations, fails, more)
    for at, one in enumerate(operations):
        if _is_large(one) and more():
            tried = [*operations[:at], replace(one, nbytes=SMALLEST), *operations[at + 1 :]]
            if (kept := fails(tried)) is not None and len(kept) == len(operations):
                operations = tried
    return operations


def _is_large(operation: Operation) -> bool:
    return operation.nbytes > SMALLEST and operation.do != "create"


def renumber(history: History, *, processes: bool = True) -> History:
    """Renumber objects and writes from 1; with ``processes``, also the processes."""
    numbers = {} if processes else {number: number for number in history.processes}
    objects: dict[int, int] = {0: 0}
    stamps: dict[int, int] = {0: 0}
    operations = []
    for operation in history.operations:
        numbers.setdefault(operation.by, len(numbers) + 1)
        if operation.makes:
            objects.setdefault(operation.makes, len(objects))
        stamps.setdefault(operation.stamp, len(stamps))
        operations.append(
            replace(
                operation,
                by=numbers[operation.by],
                on=objects.get(operation.on, 0),
                of=objects.get(operation.of, 0),
                makes=objects[operation.makes],
                stamp=stamps[operation.stamp],
                within=objects.get(operation.within, 0),
            )
        )
    plans = {new: history.processes[old] for old, new in numbers.items()}
    return replace(history, processes=plans, operations=tuple(operations))
