"""What a GPU can do, in words that fit CUDA and HIP alike: the protocol between checks and backends.

Only types stand here; ``backends`` implements them and workers hand them to checks. Every method that
reaches the driver is *armed*: the call is journalled under the driver's own name before it is made, so a
hang or a crash inside it is blamed on it. A call that does not return success raises `DriverError`.
Sizes and offsets are bytes, addresses plain integers, data `bytes`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from gpuipc_doctor.model import Device, DriverFault, Json

Made = TypeVar("Made")

HANDLE_BYTES = 64
"""Size of an IPC memory handle, CUDA and HIP alike. Handles hold NUL bytes: they are `bytes`, not text."""

CAPABILITIES = frozenset(
    {"legacy-ipc", "multi-process", "contexts", "memory-pools", "vmm-ipc", "pool-ipc", "fabric-handles"}
)
"""What a device may be able to do, the words that a check's ``requires`` may hold.

``legacy-ipc``: `cuIpcGetMemHandle` or `hipIpcGetMemHandle` and their kin work on it; from one device to
another only where that one reaches its memory (`Device.peers`). ``multi-process``: several processes may
use it at a time (no exclusive compute mode). ``contexts``: a process may have several contexts on it, and
make new ones. ``memory-pools``: memory can be allocated and freed in the order of a stream
(`cuMemAllocFromPoolAsync`, `hipMallocFromPoolAsync`), from pools of a process's own. ``vmm-ipc``: physical
memory (`cuMemCreate`, `hipMemCreate`) can be exported as a descriptor, ``pool-ipc``: a pool can.
``fabric-handles``: the device says that it knows fabric handles; an H200 says so, too, where it refuses
them for want of an IMEX channel.
"""

Arm = Callable[[str], AbstractContextManager[None]]
"""Journals an operation before it is made and clears it after; backends wrap each driver call in it."""

ALREADY_MAPPED = frozenset({"CUDA_ERROR_ALREADY_MAPPED", "hipErrorAlreadyMapped"})
"""How a driver says that another mapping is in the way of the one that was asked for."""

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
"""How a driver that is in order says that it will not make a handle, or open one.

``INVALID_*``: documented for ``cuIpcGetMemHandle``, ``cuIpcOpenMemHandle`` and HIP's counterparts, and see
``backends.rules``. ``NOT_SUPPORTED``: the answer to what a platform lacks. ``ALREADY_MAPPED``: MPICH's pull
request 7862. Left out of what is documented: those that name a trouble (``OUT_OF_MEMORY``, ``MAP_FAILED``).
"""


NOT_PERMITTED = frozenset({"CUDA_ERROR_NOT_PERMITTED"})
"""How a driver says that it would, but may not: here, make fabric handles without an IMEX channel."""

OUT_OF_MEMORY = frozenset({"CUDA_ERROR_OUT_OF_MEMORY", "hipErrorOutOfMemory"})
"""How a driver says that it has no more memory to give."""


class DriverError(Exception):
    """A driver call did not return success. ``fault`` says which call, which code, which name."""

    def __init__(self, fault: DriverFault, occurrence: int = 0) -> None:
        super().__init__(str(fault))
        self.fault = fault
        self.occurrence = occurrence
        """Which call of its name it was, from 1, for what cleans up makes more of them; 0 if not known."""

    @property
    def is_refusal(self) -> bool:
        """Whether the driver refused what it was asked, rather than failed at it."""
        return self.fault.name in REFUSALS

    @property
    def is_already_mapped(self) -> bool:
        """Whether the driver refused a mapping because of another one that is open."""
        return self.fault.name in ALREADY_MAPPED

    @property
    def is_not_permitted(self) -> bool:
        return self.fault.name in NOT_PERMITTED

    @property
    def is_out_of_memory(self) -> bool:
        return self.fault.name in OUT_OF_MEMORY


def unless_refused(call: Callable[[], Made]) -> Made | DriverError:
    """What a call made, or how the driver refused it; where it fails otherwise, that is raised."""
    try:
        return call()
    except DriverError as error:
        if not error.is_refusal:
            raise
        return error


class BackendUnavailable(Exception):
    """This backend cannot be used here. ``reason`` says why, ``remedy`` what to do.

    ``broken`` is True when the node has such GPUs, so that not seeing them is an ERROR, not a SKIP.
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
        """Copy ``data`` there and wait until it is there."""

    def read(self, nbytes: int | None = None, offset: int = 0) -> bytes:
        """Copy from there; everything from ``offset`` on when ``nbytes`` is None."""


