"""Operations on physical memory, memory pools and events, which are shared unlike buffers."""

from __future__ import annotations

from collections.abc import Iterator

from gpuipc_doctor.histories.buffer_operations import LEGACY, Close, Copy
from gpuipc_doctor.histories.memory_draft import Draft, Phase
from gpuipc_doctor.histories.memory_operation import UNDRAWN, MemoryOperation
from gpuipc_doctor.histories.memory_state import GRANULE, Expected, State, Storage
from gpuipc_doctor.histories.operations import Operation
from gpuipc_doctor.histories.performer import Performer

VMM, FABRIC, POOLS = ("vmm-ipc",), ("fabric-handles",), ("pool-ipc",)
EXPORTS_VMM = "exports VMM memory"


class Create(MemoryOperation):
    do = "create"
    says = "process {by} creates physical memory {makes} ({nbytes} B)"
    c = (
        "{sized} enter(current); struct wanted wanted = {{ 1, 1, 1, device }};"
        " cuMemCreate(&at[{makes}], {nbytes}, &wanted, 0ul);"
    )
    weight, needs, effect, harms = 2.0, VMM, "makes", EXPORTS_VMM

    def refuse(self, m: State, op: Operation) -> str:
        granules, rest = divmod(op.nbytes, GRANULE)
        return "" if op.makes and granules > 0 and not rest else "the size must be a multiple of 2 MiB"

    def apply(self, m: State, op: Operation) -> None:
        m.add_shared(op, "physical", Storage(op.makes, op.by, m.plans[op.by].device, op.nbytes))

    def draw(self, d: Draft, phase: Phase) -> Iterator[Operation]:
        nbytes = GRANULE * d.random.choice((1, 1, 1, 2, 4))
        if d.has_room(nbytes):
            yield from d.attempt(self.do, d.process(), makes=d.number(), nbytes=nbytes)

    def perform(self, p: Performer, op: Operation) -> None:
        p.add(op, p.gpu.create_physical(p.granules(op.nbytes)))


class CreateFabric(Create):
    do = "create-fabric"
    says = "process {by} creates physical memory {makes} ({nbytes} B) to export as a fabric handle"
    c = Create.c.replace("1, 1, 1", "1, 8, 1")
    needs = FABRIC

    def apply(self, m: State, op: Operation) -> None:
        super().apply(m, op)
        m.things[op.makes].storage.fabric = True

    def draw(self, d: Draft, phase: Phase) -> Iterator[Operation]:
        if d.has_room(GRANULE):
            yield from d.attempt(self.do, d.process(), makes=d.number(), nbytes=GRANULE)

    def perform(self, p: Performer, op: Operation) -> None:
        p.add(op, p.gpu.create_fabric(p.granules(op.nbytes, p.gpu.fabric_granule)))


class Import(MemoryOperation):
    do = "import"
    says = "process {by} imports physical memory {on}, exported as a file descriptor: {makes}"
    c = (
        "if (me == exporters[{number}]) {{ int fd; cuMemExportToShareableHandle(&fd, at[{on}], 1, 0ul);"
        " mail(fd); break; }} {asked}int fd = mail(-1); enter(current); size[{makes}] = size[{on}];"
        " cuMemImportFromShareableHandle(&at[{makes}], {imported}, 1); close(fd);"
    )
    weight, needs, alone, exports, harms = 5.0, VMM, True, True, EXPORTS_VMM
    is_fabric = False

    def refuse(self, m: State, op: Operation) -> str:
        memory = m.things.get(op.on)
        if memory is None or memory.kind != "physical" or memory.number != memory.storage.number:
            return f"no exportable memory {op.on}"
        if memory.storage.fabric is not self.is_fabric:
            return "the memory is exported by fabric handle" if memory.storage.fabric else "no fabric handle"
        if memory.by == op.by or not op.makes:
            return "a process cannot import its own memory"
        return "" if m.reaches(op, memory.storage) else "no peer access to the memory's device"

    def apply(self, m: State, op: Operation) -> Expected:
        storage = m.things[op.on].storage
        m.add_shared(op, "physical", storage)
        return Expected(0, storage.nbytes)

    def draw(self, d: Draft, phase: Phase) -> Iterator[Operation]:
        if memory := d.pick("physical"):
            yield from d.elsewhere(self.do, memory)

    def export(self, p: Performer, op: Operation) -> None:
        p.descriptors.append(p.get(op.on).export_descriptor())

    def perform(self, p: Performer, op: Operation) -> None:
        p.enter(p.current)
        p.add(op, p.gpu.import_descriptor(p.received[0], p.granules(op.nbytes)))


