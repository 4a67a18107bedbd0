"""The objects of one process of a memory history, on the driver that it has loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

from gpuipc_doctor.api.gpu import Gpu, GpuContext, GpuStream, Memory
from gpuipc_doctor.api.process_leaks import figures_of_process
from gpuipc_doctor.histories.contents import (
    PIECE,
    WHOLE_BYTES,
    Part,
    contents,
    first_difference,
    glances,
    looks,
    stamp_at,
    within,
)
from gpuipc_doctor.histories.memory_state import FIRST_CONTEXT, NO_CONTEXT
from gpuipc_doctor.histories.operations import WHOLE, Operation

RESTED = 0
"""Key of `Performer.made` for the figures of an idle process. The other keys are numbers of objects, from
1."""


class WrongData(Exception):
    """Memory does not have the contents that the model expects."""


class WrongAnswer(Exception):
    """The driver describes an address wrongly. ``call`` is the call that did."""

    def __init__(self, call: str, says: str) -> None:
        super().__init__(says)
        self.call = call


class Sized(NamedTuple):
    """Source and size of a device-to-device copy."""

    address: int
    nbytes: int


def span(op: Operation) -> tuple[int, int]:
    """The offsets between which an operation works; its ``nbytes`` is the size of the memory."""
    return op.offset, op.offset + op.length if op.length else op.nbytes


class Performer:
    """The objects of one process, by number; what its operations have in common."""

    handle: bytes = b""
    """The IPC handle or pool pointer for the operation."""
    parts: tuple[Part, ...] = ()
    """What the operation must read, where it is known."""

    def __init__(self, gpu: Gpu, *, primary: bool, gpus: Sequence[Gpu] = ()) -> None:
        """``gpus``: those of all devices of the history, for contexts on another one than ``gpu``."""
        self.gpu = gpu
        self.gpus = gpus
        self.gpu_of: dict[int, Gpu] = {}
        """Context → its GPU, where that is another than the process's own."""
        self.first: Callable[[], GpuContext] = gpu.primary_context if primary else gpu.create_context
        self.contexts = {FIRST_CONTEXT: self.first()}
        self.current = self.entered = FIRST_CONTEXT
        self.things: dict[int, Any] = {}
        self.context_of: dict[int, int] = {}
        self.streams: dict[int, GpuStream] = {}
        self.other_streams: dict[int, GpuStream] = {}
        self.made: dict[int, Any] = {}
        """Number of an exported object → its handle; `RESTED` → the idle process's usage."""
        self.compared = 0
        """Bytes read and compared."""
        self.received: Sequence[int] = ()
        """The descriptor sent with an import."""
        self.descriptors: list[int] = []
        """Exported descriptors."""

    def enter(self, context: int) -> None:
        if self.entered != context:
            self.contexts[context].make_current()
            self.entered = context

    @property
    def here(self) -> Gpu:
        """The GPU of the context that is current."""
        return self.gpu_of.get(self.entered, self.gpu)

    def in_thread(self, work: Callable[[], None]) -> None:
        """Do something in a thread that makes the process's current context its own."""
        self.enter(self.current)
        context = self.contexts[self.entered]

        def do() -> None:
            context.make_current()
            work()

        with ThreadPoolExecutor(1) as threads:
            threads.submit(do).result()

    def add(self, op: Operation, thing: Any, context: int = NO_CONTEXT) -> Any:
        self.things[op.makes] = thing
        self.context_of[op.makes] = context
        return thing

    def get(self, number: int) -> Any:
        """Return an object after making its context current. If the object has no context, the process's
        current context is used."""
        context = self.context_of[number]
        self.enter(self.current if context == NO_CONTEXT else context)
        return self.things[number]

    def take(self, number: int) -> Any:
        """As `get`; the object is then forgotten."""
        thing = self.get(number)
        del self.things[number], self.context_of[number]
        return thing

    def stream(self, streams: dict[int, GpuStream] | None = None) -> GpuStream:
        streams = self.streams if streams is None else streams
        if self.entered not in streams:
            streams[self.entered] = self.here.create_stream()
        return streams[self.entered]

    def granules(self, nbytes: int, granule: int = 0) -> int:
        """Bytes of physical memory for ``nbytes``, in the device's granules if these are larger than
        `GRANULE`."""
        granule = granule or self.gpu.granule
        return -(-nbytes // granule) * granule

    def write(self, op: Operation, write: Callable[[bytes, int], None]) -> None:
        begin, end = span(op)
        whole = op.kind == WHOLE
        piece = end - begin if whole else PIECE
        for first, last in glances(begin, end) if op.nbytes > WHOLE_BYTES and not whole else [(begin, end)]:
            for offset in range(first, last, piece):
                length = min(piece, last - offset)
                write(contents(op.stamp, length, offset), offset)

    def compare(self, op: Operation, read: Callable[[int, int], bytes]) -> None:
        begin, end = span(op)
        for first, last in [(begin, end)] if op.kind == WHOLE else looks(begin, end, self.parts):
            found = read(last - first, first)
            for part in within(self.parts, first, last):
                expected = part.data(part.begin, part.end)
                shown = found[part.begin - first : part.end - first]
                if shown != expected:
                    raise WrongData(_difference(shown, expected, part))
                self.compared += len(expected)

    @contextmanager
    def kernel_copies(self, memory: Memory) -> Iterator[tuple[Memory, Callable[[int, int, int], None]]]:
        """Memory of this process, and a function that copies (to, from, bytes) by a kernel. Nothing stays
        loaded: it would be taken for a leak. Raises `KernelsUnavailable`."""
        kernels, stream = self.gpu.load_kernels(), self.stream()

        def copy(to: int, source: int, nbytes: int) -> None:
            kernels.copy(stream, to, source, nbytes)
            stream.synchronize()

        with self.gpu.alloc(min(memory.nbytes, PIECE)) as stage:
            yield stage, copy
        kernels.unload()

    def start_copy(self, op: Operation, streams: dict[int, GpuStream] | None = None) -> GpuStream:
        source, to = self.get(op.of), self.get(op.on)
        if self.context_of[op.on] == NO_CONTEXT:
            self.get(op.of)
        stream = self.stream(streams)
        begin, end = span(op)
        taken, given = Sized(source.address + op.start, end - begin), Sized(to.address + begin, end - begin)
        stream.copy(cast(Memory, given), cast(Memory, taken))
        return stream

    def end_context(self, number: int) -> None:
        """End a context; the first one is then current, which has a successor."""
        self.enter(number)
        self.contexts.pop(number).destroy()
        for of_context in (self.streams, self.other_streams, self.gpu_of):
            of_context.pop(number, None)
        ends = self.gpu.expects("mapping-when-its-context-is-destroyed") == "ends"
        for thing in [thing for thing, context in self.context_of.items() if context == number]:
            if ends:
                del self.things[thing], self.context_of[thing]
            else:
                self.context_of[thing] = FIRST_CONTEXT
        if number == FIRST_CONTEXT:
            self.contexts[FIRST_CONTEXT] = self.first()
        else:
            self.contexts[FIRST_CONTEXT].make_current()
        self.current = self.entered = FIRST_CONTEXT

    def rest(self) -> None:
        """Note what an idle process uses."""
        free, total = self.gpu.memory_info()
        used = self.gpu.memory_used() if self.gpu.by_process else total - free
        self.made[RESTED] = {**figures_of_process(), "device": used}


def _difference(found: bytes, expected: bytes, part: Part) -> str:
    at, offset = first_difference(found, expected), part.begin - part.shift
    shown, wanted = (0 if part.width else stamp_at(data, at, offset) for data in (found, expected))
    other = f": contents {shown} instead of {wanted}" if shown and wanted and shown != wanted else ""
    return f"the memory is wrong from byte {part.begin + at} on{other}"
