"""A driver made of dictionaries, which refuses only what every driver refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gpuipc_doctor.histories.contents import WHOLE_BYTES, Part, glances
from gpuipc_doctor.histories.memory_state import FILLS, NO_CONTEXT
from gpuipc_doctor.histories.operations import WHOLE, Operation


@dataclass(eq=False)
class Cell:
    """Memory of one allocation: its process and object, what was written to it, its users."""

    owner: tuple[int, int]
    nbytes: int = 0
    written: tuple[tuple[int, int, Written], ...] = ()
    """(begin, end, what gives an offset's contents), in order."""
    users: int = 1
    outlives_owner: bool = False
    """Physical memory outlives handles, mappings and processes."""
    owned: bool = True

    def at(self, offset: int) -> Shown:
        """What lies at an offset: a write's or fill's stamp, the offset in it, and the fill's bytes."""
        return _at(self.written, offset)

    def change(self, operation: Operation, what: Written) -> None:
        begin = operation.offset
        end = begin + operation.length if operation.length else self.nbytes
        is_write = operation.do.startswith("write") and operation.kind != WHOLE
        in_part = is_write and self.nbytes > WHOLE_BYTES
        for first, last in glances(begin, end) if in_part else [(begin, end)]:
            self.written = (*self.written, (first, last, what))

    def agrees(self, parts: Iterable[Part]) -> bool:
        return all(
            self.at(offset) == _of(part, offset)
            for part in parts
            for offset in (part.begin, (part.begin + part.end) // 2, part.end - 1)
        )


def _of(part: Part, offset: int) -> Shown:
    inside = offset - part.shift
    return (part.stamp, inside % part.width if part.width else inside, part.width)


Shown = tuple[int, int, int]
Written = Callable[[int], Shown]


def _at(written: tuple[tuple[int, int, Written], ...], offset: int) -> Shown:
    for begin, end, what in reversed(written):
        if begin <= offset < end:
            return what(offset)
    return (0, 0, 0)


@dataclass
class TrivialDriver:
    """Executes operations. An impossible one is a `KeyError` or an `AssertionError`."""

    contexts_own_memory: bool = True
    memory: set[Cell] = field(default_factory=set)
    pointers: dict[tuple[int, int], tuple[Cell, int]] = field(default_factory=dict)
    """(process, object) → its cell and its context."""
    contexts: dict[int, int] = field(default_factory=dict)
    """Process → its current context."""

    def perform(self, operation: Operation) -> Cell | None:
        """The memory that a read shows; None for other operations."""
        by, on = operation.by, operation.on
        current = self.contexts.setdefault(by, 0)
        match operation.do:
            case (
                "allocate"
                | "create"
                | "create-fabric"
                | "create-pool"
                | "allocate-from-pool"
                | "create-event"
            ):
                lasts = operation.do in ("create", "create-fabric")
                cell = Cell((by, operation.makes), operation.nbytes, outlives_owner=lasts)
                current = current if operation.do == "allocate" else NO_CONTEXT
                self.memory.add(cell)
                self.pointers[by, operation.makes] = cell, current
            case (
                "open"
                | "open-in-thread"
                | "import"
                | "import-fabric"
                | "import-pool"
                | "import-pointer"
                | "open-event"
            ):
                (cell,) = {cell for cell in self.memory if cell.owned and cell.owner[1] == on}
                cell.users += 1
                current = (
                    current if operation.do.startswith("open-in") or operation.do == "open" else NO_CONTEXT
                )
                self.pointers[by, operation.makes] = cell, current
            case "map":
                cell, _ = self.pointers[by, on]
                cell.users += 1
                self.pointers[by, operation.makes] = cell, NO_CONTEXT
            case (
                "close"
                | "close-in-thread"
                | "free"
                | "free-in-thread"
                | "free-open"
                | "unmap"
                | "release"
                | "free-to-pool"
                | "destroy-pool"
                | "destroy-event"
            ):
                self._drop(by, on)
            case "write" | "write-in-thread" | "write-by-kernel":
                self._live(by, on).change(operation, lambda at: (operation.stamp, at, 0))
            case "fill":
                width, begin = FILLS[operation.kind], operation.offset
                self._live(by, on).change(
                    operation, lambda at: (operation.stamp, (at - begin) % width, width)
                )
            case "read" | "read-in-thread" | "read-by-kernel":
                return self._live(by, on)
            case "wait-event" | "ask":
                self._live(by, on)
            case "copy" | "copy-across-streams" | "copy-and-record":
                source, further = self._live(by, operation.of).written, operation.offset - operation.start
                self._live(by, on).change(operation, lambda at: _at(source, at - further))
            case "create-context" | "use-context":
                self.contexts[by] = operation.makes or on
            case "end-context":
                for (process, number), (_, context) in list(self.pointers.items()):
                    if self.contexts_own_memory and process == by and context == on:
                        self._drop(process, number)
                self.contexts[by] = 0
            case "kill":
                for process, number in list(self.pointers):
                    if process == by:
                        self._drop(process, number)
            case "export" | "fork" | "idle" | "rest" | "trim":
                pass
            case unknown:
                raise KeyError(unknown)
        return None

    def _live(self, by: int, number: int) -> Cell:
        cell, _ = self.pointers[by, number]
        assert cell.owned
        return cell

    def _drop(self, by: int, number: int) -> None:
        cell, _ = self.pointers.pop((by, number))
        cell.owned = cell.owned and (cell.outlives_owner or cell.owner != (by, number))
        cell.users -= 1
        if not cell.users:
            self.memory.remove(cell)