class ImportFabric(Import):
    do = "import-fabric"
    says = "process {by} imports physical memory {on}, exported as a fabric handle: {makes}"
    c = (
        "if (me == exporters[{number}]) {{ cuMemExportToShareableHandle(&handle[{on}], at[{on}], 8, 0ul);"
        " break; }} enter(current); size[{makes}] = size[{on}];"
        " cuMemImportFromShareableHandle(&at[{makes}], &handle[{on}], 8);"
    )
    needs, takes_handle, is_fabric = FABRIC, True, True

    def export(self, p: Performer, op: Operation) -> None:
        p.made[op.on] = p.get(op.on).export_fabric()

    def perform(self, p: Performer, op: Operation) -> None:
        p.enter(p.current)
        p.add(op, p.gpu.import_fabric(p.handle, p.granules(op.nbytes, p.gpu.fabric_granule)))


class Map(MemoryOperation):
    do = "map"
    says = "process {by} maps physical memory {on}: view {makes}"
    c = (
        "size[{makes}] = size[{on}]; where[{makes}] = -1; enter(current); struct access access ="
        " {{ 1, device, 3 }}; cuMemAddressReserve(&at[{makes}], size[{on}], 0ul, 0ul, 0ul);"
        " cuMemMap(at[{makes}], size[{on}], 0ul, at[{on}], 0ul);"
        " cuMemSetAccess(at[{makes}], size[{on}], &access, 1ul);"
    )
    on, noun, weight, needs, harms = ("physical",), "physical memory", 5.0, VMM + FABRIC, EXPORTS_VMM

    def refuse(self, m: State, op: Operation) -> str:
        return super().refuse(m, op) or ("" if op.makes else self.none(op))

    def apply(self, m: State, op: Operation) -> Expected:
        storage = m.things[op.on].storage
        m.add_shared(op, "view", storage)
        return Expected(0, storage.nbytes)

    def draw(self, d: Draft, phase: Phase) -> Iterator[Operation]:
        if (memory := d.pick("physical")) and not d.is_full:
            yield from d.attempt(self.do, memory.by, on=memory.number, makes=d.number())

    def perform(self, p: Performer, op: Operation) -> None:
        p.add(op, p.get(op.on).map())


class Unmap(MemoryOperation):
    do = "unmap"
    says = "process {by} unmaps view {on}"
    c = "enter(current); cuMemUnmap(at[{on}], size[{on}]); cuMemAddressFree(at[{on}], size[{on}]);"
    on, weight, needs, harms = ("view",), 3.0, Map.needs, EXPORTS_VMM

    apply = Close.apply

    def perform(self, p: Performer, op: Operation) -> None:
        p.take(op.on).unmap()


class Release(MemoryOperation):
    do = "release"
    says = "process {by} releases physical memory {on}"
    c = "enter(current); cuMemRelease(at[{on}]);"
    on, noun, weight, needs, harms = ("physical",), "physical memory", 2.0, Map.needs, EXPORTS_VMM

    apply = Close.apply

    def perform(self, p: Performer, op: Operation) -> None:
        p.take(op.on).release()


# -- pools ---------------------------------------------------------------------------------------------------


