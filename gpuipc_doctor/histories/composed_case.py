"""A composed case of an acceptance history: what its processes do, operation by operation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gpuipc_doctor.histories.memory_draft import Draft
from gpuipc_doctor.histories.memory_state import GRANULE
from gpuipc_doctor.histories.operations import Operation

FLOOR = 8
"""Times that each kind of operation occurs, but those of `memory_operations.RARE`."""


class ComposedCase:
    """A short history in the making. Methods that make an object return its number."""

    def __init__(self, draft: Draft, device: int, processes: int = 2) -> None:
        """``device``: of the first process."""
        self.operations: list[Operation] = []
        self.draft, self.vary, self.room = draft, draft.vary, draft.limits.room
        self.processes: Sequence[int] = draft.members(processes, device) if processes else ()

    def do(self, do: str, by: int, on: int = 0, **fields: Any) -> None:
        self.operations.append(Operation(do, by, on, **fields))

    def make(self, do: str, by: int, on: int = 0, **fields: Any) -> int:
        """Do what makes an object."""
        number = self.draft.number()
        self.do(do, by, on, makes=number, **fields)
        return number

    def change(self, do: str, by: int, on: int, **fields: Any) -> None:
        """Do what writes new contents."""
        self.do(do, by, on, stamp=self.draft.number(), **fields)

    def write(self, by: int, on: int, **fields: Any) -> None:
        self.change("write", by, on, **fields)

    def read(self, by: int, on: int, **fields: Any) -> None:
        self.do("read", by, on, **fields)

    def buffer(self, by: int, nbytes: int, kind: str = "") -> int:
        """A buffer with contents."""
        buffer = self.make("allocate", by, nbytes=nbytes)
        self.write(by, buffer, kind=kind)
        return buffer

    def open(self, by: int, buffer: int) -> int:
        return self.make("open", by, buffer)

    def in_turn(self, turn: int) -> tuple[int, int]:
        """The exporter and the importer of two processes, in roles that change with each turn."""
        return self.processes[turn % 2], self.processes[1 - turn % 2]

    def turns(self, *, forks: bool = False) -> Iterator[tuple[int, int, int]]:
        """`FLOOR` turns: (turn, exporter, importer). ``forks``: both processes fork before half of them."""
        for turn in range(FLOOR):
            if forks and turn == FLOOR // 2:
                for by in self.processes:
                    self.do("fork", by)
            yield turn, *self.in_turn(turn)

    def look(self, by: int, on: int, nbytes: int) -> None:
        """Write to a part of the memory at an odd offset, and at the end, and read that."""
        length, stamp = min(61, nbytes - 1), self.draft.number()
        offset = self.vary.randrange(nbytes - length) | 1 if nbytes > length + 1 else 0
        for at in {min(offset, nbytes - length), nbytes - length}:
            self.do("write", by, on, offset=at, length=length, stamp=stamp)
            self.read(by, on, offset=max(at - 5, 0), length=min(length + 5, nbytes - at))

    def share(self, a: int, b: int, nbytes: int = GRANULE, suffix: str = "") -> tuple[int, int, int, int]:
        """Physical memory that ``a`` writes and ``b`` maps: the memory, its mapping, the imported memory and
        its mapping. ``suffix``: of the operations that create and import it."""
        memory = self.make(f"create{suffix}", a, nbytes=nbytes)
        view = self.make("map", a, memory)
        self.write(a, view)
        imported = self.make(f"import{suffix}", b, memory)
        return memory, view, imported, self.make("map", b, imported)

    def unshare(self, a: int, b: int, objects: Sequence[int]) -> None:
        """Unmap and release the objects of `share`, the importer's first."""
        memory, view, imported, seen = objects
        for do, by, on in (("unmap", b, seen), ("release", b, imported), ("unmap", a, view)):
            self.do(do, by, on)
        self.do("release", a, memory)

    def pool(self, a: int, b: int, nbytes: int) -> tuple[int, int, int, int]:
        """A pool of ``a`` that ``b`` imports, and memory of it: both numbers of the pool, then of memory."""
        pool = self.make("create-pool", a)
        imported = self.make("import-pool", b, pool)
        memory = self.make("allocate-from-pool", a, pool, nbytes=nbytes)
        self.write(a, memory)
        return pool, imported, memory, self.make("import-pointer", b, memory, of=imported)
