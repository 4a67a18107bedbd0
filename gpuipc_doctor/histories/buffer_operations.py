"""Operations on buffers and their IPC handles, and on the contents of any memory."""

from __future__ import annotations

from collections.abc import Iterator

from gpuipc_doctor.api.driver_errors import KernelsUnavailable
from gpuipc_doctor.histories import legality
from gpuipc_doctor.histories.contents import WHOLE_BYTES, Part, glances, overlaid, unit_of, within
from gpuipc_doctor.histories.memory_draft import Draft, Phase
from gpuipc_doctor.histories.memory_operation import UNDRAWN, InThread, MemoryOperation
from gpuipc_doctor.histories.memory_state import (
    FILLS,
    FIRST_CONTEXT,
    GRANULE,
    NO_CONTEXT,
    USABLE,
    Expected,
    State,
    Storage,
    Thing,
)
from gpuipc_doctor.histories.operations import WHOLE, Operation
from gpuipc_doctor.histories.performer import Performer, WrongAnswer, span

HUGE = ((2 << 30) + (2 << 20), (4 << 30) + (2 << 20))
"""Bytes of huge memory, in which offsets need more than 31 or 32 bits. Only wide histories use it, if memory
allows."""

FILLED = 1 << 20
"""Most bytes that a fill changes in memory of more than `WHOLE_BYTES`."""

LEGACY = ("legacy-ipc",)


class Allocate(MemoryOperation):
    do = "allocate"
    says = "process {by} allocates buffer {makes} ({nbytes} B) and exports its IPC handle"
    c = (
        "{sized} where[{makes}] = current; enter(current); cuMemAlloc_v2(&at[{makes}], {nbytes});"
        " cuIpcGetMemHandle(&handle[{makes}], at[{makes}]); given(&handle[{makes}], 64);"
    )
    weight, anywhere, effect = 6.0, True, "makes"

    def refuse(self, m: State, op: Operation) -> str:
        return "" if op.makes and op.nbytes > 0 else "needs a new object of at least one byte"

    def apply(self, m: State, op: Operation) -> None:
        m.add(op, "buffer", Storage(op.makes, op.by, m.processes[op.by].device, op.nbytes))

    def draw(self, d: Draft, phase: Phase, nbytes: int = 0) -> Iterator[Operation]:
        nbytes = nbytes or d.random.choice(phase.sizes)
        if d.has_room(nbytes):
            yield from d.attempt(self.do, d.process(), makes=d.number(), nbytes=nbytes)

    def perform(self, p: Performer, op: Operation) -> None:
        p.enter(p.current)
        p.made[op.makes] = p.add(op, p.here.alloc(op.nbytes), p.current).ipc_handle()


class Export(MemoryOperation):
    do = "export"
    says = "process {by} exports the IPC handle of buffer {on} again"
    c = "{enter} cuIpcGetMemHandle(&handle[{on}], at[{on}]);"
    on, weight, needs, anywhere = ("buffer",), 1.0, LEGACY, True

    def perform(self, p: Performer, op: Operation) -> None:
        p.made[op.on] = p.get(op.on).ipc_handle()


