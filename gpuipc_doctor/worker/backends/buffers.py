"""Device memory of a process: its own, and opened memory of other processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from gpuipc_doctor.worker.backends import hostmemory
from gpuipc_doctor.worker.backends.contexts import DeviceContexts


def allocation_of(contexts: DeviceContexts, address: int) -> tuple[int, int]:
    """Start and size in bytes of the driver's allocation that contains ``address``."""
    contexts.enter()
    base, size = contexts.driver.numbers("address-range", address)
    return base, size


Resource = TypeVar("Resource", bound="Scoped")


class Scoped:
    """Resources that the end of a ``with`` block releases, unless an exception ends the block.

    After an exception the process ends with this first error as the finding: a release could hang or fail and
    hide it.
    """

    def __enter__(self: Resource) -> Resource:
        return self

    def __exit__(self, exception: object = None, *_: object) -> None:
        if exception is None:
            self._end()

    def _end(self) -> None:
        raise NotImplementedError


class DeviceMemory:
    """A range of device memory that copies to and from the host and is released once.

    It belongs to the context that is current at its creation. If ``nbytes`` is None, the driver reports the
    size when it is needed.
    """

    def __init__(
        self, contexts: DeviceContexts, address: int, nbytes: int | None, give_back: Callable[..., object]
    ) -> None:
        self.address = address
        self._nbytes = nbytes
        self._contexts = contexts
        self._owner = contexts.enter()
        self._driver = contexts.driver
        self._give_back = give_back
        self._gone = False

    @property
    def nbytes(self) -> int:
        if self._nbytes is None:
            base, size = allocation_of(self._contexts, self.address)
            self._nbytes = base + size - self.address
        return self._nbytes

    def write(self, data: bytes, offset: int = 0) -> None:
        self._contexts.enter()
        self._driver.call("copy-to-device", self.address + offset, hostmemory.address_of(data), len(data))
        # A copy from pageable memory may return before the data is on the device, where another process reads
        # it.
        self._driver.call("stream-sync", 0)

    def read(self, nbytes: int | None = None, offset: int = 0) -> bytes:
        self._contexts.enter()
        data = hostmemory.unfilled(self.nbytes - offset if nbytes is None else nbytes)
        self._driver.call("copy-from-device", hostmemory.address_of(data), self.address + offset, len(data))
        return data

    def _leave(self, *how: Any) -> None:
        if self._gone:
            return
        if not (self._owner.destroyed and self._driver.contexts_own_memory):
            self._contexts.enter()
            self._give_back(*how)
        self._gone = True


class DriverBuffer(Scoped, DeviceMemory):
    """Device memory of this process (`gpuipc_doctor.api.gpu.Buffer`)."""

    def ipc_handle(self, offset: int = 0) -> bytes:
        self._contexts.enter()
        return self._driver.export_handle(self.address + offset)

    def free(self) -> None:
        self._leave()

    _end = free


class DriverMapping(Scoped, DeviceMemory):
    """Another process's memory, opened here (`gpuipc_doctor.api.gpu.IpcMapping`)."""

    def close(self) -> None:
        self._leave()

    _end = close
