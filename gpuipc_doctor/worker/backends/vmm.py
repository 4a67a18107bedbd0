"""Physical memory that is created, shared and mapped in separate steps: the driver's VMM functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuipc_doctor.worker.backends.buffers import DeviceMemory, Scoped
from gpuipc_doctor.worker.backends.contexts import DeviceContexts
from gpuipc_doctor.worker.backends.driver import Driver, HandleType


def granule(driver: Driver, device: Any, handle_type: HandleType) -> int:
    """Unit in bytes of the sizes and addresses of memory with this export type."""
    request, minimum = driver.vmm_request(device, handle_type)
    return driver.number("vmm-granularity", request, minimum)


class DriverPhysicalMemory(Scoped):
    """Physical memory, of this process or imported (`gpuipc_doctor.api.gpu.PhysicalMemory`)."""

    def __init__(self, contexts: DeviceContexts, handle: Any, nbytes: int) -> None:
        self.handle = handle
        self.nbytes = nbytes
        self._contexts = contexts
        self._driver = contexts.driver
        self._released = False

    @classmethod
    def create(cls, contexts: DeviceContexts, nbytes: int, handle_type: HandleType) -> DriverPhysicalMemory:
        request, _ = contexts.driver.vmm_request(contexts.device, handle_type)
        return cls(contexts, contexts.driver.call("vmm-create", nbytes, request, 0), nbytes)

    def export_descriptor(self) -> int:
        return self._driver.export_descriptor("vmm-export", self.handle)

    def export_fabric(self) -> bytes:
        return self._driver.export_fabric(self.handle)

    def map(self) -> DriverVmmMapping:
        return DriverVmmMapping(self._contexts, [self])

    def release(self) -> None:
        if not self._released:
            self._driver.call("vmm-release", self.handle)
            self._released = True

    _end = release


class DriverVmmMapping(Scoped, DeviceMemory):
    """Adjacent addresses at which physical memory is mapped (`gpuipc_doctor.api.gpu.VmmMapping`)."""

    def __init__(
        self, contexts: DeviceContexts, parts: Sequence[DriverPhysicalMemory], grants: int = 0
    ) -> None:
        driver = contexts.driver
        nbytes = sum(part.nbytes for part in parts)
        address = driver.number("vmm-reserve", nbytes, 0, 0, 0)
        self._parts: list[tuple[int, int]] = []
        """(address, size in bytes) of each mapping."""
        for part in parts:
            at = address + sum(size for _, size in self._parts)
            driver.call("vmm-map", at, part.nbytes, 0, part.handle, 0)
            if not grants:
                driver.call("vmm-set-access", at, part.nbytes, driver.access(contexts.device), 1)
            self._parts.append((at, part.nbytes))
        for _ in range(grants):
            driver.call("vmm-set-access", address, nbytes, driver.access(contexts.device), 1)
        super().__init__(contexts, address, nbytes, lambda: None)
        self._unmapped = False

    def unmap(self) -> None:
        if self._unmapped:
            return
        for address, nbytes in self._parts:
            self._driver.call("vmm-unmap", address, nbytes)
        self._driver.call("vmm-free", self.address, self.nbytes)
        self._unmapped = True

    _end = unmap