class Open(MemoryOperation):
    do = "open"
    says = "process {by} opens the IPC handle of buffer {on}: mapping {makes}"
    c = (
        "size[{makes}] = size[{on}]; where[{makes}] = current; enter(current); at[{makes}] = 0;"
        " cuIpcOpenMemHandle_v2(&at[{makes}], handle[{on}], 1); given(&at[{makes}], 8);"
    )
    weight, needs, anywhere, takes_handle = 10.0, LEGACY, True, True

    def refuse(self, m: State, op: Operation) -> str:
        buffer = m.things.get(op.on)
        if buffer is None or buffer.kind != "buffer" or not op.makes:
            return f"no buffer {op.on}"
        if buffer.by == op.by:
            return "a process cannot open its own handle"
        if not m.reaches(op, buffer.storage):
            return "the process's device cannot access the memory"
        if self._is_beside_stale(m, op, buffer):
            return "the buffer may reuse the address of freed memory that is still open"
        if not m.allows("open an exporter's memory in a second context"):
            current = m.processes[op.by].current if op.by in m.processes else FIRST_CONTEXT
            exporter = (buffer.storage.owner, buffer.storage.device)
            if any(
                thing.context != current
                and thing.device == m.device_of(op.by)
                and (thing.storage.owner, thing.storage.device) == exporter
                for thing in m.of_process(op.by, "mapping")
            ):
                return f"memory of process {buffer.by} is open in another context of process {op.by}"
        return ""

    def _is_beside_stale(self, m: State, op: Operation, buffer: Thing) -> bool:
        """Whether ``buffer`` is small and the process still has freed small memory of the same exporter
        open."""
        if m.allows("open small memory beside a stale mapping of small memory"):
            return False
        open_ = (thing.storage for thing in m.of_process(op.by, "mapping"))
        return buffer.storage.nbytes < GRANULE and any(
            memory.freed and memory.owner == buffer.by and memory.nbytes < GRANULE for memory in open_
        )

    def apply(self, m: State, op: Operation) -> None:
        m.add(op, "mapping", m.things[op.on].storage)

    def draw(self, d: Draft, phase: Phase) -> Iterator[Operation]:
        buffers = d.state.of_kind("buffer")
        if buffers and not d.is_full:
            yield from d.elsewhere(self.do, d.random.choice(buffers))

    def perform(self, p: Performer, op: Operation) -> None:
        p.enter(p.current)
        p.add(op, p.here.open_ipc(p.handle), p.current)


class OpenInThread(InThread, Open):
    do, simpler, c = "open-in-thread", "open", ""
    says = "process {by} opens the IPC handle of buffer {on} in another thread: mapping {makes}"
    anywhere = True


class Close(MemoryOperation):
    do = "close"
    says = "process {by} closes mapping {on}"
    c = "{enter} cuIpcCloseMemHandle(at[{on}]);"
    on, weight, needs, anywhere = ("mapping",), 5.0, LEGACY, True

    def apply(self, m: State, op: Operation) -> None:
        del m.things[op.on]

    def perform(self, p: Performer, op: Operation) -> None:
        p.take(op.on).close()


class CloseInThread(InThread, Close):
    do, simpler, c = "close-in-thread", "close", ""
    says = "process {by} closes mapping {on} in another thread"


class Free(MemoryOperation):
    do = "free"
    says = "process {by} frees buffer {on}"
    c = "{enter} cuMemFree_v2(at[{on}]);"
    on, weight, anywhere, effect = ("buffer",), 3.0, True, "ends"

    def refuse(self, m: State, op: Operation) -> str:
        is_open = (buffer := m.own(op, "buffer")) and m.others_of(buffer)
        return super().refuse(m, op) or ("the buffer is open in another process" if is_open else "")

    def apply(self, m: State, op: Operation) -> None:
        m.end([m.things[op.on]])

    def perform(self, p: Performer, op: Operation) -> None:
        p.take(op.on).free()


class FreeInThread(InThread, Free):
    do, simpler, c = "free-in-thread", "free", ""
    says = "process {by} frees buffer {on} in another thread"


class FreeOpen(Free):
    do = "free-open"
    says = "process {by} frees buffer {on}, which is still open in another process"
    weight, needs, anywhere, alone, declared, effect = 0.0, LEGACY, False, True, True, ""

    def refuse(self, m: State, op: Operation) -> str:
        if not (buffer := m.own(op, "buffer")):
            return self.none(op)
        if not m.allows("free memory that is open elsewhere", legality.LEGAL, legality.DECLARED):
            return "memory that is open in another process must not be freed"
        return "" if m.others_of(buffer) else "the buffer is not open in another process"


# -- the contents of memory ----------------------------------------------------------------------------------


class Use(MemoryOperation):
    """An operation on the contents of any memory."""

    on, noun = USABLE, "memory"

    def refuse(self, m: State, op: Operation) -> str:
        if not (thing := m.own(op, *USABLE)):
            return self.none(op)
        if thing.context == NO_CONTEXT and thing.device != m.device_of(op.by):
            return "the current context is on another device than the memory's user"
        if op.offset + max(op.length, 1) > thing.storage.nbytes:
            return "the memory ends before"
        return "the memory was freed" if thing.storage.freed else ""


