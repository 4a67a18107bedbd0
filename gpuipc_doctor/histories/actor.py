"""One process of a history: it performs the operations that it receives, on the driver that it has loaded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

from gpuipc_doctor.api.gpu import DriverError, Gpu, GpuContext, GpuStream, KernelsUnavailable, Memory
from gpuipc_doctor.api.process_leaks import figures_of_process
from gpuipc_doctor.api.worker import Child
from gpuipc_doctor.histories.contents import (
    PIECE,
    WHOLE_BYTES,
    Part,
    contents,
    first_difference,
    glances,
    looks,
    stamp_at,
    unit_of,
    within,
)
from gpuipc_doctor.histories.memory_model import FIRST_CONTEXT, NO_CONTEXT

RESTED = 0
"""Key of `Answer.made` for the figures of an idle process. The other keys are numbers of objects, from 1."""


class Order(NamedTuple):
    """An operation as its process receives it, with its parameters."""

    do: str
    on: int
    makes: int
    of: int
    nbytes: int
    stamp: int
    handle: bytes = b""
    """The IPC handle to open, or the pool pointer to import."""
    parts: tuple[Part, ...] = ()
    """What a read must show, where it is known."""
    offset: int = 0
    length: int = 0
    start: int = 0
    width: int = 0
    """Bytes of a fill's unit."""
    event: int = 0
    """The event that a copy records."""
    device: int = 0
    """1 more than the index of a new context's device, 0 for the process's own."""
    whole: bool = False
    """Whether a write or read moves every byte, in one copy."""


class Answer(NamedTuple):
    """The result of a batch of orders: the number performed, and the failure of the next one."""

    done: int
    made: dict[int, Any]
    """Number of an exported object → its handle; `RESTED` → the idle process's usage, by the names in
    `leaks.NOISE`."""
    compared: int
    """Bytes read and compared."""
    what: str = ""
    name: str = ""
    says: str = ""
    call: str = ""
    """The driver call that returned an error."""


class WrongData(Exception):
    """Memory does not have the contents that the model expects."""


class WrongAnswer(Exception):
    """The driver describes an address wrongly. ``call`` is the call that did."""

    def __init__(self, call: str, says: str) -> None:
        super().__init__(says)
        self.call = call


def act(child: Child) -> None:
    """Main loop of a history's process: receive orders, perform them, answer."""
    device, primary = child.recv()
    actor = Actor(child.gpus[device], child.progress, primary=primary, gpus=child.gpus)
    child.send(None)
    while True:
        orders = child.recv()
        answer = actor.perform(orders, child.descriptors)
        child.send(answer, actor.descriptors)
        for descriptor in (*actor.descriptors, *child.descriptors):
            os.close(descriptor)