class CreatePool(MemoryOperation):
    do = "create-pool"
    says = "process {by} creates memory pool {makes}, which can be exported"
    c = (
        "enter(current); struct wanted wanted = {{ 1, 1, 1, device }};"
        " cuMemPoolCreate(&at[{makes}], &wanted);{keeps_new}"
    )
    weight, needs, effect = 0.7, POOLS, "makes"
    new = "pool"

    def refuse(self, m: State, op: Operation) -> str:
        valid = op.makes and m.has_one_context(op.by)
        return "" if valid else f"needs a new {self.new} and a process with one context"

    def apply(self, m: State, op: Operation) -> None:
        m.add_shared(op, self.new, Storage(op.makes, op.by, m.plans[op.by].device, 0))

    def draw(self, d: Draft, phase: Phase) -> Iterator[Operation]:
        if len(d.state.of_kind("pool")) < 2:
            yield from d.attempt(self.do, d.process(), makes=d.number())

    def perform(self, p: Performer, op: Operation) -> None:
        p.enter(p.current)
        p.add(op, p.gpu.create_shared_pool())


class ImportPool(MemoryOperation):
    do = "import-pool"
    says = "process {by} imports memory pool {on}, exported as a file descriptor: {makes}"
    c = (
        "if (me == exporters[{number}]) {{ int fd; cuMemPoolExportToShareableHandle(&fd, at[{on}], 1, 0ul);"
        "{keeps_exported} mail({posted}); break; }} int fd = mail(-1); enter(current); struct access access ="
        " {{ 1, device, 3 }}; cuMemPoolImportFromShareableHandle(&at[{makes}], (void *)(intptr_t)fd, 1, 0ul);"
        " close(fd); if (!({device})) cuMemPoolSetAccess(at[{makes}], &access, 1ul);{keeps_new}"
    )
    weight, needs, alone, exports = 2.0, POOLS, True, True

    def refuse(self, m: State, op: Operation) -> str:
        pool = m.things.get(op.on)
        if pool is None or pool.kind != "pool" or pool.by == op.by or not op.makes:
            return f"no other process has a pool {op.on}"
        if not m.has_one_context(op.by):
            return f"process {op.by} has two contexts"
        if any(other.by == op.by for other in m.others_of(pool)):
            return "the pool is already imported"
        return "" if m.reaches(op, pool.storage) else "no peer access to the memory's device"

    def apply(self, m: State, op: Operation) -> Expected:
        """The stamp is 1 if the memory is on another device."""
        storage = m.things[op.on].storage
        m.add_shared(op, "imported-pool", storage)
        return Expected(int(storage.device != m.plans[op.by].device), 0)

    def draw(self, d: Draft, phase: Phase) -> Iterator[Operation]:
        if pool := d.pick("pool"):
            yield from d.elsewhere(self.do, pool)

    export = Import.export

    def perform(self, p: Performer, op: Operation) -> None:
        pool = p.add(op, p.gpu.import_pool(p.received[0]))
        if op.stamp:
            pool.give_access()


class AllocateFromPool(MemoryOperation):
    do = "allocate-from-pool"
    says = "process {by} allocates memory {makes} ({nbytes} B) from pool {on}"
    c = (
        "{sized} where[{makes}] = -1; enter(current);"
        " cuMemAllocFromPoolAsync(&at[{makes}], {nbytes}, at[{on}], 0ul); cuCtxSynchronize();"
    )
    on, weight, needs, effect = ("pool",), 5.0, POOLS, "makes"

    def refuse(self, m: State, op: Operation) -> str:
        return super().refuse(m, op) or ("" if op.makes and op.nbytes > 0 else self.none(op))

    def apply(self, m: State, op: Operation) -> None:
        storage = Storage(op.makes, op.by, m.plans[op.by].device, op.nbytes)
        m.add_shared(op, "pool-memory", storage, m.things[op.on].storage)

    def draw(self, d: Draft, phase: Phase) -> Iterator[Operation]:
        nbytes = d.random.choice(phase.sizes)
        if (pool := d.pick("pool")) and d.has_room(nbytes):
            yield from d.attempt(self.do, pool.by, on=pool.number, makes=d.number(), nbytes=nbytes)

    def perform(self, p: Performer, op: Operation) -> None:
        pool, stream = p.get(op.on), p.stream()
        p.add(op, pool.alloc(op.nbytes, stream))
        stream.synchronize()


