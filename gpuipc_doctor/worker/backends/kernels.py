"""Small kernels that the driver's own compiler translates: NVIDIA's from PTX, AMD's by hiprtc.

All have the parameters ``(u64 memory, u64 count, u64 result, u32 a, u32 b, u32 c, u32 d)``. The sources are
files of this package; ``kernels.ptx`` says what each kernel does.
"""

from __future__ import annotations

import struct
from typing import Any

from gpuipc_doctor.api.driver_errors import DriverError
from gpuipc_doctor.api.gpu import GpuStream, Linear
from gpuipc_doctor.worker.backends import hostmemory, kernel_sources
from gpuipc_doctor.worker.backends.contexts import DeviceContexts
from gpuipc_doctor.worker.backends.streams import DriverStream

BLOCKS, THREADS = 64, 256
"""Size of a launch, except for the kernels of one thread and those of many elements."""

FULL_BLOCKS, FULL_THREADS, MANY = 512, 1024, 1 << 20
"""Size of a launch for `MANY` elements and more: full blocks, more than a GPU has processors."""

_PARAMETERS = struct.Struct("=QQQIIII")
_OFFSETS = (0, 8, 16, 24, 28, 32, 36)


class DriverKernels:
    """The kernels, loaded in the current context of a device (`gpuipc_doctor.api.gpu.Kernels`)."""

    def __init__(self, contexts: DeviceContexts) -> None:
        contexts.enter()
        self._contexts = contexts
        self._driver = contexts.driver
        self._functions: dict[str, Any] = {}
        self._module = self._driver.load_kernels(contexts.device)

    def fill(self, stream: GpuStream, address: int, count: int, data: Linear) -> None:
        self._launch("fill", stream, address, count, 0, *data)

    def compare(
        self, stream: GpuStream, address: int, count: int, result: int, data: Linear, other: Linear
    ) -> None:
        self._launch("compare", stream, address, count, result, *data, *other)

    def add(self, stream: GpuStream, address: int, count: int, number: int, times: int) -> None:
        self._launch("add", stream, address, count, 0, number, times)

    def copy(self, stream: GpuStream, to: int, source: int, nbytes: int) -> None:
        self._launch("copy", stream, to, nbytes, source)

    def store(self, stream: GpuStream, address: int, number: int) -> None:
        self._launch("store", stream, address, 1, 0, number, threads=1)

    def wait(self, stream: GpuStream, address: int, number: int, loads: int, result: int) -> None:
        self._launch("wait", stream, address, loads, result, number, threads=1)

    def unload(self) -> None:
        self._contexts.enter()
        self._driver.call("module-unload", self._module)

    def _launch(
        self,
        name: str,
        stream: GpuStream,
        address: int,
        count: int,
        result: int,
        *numbers: int,
        threads: int = 0,
    ) -> None:
        import ctypes

        assert isinstance(stream, DriverStream)
        self._contexts.enter()
        full = not threads and count >= MANY
        blocks, of_each = (FULL_BLOCKS, FULL_THREADS) if full else (BLOCKS, THREADS)
        if threads:
            blocks, of_each = 1, threads
        values = _PARAMETERS.pack(address, count, result, *numbers, *[0] * (4 - len(numbers)))
        at = hostmemory.address_of(values)
        pointers = (ctypes.c_void_p * len(_OFFSETS))(*(at + offset for offset in _OFFSETS))
        launch = (blocks, 1, 1, of_each, 1, 1, 0, stream.handle, ctypes.addressof(pointers))
        try:
            self._driver.call("kernel-launch", self._function(name), *launch, self._driver.no_extra)
        except DriverError as error:
            if error.fault.name in kernel_sources.REFUSALS:
                raise kernel_sources.refused(error) from error
            raise

    def _function(self, name: str) -> Any:
        if name not in self._functions:
            operation = "module-get-function"
            self._functions[name] = self._driver.call(operation, self._module, f"gpuipc_{name}".encode())
        return self._functions[name]
