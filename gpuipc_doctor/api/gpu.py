"""The protocol between checks and backends, in terms common to all vendors.

Types only: ``worker.backends`` implements them and workers pass them to checks. Every method that calls the
driver is *armed*: the name of the driver's function is journalled first, so that a hang or crash in the
function is attributed to it. A call that does not return success raises `DriverError`. Sizes and offsets are
bytes, addresses plain integers, data `bytes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from typing import Protocol, TypeVar

from gpuipc_doctor.api.driver_errors import DriverError
from gpuipc_doctor.model import Device, Json

Made = TypeVar("Made")

HANDLE_BYTES = 64
"""Size of an IPC memory handle in CUDA and HIP. Handles contain NUL bytes: they are `bytes`, not text."""

Arm = Callable[[str], AbstractContextManager[None]]
"""Journals an operation before it runs and clears it afterwards; backends wrap each driver call in it."""


class Memory(Protocol):
    """Memory that can be written and read: a GPU's, or the host's."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def write(self, data: bytes, offset: int = 0) -> None:
        """Copy ``data`` to offset ``offset`` and wait for completion."""

    def read(self, nbytes: int | None = None, offset: int = 0) -> bytes:
        """Copy ``nbytes`` bytes (None: all) from ``offset`` on."""


class Scoped(Protocol):
    """What the end of a ``with`` block releases, unless an exception was raised: the process then ends."""

    def __enter__(self: Made) -> Made: ...
    def __exit__(self, *_: object) -> None: ...


class Buffer(Memory, Scoped, Protocol):
    """Device memory of this process. Leaving the ``with`` block frees it."""

    def ipc_handle(self, offset: int = 0) -> bytes:
        """The IPC handle for the address at ``offset``: bytes that another process of this node opens.

        CUDA's and HIP's have `HANDLE_BYTES`. One that names a descriptor also has what the opener needs to
        fetch it.
        """

    def free(self) -> None:
        """Free the memory; a second call does nothing."""


class IpcMapping(Memory, Scoped, Protocol):
    """Device memory of another process, opened here.

    Leaving the ``with`` block closes it. ``nbytes`` is the size of the exporter's allocation as reported by
    the driver in this process.
    """

    def close(self) -> None:
        """Close the mapping; a second call does nothing."""


class Event(Protocol):
    """A point in the work of a stream."""


class SharedEvent(Protocol):
    """An event that several processes have. The others give theirs back before its exporter does."""

    def ipc_handle(self) -> bytes:
        """`HANDLE_BYTES` bytes with which another process opens the event; imports have none."""

    def record(self, stream: GpuStream) -> None:
        """Have the event stand for all work queued in the stream so far."""

    def wait(self, stream: GpuStream) -> None:
        """Make the stream's later work wait for what the event stands for."""

    def is_done(self) -> bool:
        """Whether what the event stands for is done."""

    def synchronize(self) -> None:
        """Wait for that."""

    def destroy(self) -> None: ...


class CopyCall(Enum):
    """How a copy is queued in a stream: by which of the driver's functions (`Gpu.name_of`)."""

    TO_DEVICE = "copy-to-device-async"
    FROM_DEVICE = "copy-from-device-async"
    ON_DEVICE = "copy-on-device"
    BY_ADDRESS = "copy-by-address"
    PEER = "copy-peer"


class StreamKind(Enum):
    """Which stream of a device: one with the usual or with the highest priority, or the default stream."""

    OWN = "own"
    PRIORITY = "priority"
    DEFAULT = "default"


