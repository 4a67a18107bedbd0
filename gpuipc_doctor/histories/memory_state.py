"""The processes, contexts and objects after some operations on memory, and what memory holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from gpuipc_doctor.histories import legality
from gpuipc_doctor.histories.contents import Part
from gpuipc_doctor.histories.operations import History, Operation, ProcessPlan

FIRST_CONTEXT = 0
"""Number of the context with which a process starts."""

NO_CONTEXT = -1
"""Context number of objects that outlive their context."""

GRANULE = 2 << 20
"""Granularity of physical memory in bytes, for CUDA and HIP."""

USABLE = ("buffer", "mapping", "view", "pool-memory", "imported-memory")
"""Kinds of objects with an address."""

POOLED = ("pool", "imported-pool", "pool-memory", "imported-memory", "event", "imported-event")
"""Kinds of objects whose process keeps one context: no source says whether they outlive a context."""

FILLS = {"8": 1, "16": 2, "32": 4}
"""Kind of a fill → bytes of its unit."""


@dataclass(slots=True, eq=False)
class Storage:
    """One allocation of device memory, which any number of objects can refer to."""

    number: int
    """Number of the object for which the memory was allocated."""
    owner: int
    device: int
    nbytes: int
    parts: tuple[Part, ...] = ()
    """What the memory holds, in ascending order; unknown elsewhere."""
    under_way: int = 0
    """The event to wait for before the memory may be used; 0 if none."""
    fabric: bool = False
    """Whether it is physical memory exported as a fabric handle instead of a descriptor."""
    freed: bool = False
    """Whether the owner has freed the memory or has ended. Mappings of freed memory may only be closed."""


@dataclass(slots=True, eq=False)
class Thing:
    """An object of one process.

    ``kind`` is one of: ``buffer``; ``mapping`` (of another process's buffer); ``physical`` (own or imported);
    ``view`` (of physical memory); ``pool``; ``imported-pool``; ``pool-memory``; ``imported-memory``;
    ``event``; ``imported-event``.
    """

    number: int
    kind: str
    by: int
    storage: Storage
    context: int = FIRST_CONTEXT
    pool: Storage | None = None
    """The pool from which the memory was allocated; it is an object of the same process."""
    device: int = 0
    """The device that uses it."""


@dataclass(slots=True, eq=False)
class Process:
    number: int
    plan: ProcessPlan
    contexts: list[int] = field(default_factory=lambda: [FIRST_CONTEXT])
    current: int = FIRST_CONTEXT
    devices: dict[int, int] = field(default_factory=dict)
    """Context → its device, of contexts on other devices than the process's own."""

    @property
    def device(self) -> int:
        """The device of the current context."""
        return self.devices.get(self.current, self.plan.device)


class Expected(NamedTuple):
    """What an operation must show.

    ``stamp``: of the data that it reads or writes, 0 if unknown or mixed. ``nbytes``: size of its object.
    ``beside``: whether another process may still be performing earlier operations when this operation begins.
    ``parts``: of the bytes that it reads, those that are known.
    """

    stamp: int
    nbytes: int
    beside: bool = False
    parts: tuple[Part, ...] = ()


NOTHING = Expected(0, 0)


class State:
    """All processes and objects; how operations look them up and change them."""

    def __init__(self, history: History) -> None:
        self.backend = history.backend
        self.plans = history.processes
        self.peers = set(history.peers)
        self.processes: dict[int, Process] = {}
        self.ended: set[int] = set()
        self.things: dict[int, Thing] = {}
        self.made: set[int] = set()

    def allows(self, case: str, *values: str) -> bool:
        return legality.value(self.backend, case) in (values or (legality.LEGAL,))

    def of_kind(self, *kinds: str) -> list[Thing]:
        return [thing for thing in self.things.values() if thing.kind in kinds]

    def of_process(self, by: int, *kinds: str) -> list[Thing]:
        """A process's objects of these kinds, without any: all."""
        return [
            thing
            for thing in self.things.values()
            if thing.by == by and (thing.kind in kinds if kinds else True)
        ]

    def others_of(self, thing: Thing) -> list[Thing]:
        """Other objects that refer to the same memory."""
        return [
            other for other in self.things.values() if other.storage is thing.storage and other is not thing
        ]

    def own(self, op: Operation, *kinds: str) -> Thing | None:
        """The object ``on``, if it is the process's and of one of these kinds."""
        thing = self.things.get(op.on)
        return thing if thing and thing.by == op.by and thing.kind in kinds else None

    def range(self, op: Operation) -> tuple[Storage, int, int]:
        """The memory of an operation, and the offsets between which it works."""
        storage = self.things[op.on].storage
        return storage, op.offset, op.offset + op.length if op.length else storage.nbytes

    def add(self, op: Operation, kind: str, storage: Storage) -> None:
        """A new object of the process's current context."""
        process = self.processes[op.by]
        self.things[op.makes] = Thing(op.makes, kind, op.by, storage, process.current, device=process.device)

    def add_shared(self, op: Operation, kind: str, storage: Storage, pool: Storage | None = None) -> None:
        """A new object that outlives its context."""
        device = self.plans[op.by].device
        self.things[op.makes] = Thing(op.makes, kind, op.by, storage, NO_CONTEXT, pool, device)

    def device_of(self, by: int) -> int:
        """The device of a process's current context."""
        return self.processes[by].device if by in self.processes else self.plans[by].device

    def reaches(self, op: Operation, storage: Storage) -> bool:
        """Whether the current context's device is the memory's device or has peer access to it."""
        device = self.device_of(op.by)
        return device == storage.device or (storage.device, device) in self.peers

    def end(self, things: list[Thing]) -> None:
        """Remove objects that end without being closed or freed, and free their memory."""
        for thing in things:
            del self.things[thing.number]
            if thing.kind in ("buffer", "pool", "pool-memory", "event"):
                thing.storage.freed = True

    def has_one_context(self, by: int) -> bool:
        return by not in self.processes or self.processes[by].contexts == [FIRST_CONTEXT]

    def in_context(self, by: int, context: int) -> list[Thing]:
        """What ends with this context."""
        return [thing for thing in self.of_process(by, "buffer", "mapping") if thing.context == context]

    def under_way(self, event: Storage) -> list[Storage]:
        """The memory of the copies for which an event stands."""
        return [thing.storage for thing in self.things.values() if thing.storage.under_way == event.number]
