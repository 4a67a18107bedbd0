"""What the libraries have in common: how their calls fail, their blocks, and a stream kept busy."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gpuipc_doctor.api.gpu import BackendUnavailable, DriverError
from gpuipc_doctor.backends.buffers import DriverBuffer
from gpuipc_doctor.backends.device import DriverGpu
from gpuipc_doctor.model import DriverFault

_OUT_OF_MEMORY = {"cuda": (2, "CUDA_ERROR_OUT_OF_MEMORY"), "hip": (2, "hipErrorOutOfMemory")}
"""By backend, as what an allocator's want of memory is told: the libraries raise exceptions of their own."""


@contextmanager
def importing(library: str, module: str) -> Iterator[None]:
    """Say in one line why a library that is installed cannot be used."""
    try:
        yield
    except Exception as error:  # a library may fail in any way while it is imported or looks for its GPU
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise BackendUnavailable(
            f"{library} is installed but cannot be used: {reason}",
            f"see what `python -c 'import {module}'` says, and that it was built for this driver",
        ) from error


@contextmanager
def calling(gpu: DriverGpu, name: str, out_of_memory: type[Exception]) -> Iterator[None]:
    """Arm a library's call, and raise as a `DriverError` what the driver returned to it."""
    try:
        with gpu.driver.arm(name):
            yield
    except out_of_memory as error:
        raise DriverError(DriverFault(name, *_OUT_OF_MEMORY[gpu.driver.backend])) from error
    except RuntimeError as error:  # the driver's errors are of this kind in both; any other is left alone
        told = re.search(r"\b(?:cuda|hip)Error\w+|(?:CUDA|HIP) error: [^\n]*", str(error))
        if told is None:
            raise
        raise DriverError(DriverFault(name, int(getattr(error, "status", -1)), told[0])) from error


class PoolBlock(DriverBuffer):
    """Memory that goes back to its allocator when the library's object for it, ``owner``, is let go.

    `gpuipc_doctor.api.allocator.Block`. Streams and blocks are given to those of their own library alone.
    """

    def __init__(self, gpu: DriverGpu, address: int, nbytes: int, owner: Any, free_call: str) -> None:
        super().__init__(gpu.contexts, address, nbytes, self._let_go)
        self.owner = owner
        self._free_call = free_call

    def _let_go(self) -> None:
        with self._driver.arm(self._free_call):
            self.owner = None

    def used_by(self, stream: Any) -> None:
        raise NotImplementedError("this library's blocks cannot be told which streams use them")


class Spinner:
    """Has a stream spin for seconds, given a kernel that spins for so many of the device's clock cycles.

    The clock is measured once, after the kernel was loaded. It rises under load, so of a few runs the
    fastest counts.
    """

    CYCLES = 4_000_000
    RUNS = 3

    def __init__(self, launch: Callable[[int], object], synchronize: Callable[[], object]) -> None:
        launch(1)
        synchronize()
        self.cycles_per_s = 0.0
        for _ in range(self.RUNS):
            started = time.perf_counter()
            launch(self.CYCLES)
            synchronize()
            self.cycles_per_s = max(self.cycles_per_s, self.CYCLES / (time.perf_counter() - started))

    def cycles(self, seconds: float) -> int:
        return max(int(seconds * self.cycles_per_s), 1)