class GpuStream(Protocol):
    """A queue of work on a device. Only events order the work of two streams.

    Copies to and from the host (`Memory.read`, `Memory.write`) do not wait for the stream: ``synchronize``
    first.
    """

    @property
    def number(self) -> int:
        """The driver's handle of the stream, for libraries."""

    def copy(self, to: Memory, source: Memory) -> None:
        """Queue a device-to-device copy of all of ``source``."""

    def copy_by(self, call: CopyCall, to: int, source: int, nbytes: int) -> None:
        """Queue a copy between two addresses. At `CopyCall.PEER`, both are this device's."""

    def fill(self, address: int, unit: bytes, count: int) -> None:
        """Queue a fill with ``count`` times ``unit``, which has 1, 2 or 4 bytes."""

    def record(self) -> Event:
        """The point after all work queued so far."""

    def wait(self, event: Event) -> None:
        """Make later work wait for ``event``."""

    def synchronize(self) -> None:
        """Wait until all queued work is done."""

    def capture(self, queue: Callable[[], None]) -> AbstractContextManager[Callable[[], None]]:
        """What ``queue`` queues in this stream, not the default one, as a graph: a function that launches it.

        The graph ends with the ``with`` block, in which the stream is synchronised. NCCL's communicators wait
        for the end of such graphs when they are destroyed (2.28.9 on one H200)."""

    def is_busy(self) -> bool:
        """Whether queued work is still running."""


REUSES = frozenset({"event-dependencies", "opportunistic", "internal-dependencies"})
"""Cases in which a pool may reuse memory on another stream than the one that freed it.

``event-dependencies``: an event orders the other stream after the free. ``opportunistic``: the free has
completed. ``internal-dependencies``: the pool makes the other stream wait. A new pool allows all three.
The names follow ``CU_MEMPOOL_ATTR_REUSE_*`` and ``hipMemPoolReuse*``:
https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html
"""


class PoolMemory(Memory, Protocol):
    """Device memory that is allocated and freed in stream order."""

    def export_pointer(self) -> bytes:
        """`HANDLE_BYTES` bytes with which a process that imported the pool imports this memory."""

    def free(self, stream: GpuStream) -> None:
        """Free the memory in the order of ``stream``; a second call does nothing."""


class Pool(Protocol):
    """A pool for stream-ordered allocation.

    ``reserved``: bytes taken from the device; ``used``: the allocated part of it
    (``CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`` and ``CU_MEMPOOL_ATTR_USED_MEM_CURRENT``).
    """

    @property
    def reserved(self) -> int: ...
    @property
    def used(self) -> int: ...
    def hold(self, nbytes: int) -> None:
        """Set the release threshold: reserved memory above it is released at the next synchronisation."""

    def reuse(self, *cases: str) -> None:
        """Allow reuse between streams in these cases of `REUSES` only."""

    def alloc(self, nbytes: int, stream: GpuStream) -> PoolMemory: ...
    def trim(self, keep: int = 0) -> None:
        """Release free memory to the device, but keep ``keep`` bytes reserved."""

    def export_descriptor(self) -> int:
        """A new descriptor of a pool from `Gpu.create_shared_pool`; the caller passes it on and closes it.

        On an H200 the descriptor is not close-on-exec. While any process has it open, the pool's memory with
        an exported pointer stays in use.
        """

    def destroy(self) -> None: ...


class ImportedPool(Protocol):
    """Another process's pool: it allocates nothing, but exported pointers can be imported."""

    def give_access(self) -> None:
        """Give this device access to a pool on another device."""

    def import_pointer(self, data: bytes, nbytes: int) -> PoolMemory:
        """Memory of the exporter, ``nbytes`` bytes long.

        A second import of a pointer returns the same address, and freeing one also ends the other. Free the
        memory here before the exporter frees it.
        """

    def destroy(self) -> None: ...


class PhysicalMemory(Scoped, Protocol):
    """Physical memory, own or imported, which has no address until it is mapped.

    Leaving the ``with`` block releases the handle. The memory is freed when no process has a handle, a
    mapping or an open descriptor of it, and no descriptor is left in an unreceived message.
    """

    @property
    def nbytes(self) -> int: ...
    def export_descriptor(self) -> int:
        """A new descriptor; the caller passes it on and closes it. Imported memory cannot be exported."""

    def export_fabric(self) -> bytes:
        """The `HANDLE_BYTES` bytes of the memory's fabric handle."""

    def map(self) -> VmmMapping:
        """Reserve addresses, map the memory there and give this device read and write access."""

    def release(self) -> None:
        """Release the handle; mappings stay. A second call does nothing."""


class VmmMapping(Memory, Scoped, Protocol):
    """Addresses at which physical memory is mapped. Leaving the ``with`` block unmaps it.

    The mapping belongs to no context and outlives the context that was current when it was created.
    """

    def unmap(self) -> None:
        """Unmap and free the addresses; a second call does nothing."""


