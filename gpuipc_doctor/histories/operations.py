"""Histories as data: what each process does, in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

VERSION = 1
"""Version of the format of history files."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One step of one process. Objects have numbers, so that an operation may be left out of a history.

    ``do`` is a key of `steps.SENTENCES`; ``by`` is the number of the process, from 1. ``on`` is the object
    that it acts on, ``makes`` the number of the object that it makes, and ``of`` what a copy is made from.
    ``nbytes`` is the size of what is allocated. A write fills its memory with the `contents` of ``stamp``.
    """

    do: str
    by: int
    on: int = 0
    makes: int = 0
    of: int = 0
    nbytes: int = 0
    stamp: int = 0


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """The device of a process (its place among the history's devices) and the kind of its first context."""

    device: int = 0
    primary: bool = True


@dataclass(frozen=True, slots=True)
class History:
    """Operations that processes perform in this order, each beginning when the one before it has ended.

    A process starts with its first operation and ends when it is killed, or after the last operation.
    """

    backend: str
    processes: dict[int, ProcessPlan] = field(default_factory=dict)
    operations: tuple[Operation, ...] = ()
    version: int = VERSION
    seed: int | None = None
    """Of the generator; None where the history was not generated."""
    peers: tuple[tuple[int, int], ...] = ()
    """(device of memory, device that reaches it): places among the history's devices."""
    labels: tuple[str, ...] = ()
    """Of the devices, where it was found."""
    times: int = 1
    """How often the operations are performed, each time with other objects."""

    def index(self, number: int) -> int:
        """The number by which the driver knows the device of a process."""
        place = self.processes[number].device if number in self.processes else 0
        return int(self.labels[place].rpartition(":")[2]) if place < len(self.labels) else place

    def of(self, operations: Iterable[Operation]) -> History:
        """A history of the same processes with other operations."""
        chosen = tuple(operations)
        used = {operation.by for operation in chosen}
        processes = {number: plan for number, plan in self.processes.items() if number in used}
        return replace(self, processes=processes, operations=chosen)


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Where the driver and the model disagree first.

    ``at`` is the operation's place in the history, from 0. ``what`` is ``error``, ``data``, ``crash``,
    ``hang`` or ``leak``; ``name`` is what tells two of them apart: an error's or a signal's name, or what
    was lost. ``call`` is the driver's function, ``says`` one sentence.
    """

    at: int
    what: str
    do: str
    name: str
    call: str
    says: str

    @property
    def kind(self) -> tuple[str, str, str]:
        """What two disagreements share that are one fault's."""
        return (self.what, self.do, self.name)
