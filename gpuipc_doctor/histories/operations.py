"""Histories as data: what each process does, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

VERSION = 1
"""Version of the format of history files."""

IPC, MPI = "ipc-histories", "mpi-histories"
"""Names of the checks that perform histories: sequences of operations."""


WHOLE = "whole"
"""Kind of a write or read that moves every byte, in one copy. Others move large memory in pieces, in part."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One step of one process. Objects are numbered, so that a history stays meaningful when operations are
    omitted.

    ``do`` is a key of `memory_operations.TYPES` or `message_operations.TYPES`; ``by`` is the number of the
    process, from 1. ``on`` is the object used, ``makes`` the number of the new object, and ``of`` the source
    of a copy. ``nbytes`` is the size of an allocation. A write fills its memory with the `contents` of
    ``stamp``.

    The other fields are for MPI, where process 1 is rank 0. ``peer`` is the other process of a message, 0 for
    any source. ``tag`` is the message's tag or `ANY_TAG`. ``within`` is the communicator, 0 for the world.
    ``kind`` is a key of `message_layouts.LAYOUTS` for a message, and a kind of buffer for an allocation.

    ``offset`` and ``length`` choose bytes of ``on``; length 0: all of them. A copy takes them from offset
    ``start`` of ``of``. ``kind`` of a fill is the number of bits of its unit; of a write or read, `WHOLE` or
    empty. ``within`` is the event that a
    copy records. ``device`` of a new context is 1 more than its index, 0 for the process's own.

    ``beside``: whether the operation may begin before the preceding operations of other processes have ended.
    It must not depend on them; see `memory_model.Model.joins`.
    """

    do: str
    by: int
    on: int = 0
    makes: int = 0
    of: int = 0
    nbytes: int = 0
    stamp: int = 0
    peer: int = 0
    tag: int = 0
    within: int = 0
    kind: str = ""
    beside: bool = False
    offset: int = 0
    length: int = 0
    start: int = 0
    device: int = 0

    def renumbered(self, number: Callable[[int], int]) -> Operation:
        """The operation with other objects and contents; ``number`` maps old numbers to new ones."""

        def new(old: int) -> int:
            return number(old) if old else 0

        on, makes, of = new(self.on), new(self.makes), new(self.of)
        return replace(self, on=on, makes=makes, of=of, stamp=new(self.stamp), within=new(self.within))


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """The device of a process, as an index into the history's devices, and the kind of its first context."""

    device: int = 0
    primary: bool = True


@dataclass(frozen=True, slots=True)
class History:
    """Operations in the order in which processes perform them. Only those with ``beside`` overlap earlier
    ones.

    A process starts with its first operation and ends when it is killed, or after the last operation.
    """

    backend: str
    processes: dict[int, ProcessPlan] = field(default_factory=dict)
    operations: tuple[Operation, ...] = ()
    version: int = VERSION
    seed: int | None = None
    """Seed of the generator; None if the history was not generated."""
    peers: tuple[tuple[int, int], ...] = ()
    """Pairs (device of the memory, device with access), as indices into the history's devices."""
    labels: tuple[str, ...] = ()
    """Names of the devices on which the history failed."""
    times: int = 1
    """Repetitions of the operations, each with new objects."""
    check: str = IPC
    """The check that the history belongs to: `IPC` or `MPI`."""

    def index(self, number: int) -> int:
        """The driver's number of the device that a process uses."""
        place = self.processes[number].device if number in self.processes else 0
        return int(self.labels[place].rpartition(":")[2]) if place < len(self.labels) else place

    def numbered(self, steps: Iterable[str], first: int = 1) -> Sequence[str]:
        """Its steps in words with their numbers, and how often they are repeated."""
        numbered = [f"{number}. {step}" for number, step in enumerate(steps, first)]
        again = f"repeated {self.times} times, each time with new objects"
        return [*numbered, again] if self.times > 1 else numbered

    def of(self, operations: Iterable[Operation]) -> History:
        """A copy of the history with other operations."""
        chosen = tuple(operations)
        used = {operation.by for operation in chosen}
        processes = {number: plan for number, plan in self.processes.items() if number in used}
        return replace(self, processes=processes, operations=chosen)


@dataclass(frozen=True, slots=True)
class Disagreement:
    """The first disagreement between driver and model.

    ``at`` is the operation's index in the history. ``what`` is ``error``, ``data``, ``answer`` (about an
    address), ``crash``, ``hang`` or ``leak``; ``name`` is the name of the error, signal or leaked resource.
    ``call`` is the driver function, and ``says`` describes the disagreement. ``beside`` has the indices of
    later operations that other processes performed at the same time. ``printed``: the last lines that the
    failing rank printed.
    """

    at: int
    what: str
    do: str
    name: str
    call: str
    says: str
    beside: tuple[int, ...] = ()
    printed: tuple[str, ...] = ()

    def end_of(self, operations: Sequence[Operation]) -> list[Operation]:
        """The operations up to the failing one, and those that other processes performed at the same time."""
        return [*operations[: self.at + 1], *(operations[at] for at in self.beside)]

    @property
    def kind(self) -> tuple[str, str, str]:
        """Key that is equal for disagreements caused by the same fault."""
        return (self.what, self.do, self.name)
