"""CuPy's two pools: ``MemoryPool``, which caches memory from ``cudaMalloc``, and ``MemoryAsyncPool``, the
driver's stream-ordered allocator. On AMD the same code works with CuPy's ROCm wheels (untried).
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any, ClassVar

from gpuipc_doctor.worker.allocator_calling import PoolBlock, Spinner, calling, importing
from gpuipc_doctor.worker.backends.device import DriverGpu

_SPIN = """
extern "C" __global__ void spin(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles) { }
}
"""

_ERROR_MEMORY_ALLOCATION = 2
"""``cudaErrorMemoryAllocation`` and ``hipErrorOutOfMemory``."""


class CupyStream:
    """A CuPy stream (`gpuipc_doctor.api.allocator.Stream`)."""

    def __init__(self, pool: _Pool) -> None:
        self._pool = pool
        self.raw = pool.cupy.cuda.Stream(non_blocking=True)

    def spin(self, seconds: float) -> None:
        with self._pool.calling("cudaLaunchKernel"):
            self._pool.spin_cycles(self._pool.spinner.cycles(seconds), self.raw)

    def copy(self, to: Any, source: Any) -> None:
        runtime = self._pool.cupy.cuda.runtime
        with self._pool.calling("cudaMemcpyAsync"):
            runtime.memcpyAsync(
                to.address, source.address, to.nbytes, runtime.memcpyDeviceToDevice, self.raw.ptr
            )

    def wait_for(self, other: Any) -> None:
        with self._pool.calling("cudaStreamWaitEvent"):
            event = self._pool.cupy.cuda.Event(disable_timing=True)
            event.record(other.raw)
            self.raw.wait_event(event)

    def synchronize(self) -> None:
        with self._pool.calling("cudaStreamSynchronize"):
            self.raw.synchronize()


class _Pool(ABC):
    """Common base of both pools (`gpuipc_doctor.api.allocator.Allocator`)."""

    name: ClassVar[str]
    kind: ClassVar[str]
    records_streams = False

    def __init__(self, gpu: DriverGpu) -> None:
        self.gpu = gpu
        gpu.contexts.enter()  # so that CuPy finds this context
        with importing("CuPy", "cupy"), gpu.driver.arm("import cupy"):
            import cupy

            self.cupy: Any = cupy
            cupy.cuda.Device(gpu.ordinal).use()
            self._pool = self._new_pool()

    @abstractmethod
    def _new_pool(self) -> Any: ...

    @property
    def chosen_by(self) -> str:
        return f"cupy.cuda.set_allocator(cupy.cuda.{self.name}().malloc)"

    @property
    def release_call(self) -> str:
        return f"{self.name}.free_all_blocks"

    def calling(self, name: str) -> Any:
        return calling(self.gpu, name, self.cupy.cuda.memory.OutOfMemoryError)

    @cached_property
    def _kernel(self) -> Any:
        return self.cupy.RawKernel(_SPIN, "spin")

    def spin_cycles(self, cycles: int, stream: Any) -> None:
        with stream:
            self._kernel((1,), (1,), (self.cupy.int64(cycles),))

    @cached_property
    def spinner(self) -> Spinner:
        stream = self.cupy.cuda.Stream(non_blocking=True)
        return Spinner(lambda cycles: self.spin_cycles(cycles, stream), stream.synchronize)

    def stream(self) -> CupyStream:
        return CupyStream(self)

    def alloc(self, nbytes: int, stream: Any) -> PoolBlock:
        with self.calling(f"{self.name}.malloc"), stream.raw:
            memory = self._pool.malloc(nbytes)
        return PoolBlock(self.gpu, int(memory.ptr), nbytes, memory, f"{self.name}.free")

    def held(self) -> tuple[int, int]:
        with self.calling(f"{self.name}.total_bytes"):
            return int(self._pool.used_bytes()), int(self._pool.total_bytes())

    def release(self) -> None:
        with self.calling(self.release_call):
            self._pool.free_all_blocks()

    def leave(self) -> None:
        self.release()  # a limit is the pool's, which ends


class CachingPool(_Pool):
    name = "MemoryPool"
    kind = "plain"

    def __init__(self, gpu: DriverGpu) -> None:
        super().__init__(gpu)
        self._most = 0

    def _new_pool(self) -> Any:
        return self.cupy.cuda.MemoryPool()

    def bound(self, nbytes: int) -> bool:
        # set_limit is no alternative: at that limit CuPy raises at once; only if cudaMalloc itself fails does
        # it release its cache and retry.
        self._most = nbytes
        self._pool = self.cupy.cuda.MemoryPool(self._malloc)
        return True

    def _malloc(self, nbytes: int) -> Any:
        """`cudaMalloc` that fails if the pool, including this request, would exceed `_most` bytes."""
        cuda = self.cupy.cuda
        if self._pool.total_bytes() > self._most:
            raise cuda.runtime.CUDARuntimeError(_ERROR_MEMORY_ALLOCATION)
        return cuda.MemoryPointer(cuda.Memory(nbytes), 0)


class StreamOrderedPool(_Pool):
    name = "MemoryAsyncPool"
    kind = "async-pool"

    def _new_pool(self) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # CuPy calls it experimental
            return self.cupy.cuda.MemoryAsyncPool()

    def bound(self, nbytes: int) -> bool:
        return False
