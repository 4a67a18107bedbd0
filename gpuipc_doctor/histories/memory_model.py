"""The reference model: which operations are legal, and what memory must contain."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from gpuipc_doctor.histories import legality
from gpuipc_doctor.histories.contents import WHOLE_BYTES, Part, glances, overlaid, within
from gpuipc_doctor.histories.operations import WHOLE, History, Operation, ProcessPlan

FIRST_CONTEXT = 0
"""Number of the context with which a process starts."""

NO_CONTEXT = -1
"""Context number of objects that outlive their context."""


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

GRANULE = 2 << 20
"""Granularity of physical memory in bytes, for CUDA and HIP."""

POOLED = {"pool", "imported-pool", "pool-memory", "imported-memory", "event", "imported-event"}
"""Kinds of objects whose process keeps one context; see `Model._one_context`."""

USABLE = {"buffer", "mapping", "view", "pool-memory", "imported-memory"}
"""Kinds of objects with an address."""


ANYWHERE = {
    "allocate",
    "export",
    "open",
    "open-in-thread",
    "close",
    "free",
    "write",
    "read",
    "fill",
    "ask",
    "use-context",
    "end-context",
    "kill",
    "rest",
}
"""Operations that a process may perform while its current context is on another device than its own."""

FILLED = 1 << 20
"""Most bytes that a fill changes in memory of more than `WHOLE_BYTES`."""

FILLS = {"8": 1, "16": 2, "32": 4}
"""Kind of a fill → bytes of its unit."""

AT_ONCE = 2
"""Maximum processes that perform operations at the same time."""

ALONE = {
    "import",
    "import-fabric",
    "import-pool",
    "import-pointer",
    "free-open",
    "create-event",
    "open-event",
    "copy-and-record",
    "wait-event",
    "destroy-event",
    "create-context",
    "kill",
    "fork",
    "idle",
    "rest",
}
"""Operations that involve other processes. All processes that are not involved are idle meanwhile."""

ENDS = {"free", "free-in-thread", "free-to-pool", "destroy-pool"}
WRITES = {"write", "write-in-thread", "write-by-kernel", "fill", "copy", "copy-across-streams"}
BEGINS = {"allocate", "create", "create-fabric", "create-pool", "allocate-from-pool"}
"""Operations that create memory. `WRITES` change the contents of the object ``on``, `ENDS` its memory."""


class Model:
    """The state after some operations. `illegal` and `apply` find their rule by the operation's name."""

    def __init__(self, history: History) -> None:
        self.backend = history.backend
        self.plans = history.processes
        self.peers = set(history.peers)
        self.processes: dict[int, Process] = {}
        self.ended: set[int] = set()
        self.things: dict[int, Thing] = {}
        self.made: set[int] = set()
        self._group: dict[int, tuple[set[int], set[int]]] = {}
        """Process → (storages that it uses, storages that it changes) in operations that may run at the same
        time."""
        self._is_closed = False

    def illegal(self, operation: Operation) -> str:
        """Why the operation is not valid now; empty if it is valid."""
        if operation.by in self.ended or operation.by not in self.plans:
            return f"process {operation.by} has ended"
        if operation.makes and operation.makes in self.made:
            return f"object {operation.makes} exists already"
        for number in {operation.on, operation.of} & self.things.keys():
            if self.things[number].storage.under_way and operation.do != "wait-event":
                return f"the copy of {number} is under way"
        if self._device_of(operation.by) != self.plans[operation.by].device and operation.do not in ANYWHERE:
            return "the current context is on another device"
        why: str = getattr(self, f"_may_{operation.do.replace('-', '_')}")(operation)
        return why

    def apply(self, operation: Operation) -> Expected:
        """Update the state for a valid operation; returns the expected data."""
        process = self.processes.get(operation.by)
        if process is None:
            process = self.processes[operation.by] = Process(operation.by, self.plans[operation.by])
        if operation.makes:
            self.made.add(operation.makes)
        beside = operation.beside and self.joins(operation)
        if not beside and self._group.keys() != {operation.by}:
            self._group, self._is_closed = {}, False
        used, changed = self._group.setdefault(operation.by, (set(), set()))
        if operation.do in ALONE:
            self._is_closed = True  # nothing joins its process's operations, before or after it
        else:
            uses, changes = self._touched(operation)
            used |= uses
            changed |= changes
        expected: Expected | None = getattr(self, f"_{operation.do.replace('-', '_')}")(operation, process)
        if beside:
            return (expected or NOTHING)._replace(beside=True)
        return expected or NOTHING

    # -- at the same time ---------------------------------------------------------------------------------

    def joins(self, operation: Operation) -> bool:
        """Whether this operation may begin while another process still performs the latest operations:
        neither process may change memory that the other uses."""
        others = [touched for by, touched in self._group.items() if by != operation.by]
        if self._is_closed or not 0 < len(others) < AT_ONCE or operation.do in ALONE:
            return False
        uses, changes = self._touched(operation)
        return all(
            changes.isdisjoint(used) and changed.isdisjoint(changes) and changed.isdisjoint(uses)
            for used, changed in others
        )

    def _touched(self, operation: Operation) -> tuple[set[int], set[int]]:
        """The numbers of the storages that an operation uses, and of those that it changes."""
        do, things = operation.do, self.things
        if do == "end-context":
            return set(), {thing.storage.number for thing in self._in_context(operation.by, operation.on)}
        uses = {things[number].storage.number for number in (operation.on, operation.of) if number in things}
        if do in BEGINS:
            return uses, {operation.makes}
        if do in ENDS:
            return set(), uses
        if do in WRITES:
            changes = {things[operation.on].storage.number}
            return uses - changes, changes
        return uses, set()

    def allows(self, case: str, *values: str) -> bool:
        return legality.value(self.backend, case) in (values or (legality.LEGAL,))

    # -- what there is ------------------------------------------------------------------------------------

    def of_kind(self, *kinds: str) -> list[Thing]:
        return [thing for thing in self.things.values() if thing.kind in kinds]

    def others_of(self, thing: Thing) -> list[Thing]:
        """Other objects that refer to the same memory."""
        return [
            other for other in self.things.values() if other.storage is thing.storage and other is not thing
        ]

    def _own(self, operation: Operation, *kinds: str) -> Thing | None:
        thing = self.things.get(operation.on)
        return thing if thing and thing.by == operation.by and thing.kind in kinds else None

    def _add(self, operation: Operation, kind: str, storage: Storage, process: Process) -> None:
        number, context = operation.makes, process.current
        self.things[number] = Thing(number, kind, operation.by, storage, context, device=process.device)

    def _add_shared(
        self, operation: Operation, kind: str, storage: Storage, pool: Storage | None = None
    ) -> None:
        number = operation.makes
        device = self.plans[operation.by].device
        self.things[number] = Thing(number, kind, operation.by, storage, NO_CONTEXT, pool, device)

    def _device_of(self, by: int) -> int:
        """The device of a process's current context."""
        return self.processes[by].device if by in self.processes else self.plans[by].device

    def _reaches(self, operation: Operation, storage: Storage) -> bool:
        """Whether the current context's device is the memory's device or has peer access to it."""
        device = self._device_of(operation.by)
        return device == storage.device or (storage.device, device) in self.peers

    def _end_things(self, things: list[Thing]) -> None:
        """Remove objects that end without being closed or freed, and free their memory."""
        for thing in things:
            del self.things[thing.number]
            if thing.kind in ("buffer", "pool", "pool-memory", "event"):
                thing.storage.freed = True

    # -- buffers and legacy handles -----------------------------------------------------------------------

    def _may_allocate(self, operation: Operation) -> str:
        return "" if operation.makes and operation.nbytes > 0 else "needs a new object of at least one byte"

    def _allocate(self, operation: Operation, process: Process) -> None:
        storage = Storage(operation.makes, operation.by, process.device, operation.nbytes)
        self._add(operation, "buffer", storage, process)

    def _may_export(self, operation: Operation) -> str:
        return "" if self._own(operation, "buffer") else _no_such(operation, "buffer")

    def _export(self, operation: Operation, process: Process) -> None:
        pass

    def _may_open(self, operation: Operation) -> str:
        buffer = self.things.get(operation.on)
        if buffer is None or buffer.kind != "buffer" or not operation.makes:
            return f"no buffer {operation.on}"
        if buffer.by == operation.by:
            return "a process cannot open its own handle"
        if not self._reaches(operation, buffer.storage):
            return "the process's device cannot access the memory"
        if self._beside_stale(operation, buffer):
            return "the buffer may reuse the address of freed memory that is still open"
        if not self.allows("open an exporter's memory in a second context"):
            process = self.processes.get(operation.by)
            current = process.current if process else FIRST_CONTEXT
            elsewhere = any(
                thing.by == operation.by
                and thing.kind == "mapping"
                and thing.context != current
                and thing.device == self._device_of(operation.by)
                and (thing.storage.owner, thing.storage.device)
                == (buffer.storage.owner, buffer.storage.device)
                for thing in self.things.values()
            )
            if elsewhere:
                return f"memory of process {buffer.by} is open in another context of process {operation.by}"
        return ""

    def _beside_stale(self, operation: Operation, buffer: Thing) -> bool:
        """Whether ``buffer`` is small and the process still has freed small memory of the same exporter
        open."""
        if self.allows("open small memory beside a stale mapping of small memory"):
            return False
        return buffer.storage.nbytes < GRANULE and any(
            thing.by == operation.by
            and thing.kind == "mapping"
            and thing.storage.freed
            and thing.storage.owner == buffer.by
            and thing.storage.nbytes < GRANULE
            for thing in self.things.values()
        )

    def _open(self, operation: Operation, process: Process) -> None:
        self._add(operation, "mapping", self.things[operation.on].storage, process)

    def _may_open_in_thread(self, operation: Operation) -> str:
        if not self.allows("open memory in another thread than the context's"):
            return "memory must be opened in the context's thread"
        return self._may_open(operation)

    _open_in_thread = _open

    def _may_end_in_thread(self, operation: Operation) -> str:
        """Why another thread, in the process's current context, cannot close or free it."""
        if not self.allows("open memory in another thread than the context's"):
            return "memory must be closed in the context's thread"
        thing, process = self.things.get(operation.on), self.processes.get(operation.by)
        if thing and process and thing.context != process.current:
            return "another context is current"
        return ""

    def _may_close_in_thread(self, operation: Operation) -> str:
        return self._may_end_in_thread(operation) or self._may_close(operation)

    def _may_free_in_thread(self, operation: Operation) -> str:
        return self._may_end_in_thread(operation) or self._may_free(operation)

    def _may_close(self, operation: Operation) -> str:
        return "" if self._own(operation, "mapping") else _no_such(operation, "mapping")

    def _close(self, operation: Operation, process: Process) -> None:
        del self.things[operation.on]

    _close_in_thread = _close

    def _may_free(self, operation: Operation) -> str:
        if not (buffer := self._own(operation, "buffer")):
            return _no_such(operation, "buffer")
        return "the buffer is open in another process" if self.others_of(buffer) else ""

    def _free(self, operation: Operation, process: Process) -> None:
        self._end_things([self.things[operation.on]])

    _free_in_thread = _free

    def _may_free_open(self, operation: Operation) -> str:
        """Why the buffer cannot be freed while another process has it open; empty if it can be."""
        if not (buffer := self._own(operation, "buffer")):
            return _no_such(operation, "buffer")
        if not self.allows("free memory that is open elsewhere", legality.LEGAL, legality.DECLARED):
            return "memory that is open in another process must not be freed"
        return "" if self.others_of(buffer) else "the buffer is not open in another process"

    _free_open = _free

    # -- memory -------------------------------------------------------------------------------------------

    def _may_use(self, operation: Operation) -> str:
        if not (thing := self._own(operation, *USABLE)):
            return _no_such(operation, "memory")
        if thing.context == NO_CONTEXT and thing.device != self._device_of(operation.by):
            return "the current context is on another device than the memory's user"
        if operation.offset + max(operation.length, 1) > thing.storage.nbytes:
            return "the memory ends before"
        return "the memory was freed" if thing.storage.freed else ""

    def _range(self, operation: Operation) -> tuple[Storage, int, int]:
        """The memory of an operation, and the offsets between which it works."""
        storage = self.things[operation.on].storage
        end = operation.offset + operation.length if operation.length else storage.nbytes
        return storage, operation.offset, end

    def _may_write(self, operation: Operation) -> str:
        return self._may_use(operation) or ("" if operation.stamp else "a write needs a stamp")

    def _write(self, operation: Operation, process: Process) -> Expected:
        storage, begin, end = self._range(operation)
        in_part = storage.nbytes > WHOLE_BYTES and operation.kind != WHOLE
        pieces = glances(begin, end) if in_part else [(begin, end)]
        for first, last in pieces:
            storage.parts = overlaid(storage.parts, first, last, [Part(first, last, operation.stamp)])
        return Expected(operation.stamp, storage.nbytes)

    _may_write_in_thread, _write_in_thread = _may_write, _write

    def _may_fill(self, operation: Operation) -> str:
        if why := self._may_write(operation):
            return why
        if not (width := FILLS.get(operation.kind)):
            return f"no fill of {operation.kind} bits"
        storage, begin, end = self._range(operation)
        if storage.nbytes > WHOLE_BYTES and end - begin > FILLED:
            return "so much is not filled"
        return "a fill is of whole units" if begin % width or end % width else ""

    def _fill(self, operation: Operation, process: Process) -> Expected:
        storage, begin, end = self._range(operation)
        filled = Part(begin, end, operation.stamp, begin, FILLS[operation.kind])
        storage.parts = overlaid(storage.parts, begin, end, [filled])
        return Expected(operation.stamp, storage.nbytes)

    _may_read = _may_use

    def _read(self, operation: Operation, process: Process) -> Expected:
        storage, begin, end = self._range(operation)
        known = within(storage.parts, begin, end)
        whole = len(known) == 1 and known[0][:2] == (begin, end) and not (known[0].shift or known[0].width)
        return Expected(known[0].stamp if whole else 0, storage.nbytes, parts=known)

    def _may_ask(self, operation: Operation) -> str:
        if why := self._may_use(operation):
            return why
        return "" if self.things[operation.on].kind in ("buffer", "mapping") else "not an allocation"

    def _ask(self, operation: Operation, process: Process) -> Expected:
        """The stamp is 1 if the device is known that the driver must name."""
        thing = self.things[operation.on]
        is_known = thing.device == thing.storage.device or self.allows("name the device of another's memory")
        return Expected(int(is_known), thing.storage.nbytes)

    def _may_copy(self, operation: Operation) -> str:
        if why := self._may_use(operation):
            return why
        source = self.things.get(operation.of)
        if source is None or source.by != operation.by or source.kind not in USABLE or source.storage.freed:
            return f"process {operation.by} has no memory {operation.of}"
        to = self.things[operation.on]
        contexts = {to.context, source.context} - {NO_CONTEXT}
        if source.storage is to.storage or len(contexts) > 1:
            return "a copy needs two buffers of one context"
        if not operation.length:
            return "" if source.storage.nbytes == to.storage.nbytes else "sizes differ"
        return "" if operation.start + operation.length <= source.storage.nbytes else "the source ends before"

    def _copy(self, operation: Operation, process: Process) -> Expected:
        storage, begin, end = self._range(operation)
        further = operation.offset - operation.start
        copied = [
            part._replace(begin=part.begin + further, end=part.end + further, shift=part.shift + further)
            for part in within(
                self.things[operation.of].storage.parts, operation.start, operation.start + end - begin
            )
        ]
        storage.parts = overlaid(storage.parts, begin, end, copied)
        return Expected(0, storage.nbytes)

    _may_read_in_thread, _read_in_thread = _may_use, _read
    _may_read_by_kernel, _read_by_kernel = _may_use, _read
    _may_write_by_kernel, _write_by_kernel = _may_write, _write
    _may_copy_across_streams, _copy_across_streams = _may_copy, _copy

    # -- physical memory ----------------------------------------------------------------------------------

    def _may_create(self, operation: Operation) -> str:
        granules, rest = divmod(operation.nbytes, GRANULE)
        return "" if operation.makes and granules > 0 and not rest else "the size must be a multiple of 2 MiB"

    def _create(self, operation: Operation, process: Process) -> None:
        storage = Storage(operation.makes, operation.by, process.plan.device, operation.nbytes)
        self._add_shared(operation, "physical", storage)

    def _create_fabric(self, operation: Operation, process: Process) -> None:
        self._create(operation, process)
        self.things[operation.makes].storage.fabric = True

    _may_create_fabric = _may_create

    def _may_import(self, operation: Operation, *, fabric: bool = False) -> str:
        memory = self.things.get(operation.on)
        if memory is None or memory.kind != "physical" or memory.number != memory.storage.number:
            return f"no exportable memory {operation.on}"
        if memory.storage.fabric is not fabric:
            return "the memory is exported by fabric handle" if memory.storage.fabric else "no fabric handle"
        if memory.by == operation.by or not operation.makes:
            return "a process cannot import its own memory"
        return "" if self._reaches(operation, memory.storage) else "no peer access to the memory's device"

    def _import(self, operation: Operation, process: Process) -> Expected:
        storage = self.things[operation.on].storage
        self._add_shared(operation, "physical", storage)
        return Expected(0, storage.nbytes)

    def _may_import_fabric(self, operation: Operation) -> str:
        return self._may_import(operation, fabric=True)

    _import_fabric = _import

    def _may_map(self, operation: Operation) -> str:
        has = self._own(operation, "physical") and operation.makes
        return "" if has else _no_such(operation, "physical memory")

    def _map(self, operation: Operation, process: Process) -> Expected:
        storage = self.things[operation.on].storage
        self._add_shared(operation, "view", storage)
        return Expected(0, storage.nbytes)

    def _may_unmap(self, operation: Operation) -> str:
        return "" if self._own(operation, "view") else _no_such(operation, "view")

    def _may_release(self, operation: Operation) -> str:
        return "" if self._own(operation, "physical") else _no_such(operation, "physical memory")

    def _unmap(self, operation: Operation, process: Process) -> None:
        del self.things[operation.on]

    _release = _unmap

    # -- pools --------------------------------------------------------------------------------------------

    # No source says whether pool memory and its streams outlive a context: such a process has one context.

    def _one_context(self, operation: Operation) -> bool:
        process = self.processes.get(operation.by)
        return process is None or process.contexts == [FIRST_CONTEXT]

    def _has_pool(self, operation: Operation) -> bool:
        return any(thing.by == operation.by and thing.kind in POOLED for thing in self.things.values())

    def _may_create_pool(self, operation: Operation) -> str:
        return (
            ""
            if operation.makes and self._one_context(operation)
            else "needs a new pool and a process with one context"
        )

    def _create_pool(self, operation: Operation, process: Process) -> None:
        self._add_shared(operation, "pool", Storage(operation.makes, operation.by, process.plan.device, 0))

    def _may_import_pool(self, operation: Operation) -> str:
        pool = self.things.get(operation.on)
        if pool is None or pool.kind != "pool" or pool.by == operation.by or not operation.makes:
            return f"no other process has a pool {operation.on}"
        if not self._one_context(operation):
            return f"process {operation.by} has two contexts"
        if any(other.by == operation.by for other in self.others_of(pool)):
            return "the pool is already imported"
        return "" if self._reaches(operation, pool.storage) else "no peer access to the memory's device"

    def _import_pool(self, operation: Operation, process: Process) -> Expected:
        storage = self.things[operation.on].storage
        self._add_shared(operation, "imported-pool", storage)
        return Expected(int(storage.device != process.plan.device), 0)

    def _may_allocate_from_pool(self, operation: Operation) -> str:
        has = self._own(operation, "pool") and operation.makes and operation.nbytes > 0
        return "" if has else _no_such(operation, "pool")

    def _allocate_from_pool(self, operation: Operation, process: Process) -> None:
        storage = Storage(operation.makes, operation.by, process.plan.device, operation.nbytes)
        self._add_shared(operation, "pool-memory", storage, self.things[operation.on].storage)

    def _may_import_pointer(self, operation: Operation) -> str:
        memory, pool = self.things.get(operation.on), self.things.get(operation.of)
        if memory is None or memory.kind != "pool-memory" or not operation.makes:
            return f"no pool memory {operation.on}"
        if pool is None or (pool.by, pool.kind, pool.storage) != (operation.by, "imported-pool", memory.pool):
            return f"process {operation.by} has not imported the memory's pool"
        if any(other.by == operation.by for other in self.others_of(memory)):
            return "the memory is already imported"
        return ""

    def _import_pointer(self, operation: Operation, process: Process) -> Expected:
        storage = self.things[operation.on].storage
        self._add_shared(operation, "imported-memory", storage, self.things[operation.of].storage)
        return Expected(0, storage.nbytes)

    def _may_free_to_pool(self, operation: Operation) -> str:
        if not (memory := self._own(operation, "pool-memory", "imported-memory")):
            return _no_such(operation, "pool memory")
        imported = memory.kind == "pool-memory" and self.others_of(memory)
        return "another process has imported the memory" if imported else ""

    def _free_to_pool(self, operation: Operation, process: Process) -> None:
        self._end_things([self.things[operation.on]])

    def _may_trim(self, operation: Operation) -> str:
        return "" if self._own(operation, "pool") else _no_such(operation, "pool")

    def _trim(self, operation: Operation, process: Process) -> None: ...

    def _may_destroy_pool(self, operation: Operation) -> str:
        if not (pool := self._own(operation, "pool", "imported-pool")):
            return _no_such(operation, "pool")
        if any(thing.by == pool.by and thing.pool is pool.storage for thing in self.things.values()):
            return "memory of the pool is still allocated"
        return "another process has imported the pool" if pool.kind == "pool" and self.others_of(pool) else ""

    def _destroy_pool(self, operation: Operation, process: Process) -> None:
        self._end_things([self.things[operation.on]])

    # -- events -------------------------------------------------------------------------------------------

    def _may_create_event(self, operation: Operation) -> str:
        return self._may_create_pool(operation)

    def _create_event(self, operation: Operation, process: Process) -> None:
        self._add_shared(operation, "event", Storage(operation.makes, operation.by, process.plan.device, 0))

    def _may_open_event(self, operation: Operation) -> str:
        event = self.things.get(operation.on)
        if event is None or event.kind != "event" or event.by == operation.by or not operation.makes:
            return f"no other process has an event {operation.on}"
        if not self._one_context(operation):
            return f"process {operation.by} has two contexts"
        return "" if self._reaches(operation, event.storage) else "no peer access to the event's device"

    def _open_event(self, operation: Operation, process: Process) -> None:
        self._add_shared(operation, "imported-event", self.things[operation.on].storage)

    def _may_copy_and_record(self, operation: Operation) -> str:
        event = self.things.get(operation.within)
        if event is None or event.by != operation.by or event.kind not in ("event", "imported-event"):
            return f"process {operation.by} has no event {operation.within}"
        if event.storage.freed:
            return "the event was destroyed"
        if self._under_way(event.storage):
            return "the event stands for a copy under way"
        return self._may_copy(operation)

    def _copy_and_record(self, operation: Operation, process: Process) -> Expected:
        """Neither memory may be used until a process has waited for the event."""
        copied = self._copy(operation, process)
        for number in (operation.on, operation.of):
            self.things[number].storage.under_way = self.things[operation.within].storage.number
        return copied

    def _under_way(self, event: Storage) -> list[Storage]:
        return [thing.storage for thing in self.things.values() if thing.storage.under_way == event.number]

    def _may_wait_event(self, operation: Operation) -> str:
        event = self._own(operation, "event", "imported-event")
        if event is None:
            return _no_such(operation, "event")
        return "the event was destroyed" if event.storage.freed else ""

    def _wait_event(self, operation: Operation, process: Process) -> None:
        for storage in self._under_way(self.things[operation.on].storage):
            storage.under_way = 0

    def _may_destroy_event(self, operation: Operation) -> str:
        event = self._own(operation, "event", "imported-event")
        if event is None:
            return _no_such(operation, "event")
        if self._under_way(event.storage):
            return "the event stands for a copy under way"
        return "another process has the event" if event.kind == "event" and self.others_of(event) else ""

    def _destroy_event(self, operation: Operation, process: Process) -> None:
        self._end_things([self.things[operation.on]])

    # -- contexts -----------------------------------------------------------------------------------------

    def _in_context(self, by: int, context: int) -> list[Thing]:
        return [
            thing
            for thing in self.things.values()
            if thing.by == by and thing.context == context and thing.kind in ("buffer", "mapping")
        ]

    def _may_end_context(self, operation: Operation) -> str:
        process = self.processes.get(operation.by)
        if operation.on not in (process.contexts if process else [FIRST_CONTEXT]):
            return f"process {operation.by} has no context {operation.on}"
        if self._has_pool(operation):
            return "the process has a pool"
        ending = self._in_context(operation.by, operation.on)
        ends = self.allows("destroy a context ends what lives in it")
        if not ends and ending and process and operation.on in process.devices:
            return "memory of the context's device outlives it, and the first context is on another"
        if ends and any(thing.kind == "buffer" and self.others_of(thing) for thing in ending):
            return "memory of this context is open in another process"
        return ""

    def _end_context(self, operation: Operation, process: Process) -> None:
        ending = self._in_context(operation.by, operation.on)
        if self.allows("destroy a context ends what lives in it"):
            self._end_things(ending)
        else:
            for thing in ending:
                thing.context = FIRST_CONTEXT
        if operation.on != FIRST_CONTEXT:
            process.contexts.remove(operation.on)
            process.devices.pop(operation.on, None)
        process.current = FIRST_CONTEXT

    def _may_create_context(self, operation: Operation) -> str:
        if self._has_pool(operation) or not operation.makes:
            return "the process has a pool or an event" if operation.makes else "no new context"
        device, own = operation.device - 1, self.plans[operation.by].device
        if operation.device and not self.allows("two devices in one process"):
            return "the process has another device"
        if operation.device and not {(own, device), (device, own)} <= self.peers:
            return "no peer access between the two devices"
        return ""

    def _create_context(self, operation: Operation, process: Process) -> None:
        process.contexts.append(operation.makes)
        if operation.device:
            process.devices[operation.makes] = operation.device - 1
        process.current = operation.makes

    def _may_use_context(self, operation: Operation) -> str:
        process = self.processes.get(operation.by)
        known = process is not None and operation.on in process.contexts and operation.on != process.current
        return "" if known else f"process {operation.by} has no other context {operation.on}"

    def _use_context(self, operation: Operation, process: Process) -> None:
        process.current = operation.on

    # -- processes ----------------------------------------------------------------------------------------

    def _may_kill(self, operation: Operation) -> str:
        if operation.by not in self.processes:
            return f"process {operation.by} has not started"
        own = [thing for thing in self.things.values() if thing.by == operation.by]
        if any(thing.storage.under_way for thing in own):
            return "a copy is under way"
        if not self.allows("end a process whose event is open elsewhere") and any(
            thing.kind == "event" and self.others_of(thing) for thing in own
        ):
            return "an event of the process is open in another process"
        if self.allows("end a process whose memory is open elsewhere"):
            return ""
        shared = any(other.by != operation.by for thing in own for other in self.others_of(thing))
        return "memory of the process is open in another process" if shared else ""

    def _kill(self, operation: Operation, process: Process) -> None:
        self._end_things([thing for thing in self.things.values() if thing.by == operation.by])
        del self.processes[operation.by]
        self.ended.add(operation.by)

    def _may_fork(self, operation: Operation) -> str:
        return "" if self.allows("go on after a fork") else "a process must not fork"

    def _may_idle(self, operation: Operation) -> str:
        return ""

    def _fork(self, operation: Operation, process: Process) -> None:
        """Fork a child that makes no driver calls, since no vendor allows them."""

    _idle = _fork

    def _may_rest(self, operation: Operation) -> str:
        return "a process still has objects" if self.things else ""

    def _rest(self, operation: Operation, process: Process) -> None:
        """Read the process's descriptors, threads and memory while nothing is allocated in any process."""


def legal(history: History) -> list[Operation]:
    """The operations that remain valid when invalid ones are omitted."""
    model, kept = Model(history), list[Operation]()
    for operation in history.operations:
        if not model.illegal(operation):
            model.apply(operation)
            kept.append(operation)
    return kept


def _no_such(operation: Operation, what: str) -> str:
    return f"process {operation.by} has no {what} {operation.on}"
