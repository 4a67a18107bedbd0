"""PyTorch's caching allocator on CUDA, and on ROCm (untried), where torch uses the same names."""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

from gpuipc_doctor.worker.allocator_calling import PoolBlock, Spinner, calling, importing
from gpuipc_doctor.worker.backends.device import DriverGpu

_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Variables with the allocator's settings; PyTorch 2.9 introduced the first (docs/stable/notes/cuda.html)."""

EXPANDABLE = dict.fromkeys(_SETTINGS[:2], "expandable_segments:True")
"""Environment that enables expandable segments."""


class TorchStream:
    """A PyTorch stream (`gpuipc_doctor.api.allocator.Stream`)."""

    def __init__(self, allocator: CachingAllocator) -> None:
        self._allocator = allocator
        self.raw = allocator.torch.cuda.Stream(allocator.ordinal)

    def spin(self, seconds: float) -> None:
        with self._allocator.calling("torch.cuda._sleep"):
            self._allocator.spin_cycles(self._allocator.spinner.cycles(seconds), self.raw)

    def copy(self, to: Any, source: Any) -> None:
        with self._allocator.calling("Tensor.copy_"), self._allocator.torch.cuda.stream(self.raw):
            to.owner.copy_(source.owner, non_blocking=True)

    def wait_for(self, other: Any) -> None:
        with self._allocator.calling("Stream.wait_stream"):
            self.raw.wait_stream(other.raw)

    def synchronize(self) -> None:
        with self._allocator.calling("Stream.synchronize"):
            self.raw.synchronize()


class TorchBlock(PoolBlock):
    """A tensor's memory (`gpuipc_doctor.api.allocator.Block`); the tensor is the ``owner``."""

    def used_by(self, stream: Any) -> None:
        with self._driver.arm("Tensor.record_stream"):
            self.owner.record_stream(stream.raw)


class CachingAllocator:
    """PyTorch's allocator (`gpuipc_doctor.api.allocator.Allocator`); configured by the environment."""

    records_streams = True
    release_call = "torch.cuda.empty_cache"

    def __init__(self, gpu: DriverGpu) -> None:
        self.gpu = gpu
        self.ordinal = gpu.ordinal
        self._is_bound = False
        gpu.contexts.enter()  # so that PyTorch finds this context
        with importing("PyTorch", "torch"), gpu.driver.arm("import torch"):
            import torch

            self.torch: Any = torch
            torch.cuda.set_device(self.ordinal)
            torch.cuda.init()

    @cached_property
    def _setting(self) -> str:
        """The setting that selects this allocator's kind of memory, as users write it; empty for the
        default."""
        return next(
            (
                f"{name}={os.environ[name]}"
                for name in _SETTINGS
                for word in ("backend:cudaMallocAsync", "expandable_segments:True")
                if word in os.environ.get(name, "").replace(" ", "")
            ),
            "",
        )

    @property
    def kind(self) -> str:
        if "cudaMallocAsync" in self._setting:
            return "async-pool"
        return "vmm" if self._setting else "plain"

    @property
    def chosen_by(self) -> str:
        return self._setting or "PyTorch's default"

    def calling(self, name: str) -> Any:
        return calling(self.gpu, name, self.torch.cuda.OutOfMemoryError)

    def spin_cycles(self, cycles: int, stream: Any) -> None:
        with self.torch.cuda.stream(stream):
            self.torch.cuda._sleep(cycles)  # undocumented, but used by PyTorch's own tests

    @cached_property
    def spinner(self) -> Spinner:
        stream = self.torch.cuda.Stream(self.ordinal)
        return Spinner(lambda cycles: self.spin_cycles(cycles, stream), stream.synchronize)

    def stream(self) -> TorchStream:
        return TorchStream(self)

    def alloc(self, nbytes: int, stream: Any) -> TorchBlock:
        torch = self.torch
        with self.calling("torch.empty"), torch.cuda.stream(stream.raw):
            tensor = torch.empty(nbytes, dtype=torch.uint8, device=f"cuda:{self.ordinal}")
        return TorchBlock(self.gpu, int(tensor.data_ptr()), nbytes, tensor, "del tensor")

    def held(self) -> tuple[int, int]:
        cuda = self.torch.cuda
        with self.calling("torch.cuda.memory_reserved"):
            return int(cuda.memory_allocated(self.ordinal)), int(cuda.memory_reserved(self.ordinal))

    def release(self) -> None:
        with self.calling(self.release_call):
            self.torch.cuda.empty_cache()

    def bound(self, nbytes: int) -> bool:
        self._set_fraction(nbytes / self.gpu.device.total_bytes)
        self._is_bound = True
        return True

    def _set_fraction(self, fraction: float) -> None:
        with self.calling("torch.cuda.set_per_process_memory_fraction"):
            self.torch.cuda.set_per_process_memory_fraction(fraction, self.ordinal)

    def leave(self) -> None:
        self.release()
        if self._is_bound:
            self._set_fraction(1.0)


class ExpandableAllocator(CachingAllocator):
    """PyTorch's allocator with expandable segments, regardless of the environment."""

    def __init__(self, gpu: DriverGpu) -> None:
        os.environ.update(EXPANDABLE)
        super().__init__(gpu)
