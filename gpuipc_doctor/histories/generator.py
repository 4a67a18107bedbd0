"""Random valid histories: epochs with different weights; each epoch ends with everything released."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from random import Random
from typing import Any

from gpuipc_doctor.histories.memory_model import (
    FILLS,
    FIRST_CONTEXT,
    GRANULE,
    NOTHING,
    USABLE,
    Expected,
    Model,
    Thing,
)
from gpuipc_doctor.histories.operations import History, Operation, ProcessPlan
from gpuipc_doctor.histories.scenes import play

SMALL = (256, 512, 4096, 65536)
ODD = (1, 8, 1000, 5000, 146064, 226656)
LARGE = (1 << 20, 2 << 20, 3 << 20, 8 << 20)
HUGE = ((2 << 30) + (2 << 20), (4 << 30) + (2 << 20))
"""Bytes of huge memory, in which offsets need more than 31 or 32 bits. Only wide histories use it, if memory
allows."""

VARIED = 0.25
"""Probability that a write, read, open or copy is of another kind, or of a part of the memory."""

PIECES = (1, 3, 64, 257, 4096, 65536 + 1, 1 << 20)
"""Bytes of the parts of memory that are written, read and copied."""

EPOCH_OPERATIONS = (60, 160)
AT_ONCE_EPOCHS = 0.5
"""Probability that two processes of an epoch perform operations at the same time, where that is valid."""
STAYS = 0.75
"""Probability that the next operation is in the same process: switching costs a message."""

WEIGHTS = {
    "allocate": 6.0,
    "export": 1.0,
    "open": 10.0,
    "close": 5.0,
    "free": 3.0,
    "free-open": 0.0,
    "write": 10.0,
    "read": 14.0,
    "copy": 3.0,
    "end-context": 1.2,
    "create-context": 0.4,
    "use-context": 0.6,
    "kill": 0.3,
    "share": 4.0,
    "recycle": 2.0,
    "create": 2.0,
    "import": 5.0,
    "create-fabric": 2.0,
    "import-fabric": 5.0,
    "map": 5.0,
    "unmap": 3.0,
    "release": 2.0,
    "create-pool": 0.7,
    "import-pool": 2.0,
    "allocate-from-pool": 5.0,
    "import-pointer": 6.0,
    "free-to-pool": 4.0,
    "trim": 0.7,
    "destroy-pool": 0.5,
}
"""Base weight of each operation; each epoch multiplies it by a factor drawn from `SWARM`.

``share`` and ``recycle`` are macros. ``share``: allocate, write, open and read memory. ``recycle``: free
memory and give its users a new buffer of the same size. With the macros, a fault that needs the reuse of a
small segment was found within 1,500 operations; without the macros, it was not found in 60,000.
"""

WIDE_WEIGHTS = {
    "read-by-kernel": 2.0,
    "write-by-kernel": 2.0,
    "copy-across-streams": 2.0,
    "fork": 0.5,
    "idle": 0.02,
}
"""Weights that wide histories have in addition."""

SWARM = (0.0, 0.5, 1.0, 1.0, 3.0)
"""Each epoch picks one of these factors for each weight (swarm testing: Groce et al., ISSTA 2012)."""

FAMILIES: dict[str, frozenset[str]] = {
    "contexts": frozenset({"end-context", "create-context", "use-context"}),
    "legacy-ipc": frozenset(
        {
            "export",
            "open",
            "open-in-thread",
            "close",
            "close-in-thread",
            "free-open",
            "share",
            "recycle",
            "create-event",
            "open-event",
            "copy-and-record",
            "wait-event",
            "destroy-event",
        }
    ),
    "vmm-ipc": frozenset({"create", "import", "map", "unmap", "release"}),
    "fabric-handles": frozenset({"create-fabric", "import-fabric", "map", "unmap", "release"}),
    "pool-ipc": frozenset(
        {
            "create-pool",
            "import-pool",
            "allocate-from-pool",
            "import-pointer",
            "free-to-pool",
            "trim",
            "destroy-pool",
        }
    ),
}
"""Capability → the operations that need it."""

LEAST_ROOM: dict[str, int] = {
    "vmm-ipc": 4 * GRANULE,
    "fabric-handles": 4 * GRANULE,
    "pool-ipc": 32 << 20,
}
"""Capability → bytes of device memory that its operations need: a few segments, and the 32 MiB block in which
a pool reserves memory (seen on an H200)."""

WAYS = ("legacy-ipc", "vmm-ipc", "fabric-handles", "pool-ipc")
"""Ways of sharing memory, by capability."""

FOCUS = 0.6
"""Probability that an epoch uses only one sharing method, so that objects of this method interact often."""

HUGE_EPOCHS = 0.1
"""Probability that an epoch of a wide history (see `Limits`) also uses very large memory."""

OTHER_SIZE = 0.3
"""Probability, in a wide history, that freed memory is followed by memory of another size."""

SAME_CREW = 0.75
"""Probability that a process of an earlier epoch takes part, rather than a new process."""

GIVING_BACK = (
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

DECLARED = frozenset({"free-open"})
"""Operations that break a rule in the driver's documentation, as applications do."""

