"""Device memory as a process has it: its own, and another's that is opened here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpuipc_doctor.backends import hostmemory

if TYPE_CHECKING:
    from gpuipc_doctor.backends.device import DriverContext


class DeviceMemory:
    """A range of device memory that copies to and from the host, and is given back once.

    ``nbytes`` None means that the driver knows the size and is asked when it is needed.
    """

    def __init__(
        self, context: DriverContext, address: int, nbytes: int | None, give_back: Callable[..., object]
    ) -> None:
        self.address = address
        self._nbytes = nbytes
        self._context = context
        self._gpu = context.gpu
        self._driver = context.gpu.driver
        self._give_back = give_back
        self._gone = False

    @property
    def nbytes(self) -> int:
        if self._nbytes is None:
            base, size = self._gpu.allocation_of(self.address)
            self._nbytes = base + size - self.address
        return self._nbytes

    def write(self, data: bytes, offset: int = 0) -> None:
        self._gpu.enter()
        self._driver.call("copy-to-device", self.address + offset, hostmemory.address_of(data), len(data))
        # A copy from pageable memory may return before it is on the device, where another process looks.
        self._driver.call("stream-sync", 0)

    def read(self, nbytes: int | None = None, offset: int = 0) -> bytes:
        self._gpu.enter()
        data = hostmemory.unfilled(self.nbytes - offset if nbytes is None else nbytes)
        self._driver.call("copy-from-device", hostmemory.address_of(data), self.address + offset, len(data))
        return data

    def _leave(self, *how: Any) -> None:
        if self._gone:
            return
        if not (self._context.destroyed and self._driver.contexts_own_memory):
            self._gpu.enter()
            self._give_back(*how)
        self._gone = True


class DriverBuffer(DeviceMemory):
    """Device memory of this process (`gpuipc_doctor.gpu.Buffer`)."""

    def ipc_handle(self, offset: int = 0) -> bytes:
        self._gpu.enter()
        return self._driver.handle_bytes(self._driver.call("ipc-get", self.address + offset))

    def free(self) -> None:
        self._leave()

    def __enter__(self) -> DriverBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()


class DriverMapping(DeviceMemory):
    """Another process's memory, opened here (`gpuipc_doctor.gpu.Mapping`)."""

    def close(self) -> None:
        self._leave()

    def __enter__(self) -> DriverMapping:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
