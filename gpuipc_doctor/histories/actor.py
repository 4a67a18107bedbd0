"""One process of a history: it performs the operations that it receives, on the driver that it has loaded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

from gpuipc_doctor.api.gpu import DriverError, Gpu, GpuContext, GpuStream, KernelsUnavailable, Memory
from gpuipc_doctor.api.process_ledger import figures_of_process
from gpuipc_doctor.api.worker import Child
from gpuipc_doctor.histories.contents import PIECE, contents, first_difference, stamp_at
from gpuipc_doctor.histories.memory_model import FIRST_CONTEXT, NO_CONTEXT

FULL_BYTES = 256 << 10
"""Memory up to this size is read in full each time, larger memory only at both ends and in the middle."""

GLANCE = 16 << 10
"""Bytes read at each end and in the middle."""

WHOLE_BYTES = 64 << 20
"""Memory above this size is written only at the offsets at which it is read."""

BOUNDARIES = (2 << 30, 4 << 30)
"""Offsets around which huge memory is also written and read."""


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


def act(child: Child) -> None:
    """Main loop of a history's process: receive orders, perform them, answer."""
    device, primary = child.recv()
    actor = Actor(child.gpus[device], child.progress, primary=primary)
    child.send(None)
    while True:
        orders = child.recv()
        answer = actor.perform(orders, child.descriptors)
        child.send(answer, actor.descriptors)
        for descriptor in (*actor.descriptors, *child.descriptors):
            os.close(descriptor)


class Actor:
    """The objects of one process, by number."""

    def __init__(self, gpu: Gpu, progress: Callable[[int], None], *, primary: bool) -> None:
        self._gpu = gpu
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
        return self._answer(len(orders))

    def _answer(self, done: int, what: str = "", name: str = "", says: str = "", call: str = "") -> Answer:
        return Answer(done, self._made, self._compared, what, name, says, call)

    def _enter(self, context: int) -> None:
        if self._entered != context:
            self._contexts[context].make_current()
            self._entered = context

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
        buffer = self._add(order, self._gpu.alloc(order.nbytes), self._current)
        self._made[order.makes] = buffer.ipc_handle()

    def _export(self, order: Order) -> None:
        self._made[order.on] = self._get(order.on).ipc_handle()

    def _open(self, order: Order) -> None:
        self._enter(self._current)
        self._add(order, self._gpu.open_ipc(order.handle), self._current)

    def _close(self, order: Order) -> None:
        self._take(order.on).close()

    def _free(self, order: Order) -> None:
        self._take(order.on).free()

    _free_open = _free

    # -- memory -------------------------------------------------------------------------------------------

    def _write(self, order: Order) -> None:
        memory = self._get(order.on)
        for offset, length in written(order.nbytes):
            memory.write(contents(order.stamp, length, offset), offset)

    def _write_by_kernel(self, order: Order) -> None:
        """Write by a kernel; by copies if the driver runs no kernels."""
        memory = self._get(order.on)
        try:
            with self._kernel_copies(memory) as (stage, copy):
                for offset, length in written(order.nbytes):
                    stage.write(contents(order.stamp, length, offset))
                    copy(memory.address + offset, stage.address, length)
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

    def _read(self, order: Order) -> None:
        self._compare(self._get(order.on).read, order)

    def _read_in_thread(self, order: Order) -> None:
        memory = self._get(order.on)
        context = self._contexts[self._entered]

        def read() -> None:
            context.make_current()
            self._compare(memory.read, order)

        with ThreadPoolExecutor(1) as threads:
            threads.submit(read).result()

    def _compare(self, read: Callable[[int, int], bytes], order: Order) -> None:
        for offset, length in glances(order.nbytes):
            found = read(length, offset)
            if order.stamp:
                expected = contents(order.stamp, length, offset)
                if found != expected:
                    raise WrongData(_difference(found, expected, offset))
                self._compared += length

    def _copy(self, order: Order) -> None:
        source, to = self._get(order.of), self._get(order.on)
        if self._context_of[order.on] == NO_CONTEXT:
            self._get(order.of)
        stream = self._stream()
        stream.copy(to, cast(Memory, Sized(source.address, order.nbytes)))
        stream.synchronize()

    def _copy_across_streams(self, order: Order) -> None:
        source, to = self._get(order.of), self._get(order.on)
        if self._context_of[order.on] == NO_CONTEXT:
            self._get(order.of)
        first, second = self._stream(self._other_streams), self._stream()
        first.copy(to, cast(Memory, Sized(source.address, order.nbytes)))
        second.wait(first.record())
        second.synchronize()

    def _fork(self, order: Order) -> None:
        if (pid := os.fork()) == 0:
            os._exit(0)
        os.waitpid(pid, 0)

    def _stream(self, streams: dict[int, GpuStream] | None = None) -> GpuStream:
        streams = self._streams if streams is None else streams
        if self._entered not in streams:
            streams[self._entered] = self._gpu.create_stream()
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
        self._contexts[order.makes] = self._gpu.create_context()
        self._current = self._entered = order.makes

    def _use_context(self, order: Order) -> None:
        self._current = order.on

    def _end_context(self, order: Order) -> None:
        self._enter(order.on)
        self._contexts.pop(order.on).destroy()
        self._streams.pop(order.on, None)
        self._other_streams.pop(order.on, None)
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


def written(nbytes: int) -> Iterable[tuple[int, int]]:
    """(offset, length) of the parts of memory of this size that are written."""
    if nbytes > WHOLE_BYTES:
        return glances(nbytes)
    return [(offset, min(PIECE, nbytes - offset)) for offset in range(0, nbytes, PIECE)]


def glances(nbytes: int) -> list[tuple[int, int]]:
    """(offset, length) of the parts of memory of this size that are read."""
    if nbytes <= FULL_BYTES:
        return [(0, nbytes)]
    within = [boundary - 4099 for boundary in BOUNDARIES if boundary + GLANCE < nbytes]
    return [(0, GLANCE), *((at, GLANCE) for at in (nbytes // 2 - 4099, *within, nbytes - GLANCE))]


def _difference(found: bytes, expected: bytes, offset: int) -> str:
    at = first_difference(found, expected)
    shown, wanted = (stamp_at(data, at, offset) for data in (found, expected))
    other = f": contents {shown} instead of {wanted}" if shown and wanted and shown != wanted else ""
    return f"the memory is wrong from byte {offset + at} on{other}"