class ImportPointer(MemoryOperation):
    do = "import-pointer"
    says = "process {by} imports the pointer of memory {on} into pool {of}: memory {makes}"
    c = (
        "if (me == exporters[{number}]) {{ cuMemPoolExportPointer(&handle[{on}], at[{on}]); break; }}"
        " size[{makes}] = size[{on}]; where[{makes}] = -1; enter(current);"
        " cuMemPoolImportPointer(&at[{makes}], at[{of}], &handle[{on}]);"
    )
    weight, needs, alone, exports, takes_handle = 6.0, POOLS, True, True, True

    def refuse(self, m: State, op: Operation) -> str:
        memory, pool = m.things.get(op.on), m.things.get(op.of)
        if memory is None or memory.kind != "pool-memory" or not op.makes:
            return f"no pool memory {op.on}"
        if pool is None or (pool.by, pool.kind, pool.storage) != (op.by, "imported-pool", memory.pool):
            return f"process {op.by} has not imported the memory's pool"
        if any(other.by == op.by for other in m.others_of(memory)):
            return "the memory is already imported"
        return ""

    def apply(self, m: State, op: Operation) -> Expected:
        storage = m.things[op.on].storage
        m.add_shared(op, "imported-memory", storage, m.things[op.of].storage)
        return Expected(0, storage.nbytes)

    def draw(self, d: Draft, phase: Phase) -> Iterator[Operation]:
        if pool := d.pick("imported-pool"):
            memories = [memory for memory in d.state.of_kind("pool-memory") if memory.pool is pool.storage]
            if memories:
                on = d.random.choice(memories).number
                yield from d.attempt(self.do, pool.by, on=on, of=pool.number, makes=d.number())

    def export(self, p: Performer, op: Operation) -> None:
        p.made[op.on] = p.get(op.on).export_pointer()

    def perform(self, p: Performer, op: Operation) -> None:
        p.add(op, p.get(op.of).import_pointer(p.handle, op.nbytes))


class FreeToPool(MemoryOperation):
    do = "free-to-pool"
    says = "process {by} frees memory {on} to its pool"
    c = "enter(current); cuMemFreeAsync(at[{on}], 0ul); cuCtxSynchronize();"
    on, noun, weight, needs, effect = ("pool-memory", "imported-memory"), "pool memory", 4.0, POOLS, "ends"

    def refuse(self, m: State, op: Operation) -> str:
        is_imported = (memory := m.own(op, "pool-memory")) and m.others_of(memory)
        return super().refuse(m, op) or ("another process has imported the memory" if is_imported else "")

    def apply(self, m: State, op: Operation) -> None:
        m.end([m.things[op.on]])

    def perform(self, p: Performer, op: Operation) -> None:
        memory, stream = p.take(op.on), p.stream()
        memory.free(stream)
        stream.synchronize()


class Trim(MemoryOperation):
    do = "trim"
    says = "process {by} trims pool {on}"
    c = "enter(current); cuMemPoolTrimTo(at[{on}], 0ul);"
    on, weight, needs = ("pool",), 0.7, POOLS

    def perform(self, p: Performer, op: Operation) -> None:
        p.get(op.on).trim()


class DestroyPool(MemoryOperation):
    do = "destroy-pool"
    says = "process {by} destroys pool {on}"
    c = "enter(current); cuMemPoolDestroy(at[{on}]);{closes}"
    on, noun, weight, needs, effect = ("pool", "imported-pool"), "pool", 0.5, POOLS, "ends"

    def refuse(self, m: State, op: Operation) -> str:
        if not (pool := m.own(op, *self.on)):
            return self.none(op)
        if any(thing.pool is pool.storage for thing in m.of_process(op.by)):
            return "memory of the pool is still allocated"
        return "another process has imported the pool" if pool.kind == "pool" and m.others_of(pool) else ""

    apply = FreeToPool.apply

    def perform(self, p: Performer, op: Operation) -> None:
        p.take(op.on).destroy()