class Write(Use):
    do = "write"
    says = "process {by} writes pattern {stamp} to memory {on}"
    c = "{enter} fill({on}, {offset}ul, {length}, {stamp});"
    weight, anywhere, effect = 10.0, True, "writes"

    def refuse(self, m: State, op: Operation) -> str:
        return super().refuse(m, op) or ("" if op.stamp else "a write needs a stamp")

    def apply(self, m: State, op: Operation) -> Expected:
        storage, begin, end = m.range(op)
        in_part = storage.nbytes > WHOLE_BYTES and op.kind != WHOLE
        for first, last in glances(begin, end) if in_part else [(begin, end)]:
            storage.parts = overlaid(storage.parts, first, last, [Part(first, last, op.stamp)])
        return Expected(op.stamp, storage.nbytes)

    def draw(self, d: Draft, phase: Phase) -> Iterator[Operation]:
        if thing := d.usable(*USABLE):
            yield from d.attempt(self.do, thing.by, on=thing.number, stamp=d.number())

    def perform(self, p: Performer, op: Operation) -> None:
        p.write(op, p.get(op.on).write)


class WriteInThread(InThread, Write):
    do, simpler, c = "write-in-thread", "write", ""
    says = "process {by} writes pattern {stamp} to memory {on} in another thread"

    refuse = Write.refuse


class WriteByKernel(Write):
    do, simpler, c = "write-by-kernel", "write", ""
    says = "process {by} writes pattern {stamp} to memory {on} by a kernel"
    weight, is_wide, anywhere = 2.0, True, False
    rare = "each loads its kernels anew, and HIP compiles them"

    def perform(self, p: Performer, op: Operation) -> None:
        """Write by copies if the driver runs no kernels."""
        memory = p.get(op.on)
        try:
            with p.kernel_copies(memory) as (stage, copy):

                def write(data: bytes, offset: int) -> None:
                    stage.write(data)
                    copy(memory.address + offset, stage.address, len(data))

                p.write(op, write)
        except KernelsUnavailable:
            super().perform(p, op)


