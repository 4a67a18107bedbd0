"""A driver made of dictionaries, which refuses only what every driver refuses."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuipc_doctor.histories.memory_model import NO_CONTEXT
from gpuipc_doctor.histories.operations import Operation


@dataclass(eq=False)
class Cell:
    """Memory of one allocation: its process and object, the stamp of the last write, its users."""

    owner: tuple[int, int]
    stamp: int = 0
    users: int = 1
    outlives_owner: bool = False
    """Physical memory outlives handles, mappings and processes."""
    owned: bool = True


@dataclass
class TrivialDriver:
    """Executes operations. An impossible one is a `KeyError` or an `AssertionError`."""

    contexts_own_memory: bool = True
    memory: set[Cell] = field(default_factory=set)
    pointers: dict[tuple[int, int], tuple[Cell, int]] = field(default_factory=dict)
    """(process, object) → its cell and its context."""
    contexts: dict[int, int] = field(default_factory=dict)
    """Process → its current context."""

    def perform(self, operation: Operation) -> int:
        """The stamp that a read shows; 0 for other operations."""
        by, on = operation.by, operation.on
        current = self.contexts.setdefault(by, 0)
        match operation.do:
            case "allocate" | "create" | "create-fabric" | "create-pool" | "allocate-from-pool":
                cell = Cell((by, operation.makes), outlives_owner=operation.do in ("create", "create-fabric"))
                current = current if operation.do == "allocate" else NO_CONTEXT
                self.memory.add(cell)
                self.pointers[by, operation.makes] = cell, current
            case "open" | "import" | "import-fabric" | "import-pool" | "import-pointer":
                (cell,) = {cell for cell in self.memory if cell.owned and cell.owner[1] == on}
                cell.users += 1
                current = current if operation.do == "open" else NO_CONTEXT
                self.pointers[by, operation.makes] = cell, current
            case "map":
                cell, _ = self.pointers[by, on]
                cell.users += 1
                self.pointers[by, operation.makes] = cell, NO_CONTEXT
            case "close" | "free" | "free-open" | "unmap" | "release" | "free-to-pool" | "destroy-pool":
                self._drop(by, on)
            case "write" | "write-by-kernel":
                self._live(by, on).stamp = operation.stamp
            case "read" | "read-in-thread" | "read-by-kernel":
                return self._live(by, on).stamp
            case "copy" | "copy-across-streams":
                self._live(by, on).stamp = self._live(by, operation.of).stamp
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
        return 0

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