Linear = tuple[int, int]
"""Data of 32-bit elements as (a, b): element number i is ``a * i + b``, without the bits that do not fit."""


class Kernels(Protocol):
    """Kernels that use 32-bit elements of memory at an address that their device can reach.

    A call queues a kernel in a stream of the device. Each kernel is bounded: a loop runs as often as an
    argument says.
    """

    def fill(self, stream: GpuStream, address: int, count: int, data: Linear) -> None:
        """Write ``count`` elements."""

    def compare(
        self, stream: GpuStream, address: int, count: int, result: int, data: Linear, other: Linear
    ) -> None:
        """Compare ``count`` elements with ``data``, in three 64-bit numbers at the address ``result``.

        The number of wrong elements is added to the first. The second becomes the least of its value and the
        first wrong element: its number in the upper 32 bits, its value in the lower. The number of wrong
        elements that equal ``other`` is added to the third.
        """

    def add(self, stream: GpuStream, address: int, count: int, number: int, times: int) -> None:
        """Add ``number`` to each of ``count`` elements, ``times`` times, atomically for the whole system."""

    def copy(self, stream: GpuStream, to: int, source: int, nbytes: int) -> None:
        """Load ``nbytes`` bytes at the address ``source`` and store them at ``to``."""

    def store(self, stream: GpuStream, address: int, number: int) -> None:
        """Store a flag, with release semantics for the whole system."""

    def wait(self, stream: GpuStream, address: int, number: int, loads: int, result: int) -> None:
        """Load a flag, with acquire semantics for the whole system, until it is ``number``, at most ``loads``
        times. The 64-bit number at the address ``result`` becomes 1 if it was, else 2."""

    def unload(self) -> None: ...


class GpuContext(Protocol):
    """A driver context; ``destroy`` also ends everything in it."""

    def make_current(self) -> None: ...
    def destroy(self) -> None: ...


