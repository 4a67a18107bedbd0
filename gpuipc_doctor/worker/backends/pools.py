"""Stream-ordered memory pools, also shared between processes."""

from __future__ import annotations

import os
from functools import partial

from gpuipc_doctor.api.gpu import REUSES, GpuStream
from gpuipc_doctor.worker.backends.buffers import DeviceMemory
from gpuipc_doctor.worker.backends.contexts import DeviceContexts
from gpuipc_doctor.worker.backends.driver import HandleType
from gpuipc_doctor.worker.backends.streams import DriverStream


class DriverPool:
    """A pool of stream-ordered memory (`gpuipc_doctor.api.gpu.Pool`)."""

    def __init__(self, contexts: DeviceContexts, handle_type: HandleType = HandleType.NONE) -> None:
        self._contexts = contexts
        self._driver = contexts.driver
        self._handle = self._driver.create_pool(contexts.device, handle_type)
        self._descriptor: int | None = None  # of a pool that has one only

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
        self._contexts.enter()
        driver = self._driver
        address = driver.number("pool-alloc-from", nbytes, self._handle, stream.handle)
        return DriverPoolMemory(self._contexts, address, nbytes, partial(driver.call, "pool-free", address))

    def trim(self, keep: int = 0) -> None:
        self._driver.call("pool-trim", self._handle, keep)

    def export_descriptor(self) -> int:
        descriptor = self._driver.export_descriptor("pool-export", self._handle)
        if not self._driver.pools_have_one_descriptor:
            return descriptor
        self._descriptor = descriptor
        return os.dup(descriptor)

    def destroy(self) -> None:
        self._driver.call("pool-destroy", self._handle)
        if self._descriptor is not None:
            os.close(self._descriptor)


class DriverImportedPool:
    """Another process's pool (`gpuipc_doctor.api.gpu.ImportedPool`)."""

    def __init__(self, contexts: DeviceContexts, descriptor: int) -> None:
        contexts.enter()
        self._contexts = contexts
        self._driver = contexts.driver
        self._handle = self._driver.import_descriptor("pool-import", descriptor)

    def give_access(self) -> None:
        self._driver.call("pool-set-access", self._handle, self._driver.access(self._contexts.device), 1)

    def import_pointer(self, data: bytes, nbytes: int) -> DriverPoolMemory:
        self._contexts.enter()
        driver = self._driver
        address = driver.import_pointer(self._handle, data)
        return DriverPoolMemory(self._contexts, address, nbytes, partial(driver.call, "pool-free", address))

    def destroy(self) -> None:
        self._driver.call("pool-destroy", self._handle)


class DriverPoolMemory(DeviceMemory):
    """Stream-ordered memory (`gpuipc_doctor.api.gpu.PoolMemory`)."""

    def export_pointer(self) -> bytes:
        return self._driver.export_pointer(self.address)

    def free(self, stream: GpuStream) -> None:
        assert isinstance(stream, DriverStream)
        self._leave(stream.handle)
