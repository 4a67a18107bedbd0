"""Streams, and the pools of memory that is allocated and freed in their order."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from gpuipc_doctor.backends.memory import DeviceMemory
from gpuipc_doctor.gpu import REUSES, DriverError, GpuStream, Memory

if TYPE_CHECKING:
    from gpuipc_doctor.backends.device import DriverGpu

NON_BLOCKING = 1
"""``CU_STREAM_NON_BLOCKING``, ``hipStreamNonBlocking``: independent of the default stream."""

DISABLE_TIMING = 2
"""``CU_EVENT_DISABLE_TIMING`` and ``hipEventDisableTiming``."""

NOT_READY = 600
"""``CUDA_ERROR_NOT_READY`` and ``hipErrorNotReady``."""


class DriverStream:
    """A stream (`gpuipc_doctor.gpu.GpuStream`)."""

    def __init__(self, gpu: DriverGpu) -> None:
        gpu.enter()
        self._gpu = gpu
        self._driver = gpu.driver
        self.handle = self._driver.call("stream-create", NON_BLOCKING)

    def copy(self, to: Memory, source: Memory) -> None:
        self._driver.call("copy-on-device", to.address, source.address, source.nbytes, self.handle)

    def record(self) -> Any:
        self._gpu.enter()
        event = self._driver.call("event-create", DISABLE_TIMING)
        self._driver.call("event-record", event, self.handle)
        return event

    def wait(self, event: Any) -> None:
        self._driver.call("stream-wait-event", self.handle, event, 0)

    def synchronize(self) -> None:
        self._driver.call("stream-sync", self.handle)

    def is_busy(self) -> bool:
        try:
            self._driver.call("stream-query", self.handle)
        except DriverError as error:
            if error.fault.code == NOT_READY:
                return True
            raise
        return False


class DriverPool:
    """A pool of stream-ordered memory (`gpuipc_doctor.gpu.Pool`)."""

    def __init__(self, gpu: DriverGpu) -> None:
        self._gpu = gpu
        self._driver = gpu.driver
        self._handle = self._driver.create_pool(gpu.ordinal)

    @property
    def reserved(self) -> int:
        return self._driver.pool_attribute(self._handle, "reserved")

    @property
    def used(self) -> int:
        return self._driver.pool_attribute(self._handle, "used")

    def hold(self, nbytes: int) -> None:
        self._driver.set_pool_attribute(self._handle, "release-threshold", nbytes)

    def reuse(self, *cases: str) -> None:
        for case in sorted(REUSES):
            self._driver.set_pool_attribute(self._handle, case, int(case in cases))

    def alloc(self, nbytes: int, stream: GpuStream) -> DriverPoolMemory:
        assert isinstance(stream, DriverStream)
        context, driver = self._gpu.enter(), self._driver
        address = int(driver.call("pool-alloc-from", nbytes, self._handle, stream.handle))
        return DriverPoolMemory(context, address, nbytes, partial(driver.call, "pool-free", address))

    def trim(self, keep: int = 0) -> None:
        self._driver.call("pool-trim", self._handle, keep)

    def destroy(self) -> None:
        self._driver.call("pool-destroy", self._handle)


class DriverPoolMemory(DeviceMemory):
    """Stream-ordered memory (`gpuipc_doctor.gpu.PoolMemory`)."""

    def free(self, stream: GpuStream) -> None:
        assert isinstance(stream, DriverStream)
        self._leave(stream.handle)