# -- events --------------------------------------------------------------------------------------------------


class CreateEvent(CreatePool):
    do = "create-event"
    says = "process {by} creates event {makes} and exports its IPC handle"
    c, weight, needs, alone, effect, new = "", UNDRAWN, LEGACY, True, "", "event"

    def perform(self, p: Performer, op: Operation) -> None:
        p.enter(p.current)
        p.made[op.makes] = p.add(op, p.gpu.create_event()).ipc_handle()


class OpenEvent(MemoryOperation):
    do = "open-event"
    says = "process {by} opens the IPC handle of event {on}: {makes}"
    needs, alone, takes_handle = LEGACY, True, True

    def refuse(self, m: State, op: Operation) -> str:
        event = m.things.get(op.on)
        if event is None or event.kind != "event" or event.by == op.by or not op.makes:
            return f"no other process has an event {op.on}"
        if not m.has_one_context(op.by):
            return f"process {op.by} has two contexts"
        return "" if m.reaches(op, event.storage) else "no peer access to the event's device"

    def apply(self, m: State, op: Operation) -> None:
        m.add_shared(op, "imported-event", m.things[op.on].storage)

    def perform(self, p: Performer, op: Operation) -> None:
        p.enter(p.current)
        p.add(op, p.gpu.open_event(p.handle))


class CopyAndRecord(Copy):
    do = "copy-and-record"
    says = "process {by} copies {of} to {on} on the device and at once records event {within}"
    c, weight, needs, alone, effect = "", UNDRAWN, LEGACY, True, ""

    def refuse(self, m: State, op: Operation) -> str:
        event = m.things.get(op.within)
        if event is None or event.by != op.by or event.kind not in ("event", "imported-event"):
            return f"process {op.by} has no event {op.within}"
        if event.storage.freed:
            return "the event was destroyed"
        if m.under_way(event.storage):
            return "the event stands for a copy under way"
        return super().refuse(m, op)

    def apply(self, m: State, op: Operation) -> Expected:
        """Neither memory may be used until a process has waited for the event."""
        copied = super().apply(m, op)
        for number in (op.on, op.of):
            m.things[number].storage.under_way = m.things[op.within].storage.number
        return copied

    def perform(self, p: Performer, op: Operation) -> None:
        p.things[op.within].record(p.start_copy(op))


class WaitEvent(MemoryOperation):
    do = "wait-event"
    says = "process {by} waits for event {on}"
    on, noun, needs, alone = ("event", "imported-event"), "event", LEGACY, True

    def refuse(self, m: State, op: Operation) -> str:
        is_destroyed = (event := m.own(op, *self.on)) and event.storage.freed
        return super().refuse(m, op) or ("the event was destroyed" if is_destroyed else "")

    def apply(self, m: State, op: Operation) -> None:
        for storage in m.under_way(m.things[op.on].storage):
            storage.under_way = 0

    def perform(self, p: Performer, op: Operation) -> None:
        event, stream = p.get(op.on), p.stream()
        event.wait(stream)
        stream.synchronize()


class DestroyEvent(MemoryOperation):
    do = "destroy-event"
    says = "process {by} destroys event {on}"
    on, noun, needs, alone = WaitEvent.on, "event", LEGACY, True

    def refuse(self, m: State, op: Operation) -> str:
        if not (event := m.own(op, *self.on)):
            return self.none(op)
        if m.under_way(event.storage):
            return "the event stands for a copy under way"
        return "another process has the event" if event.kind == "event" and m.others_of(event) else ""

    apply = FreeToPool.apply

    def perform(self, p: Performer, op: Operation) -> None:
        p.take(op.on).destroy()