HARMFUL = {
    "kills an importer": frozenset({"kill"}),
    "exports VMM memory": FAMILIES["vmm-ipc"] | FAMILIES["fabric-handles"],
}
"""Step of `model.Probe.harms` → the operations that include this step."""


def harmful(harms: Iterable[str]) -> frozenset[str]:
    """Operations to omit if these steps harm a device."""
    return frozenset(chain.from_iterable(HARMFUL.get(harm, ()) for harm in harms))


def unavailable(capabilities: Container[str]) -> frozenset[str]:
    """Operations to omit because they need a capability that the device lacks."""
    return without_families(family for family in FAMILIES if family not in capabilities)


def without_families(lacking: Iterable[str]) -> frozenset[str]:
    """The operations that belong to these families only."""
    kept = FAMILIES.keys() - set(lacking)
    needed = frozenset[str]().union(*(FAMILIES[family] for family in kept))
    return frozenset(chain.from_iterable(FAMILIES.values())) - needed


def without_room(room: int, without: frozenset[str]) -> list[str]:
    """Families of operations that need more memory, except families that are omitted anyway."""
    return [
        family
        for family, nbytes in LEAST_ROOM.items()
        if room < nbytes and not without_families([family]) <= without
    ]


def families(done: Mapping[str, int]) -> dict[str, int]:
    """Family → how many operations of it were performed, of those that no other family has."""
    counts = {family: sum(done.get(do, 0) for do in without_families([family])) for family in FAMILIES}
    return {family: times for family, times in counts.items() if times}


@dataclass(frozen=True, slots=True)
class Limits:
    """Size of a history. ``room`` is in bytes for each device."""

    room: int = 64 << 20
    processes: int = 3
    """Maximum processes in an epoch on one device; each further device adds one."""
    objects: int = 24
    wide: bool = False
    """Whether to add second streams, idle time, huge memory and reuse with other sizes."""
    scenes: bool = False
    """Whether to begin with a history of each dimension: see `scenes`."""


@dataclass
class Epoch:
    """The weights of one epoch."""

    weights: dict[str, float]
    sizes: tuple[int, ...]
    operations: int