class Actor:
    """The objects of one process, by number."""

    def __init__(
        self, gpu: Gpu, progress: Callable[[int], None], *, primary: bool, gpus: Sequence[Gpu] = ()
    ) -> None:
        """``gpus``: those of all devices of the history, for contexts on another one than ``gpu``."""
        self._gpu = gpu
        self._gpus = gpus
        self._gpu_of: dict[int, Gpu] = {}
        """Context → its GPU, where that is another than the process's own."""
        self._progress = progress
        self._first: Callable[[], GpuContext] = gpu.primary_context if primary else gpu.create_context
        self._contexts = {FIRST_CONTEXT: self._first()}
        self._current = self._entered = FIRST_CONTEXT
        self._things: dict[int, Any] = {}
        self._context_of: dict[int, int] = {}
        self._streams: dict[int, GpuStream] = {}
        self._other_streams: dict[int, GpuStream] = {}
        self._made: dict[int, Any] = {}
        self._compared = 0
        self._received: Sequence[int] = ()
        self.descriptors: list[int] = []

    def perform(self, orders: Sequence[Order], received: Sequence[int]) -> Answer:
        """Perform the orders. ``received`` is the descriptor sent with an import; exported descriptors are
        appended to ``descriptors``.
        """
        self._made, self._compared = {}, 0
        self._received, self.descriptors = received, []
        for number, order in enumerate(orders):
            self._progress(number)
            try:
                getattr(self, f"_{order.do.replace('-', '_')}")(order)
            except DriverError as error:
                kind = self._gpu.kind if error.is_not_supported else ""
                says = f"{error}: {self._gpu.device.label} is {kind}" if kind else str(error)
                what = "lacks" if kind else "error"
                return self._answer(number, what, error.fault.name, says, error.fault.call)
            except WrongData as wrong:
                return self._answer(number, "data", "", str(wrong))
            except WrongAnswer as wrong:
                return self._answer(number, "answer", "", str(wrong), wrong.call)
        return self._answer(len(orders))

    def _answer(self, done: int, what: str = "", name: str = "", says: str = "", call: str = "") -> Answer:
        return Answer(done, self._made, self._compared, what, name, says, call)

    def _enter(self, context: int) -> None:
        if self._entered != context:
            self._contexts[context].make_current()
            self._entered = context

    @property
    def _here(self) -> Gpu:
        """The GPU of the context that is current."""
        return self._gpu_of.get(self._entered, self._gpu)

    def _in_thread(self, work: Callable[[], None]) -> None:
        """Do something in a thread that makes the process's current context its own."""
        self._enter(self._current)
        context = self._contexts[self._entered]

        def do() -> None:
            context.make_current()
            work()

        with ThreadPoolExecutor(1) as threads:
            threads.submit(do).result()

    def _add(self, order: Order, thing: Any, context: int = NO_CONTEXT) -> Any:
        self._things[order.makes] = thing
        self._context_of[order.makes] = context
        return thing

    def _get(self, number: int) -> Any:
        """Return an object after making its context current. If the object has no context, the process's
        current context is used."""
        context = self._context_of[number]
        self._enter(self._current if context == NO_CONTEXT else context)
        return self._things[number]

    def _take(self, number: int) -> Any:
        thing = self._get(number)
        del self._things[number], self._context_of[number]
        return thing

    # -- buffers and legacy handles -----------------------------------------------------------------------

    def _allocate(self, order: Order) -> None:
        self._enter(self._current)
        buffer = self._add(order, self._here.alloc(order.nbytes), self._current)
        self._made[order.makes] = buffer.ipc_handle()

    def _export(self, order: Order) -> None:
        self._made[order.on] = self._get(order.on).ipc_handle()

    def _open(self, order: Order) -> None:
        self._enter(self._current)
        self._add(order, self._here.open_ipc(order.handle), self._current)

    def _open_in_thread(self, order: Order) -> None:
        self._in_thread(lambda: self._open(order))

    def _close(self, order: Order) -> None:
        self._take(order.on).close()

    def _close_in_thread(self, order: Order) -> None:
        self._in_thread(self._take(order.on).close)

    def _free(self, order: Order) -> None:
        self._take(order.on).free()

    def _free_in_thread(self, order: Order) -> None:
        self._in_thread(self._take(order.on).free)

    _free_open = _free

    # -- memory -------------------------------------------------------------------------------------------

    def _write(self, order: Order) -> None:
        self._write_with(order, self._get(order.on).write)

    def _write_with(self, order: Order, write: Callable[[bytes, int], None]) -> None:
        begin, end = self._range(order)
        in_part = order.nbytes > WHOLE_BYTES and not order.whole
        piece = end - begin if order.whole else PIECE
        for first, last in glances(begin, end) if in_part else [(begin, end)]:
            for offset in range(first, last, piece):
                length = min(piece, last - offset)
                write(contents(order.stamp, length, offset), offset)

    def _write_by_kernel(self, order: Order) -> None:
        """Write by a kernel; by copies if the driver runs no kernels."""
        memory = self._get(order.on)
        try:
            with self._kernel_copies(memory) as (stage, copy):

                def write(data: bytes, offset: int) -> None:
                    stage.write(data)
                    copy(memory.address + offset, stage.address, len(data))

                self._write_with(order, write)
        except KernelsUnavailable:
            self._write(order)

    def _read_by_kernel(self, order: Order) -> None:
        """Read by a kernel; by copies if the driver runs no kernels."""
        memory = self._get(order.on)
        try:
            with self._kernel_copies(memory) as (stage, copy):

                def read(nbytes: int, offset: int) -> bytes:
                    copy(stage.address, memory.address + offset, nbytes)
                    return stage.read(nbytes)

                self._compare(read, order)
        except KernelsUnavailable:
            self._compare(memory.read, order)

    @contextmanager
    def _kernel_copies(self, memory: Memory) -> Iterator[tuple[Memory, Callable[[int, int, int], None]]]:
        """Memory of this process, and a function that copies (to, from, bytes) by a kernel. Nothing stays
        loaded: it would be taken for a leak."""
        kernels, stream = self._gpu.load_kernels(), self._stream()

        def copy(to: int, source: int, nbytes: int) -> None:
            kernels.copy(stream, to, source, nbytes)
            stream.synchronize()

        with self._gpu.alloc(min(memory.nbytes, PIECE)) as stage:
            yield stage, copy
        kernels.unload()

    def _write_in_thread(self, order: Order) -> None:
        self._get(order.on)
        self._in_thread(lambda: self._write(order))

    @staticmethod
    def _range(order: Order) -> tuple[int, int]:
        return order.offset, order.offset + order.length if order.length else order.nbytes

    def _fill(self, order: Order) -> None:
        memory, stream = self._get(order.on), self._stream()
        begin, end = self._range(order)
        unit = unit_of(order.stamp, order.width)
        stream.fill(memory.address + begin, unit, (end - begin) // order.width)
        stream.synchronize()

    def _read(self, order: Order) -> None:
        self._compare(self._get(order.on).read, order)

    def _compare(self, read: Callable[[int, int], bytes], order: Order) -> None:
        begin, end = self._range(order)
        for first, last in [(begin, end)] if order.whole else looks(begin, end, order.parts):
            found = read(last - first, first)
            for part in within(order.parts, first, last):
                expected = part.data(part.begin, part.end)
                shown = found[part.begin - first : part.end - first]
                if shown != expected:
                    raise WrongData(_difference(shown, expected, part))
                self._compared += len(expected)

    def _read_in_thread(self, order: Order) -> None:
        self._get(order.on)
        self._in_thread(lambda: self._read(order))

    def _ask(self, order: Order) -> None:
        """Ask the driver what lies at an address within an allocation."""
        memory, gpu = self._get(order.on), self._here
        found = gpu.allocation_of(memory.address + order.offset)
        if found != (memory.address, order.nbytes):
            says = (
                f"{found[1]} bytes from {found[0]:#x} on instead of {order.nbytes} from {memory.address:#x}"
            )
            raise WrongAnswer(gpu.name_of("address-range"), says)
        if order.stamp:
            device = gpu.ordinal_of(memory.address + order.offset)
            if device != gpu.ordinal:
                says = f"memory of device {gpu.ordinal} is said to be of device {device}"
                raise WrongAnswer(gpu.name_of("pointer-attribute"), says)

    def _copy(self, order: Order) -> None:
        self._start_copy(order).synchronize()

    def _start_copy(self, order: Order, streams: dict[int, GpuStream] | None = None) -> GpuStream:
        source, to = self._get(order.of), self._get(order.on)
        if self._context_of[order.on] == NO_CONTEXT:
            self._get(order.of)
        stream = self._stream(streams)
        begin, end = self._range(order)
        taken, given = (
            Sized(source.address + order.start, end - begin),
            Sized(to.address + begin, end - begin),
        )
        stream.copy(cast(Memory, given), cast(Memory, taken))
        return stream

    def _copy_across_streams(self, order: Order) -> None:
        first = self._start_copy(order, self._other_streams)
        second = self._stream()
        second.wait(first.record())
        second.synchronize()

    # -- events -------------------------------------------------------------------------------------------

    def _create_event(self, order: Order) -> None:
        self._enter(self._current)
        event = self._add(order, self._gpu.create_event())
        self._made[order.makes] = event.ipc_handle()

    def _open_event(self, order: Order) -> None:
        self._enter(self._current)
        self._add(order, self._gpu.open_event(order.handle))

    def _copy_and_record(self, order: Order) -> None:
        stream = self._start_copy(order)
        self._things[order.event].record(stream)

    def _wait_event(self, order: Order) -> None:
        event, stream = self._get(order.on), self._stream()
        event.wait(stream)
        stream.synchronize()

    def _destroy_event(self, order: Order) -> None:
        self._take(order.on).destroy()

    def _fork(self, order: Order) -> None:
        if (pid := os.fork()) == 0:
            os._exit(0)
        os.waitpid(pid, 0)

    def _stream(self, streams: dict[int, GpuStream] | None = None) -> GpuStream:
        streams = self._streams if streams is None else streams
        if self._entered not in streams:
            streams[self._entered] = self._here.create_stream()
        return streams[self._entered]

    # -- physical memory ----------------------------------------------------------------------------------

    def _create(self, order: Order) -> None:
        self._add(order, self._gpu.create_physical(self._granules(order.nbytes)))

    def _granules(self, nbytes: int, granule: int = 0) -> int:
        """Bytes of physical memory for ``nbytes``, in the device's granules if these are larger than
        `GRANULE`.
        """
        granule = granule or self._gpu.granule
        return -(-nbytes // granule) * granule

    def _export_descriptor(self, order: Order) -> None:
        self.descriptors.append(self._get(order.on).export_descriptor())

    def _import(self, order: Order) -> None:
        self._enter(self._current)
        self._add(order, self._gpu.import_descriptor(self._received[0], self._granules(order.nbytes)))

    def _create_fabric(self, order: Order) -> None:
        self._add(order, self._gpu.create_fabric(self._granules(order.nbytes, self._gpu.fabric_granule)))

    def _export_fabric(self, order: Order) -> None:
        self._made[order.on] = self._get(order.on).export_fabric()

    def _import_fabric(self, order: Order) -> None:
        self._enter(self._current)
        nbytes = self._granules(order.nbytes, self._gpu.fabric_granule)
        self._add(order, self._gpu.import_fabric(order.handle, nbytes))

    def _map(self, order: Order) -> None:
        self._add(order, self._get(order.on).map())

    def _unmap(self, order: Order) -> None:
        self._take(order.on).unmap()

    def _release(self, order: Order) -> None:
        self._take(order.on).release()

    # -- pools --------------------------------------------------------------------------------------------

    def _create_pool(self, order: Order) -> None:
        self._enter(self._current)
        self._add(order, self._gpu.create_shared_pool())

    def _import_pool(self, order: Order) -> None:
        pool = self._add(order, self._gpu.import_pool(self._received[0]))
        if order.stamp:  # the memory is on another device
            pool.give_access()

    def _allocate_from_pool(self, order: Order) -> None:
        pool, stream = self._get(order.on), self._stream()
        self._add(order, pool.alloc(order.nbytes, stream))
        stream.synchronize()

    def _export_pointer(self, order: Order) -> None:
        self._made[order.on] = self._get(order.on).export_pointer()

    def _import_pointer(self, order: Order) -> None:
        self._add(order, self._get(order.of).import_pointer(order.handle, order.nbytes))

    def _free_to_pool(self, order: Order) -> None:
        memory, stream = self._take(order.on), self._stream()
        memory.free(stream)
        stream.synchronize()

    def _trim(self, order: Order) -> None:
        self._get(order.on).trim()

    def _destroy_pool(self, order: Order) -> None:
        self._take(order.on).destroy()

    # -- contexts -----------------------------------------------------------------------------------------

    def _create_context(self, order: Order) -> None:
        gpu = self._gpus[order.device - 1] if order.device else self._gpu
        self._contexts[order.makes] = gpu.create_context()
        if order.device:
            self._gpu_of[order.makes] = gpu
        self._current = self._entered = order.makes

    def _use_context(self, order: Order) -> None:
        self._current = order.on

    def _end_context(self, order: Order) -> None:
        self._enter(order.on)
        self._contexts.pop(order.on).destroy()
        self._streams.pop(order.on, None)
        self._other_streams.pop(order.on, None)
        self._gpu_of.pop(order.on, None)
        for number in [number for number, context in self._context_of.items() if context == order.on]:
            if self._gpu.expects("mapping-when-its-context-is-destroyed") == "ends":
                del self._things[number], self._context_of[number]
            else:
                self._context_of[number] = FIRST_CONTEXT
        if order.on == FIRST_CONTEXT:
            self._contexts[FIRST_CONTEXT] = self._first()
        else:
            self._contexts[FIRST_CONTEXT].make_current()
        self._current = self._entered = FIRST_CONTEXT

    def _rest(self, order: Order) -> None:
        free, total = self._gpu.memory_info()
        self._made[RESTED] = {**figures_of_process(), "device": total - free}


class Sized(NamedTuple):
    """Source and size of a device-to-device copy."""

    address: int
    nbytes: int


def _difference(found: bytes, expected: bytes, part: Part) -> str:
    at, offset = first_difference(found, expected), part.begin - part.shift
    shown, wanted = (0 if part.width else stamp_at(data, at, offset) for data in (found, expected))
    other = f": contents {shown} instead of {wanted}" if shown and wanted and shown != wanted else ""
    return f"the memory is wrong from byte {part.begin + at} on{other}"