class Buffer(Memory, Protocol):
    """Device memory of this process. Leaving the ``with`` block frees it, but not by an exception.

    So it is with whatever a ``with`` block gives back: the first error is the finding, and the process ends.
    """

    def ipc_handle(self, offset: int = 0) -> bytes:
        """The `HANDLE_BYTES` bytes that another process opens; ``offset`` asks for an interior pointer's."""

    def free(self) -> None:
        """Give the memory back; a second call does nothing."""

    def __enter__(self) -> Buffer: ...
    def __exit__(self, *_: object) -> None: ...


class IpcMapping(Memory, Protocol):
    """Another process's device memory, opened here. Leaving the ``with`` block closes it.

    ``nbytes`` is the size of the exporter's allocation as the driver reports it here.
    """

    def close(self) -> None:
        """Close the mapping; a second call does nothing."""

    def __enter__(self) -> IpcMapping: ...
    def __exit__(self, *_: object) -> None: ...


class Event(Protocol):
    """A point in the work of a stream."""


class GpuStream(Protocol):
    """A queue of work on a device. Nothing orders the work of two streams but the events between them.

    Copies to and from the host (`Memory.read`, `Memory.write`) do not wait for it: ``synchronize`` first.
    """

    def copy(self, to: Memory, source: Memory) -> None:
        """Queue a copy of all of ``source``, on the device."""

    def record(self) -> Event:
        """The point after all that is queued now."""

    def wait(self, event: Event) -> None:
        """Have what is queued from now on wait for ``event``."""

    def synchronize(self) -> None:
        """Wait here until all that is queued is done."""

    def is_busy(self) -> bool:
        """Whether something that is queued is not done yet."""


REUSES = frozenset({"event-dependencies", "opportunistic", "internal-dependencies"})
"""In which cases a pool may give memory that one stream freed to another.

``event-dependencies``: the other is ordered after the free, by an event. ``opportunistic``: the free is done
by then. ``internal-dependencies``: the pool has the other wait for it. All three are on in a new pool. The
words are those of ``CU_MEMPOOL_ATTR_REUSE_*`` and ``hipMemPoolReuse*``:
https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html
"""


class PoolMemory(Memory, Protocol):
    """Device memory that was allocated, and is freed, in the order of a stream."""

    def export_pointer(self) -> bytes:
        """The `HANDLE_BYTES` bytes by which a process that imported the pool finds this memory in it."""

    def free(self, stream: GpuStream) -> None:
        """Free it once ``stream`` has come so far; a second call does nothing."""


class Pool(Protocol):
    """A pool that stream-ordered memory comes from and, freed, is held back in.

    ``reserved`` is what the pool has from the device, in bytes, ``used`` what of that is allocated:
    ``CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`` and ``CU_MEMPOOL_ATTR_USED_MEM_CURRENT``.
    """

    @property
    def reserved(self) -> int: ...
    @property
    def used(self) -> int: ...
    def hold(self, nbytes: int) -> None:
        """Set the release threshold: what is reserved beyond it goes back when the host next synchronises."""

    def reuse(self, *cases: str) -> None:
        """Let memory go from one stream to another in these cases of `REUSES` and no other."""

    def alloc(self, nbytes: int, stream: GpuStream) -> PoolMemory: ...
    def trim(self, keep: int = 0) -> None:
        """Give back to the device what is free, as long as ``keep`` bytes stay reserved."""

    def export_descriptor(self) -> int:
        """A new descriptor of a pool made by `Gpu.create_shared_pool`, the caller's to pass on and to close.

        It is not close-on-exec on an H200. While it is open anywhere, memory whose pointer was exported stays
        taken.
        """

    def destroy(self) -> None: ...


class ImportedPool(Protocol):
    """Another process's pool: nothing can be allocated from it, but what its owner exports is found in it."""

    def give_access(self) -> None:
        """Let this device reach the pool's memory, which is on another."""

    def import_pointer(self, data: bytes, nbytes: int) -> PoolMemory:
        """The memory of so many bytes that its owner exported.

        Not counted: imported twice it has one address, and one free ends both. Free it before its owner does.
        """

    def destroy(self) -> None: ...


