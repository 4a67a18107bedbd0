"""The protocol between checks and backends, in terms common to CUDA and HIP.

Types only: ``worker.backends`` implements them and workers pass them to checks. Every method that calls the
driver is *armed*: the name of the driver's function is journalled first, so that a hang or crash in the
function is attributed to it. A call that does not return success raises `DriverError`. Sizes and offsets are
bytes, addresses plain integers, data `bytes`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from gpuipc_doctor.model import Device, DriverFault, Json

Made = TypeVar("Made")

HANDLE_BYTES = 64
"""Size of an IPC memory handle in CUDA and HIP. Handles contain NUL bytes: they are `bytes`, not text."""

CAPABILITIES = frozenset(
    {"legacy-ipc", "multi-process", "contexts", "memory-pools", "vmm-ipc", "pool-ipc", "fabric-handles"}
)
"""Device capabilities, as listed in a check's ``requires``.

``legacy-ipc``: `cuIpcGetMemHandle` or `hipIpcGetMemHandle` and related calls work; between two devices only
with peer access (`Device.peers`). ``multi-process``: several processes may use the device at a time (no
exclusive compute mode). ``contexts``: a process may create several contexts. ``memory-pools``: stream-ordered
allocation from own pools (`cuMemAllocFromPoolAsync`, `hipMallocFromPoolAsync`). ``vmm-ipc``: physical memory
(`cuMemCreate`, `hipMemCreate`) can be exported as a descriptor. ``pool-ipc``: pools can be exported as a
descriptor. ``fabric-handles``: the device claims support for fabric handles; an H200 does so even if it
refuses them without an IMEX channel.
"""

Arm = Callable[[str], AbstractContextManager[None]]
"""Journals an operation before it runs and clears it afterwards; backends wrap each driver call in it."""

ALREADY_MAPPED = frozenset({"CUDA_ERROR_ALREADY_MAPPED", "hipErrorAlreadyMapped"})
"""The driver's error if another mapping overlaps the requested one."""

REFUSALS = ALREADY_MAPPED | {
    "CUDA_ERROR_INVALID_VALUE",
    "CUDA_ERROR_INVALID_CONTEXT",
    "CUDA_ERROR_INVALID_HANDLE",
    "CUDA_ERROR_NOT_SUPPORTED",
    "hipErrorInvalidValue",
    "hipErrorInvalidContext",
    "hipErrorInvalidHandle",
    "hipErrorInvalidDevicePointer",
    "hipErrorNotSupported",
}
"""Errors with which a healthy driver refuses to export or open a handle.

``INVALID_*`` are documented for ``cuIpcGetMemHandle``, ``cuIpcOpenMemHandle`` and their HIP counterparts (see
``worker.backends.rules``). ``NOT_SUPPORTED`` means that the feature is missing; for ``ALREADY_MAPPED`` see
MPICH's pull request 7862. ``OUT_OF_MEMORY`` and ``MAP_FAILED`` are documented, but indicate a fault.
"""


NOT_PERMITTED = frozenset({"CUDA_ERROR_NOT_PERMITTED"})
"""Errors for a missing permission. Fabric handles, for example, need an IMEX channel."""

NOT_SUPPORTED = frozenset({"CUDA_ERROR_NOT_SUPPORTED", "hipErrorNotSupported"})
"""Errors for a feature that the driver or this kind of GPU lacks."""

_CAPABILITY_OF_CALL = (
    ("Ipc", "legacy-ipc"),
    ("MemPoolExport|MemPoolImport", "pool-ipc"),
    ("MemPool|Async", "memory-pools"),
    ("Mem(Create|Export|Import)", "vmm-ipc"),
)


def lacking(call: str) -> list[str]:
    """The capability of `CAPABILITIES` that a GPU lacks if it does not support a driver's function."""
    return [name for functions, name in _CAPABILITY_OF_CALL if re.search(functions, call)][:1]


WITHOUT_GPU_IPC = (
    "nothing to repair; run MPI and NCCL without GPU IPC: NCCL_P2P_DISABLE=1, UCX_TLS=^cuda_ipc, "
    "MPICH_GPU_IPC_ENABLED=0"
)
"""What to do on a node whose GPUs have no IPC by design."""

_INSTEAD = {
    "multi-process": "nvidia-smi -c 0; or let jobs share the GPU through MPS",
    "legacy-ipc": WITHOUT_GPU_IPC,
    "vmm-ipc": "nothing to repair; set NCCL_CUMEM_ENABLE=0, and no expandable segments in PyTorch",
    "memory-pools": "nothing to repair; jobs allocate with cudaMalloc or hipMalloc",
    "pool-ipc": "nothing to repair; jobs share memory of cudaMalloc or hipMalloc, not of pools",
    "fabric-handles": "nothing to repair; only NVLink between nodes needs them: NCCL_MNNVL_ENABLE=0",
}


def words_of_lack(lacking: Collection[str], mode: str = "") -> str:
    """What a device cannot do, and how that was recognised. ``mode``: its compute mode, if known."""
    if "multi-process" in lacking:
        mode = mode or "exclusive or prohibited (CU_DEVICE_ATTRIBUTE_COMPUTE_MODE is not 0)"
        return f"admits no second process: its compute mode is {mode}"
    return f"lacks {', '.join(sorted(lacking))}, as its driver states"


def instead_of(lacking: Collection[str]) -> str:
    """What to use without these capabilities."""
    return next((text for name, text in _INSTEAD.items() if name in lacking), "use another GPU or driver")


