"""What an operation of memory histories is: one class for each, with all that is known of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from gpuipc_doctor.histories.memory_draft import Draft, Phase
from gpuipc_doctor.histories.memory_state import USABLE, Expected, State
from gpuipc_doctor.histories.operations import Operation
from gpuipc_doctor.histories.performer import Performer

UNDRAWN = -1.0
"""Weight of operations that only composed cases have, and macros."""


class MemoryOperation:
    """An operation: when it may happen, what it changes, how it is drawn, performed, said and printed in C.

    The default is an operation on an object of the process that changes nothing.
    """

    do: ClassVar[str]
    """Its name in histories."""
    says: ClassVar[str]
    """Its sentence, with fields of `Operation`."""
    c: ClassVar[str] = ""
    """Its C statements, with the values of `c_program`; empty: it cannot be written in C."""
    on: ClassVar[tuple[str, ...]] = ()
    """Kinds of the process's own object that it uses; empty: none, or another process's."""
    noun: ClassVar[str] = ""
    """What such an object is called; by default its kind."""
    weight: ClassVar[float] = UNDRAWN
    """Base weight in a random phase."""
    is_wide: ClassVar[bool] = False
    """Whether only wide histories draw it."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Capabilities of which one suffices; empty: every device can do it."""
    anywhere: ClassVar[bool] = False
    """Whether a process may perform it while its current context is on another device than its own."""
    alone: ClassVar[bool] = False
    """Whether it involves other processes. All processes that are not involved are idle meanwhile."""
    effect: ClassVar[str] = ""
    """``makes`` new memory, ``ends`` the memory of ``on``, or ``writes`` to it."""
    simpler: ClassVar[str] = ""
    """An operation with the same effect that a shrunk history should rather have."""
    takes_handle: ClassVar[bool] = False
    """Whether its process needs the handle that the exporter's process returned."""
    exports: ClassVar[bool] = False
    """Whether the exporter's process must `export` the object just before."""
    declared: ClassVar[bool] = False
    """Whether it breaks a rule of the driver's documentation, as applications do."""
    harms: ClassVar[str] = ""
    """Step of `probe_types.Probe.harms` that it includes."""
    rare: ClassVar[str] = ""
    """Why the acceptance tier performs it less often than `composed_case.FLOOR`."""

    # -- the model ----------------------------------------------------------------------------------------

    def refuse(self, m: State, op: Operation) -> str:
        """Why it is not valid now; empty if it is valid."""
        return "" if not self.on or m.own(op, *self.on) else self.none(op)

    def none(self, op: Operation) -> str:
        return f"process {op.by} has no {self.noun or self.on[0]} {op.on}"

    def apply(self, m: State, op: Operation) -> Expected | None:
        """Update the state for a valid operation; returns the expected data, if there are any."""
        return None

    def touches(self, m: State, op: Operation) -> tuple[set[int], set[int]]:
        """The numbers of the storages that it uses, and of those that it changes."""
        uses = {m.things[number].storage.number for number in (op.on, op.of) if number in m.things}
        if self.effect == "makes":
            return uses, {op.makes}
        if self.effect == "ends":
            return set(), uses
        changes = {m.things[op.on].storage.number} if self.effect == "writes" else set[int]()
        return uses - changes, changes

    # -- drawing ------------------------------------------------------------------------------------------

    def draw(self, d: Draft, phase: Phase) -> Iterator[Operation]:
        """The operation with random arguments; nothing if it is not valid now."""
        if not self.on:
            yield from d.attempt(self.do, d.process())
        elif thing := (d.usable if self.on == USABLE else d.pick)(*self.on):
            yield from d.attempt(self.do, thing.by, on=thing.number)

    # -- performing ---------------------------------------------------------------------------------------

    def perform(self, p: Performer, op: Operation) -> None:
        """Perform it in its process. ``op`` has the size of its object, and the stamp that is expected."""
        raise NotImplementedError(self.do)

    def export(self, p: Performer, op: Operation) -> None:
        """Export the object ``on``, in the exporter's process."""
        raise NotImplementedError(self.do)


class InThread(MemoryOperation):
    """An operation in another thread, which makes the process's current context its own."""

    weight = UNDRAWN
    anywhere = False

    def refuse(self, m: State, op: Operation) -> str:
        if not m.allows("open memory in another thread than the context's"):
            return "memory must be opened and closed in the context's thread"
        thing = m.own(op, "buffer", "mapping")
        if thing and thing.context != m.processes[op.by].current:
            return "another context is current"
        return super().refuse(m, op)

    def perform(self, p: Performer, op: Operation) -> None:
        if op.on in p.things:
            p.get(op.on)
        perform = super().perform
        p.in_thread(lambda: perform(p, op))