class PhysicalMemory(Protocol):
    """Physical memory, of this process or imported: it has no address until it is mapped.

    Leaving the ``with`` block releases it. It goes when the last handle, mapping and open descriptor of it is
    gone, in whichever process or in a message that nobody has received.
    """

    @property
    def nbytes(self) -> int: ...
    def export_descriptor(self) -> int:
        """A new descriptor, the caller's to pass on and to close. An imported one cannot be exported."""

    def export_fabric(self) -> bytes:
        """The `HANDLE_BYTES` bytes of its fabric handle."""

    def map(self) -> VmmMapping:
        """Reserve addresses, map all of it there and let this device read and write it."""

    def release(self) -> None:
        """Give the handle back; what is mapped stays. A second call does nothing."""

    def __enter__(self) -> PhysicalMemory: ...
    def __exit__(self, *_: object) -> None: ...


class VmmMapping(Memory, Protocol):
    """Addresses at which physical memory is mapped. Leaving the ``with`` block unmaps it.

    It belongs to no context: it outlives the one in which it was made.
    """

    def unmap(self) -> None:
        """Unmap it and give the addresses back; a second call does nothing."""

    def __enter__(self) -> VmmMapping: ...
    def __exit__(self, *_: object) -> None: ...


class GpuContext(Protocol):
    """A driver context; ``destroy`` takes everything that lives in it along."""

    def make_current(self) -> None: ...
    def destroy(self) -> None: ...


class Gpu(Protocol):
    """One device as one process sees it.

    Memory operations use the current context; where there is none, the device's primary context is
    retained and made current first.
    """

    @property
    def device(self) -> Device: ...
    def create_context(self) -> GpuContext:
        """A new context on this device, current in this thread."""

    def primary_context(self) -> GpuContext:
        """Retain the primary context and make it current; ``destroy`` resets it like `cudaDeviceReset`."""

    def alloc(self, nbytes: int) -> Buffer: ...
    def alloc_unexportable(self, kind: str) -> Buffer:
        """64 KiB of a kind of memory that legacy IPC must refuse: see `unexportable_kinds`."""

    @property
    def unexportable_kinds(self) -> tuple[str, ...]:
        """Of ``async-pool``, ``managed``, ``pinned-host``, ``vmm``: those that this device can allocate."""

    def open_ipc(self, handle: bytes) -> IpcMapping: ...
    def allocation_of(self, address: int) -> tuple[int, int]:
        """Where the driver's allocation begins to which ``address`` belongs, and its size in bytes."""

    def create_stream(self) -> GpuStream:
        """A new stream, which lives as long as the context and does not wait for the default stream."""

    def create_pool(self) -> Pool:
        """A new pool on this device, which holds nothing back: its release threshold is 0."""

    def create_shared_pool(self) -> Pool:
        """A new pool that can be exported as a descriptor."""

    def import_pool(self, descriptor: int) -> ImportedPool: ...
    @property
    def granule(self) -> int:
        """Physical memory is created in multiples of so many bytes."""

    def create_physical(self, nbytes: int) -> PhysicalMemory:
        """New physical memory that can be exported as a descriptor."""

    @property
    def fabric_granule(self) -> int:
        """Memory that is exported as a fabric handle is created in multiples of so many bytes."""

    def create_fabric(self, nbytes: int) -> PhysicalMemory:
        """New physical memory that can be exported as a fabric handle."""

    def import_descriptor(self, descriptor: int, nbytes: int) -> PhysicalMemory:
        """What a descriptor stands for. It may be closed afterwards; its number must not be 0."""

    def import_fabric(self, handle: bytes, nbytes: int) -> PhysicalMemory: ...
    @property
    def fabric_channels(self) -> list[str]:
        """The node's IMEX channels, by file; without one NVIDIA's driver makes no fabric handles."""

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes of the whole device, all processes together."""

    def memory_used(self) -> int:
        """Bytes in use on the whole device, by all processes together.

        Where NVML tells of each process, and the kernel whose it is (of other users' to root alone), those
        that are none of this run's do not count.
        """

    def memory_of_this_process(self) -> int | None:
        """Bytes of the device that this process holds; None where nobody tells."""

    def memory_holders(self) -> list[dict[str, Json]]:
        """Who holds memory of the device, this process too: ``pid``, ``name``, ``held`` (bytes), ``whose``.

        Nobody, where nobody tells.
        """

    def expects(self, case: str) -> str:
        """What this backend documents for a case in which vendors differ: see ``backends.rules``."""
