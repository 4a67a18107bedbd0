"""The allocators of CuPy and PyTorch behind one protocol (`gpuipc_doctor.api.allocator`).

`open_allocator` imports the libraries, so only workers call it.
"""

from __future__ import annotations

from gpuipc_doctor.api.allocator import Allocator
from gpuipc_doctor.worker.backends.device import DriverGpu

__all__ = ["open_allocator"]


def open_allocator(name: str, gpu: DriverGpu) -> Allocator:
    """Import an allocator's library and set the allocator up for one device.

    Raises `BackendUnavailable` if the library cannot be used.
    """
    match name:
        case "MemoryPool":
            from gpuipc_doctor.worker.cupy_pools import CachingPool

            return CachingPool(gpu)
        case "MemoryAsyncPool":
            from gpuipc_doctor.worker.cupy_pools import StreamOrderedPool

            return StreamOrderedPool(gpu)
        case "PyTorch":
            from gpuipc_doctor.worker.pytorch import CachingAllocator

            return CachingAllocator(gpu)
        case "PyTorch expandable":
            from gpuipc_doctor.worker.pytorch import ExpandableAllocator

            return ExpandableAllocator(gpu)
        case _:
            raise ValueError(f"no allocator {name!r}")
