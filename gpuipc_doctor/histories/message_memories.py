"""The kinds of memory from which applications send: allocations, parts of them, pools, VMM, pinned memory."""

from __future__ import annotations

from contextlib import ExitStack
from typing import NamedTuple

from gpuipc_doctor.api.gpu import Gpu, GpuStream, Memory, Pool
from gpuipc_doctor.model import Device

DEVICE = "device memory"
INSIDE = "memory 3 MiB into an allocation"
POOL = "memory of a pool"
VMM = "VMM memory"
STRADDLING = "two adjacent VMM mappings"
PINNED = "pinned host memory"

_NEEDS = {POOL: "memory-pools", VMM: "vmm-ipc", STRADDLING: "vmm-ipc"}
"""Kind → the device's capability without which there is no such memory."""

KINDS = (DEVICE, INSIDE, POOL, VMM, STRADDLING, PINNED)

BEFORE = (3 << 20) + 8
"""Bytes before a buffer inside an allocation."""


class Part(NamedTuple):
    """A part of other memory, as memory of its own."""

    whole: Memory
    offset: int
    nbytes: int

    @property
    def address(self) -> int:
        return self.whole.address + self.offset

    def write(self, data: bytes, offset: int = 0) -> None:
        self.whole.write(data, self.offset + offset)

    def read(self, nbytes: int | None = None, offset: int = 0) -> bytes:
        return self.whole.read(self.nbytes - offset if nbytes is None else nbytes, self.offset + offset)


def footprint(kind: str, nbytes: int, granule: int) -> int:
    """Bytes of device memory that a buffer of so many bytes takes. ``granule``: of physical memory."""
    match kind:
        case "memory 3 MiB into an allocation":
            return BEFORE + nbytes
        case "VMM memory":
            return -(-nbytes // granule) * granule
        case "two adjacent VMM mappings":
            return 2 * -(-nbytes // granule) * granule
        case "pinned host memory":
            return 0
    return nbytes


def kinds_of(device: Device) -> tuple[str, ...]:
    """The kinds of memory that a device has."""
    return tuple(kind for kind in KINDS if _NEEDS.get(kind, "") in ("", *device.capabilities))


class Memories:
    """Allocates memory of each kind on one device. Its pool is kept until the process ends, as in jobs."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._pool: tuple[Pool, GpuStream] | None = None

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that this device has."""
        return kinds_of(self._gpu.device)

    def alloc(self, kind: str, nbytes: int, resources: ExitStack) -> Memory:
        """Memory of this kind that ``resources`` frees."""
        gpu = self._gpu
        match kind:
            case "two adjacent VMM mappings" | "VMM memory":
                whole = -(-max(nbytes, 1) // gpu.granule) * gpu.granule
                parts = [
                    resources.enter_context(gpu.create_physical(whole))
                    for _ in range(2 if kind == STRADDLING else 1)
                ]
                mapping = resources.enter_context(gpu.map_adjacent(parts))
                offset = whole - nbytes // 16 * 8 if kind == STRADDLING else 0
                return Part(mapping, offset, nbytes)
            case "memory of a pool":
                if self._pool is None:
                    self._pool = gpu.create_pool(), gpu.create_stream()
                pool, stream = self._pool
                memory = pool.alloc(nbytes, stream)
                stream.synchronize()

                def free(exception: object, *_: object) -> None:
                    if exception is None:  # else the process ends
                        memory.free(stream)

                resources.push(free)
                return memory
            case "pinned host memory":
                return resources.enter_context(gpu.alloc_pinned(nbytes))
            case "memory 3 MiB into an allocation":
                return Part(resources.enter_context(gpu.alloc(BEFORE + nbytes)), BEFORE, nbytes)
        return resources.enter_context(gpu.alloc(nbytes))
