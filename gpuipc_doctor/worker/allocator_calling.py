"""Code common to both libraries: it journals their calls and translates their errors."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gpuipc_doctor.api.driver_errors import BackendUnavailable, DriverError
from gpuipc_doctor.model import DriverFault
from gpuipc_doctor.worker.backends.buffers import DriverBuffer
from gpuipc_doctor.worker.backends.device import DriverGpu


@contextmanager
def importing(library: str, module: str) -> Iterator[None]:
    """Turn import errors into one line that says why an installed library cannot be used."""
    try:
        yield
    except Exception as error:  # a library may fail in any way while it is imported or searches its GPU
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise BackendUnavailable(
            f"{library} is installed but cannot be used: {reason}",
            f"run `python -c 'import {module}'`, and check that {library} was built for this driver",
        ) from error


@contextmanager
def calling(gpu: DriverGpu, name: str, out_of_memory: type[Exception]) -> Iterator[None]:
    """Journal a library's call; the driver's error in the call is raised as a `DriverError`."""
    try:
        with gpu.driver.arm(name):
            yield
    except out_of_memory as error:
        errors = gpu.driver.vendor.errors
        fault = DriverFault(name, errors.out_of_memory_code, errors.out_of_memory)
        raise DriverError(fault) from error
    except RuntimeError as error:  # driver errors in both libraries; other errors are raised unchanged
        told = re.search(r"\b(?:cuda|hip)Error\w+|(?:CUDA|HIP) error: [^\n]*", str(error))
        if told is None:
            raise
        raise DriverError(DriverFault(name, int(getattr(error, "status", -1)), told[0])) from error


class PoolBlock(DriverBuffer):
    """An allocator's memory (`gpuipc_doctor.api.allocator.Block`).

    After ``owner``, the library's object, is released, the allocator may reuse the memory. Streams and blocks
    are only passed to allocators of the same library.
    """

    def __init__(self, gpu: DriverGpu, address: int, nbytes: int, owner: Any, free_call: str) -> None:
        super().__init__(gpu.contexts, address, nbytes, self._let_go)
        self.owner = owner
        self._free_call = free_call

    def _let_go(self) -> None:
        with self._driver.arm(self._free_call):
            self.owner = None

    def used_by(self, stream: Any) -> None:
        raise NotImplementedError("this library cannot record which streams use a block")


class Spinner:
    """Makes a stream spin for a number of seconds, with a kernel that counts clock cycles.

    The clock rate is measured once, after the kernel was loaded. It rises under load, so the fastest of a few
    runs counts.
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