TOO_MANY_PEERS = frozenset({"CUDA_ERROR_TOO_MANY_PEERS"})
MOST_PEERS = 8
"""Peers that a GPU can have at a time if no NVSwitch connects them (CUDA programming guide, "Peer-to-Peer
Memory Access")."""

WITH_FEWER_PEERS = (
    "nothing to repair; give a job at most nine of these GPUs, or set NCCL_P2P_DISABLE=1 for it"
)

OPENS_MEMORY = re.compile("IpcOpen|Mem(Pool)?Import|EnablePeer")
"""Calls that map memory of another process or GPU."""

OUT_OF_MEMORY = frozenset({"CUDA_ERROR_OUT_OF_MEMORY", "hipErrorOutOfMemory"})
"""Errors for exhausted memory."""

CONTEXT_CREATIONS = frozenset({"cuDevicePrimaryCtxRetain", "cuCtxCreate"})
CONTEXT_BYTES = 640 << 20
"""Free bytes from which a first context of an H200 (518 MiB) can be created. With less, the call returns
``CUDA_ERROR_OUT_OF_MEMORY``, or at times ``CUDA_ERROR_UNKNOWN`` (driver 580.159.04)."""

INITIALISATIONS = frozenset({"cuInit", "hipInit"})
"""The driver's calls that initialise it."""


class DriverError(Exception):
    """A driver call did not return success. ``fault`` has the call, its code and the code's name."""

    def __init__(self, fault: DriverFault, occurrence: int = 0) -> None:
        super().__init__(str(fault))
        self.fault = fault
        self.occurrence = occurrence
        """Number of the call among the process's calls of this function, from 1; 0 if unknown."""

    @property
    def is_refusal(self) -> bool:
        """Whether the driver refused the call rather than failed."""
        return self.fault.name in REFUSALS

    @property
    def is_already_mapped(self) -> bool:
        """Whether the driver refused a mapping because of another open mapping."""
        return self.fault.name in ALREADY_MAPPED

    @property
    def is_not_permitted(self) -> bool:
        return self.fault.name in NOT_PERMITTED

    @property
    def is_not_supported(self) -> bool:
        return self.fault.name in NOT_SUPPORTED

    @property
    def is_out_of_memory(self) -> bool:
        return self.fault.name in OUT_OF_MEMORY

    @property
    def may_be_out_of_memory(self) -> bool:
        """Whether little free memory may be the reason, although the error does not say so."""
        return self.fault.call in CONTEXT_CREATIONS and self.fault.name == "CUDA_ERROR_UNKNOWN"


def unless_refused(call: Callable[[], Made]) -> Made | DriverError:
    """Result of a call, or the driver's refusal; other errors are raised."""
    try:
        return call()
    except DriverError as error:
        if not error.is_refusal:
            raise
        return error


class BackendUnavailable(Exception):
    """This backend cannot be used here. ``reason`` says why, ``remedy`` what to do.

    ``broken``: the node has GPUs of this backend, so the result is an ERROR rather than a SKIP.
    """

    def __init__(self, reason: str, remedy: str, *, broken: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy
        self.broken = broken


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
        """The IPC handle for the address at ``offset``: `HANDLE_BYTES` bytes, which another process opens."""

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

    def destroy(self) -> None: ...


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

    def fill(self, address: int, unit: bytes, count: int) -> None:
        """Queue a fill with ``count`` times ``unit``, which has 1, 2 or 4 bytes."""

    def record(self) -> Event:
        """The point after all work queued so far."""

    def wait(self, event: Event) -> None:
        """Make later work wait for ``event``."""

    def synchronize(self) -> None:
        """Wait until all queued work is done."""

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


class KernelsUnavailable(Exception):
    """The kernels cannot be compiled, loaded or launched here; the message is the driver's reason."""


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

    def alloc_coherent(self, nbytes: int) -> Buffer:
        """Memory that kernels of several processes may use at the same time: AMD's is fine-grained."""

    @property
    def plain_memory_is_coherent(self) -> bool:
        """Whether kernels of several processes may use any device memory at the same time.

        If not, what a kernel writes is visible to others when it has ended."""

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
    def create_stream(self) -> GpuStream:
        """A new stream that lives as long as the context and does not wait for the default stream."""

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

    def map_adjacent(self, parts: Sequence[PhysicalMemory]) -> VmmMapping:
        """Map physical memory of this process at adjacent addresses, each part behind the one before."""

    @property
    def fabric_granule(self) -> int:
        """Unit in bytes of the size of memory for fabric handles."""

    def create_fabric(self, nbytes: int) -> PhysicalMemory:
        """New physical memory that can be exported as a fabric handle."""

    def import_descriptor(self, descriptor: int, nbytes: int) -> PhysicalMemory:
        """Import a descriptor, which may be closed afterwards and must not be number 0."""

    def import_fabric(self, handle: bytes, nbytes: int) -> PhysicalMemory: ...
    @property
    def fabric_channels(self) -> list[str]:
        """Paths of the node's IMEX channels; without a channel NVIDIA's driver creates no fabric handles."""

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes of the whole device, for all processes together."""

    def memory_used(self) -> int:
        """Bytes in use on the whole device, by all processes.

        Memory of processes outside this run is subtracted if NVML lists the processes and this process may
        examine them. Only root may examine the processes of other users.
        """

    def memory_of_this_process(self) -> int | None:
        """Bytes of device memory of this process; None if unknown."""

    def memory_holders(self) -> list[dict[str, Json]]:
        """Processes that hold memory of the device: ``pid``, ``name``, ``held`` (bytes), ``whose`` (whether
        the process is part of this run). Empty if unknown."""

    def expects(self, case: str) -> str:
        """This backend's documented behaviour where vendors differ; see ``worker.backends.rules``."""
