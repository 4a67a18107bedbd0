"""Random valid histories: phases with different weights; each phase ends with everything released.

With `Limits.composed`, the `composed_cases` come first, one a phase; all other phases are drawn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

from gpuipc_doctor.histories.buffer_operations import HUGE, Allocate
from gpuipc_doctor.histories.composed_cases import compose
from gpuipc_doctor.histories.memory_draft import Draft, Limits, Phase
from gpuipc_doctor.histories.memory_model import Model
from gpuipc_doctor.histories.memory_operations import FAMILIES, MACROS, TYPES, WAYS, without_families
from gpuipc_doctor.histories.memory_state import FILLS, NOTHING, USABLE, Expected
from gpuipc_doctor.histories.operations import History, Operation, ProcessPlan

SMALL = (256, 512, 4096, 65536)
ODD = (1, 8, 1000, 5000, 146064, 226656)
LARGE = (1 << 20, 2 << 20, 3 << 20, 8 << 20)

VARIED = 0.25
"""Probability that a write, read, open or copy is of another kind, or of a part of the memory."""

PIECES = (1, 3, 64, 257, 4096, 65536 + 1, 1 << 20)
"""Bytes of the parts of memory that are written, read and copied."""

PHASE_OPERATIONS = (60, 160)
AT_ONCE_PHASES = 0.5
"""Probability that two processes of a phase perform operations at the same time, where that is valid."""

_DRAWN = [operation for operation in TYPES.values() if operation.weight >= 0]
_KILL = [operation.do for operation in _DRAWN].index("kill") + 1
WEIGHTS = {
    **{operation.do: operation.weight for operation in _DRAWN[:_KILL]},
    **MACROS,
    **{operation.do: operation.weight for operation in _DRAWN[_KILL:] if not operation.is_wide},
}
"""Base weight of each operation; each phase multiplies it by a factor drawn from `SWARM`. The histories of
seeds depend on the order."""

WIDE_WEIGHTS = {operation.do: operation.weight for operation in _DRAWN if operation.is_wide}
"""Weights that wide histories have in addition."""

SWARM = (0.0, 0.5, 1.0, 1.0, 3.0)
"""Each phase picks one of these factors for each weight (swarm testing: Groce et al., ISSTA 2012)."""

ALWAYS = (
    *("allocate", "open", "create", "create-fabric", "import", "import-fabric"),
    *("map", "create-pool", "import-pool"),
)
"""Operations that keep their base weight, since others need what they make."""

FOCUS = 0.6
"""Probability that a phase uses only one sharing method, so that objects of this method interact often."""

HUGE_PHASES = 0.1
"""Probability that a phase of a wide history (see `Limits`) also uses very large memory."""

OTHER_SIZE = 0.3
"""Probability, in a wide history, that freed memory is followed by memory of another size."""

SAME_PROCESSES = 0.75
"""Probability that a process of an earlier phase takes part, rather than a new process."""

RELEASES = (
    ("destroy-event", "imported-event"),
    ("destroy-event", "event"),
    ("close", "mapping"),
    ("free", "buffer"),
    ("unmap", "view"),
    ("release", "physical"),
    ("free-to-pool", "imported-memory"),
    ("destroy-pool", "imported-pool"),
    ("free-to-pool", "pool-memory"),
    ("destroy-pool", "pool"),
)
"""(operation, kind) that releases each kind of object, in an order that always works."""


class Generator(Draft):
    """Makes a history, operation by operation; ``model`` holds the state so far."""

    def __init__(
        self,
        backend: str,
        devices: int,
        seed: int,
        limits: Limits = Limits(),  # noqa: B008 - immutable
        without: frozenset[str] = frozenset(),
        peers: tuple[tuple[int, int], ...] = (),
    ) -> None:
        """``without``: operations that are never generated."""
        self.model = Model(History(backend, dict[int, ProcessPlan](), peers=peers))
        super().__init__(self.model, devices, seed, limits)
        self.backend, self.seed, self.without, self.peers = backend, seed, without, peers
        self._chance = Random(~seed)
        """Chooses what does not affect the operations, so that a seed always gives the same operations."""
        self._composed = compose(self) if limits.composed else iter(())
        self._follows_composed = limits.composed
        """Whether the next phase is the first after the composed cases, in which processes act one by one: in
        it they act at once, in however few phases follow."""
        self._at_once = False
        self._phases = 0
        self._expected = NOTHING

    def phase(self) -> Iterator[tuple[Operation, Expected]]:
        """Generate one phase: its operations with their expected data."""
        for operation in self._operations():
            yield operation, self._expected

    def repeat(self, operations: Iterable[Operation]) -> Iterator[tuple[Operation, Expected]]:
        """Generate a phase's operations once more, with new objects, in those of its processes that live."""
        numbers = defaultdict[int, int](self.number)
        for operation in self._valid(
            operation.renumbered(numbers.__getitem__)
            for operation in operations
            if operation.do not in ("kill", "rest")
        ):
            yield operation, self._expected
        for operation in self._end_phase():
            yield operation, self._expected

    def _operations(self) -> Iterator[Operation]:
        if (case := next(self._composed, None)) is not None:
            self._at_once = False
            yield from self._first_rest({operation.by for operation in case})
            yield from self._valid(case)
            yield from self._end_phase()
            return
        phase = self._plan()
        self._at_once = self._chance.random() < AT_ONCE_PHASES or self._follows_composed
        self._follows_composed = False
        self._choose_processes(self.random.randint(2, self.limits.processes))
        yield from self._first_rest(set(self.processes))
        for _ in range(phase.operations):
            yield from self._step(phase)
        yield from self._end_phase()

    def _valid(self, operations: Iterable[Operation]) -> Iterator[Operation]:
        for operation in operations:
            if operation.do not in self.without and not self.model.illegal(operation):
                yield self._made(operation)

    def _first_rest(self, chosen: set[int]) -> Iterator[Operation]:
        """Have all processes show their usage before a phase, if new ones take part."""
        if chosen - self.model.processes.keys():
            for process in sorted(chosen | self.model.processes.keys()):
                yield self._made(Operation("rest", process))

    def _end_phase(self) -> Iterator[Operation]:
        """Read through every address, release everything in random order, and have all processes rest."""
        for thing in sorted(self.model.of_kind(*USABLE), key=lambda thing: thing.by):
            yield from self.attempt("read", thing.by, on=thing.number)
        for do, kind in RELEASES:
            things = self.model.of_kind(kind)
            self.random.shuffle(things)
            for thing in sorted(things, key=lambda thing: thing.by):
                yield from self.attempt(do, thing.by, on=thing.number)
        for process in list(self.model.processes.values()):
            for context in process.contexts[1:]:
                yield from self.attempt("end-context", process.number, on=context)
        for number in list(self.model.processes):
            yield self._made(Operation("rest", number))

    def _plan(self) -> Phase:
        random = self.random
        possible = WEIGHTS | WIDE_WEIGHTS if self.limits.wide else WEIGHTS
        weights = {
            do: weight * random.choice(SWARM) for do, weight in possible.items() if do not in self.without
        }
        ways = [way for way in WAYS if not without_families([way]) <= self.without]
        if random.random() < FOCUS:
            chosen = random.choice(ways)
            for do in set().union(*(FAMILIES[way] for way in ways)) - FAMILIES[chosen]:
                weights.pop(do, None)
        weights |= {do: WEIGHTS[do] for do in ALWAYS if do in weights}
        if "free-open" in weights and random.random() < 0.25:  # as registration caches do
            weights["free-open"] = 4.0
        if random.random() < 0.7:
            weights.pop("kill", None)
        kinds = [SMALL, SMALL, SMALL + ODD, ODD, SMALL + LARGE, LARGE]
        sizes = tuple(random.sample(kind := random.choice(kinds), min(len(kind), random.randint(1, 4))))
        if self.limits.wide and random.random() < HUGE_PHASES:
            sizes = (*sizes, *HUGE)
        return Phase(weights, sizes, random.randint(*PHASE_OPERATIONS))

    def _choose_processes(self, size: int) -> None:
        """Choose a phase's processes: first one on each device in turn, so that every device takes part.

        Those of the composed cases suffice, where there are composed cases: starting a process takes long.
        """
        alive = self.alive()
        device = self._phases % self.devices
        self._phases += 1
        here = [number for number in alive if self.plans[number].device == device]
        self.processes = [self.random.choice(here) if here else self.plan_process(device)]
        if self.devices > 1:
            self.latest = self.processes[0]  # it begins
        most = self.devices + (0 if self.limits.composed else self.limits.processes - 1)
        while len(self.processes) < size:
            others = [number for number in alive if number not in self.processes]
            full = len(set(alive) | set(self.processes)) >= most
            if others and (full or self.random.random() < SAME_PROCESSES):
                self.processes.append(self.random.choice(others))
            else:
                self.processes.append(self.plan_process(self.random.randrange(self.devices)))

    def _made(self, operation: Operation) -> Operation:
        if self._at_once and self.model.joins(operation):
            operation = replace(operation, beside=True)
        self._expected = self.model.apply(operation)
        self.latest = operation.by
        return operation

    def _step(self, phase: Phase) -> Iterator[Operation]:
        """One operation, or the operations of a macro; empty if the chosen operation is not valid now."""
        self.processes = [
            self.plan_process(self.plans[number].device) if number in self.model.ended else number
            for number in self.processes
        ]
        (do,) = self.random.choices(list(phase.weights), list(phase.weights.values()))
        if do == "share":
            yield from self._share(phase)
        elif do == "recycle":
            yield from self._recycle(phase)
        else:
            yield from TYPES[do].draw(self, phase)

    def attempt(self, do: str, by: int, **fields: Any) -> Iterator[Operation]:
        operation = Operation(do, by, **fields)
        if not self.model.illegal(operation):
            varied = self._varied(operation)
            yield self._made(operation if self.model.illegal(varied) else varied)

    def _varied(self, operation: Operation) -> Operation:
        """The operation, or another one of the same sense: of a part, by a fill, in a thread."""
        vary, do, thing = self.vary, operation.do, self.model.things.get(operation.on)
        if do not in ("write", "read", "open", "copy") or thing is None or vary.random() >= VARIED:
            return operation
        if do == "open":
            return replace(operation, do="open-in-thread" if vary.random() < 0.3 else do)
        nbytes = thing.storage.nbytes
        length = min(vary.choice(PIECES), nbytes)
        offset = vary.choice([0, vary.randrange(nbytes - length + 1), nbytes - length])
        part = replace(operation, offset=offset, length=length)
        if do == "copy":
            of = self.model.things[operation.of].storage.nbytes
            part = replace(part, start=vary.randrange(max(of - length, 0) + 1))
        elif do == "write" and vary.random() < 0.3:
            width = FILLS[kind := vary.choice(list(FILLS))]
            whole = max(length // width, 1) * width
            part = replace(part, do="fill", kind=kind, offset=offset // width * width, length=whole)
        elif vary.random() < 0.15:
            part = replace(operation, do=f"{do}-in-thread")
        return part

    # -- macros -------------------------------------------------------------------------------------------

    def _share(self, phase: Phase, nbytes: int = 0, users: tuple[int, ...] = ()) -> Iterator[Operation]:
        """Allocate a buffer, write it and have all other processes open and read it."""
        made = list(Allocate().draw(self, phase, nbytes))
        yield from made
        for operation in made:
            buffer, owner = operation.makes, operation.by
            yield self._made(Operation("write", owner, on=buffer, stamp=self.number()))
            others = [number for number in self.processes if number != owner]
            chosen = [user for user in users if user in others] or [self.random.choice(others)]
            for user in chosen:
                opened = list(self.attempt("open", user, on=buffer, makes=self.number()))
                yield from opened
                for mapping in opened:
                    yield from self.attempt("read", user, on=mapping.makes)

    def _recycle(self, phase: Phase) -> Iterator[Operation]:
        """Close and free memory, then give its users a new buffer of the same size."""
        if (buffer := self.pick("buffer")) is None:
            return
        mappings = [thing for thing in self.model.others_of(buffer) if thing.kind == "mapping"]
        users = tuple({mapping.by for mapping in mappings})
        if phase.weights.get("free-open") and self.random.random() < 0.7:
            yield from self.attempt("free-open", buffer.by, on=buffer.number)
        else:
            for mapping in mappings:
                yield from self.attempt("close", mapping.by, on=mapping.number)
            yield from self.attempt("free", buffer.by, on=buffer.number)
        self.latest = buffer.by
        nbytes = buffer.storage.nbytes
        if self.limits.wide and self.random.random() < OTHER_SIZE:
            nbytes = self.random.choice(phase.sizes)
        yield from self._share(phase, nbytes, users)