class Gpu(Protocol):
    """One device as one process sees it.

    Memory operations use the current context. If there is none, they retain the device's primary context and
    make it current.
    """

    @property
    def device(self) -> Device: ...
    @property
    def by_process(self) -> bool:
        """Whether other probes run on the device, so that `memory_used` is that of this probe's processes.

        What is mapped counts for its owner and, once the owner has freed it, for the process that still maps
        it. Memory that only a descriptor or an imported pool keeps is nobody's (H200, driver 580).
        """

    def refuses_by_design(self, error: DriverError) -> str:
        """Why the device refuses this call by design, for example ``is a MIG instance, which has no such
        feature``; empty if a whole GPU of a usual node should not refuse it."""

    def create_context(self) -> GpuContext:
        """A new context on this device, current in this thread."""

    def primary_context(self) -> GpuContext:
        """Retain the primary context and make it current; ``destroy`` resets it like `cudaDeviceReset`."""

    def alloc(self, nbytes: int) -> Buffer: ...
    def alloc_pinned(self, nbytes: int) -> Buffer:
        """Page-locked host memory (`cuMemHostAlloc`, `hipHostMalloc`), which has no IPC handle."""

    def registered(self, memory: Memory) -> AbstractContextManager[None]:
        """Inside the block, this host memory is page-locked."""

    def alloc_coherent(self, nbytes: int) -> Buffer:
        """Memory that kernels of several processes may use at the same time: AMD's is fine-grained."""

    @property
    def plain_memory_is_coherent(self) -> bool:
        """Whether kernels of several processes may use any device memory at the same time.

        If not, what a kernel writes is visible to others when it has ended."""

    @property
    def shares_events(self) -> bool:
        """Whether events can be shared with other processes by handle."""

    def load_kernels(self) -> Kernels:
        """Compile and load the kernels. Raises `KernelsUnavailable`."""

    def has_native_atomics(self, other: Gpu) -> bool:
        """Whether this device's atomics work in another device's memory, as the driver states."""

    def peer_access(self, other: Gpu) -> AbstractContextManager[None]:
        """Inside the block, kernels of this device can use this process's memory on another device."""

    def alloc_unexportable(self, kind: str) -> Buffer:
        """64 KiB of memory that IPC handles must refuse; see `unexportable_kinds`."""

    @property
    def unexportable_kinds(self) -> tuple[str, ...]:
        """Kinds of memory without IPC handles that this device can allocate: ``async-pool``, ``managed``,
        ``pinned-host`` or ``vmm``."""

    def open_ipc(self, handle: bytes) -> IpcMapping: ...
    def allocation_of(self, address: int) -> tuple[int, int]:
        """Start and size in bytes of the driver's allocation that contains the address."""

    @property
    def ordinal(self) -> int:
        """The driver's number of the device in this process."""

    def ordinal_of(self, address: int) -> int:
        """The number of the device whose memory lies there, as the driver says."""

    def name_of(self, operation: str) -> str:
        """The vendor's name of a driver's function, by its key in ``worker.backends.calls``."""

    def create_event(self) -> SharedEvent:
        """A new event that other processes can open."""

    def open_event(self, handle: bytes) -> SharedEvent: ...
    def create_stream(self, kind: StreamKind = StreamKind.OWN) -> GpuStream:
        """A new stream that lives as long as the context and does not wait for the default stream; or the
        default stream itself."""

    def create_pool(self) -> Pool:
        """A new pool on this device with release threshold 0."""

    def create_shared_pool(self) -> Pool:
        """A new pool that can be exported as a descriptor."""

    def import_pool(self, descriptor: int) -> ImportedPool: ...
    @property
    def granule(self) -> int:
        """Unit in bytes of the size of physical memory."""

    def create_physical(self, nbytes: int) -> PhysicalMemory:
        """New physical memory that can be exported as a descriptor."""

    def map_adjacent(self, parts: Sequence[PhysicalMemory], *, grants: int = 0) -> VmmMapping:
        """Map physical memory at adjacent addresses, each part behind the one before.

        Access is granted to each part when it is mapped; or, with ``grants``, so many times to all of them
        when all are mapped, as PyTorch's expandable segments do."""

    @property
    def fabric_granule(self) -> int:
        """Unit in bytes of the size of memory for fabric handles."""

    def create_fabric(self, nbytes: int) -> PhysicalMemory:
        """New physical memory that can be exported as a fabric handle."""

    def import_descriptor(self, descriptor: int, nbytes: int) -> PhysicalMemory:
        """Import a descriptor, which may be closed afterwards and must not be number 0."""

    @property
    def claims_dmabuf(self) -> bool | None:
        """Whether the driver states that the device's memory can be exported as dma-buf; None: not stated."""

    def export_dmabuf(self, address: int, nbytes: int) -> int:
        """A new descriptor of these bytes as a dma-buf, for an adapter; the caller closes it.

        Address and size are multiples of the host's page size. Where the bytes lie in the dma-buf:
        ``expects("dma-buf-of-part")``.
        """

    def import_fabric(self, handle: bytes, nbytes: int) -> PhysicalMemory: ...
    @property
    def fabric_channels(self) -> list[str]:
        """Paths of the node's IMEX channels; without a channel NVIDIA's driver creates no fabric handles."""

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes of the whole device, for all processes together."""

    def memory_used(self) -> int:
        """Bytes in use on the whole device, by all processes; if `by_process`, those that the processes of
        this probe hold.

        Memory of processes outside this run is subtracted if NVML lists the processes and this process may
        examine them. Only root may examine the processes of other users. Raises `NotAlone`.
        """

    def memory_of_this_process(self) -> int | None:
        """Bytes of device memory of this process; None if unknown."""

    def memory_holders(self) -> list[dict[str, Json]]:
        """Processes that hold memory of the device: ``pid``, ``name``, ``held`` (bytes), ``whose`` (whether
        the process is part of this run). Empty if unknown."""

    def pcie_link(self) -> dict[str, Json] | None:
        """``generation`` and ``lanes`` of the PCIe link now; ``generations`` and ``slot``: what GPU and slot
        allow. None if the driver does not report them."""

    def expects(self, case: str) -> str:
        """This backend's documented behaviour where vendors differ; see ``worker.backends.rules``."""