class Fill(Write):
    do, simpler = "fill", "write"
    says = "process {by} fills {on} with a number of {kind} bits"
    c = (
        "{enter} cuMemsetD{kind}_v2(at[{on}] + {offset}ul, {value}u, {length} / {width}ul);"
        " cuCtxSynchronize();"
    )
    weight = UNDRAWN

    def refuse(self, m: State, op: Operation) -> str:
        if why := super().refuse(m, op):
            return why
        if not (width := FILLS.get(op.kind)):
            return f"no fill of {op.kind} bits"
        storage, begin, end = m.range(op)
        if storage.nbytes > WHOLE_BYTES and end - begin > FILLED:
            return "so much is not filled"
        return "a fill is of whole units" if begin % width or end % width else ""

    def apply(self, m: State, op: Operation) -> Expected:
        storage, begin, end = m.range(op)
        filled = Part(begin, end, op.stamp, begin, FILLS[op.kind])
        storage.parts = overlaid(storage.parts, begin, end, [filled])
        return Expected(op.stamp, storage.nbytes)

    def perform(self, p: Performer, op: Operation) -> None:
        memory, stream, width = p.get(op.on), p.stream(), FILLS[op.kind]
        begin, end = span(op)
        stream.fill(memory.address + begin, unit_of(op.stamp, width), (end - begin) // width)
        stream.synchronize()


class Read(Use):
    do = "read"
    says = "process {by} reads memory {on} and compares it with what was written"
    c = "{enter} {compared}"
    weight, anywhere = 14.0, True

    def apply(self, m: State, op: Operation) -> Expected:
        storage, begin, end = m.range(op)
        known = within(storage.parts, begin, end)
        whole = len(known) == 1 and known[0][:2] == (begin, end) and not (known[0].shift or known[0].width)
        return Expected(known[0].stamp if whole else 0, storage.nbytes, parts=known)

    def perform(self, p: Performer, op: Operation) -> None:
        p.compare(op, p.get(op.on).read)


class ReadInThread(InThread, Read):
    do, simpler, c = "read-in-thread", "read", ""
    says = "process {by} reads memory {on} in another thread and compares it with what was written"

    refuse = Read.refuse


class ReadByKernel(Read):
    do, simpler, c = "read-by-kernel", "read", ""
    says = "process {by} reads memory {on} by a kernel and compares it with what was written"
    weight, is_wide, anywhere, rare = 2.0, True, False, WriteByKernel.rare

    def perform(self, p: Performer, op: Operation) -> None:
        """Read by copies if the driver runs no kernels."""
        memory = p.get(op.on)
        try:
            with p.kernel_copies(memory) as (stage, copy):

                def read(nbytes: int, offset: int) -> bytes:
                    copy(stage.address, memory.address + offset, nbytes)
                    return stage.read(nbytes)

                p.compare(op, read)
        except KernelsUnavailable:
            super().perform(p, op)


class Ask(Use):
    do = "ask"
    says = "process {by} asks the driver about byte {offset} of {on}"
    anywhere = True

    def refuse(self, m: State, op: Operation) -> str:
        of_others = ("mapping",) if m.allows("ask for the size of another's memory") else ()
        is_allocation = m.own(op, "buffer", *of_others)
        return super().refuse(m, op) or ("" if is_allocation else "not an allocation")

    def apply(self, m: State, op: Operation) -> Expected:
        """The stamp is 1 if the device is known that the driver must name."""
        thing = m.things[op.on]
        is_known = thing.device == thing.storage.device or m.allows("name the device of another's memory")
        return Expected(int(is_known), thing.storage.nbytes)

    def perform(self, p: Performer, op: Operation) -> None:
        memory, gpu = p.get(op.on), p.here
        address, nbytes = gpu.allocation_of(memory.address + op.offset)
        if (address, nbytes) != (memory.address, op.nbytes):
            says = f"{nbytes} bytes from {address:#x} on instead of {op.nbytes} from {memory.address:#x}"
            raise WrongAnswer(gpu.name_of("address-range"), says)
        if op.stamp and (device := gpu.ordinal_of(memory.address + op.offset)) != gpu.ordinal:
            says = f"memory of device {gpu.ordinal} is said to be of device {device}"
            raise WrongAnswer(gpu.name_of("pointer-attribute"), says)


class Copy(Use):
    do = "copy"
    says = "process {by} copies {of} to {on} on the device"
    c = (
        "{enter} enter(where[{of}] >= 0 ? where[{of}] : where[{on}]);"
        " cuMemcpyDtoD_v2(at[{on}] + {offset}ul, at[{of}] + {start}ul, {length}); cuCtxSynchronize();"
    )
    weight, effect = 3.0, "writes"

    def refuse(self, m: State, op: Operation) -> str:
        if why := super().refuse(m, op):
            return why
        source = m.things.get(op.of)
        if source is None or source.by != op.by or source.kind not in USABLE or source.storage.freed:
            return f"process {op.by} has no memory {op.of}"
        to = m.things[op.on]
        contexts = {to.context, source.context} - {NO_CONTEXT}
        if source.storage is to.storage or len(contexts) > 1:
            return "a copy needs two buffers of one context"
        if not op.length:
            return "" if source.storage.nbytes == to.storage.nbytes else "sizes differ"
        return "" if op.start + op.length <= source.storage.nbytes else "the source ends before"

    def apply(self, m: State, op: Operation) -> Expected:
        storage, begin, end = m.range(op)
        further = op.offset - op.start
        copied = [
            part._replace(begin=part.begin + further, end=part.end + further, shift=part.shift + further)
            for part in within(m.things[op.of].storage.parts, op.start, op.start + end - begin)
        ]
        storage.parts = overlaid(storage.parts, begin, end, copied)
        return Expected(0, storage.nbytes)

    def draw(self, d: Draft, phase: Phase) -> Iterator[Operation]:
        """Not to huge buffers, because a copy makes all their pages resident."""
        to, source = d.usable(*USABLE), d.usable(*USABLE)
        if to and source and to.storage.nbytes < HUGE[0]:
            yield from d.attempt(self.do, to.by, on=to.number, of=source.number)

    def perform(self, p: Performer, op: Operation) -> None:
        p.start_copy(op).synchronize()


class CopyAcrossStreams(Copy):
    do, simpler, c = "copy-across-streams", "copy", ""
    says = "process {by} copies {of} to {on} in one stream; another stream waits"
    weight, is_wide = 2.0, True

    def perform(self, p: Performer, op: Operation) -> None:
        first, second = p.start_copy(op, p.other_streams), p.stream()
        second.wait(first.record())
        second.synchronize()