@dataclass
class Generator:
    """Makes a history, operation by operation; ``model`` holds the state so far."""

    backend: str
    devices: int
    seed: int
    limits: Limits = Limits()
    without: frozenset[str] = frozenset()
    """Operations that are never generated."""
    peers: tuple[tuple[int, int], ...] = ()
    plans: dict[int, ProcessPlan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self._chance = Random(~self.seed)
        """Chooses what does not affect the operations, so that a seed always gives the same operations."""
        self.vary = Random(f"vary {self.seed}")
        """Chooses the dimensions of an operation, likewise."""
        self._scenes = play(self) if self.limits.scenes else iter(())
        self._follows_scenes = self.limits.scenes
        """Whether the next epoch is the first after the scenes, in which processes act one by one: in it they
        act at once, in however few epochs follow."""
        self._at_once = False
        self.model = Model(History(self.backend, self.plans, peers=self.peers))
        self._numbers = 0
        self._crew: list[int] = []
        self._epochs = 0
        self._latest = 0
        self._expected = NOTHING

    def epoch(self) -> Iterator[tuple[Operation, Expected]]:
        """Generate one epoch: its operations with their expected data."""
        for operation in self._operations():
            yield operation, self._expected

    def repeat(self, operations: Iterable[Operation]) -> Iterator[tuple[Operation, Expected]]:
        """Generate an epoch's operations once more, with new objects, in those of its processes that live."""
        numbers = defaultdict[int, int](self.number)
        for operation in self._valid(
            operation.renumbered(numbers.__getitem__)
            for operation in operations
            if operation.do not in ("kill", "rest")
        ):
            yield operation, self._expected
        for operation in self._end_epoch():
            yield operation, self._expected

    def _operations(self) -> Iterator[Operation]:
        if (scene := next(self._scenes, None)) is not None:
            self._at_once = False
            operations = list(scene)
            yield from self._first_rest({operation.by for operation in operations})
            yield from self._valid(operations)
            yield from self._end_epoch()
            return
        epoch = self._plan()
        self._at_once = self._chance.random() < AT_ONCE_EPOCHS or self._follows_scenes
        self._follows_scenes = False
        self._choose_crew(self.random.randint(2, self.limits.processes))
        yield from self._first_rest(set(self._crew))
        for _ in range(epoch.operations):
            yield from self._step(epoch)
        yield from self._end_epoch()

    def _valid(self, operations: Iterable[Operation]) -> Iterator[Operation]:
        for operation in operations:
            if operation.do not in self.without and not self.model.illegal(operation):
                yield self._made(operation)

    def _first_rest(self, crew: set[int]) -> Iterator[Operation]:
        """Have all processes show their usage before an epoch, if new ones take part."""
        if crew - self.model.processes.keys():
            for process in sorted(crew | self.model.processes.keys()):
                yield self._do("rest", process)

    def _end_epoch(self) -> Iterator[Operation]:
        yield from self._look()
        yield from self._give_back()
        for process in list(self.model.processes):
            yield self._do("rest", process)

    def _plan(self) -> Epoch:
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
        for do in {
            "allocate",
            "open",
            "create",
            "create-fabric",
            "import",
            "import-fabric",
            "map",
            "create-pool",
            "import-pool",
        } & weights.keys():
            weights[do] = WEIGHTS[do]
        if (
            "free-open" in weights and random.random() < 0.25
        ):  # a phase that frees memory while it is open elsewhere, as registration caches do
            weights["free-open"] = 4.0
        if random.random() < 0.7:
            weights.pop("kill", None)
        kinds = [SMALL, SMALL, SMALL + ODD, ODD, SMALL + LARGE, LARGE]
        sizes = tuple(random.sample(kind := random.choice(kinds), min(len(kind), random.randint(1, 4))))
        if self.limits.wide and random.random() < HUGE_EPOCHS:
            sizes = (*sizes, *HUGE)
        return Epoch(weights, sizes, random.randint(*EPOCH_OPERATIONS))

    def _choose_crew(self, size: int) -> None:
        """Choose an epoch's processes: first one on each device in turn, so that every device takes part.

        Those of the scenes suffice, where there are scenes: starting a process takes long.
        """
        staff = [number for number in self.plans if number not in self.model.ended]
        device = self._epochs % self.devices
        self._epochs += 1
        here = [number for number in staff if self.plans[number].device == device]
        self._crew = [self.random.choice(here) if here else self._hire(device)]
        if self.devices > 1:
            self._latest = self._crew[0]  # it begins
        most = self.devices + (0 if self.limits.scenes else self.limits.processes - 1)
        while len(self._crew) < size:
            others = [number for number in staff if number not in self._crew]
            full = len(set(staff) | set(self._crew)) >= most
            if others and (full or self.random.random() < SAME_CREW):
                self._crew.append(self.random.choice(others))
            else:
                self._crew.append(self._hire(self.random.randrange(self.devices)))

    def _hire(self, device: int) -> int:
        """Start a process; it exists from its first operation on."""
        number = len(self.plans) + 1
        self.plans[number] = ProcessPlan(device, self.random.random() < 0.5)
        return number

    def crew(self, size: int, device: int | None = None) -> list[int]:
        """So many processes that live, the first on this device if one is named, as few as possible of them
        new."""
        alive = [number for number in self.plans if number not in self.model.ended]
        first = [number for number in alive if device is None or self.plans[number].device == device][:1]
        crew = first or [self._hire(device or 0)]
        crew += [number for number in alive if number not in crew][: size - 1]
        while len(crew) < size:
            staffed = Counter(self.plans[number].device for number in [*alive, *crew])
            crew.append(self._hire(min(range(self.devices), key=staffed.__getitem__)))
        return crew

    def _do(self, do: str, by: int, **fields: Any) -> Operation:
        return self._made(Operation(do, by, **fields))

    def _made(self, operation: Operation) -> Operation:
        if self._at_once and self.model.joins(operation):
            operation = replace(operation, beside=True)
        self._expected = self.model.apply(operation)
        self._latest = operation.by
        return operation

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _step(self, epoch: Epoch) -> Iterator[Operation]:
        """One operation, or the operations of a macro; empty if the chosen operation is not valid now."""
        self._crew = [
            self._hire(self.plans[number].device) if number in self.model.ended else number
            for number in self._crew
        ]
        (do,) = self.random.choices(list(epoch.weights), list(epoch.weights.values()))
        yield from getattr(self, f"_{do.replace('-', '_')}")(epoch)

    # -- choosing -----------------------------------------------------------------------------------------

    def _process(self) -> int:
        if self._latest in self._crew and self.random.random() < STAYS:
            return self._latest
        return self.random.choice(self._crew)

    def _pick(self, *kinds: str, usable: bool = False) -> Thing | None:
        """A random object of these kinds, preferably of the current process."""
        things = [
            thing
            for thing in self.model.things.values()
            if thing.kind in kinds and not (usable and thing.storage.freed)
        ]
        own = [thing for thing in things if thing.by == self._latest]
        if own and self.random.random() < STAYS:
            things = own
        return self.random.choice(things) if things else None

    def _try(self, do: str, by: int, **fields: Any) -> Iterator[Operation]:
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

    # -- operations ---------------------------------------------------------------------------------------

    def _allocate(self, epoch: Epoch, nbytes: int = 0) -> Iterator[Operation]:
        nbytes = nbytes or self.random.choice(epoch.sizes)
        if self._room_for(nbytes):
            yield from self._try("allocate", self._process(), makes=self.number(), nbytes=nbytes)

    def _export(self, epoch: Epoch) -> Iterator[Operation]:
        if buffer := self._pick("buffer"):
            yield from self._try("export", buffer.by, on=buffer.number)

    def _open(self, epoch: Epoch) -> Iterator[Operation]:
        buffers = self.model.of_kind("buffer")
        if buffers and len(self.model.things) < self.limits.objects:
            yield from self._elsewhere("open", self.random.choice(buffers))

    def _close(self, epoch: Epoch) -> Iterator[Operation]:
        if mapping := self._pick("mapping"):
            yield from self._try("close", mapping.by, on=mapping.number)

    def _free(self, epoch: Epoch) -> Iterator[Operation]:
        if buffer := self._pick("buffer"):
            yield from self._try("free", buffer.by, on=buffer.number)

    def _free_open(self, epoch: Epoch) -> Iterator[Operation]:
        if buffer := self._pick("buffer"):
            yield from self._try("free-open", buffer.by, on=buffer.number)

    def _write(self, epoch: Epoch) -> Iterator[Operation]:
        if thing := self._pick(*USABLE, usable=True):
            yield from self._try("write", thing.by, on=thing.number, stamp=self.number())

    def _read(self, epoch: Epoch) -> Iterator[Operation]:
        if thing := self._pick(*USABLE, usable=True):
            yield from self._try("read", thing.by, on=thing.number)

    def _copy(self, epoch: Epoch) -> Iterator[Operation]:
        yield from self._copied("copy")

    def _copy_across_streams(self, epoch: Epoch) -> Iterator[Operation]:
        yield from self._copied("copy-across-streams")

    def _copied(self, do: str) -> Iterator[Operation]:
        """Copy between two buffers of a process. Huge buffers are excluded, because a copy makes all their
        pages resident."""
        to, source = self._pick(*USABLE, usable=True), self._pick(*USABLE, usable=True)
        if to and source and to.storage.nbytes < HUGE[0]:
            yield from self._try(do, to.by, on=to.number, of=source.number)

    def _read_by_kernel(self, epoch: Epoch) -> Iterator[Operation]:
        if thing := self._pick(*USABLE, usable=True):
            yield from self._try("read-by-kernel", thing.by, on=thing.number)

    def _write_by_kernel(self, epoch: Epoch) -> Iterator[Operation]:
        if thing := self._pick(*USABLE, usable=True):
            yield from self._try("write-by-kernel", thing.by, on=thing.number, stamp=self.number())

    def _fork(self, epoch: Epoch) -> Iterator[Operation]:
        yield from self._try("fork", self._process())

    def _idle(self, epoch: Epoch) -> Iterator[Operation]:
        yield from self._try("idle", self._process())

    def _end_context(self, epoch: Epoch) -> Iterator[Operation]:
        by = self._process()
        if process := self.model.processes.get(by):
            yield from self._try("end-context", by, on=self.random.choice(process.contexts))

    def _create_context(self, epoch: Epoch) -> Iterator[Operation]:
        by = self._process()
        process = self.model.processes.get(by)
        if process and process.contexts == [FIRST_CONTEXT]:
            yield from self._try("create-context", by, makes=self.number())

    def _use_context(self, epoch: Epoch) -> Iterator[Operation]:
        by = self._process()
        if process := self.model.processes.get(by):
            yield from self._try("use-context", by, on=self.random.choice(process.contexts))

    def _kill(self, epoch: Epoch) -> Iterator[Operation]:
        yield from self._try("kill", max(self._crew))  # mostly this context, or none lives long enough

    def _room_for(self, nbytes: int) -> bool:
        live = {thing.storage.number: thing.storage.nbytes for thing in self.model.things.values()}
        return (
            sum(live.values()) + nbytes <= self.limits.room and len(self.model.things) < self.limits.objects
        )

    def _create(self, epoch: Epoch) -> Iterator[Operation]:
        nbytes = GRANULE * self.random.choice((1, 1, 1, 2, 4))
        if self._room_for(nbytes):
            yield from self._try("create", self._process(), makes=self.number(), nbytes=nbytes)

    def _import(self, epoch: Epoch) -> Iterator[Operation]:
        if memory := self._pick("physical"):
            yield from self._elsewhere("import", memory)

    def _create_fabric(self, epoch: Epoch) -> Iterator[Operation]:
        if self._room_for(GRANULE):
            yield from self._try("create-fabric", self._process(), makes=self.number(), nbytes=GRANULE)

    def _import_fabric(self, epoch: Epoch) -> Iterator[Operation]:
        if memory := self._pick("physical"):
            yield from self._elsewhere("import-fabric", memory)

    def _map(self, epoch: Epoch) -> Iterator[Operation]:
        if (memory := self._pick("physical")) and len(self.model.things) < self.limits.objects:
            yield from self._try("map", memory.by, on=memory.number, makes=self.number())

    def _unmap(self, epoch: Epoch) -> Iterator[Operation]:
        if view := self._pick("view"):
            yield from self._try("unmap", view.by, on=view.number)

    def _release(self, epoch: Epoch) -> Iterator[Operation]:
        if memory := self._pick("physical"):
            yield from self._try("release", memory.by, on=memory.number)

    def _create_pool(self, epoch: Epoch) -> Iterator[Operation]:
        if len(self.model.of_kind("pool")) < 2:
            yield from self._try("create-pool", self._process(), makes=self.number())

    def _import_pool(self, epoch: Epoch) -> Iterator[Operation]:
        if pool := self._pick("pool"):
            yield from self._elsewhere("import-pool", pool)

    def _allocate_from_pool(self, epoch: Epoch) -> Iterator[Operation]:
        nbytes = self.random.choice(epoch.sizes)
        if (pool := self._pick("pool")) and self._room_for(nbytes):
            number = self.number()
            yield from self._try("allocate-from-pool", pool.by, on=pool.number, makes=number, nbytes=nbytes)

    def _import_pointer(self, epoch: Epoch) -> Iterator[Operation]:
        if pool := self._pick("imported-pool"):
            memories = [memory for memory in self.model.of_kind("pool-memory") if memory.pool is pool.storage]
            if memories:
                memory, number = self.random.choice(memories), self.number()
                yield from self._try(
                    "import-pointer", pool.by, on=memory.number, of=pool.number, makes=number
                )

    def _free_to_pool(self, epoch: Epoch) -> Iterator[Operation]:
        if memory := self._pick("pool-memory", "imported-memory"):
            yield from self._try("free-to-pool", memory.by, on=memory.number)

    def _trim(self, epoch: Epoch) -> Iterator[Operation]:
        if pool := self._pick("pool"):
            yield from self._try("trim", pool.by, on=pool.number)

    def _destroy_pool(self, epoch: Epoch) -> Iterator[Operation]:
        if pool := self._pick("pool", "imported-pool"):
            yield from self._try("destroy-pool", pool.by, on=pool.number)

    def _elsewhere(self, do: str, thing: Thing) -> Iterator[Operation]:
        others = [number for number in self._crew if number != thing.by]
        yield from self._try(do, self.random.choice(others), on=thing.number, makes=self.number())

    # -- macros -------------------------------------------------------------------------------------------

    def _share(self, epoch: Epoch, nbytes: int = 0, users: tuple[int, ...] = ()) -> Iterator[Operation]:
        """Allocate a buffer, write it and have all other processes open and read it."""
        made = list(self._allocate(epoch, nbytes))
        yield from made
        for operation in made:
            buffer, owner = operation.makes, operation.by
            yield self._do("write", owner, on=buffer, stamp=self.number())
            others = [number for number in self._crew if number != owner]
            chosen = [user for user in users if user in others] or [self.random.choice(others)]
            for user in chosen:
                opened = list(self._try("open", user, on=buffer, makes=self.number()))
                yield from opened
                for mapping in opened:
                    yield from self._try("read", user, on=mapping.makes)

    def _recycle(self, epoch: Epoch) -> Iterator[Operation]:
        """Close and free memory, then give its users a new buffer of the same size."""
        if (buffer := self._pick("buffer")) is None:
            return
        mappings = [thing for thing in self.model.others_of(buffer) if thing.kind == "mapping"]
        users = tuple({mapping.by for mapping in mappings})
        if epoch.weights.get("free-open") and self.random.random() < 0.7:
            yield from self._try("free-open", buffer.by, on=buffer.number)
        else:
            for mapping in mappings:
                yield from self._try("close", mapping.by, on=mapping.number)
            yield from self._try("free", buffer.by, on=buffer.number)
        self._latest = buffer.by
        nbytes = buffer.storage.nbytes
        if self.limits.wide and self.random.random() < OTHER_SIZE:
            nbytes = self.random.choice(epoch.sizes)
        yield from self._share(epoch, nbytes, users)

    # -- the end of an epoch ------------------------------------------------------------------------------

    def _look(self) -> Iterator[Operation]:
        for thing in sorted(self.model.of_kind(*USABLE), key=lambda thing: thing.by):
            yield from self._try("read", thing.by, on=thing.number)

    def _give_back(self) -> Iterator[Operation]:
        """Close all mappings, then free all memory, in random order; destroy all but the first contexts."""
        for do, kind in GIVING_BACK:
            things = self.model.of_kind(kind)
            self.random.shuffle(things)
            for thing in sorted(things, key=lambda thing: thing.by):
                yield from self._try(do, thing.by, on=thing.number)
        for process in list(self.model.processes.values()):
            for context in process.contexts[1:]:
                yield from self._try("end-context", process.number, on=context)
