"""Streams, and the events that order their work."""

from __future__ import annotations

from typing import Any

from gpuipc_doctor.api.driver_errors import DriverError
from gpuipc_doctor.api.gpu import GpuStream, Memory, StreamKind
from gpuipc_doctor.worker.backends.contexts import DeviceContexts
from gpuipc_doctor.worker.backends.driver import NON_BLOCKING

DISABLE_TIMING = 2
"""``CU_EVENT_DISABLE_TIMING`` and ``hipEventDisableTiming``."""

INTERPROCESS = 4
"""``CU_EVENT_INTERPROCESS`` and ``hipEventInterprocess``."""

HIGHEST = -100
"""A priority above the range of every driver, which takes its highest for it."""

NOT_READY = 600
"""``CUDA_ERROR_NOT_READY`` and ``hipErrorNotReady``."""


class DriverStream:
    """A stream (`gpuipc_doctor.api.gpu.GpuStream`)."""

    def __init__(self, contexts: DeviceContexts, kind: StreamKind = StreamKind.OWN) -> None:
        contexts.enter()
        self._contexts = contexts
        self._driver = contexts.driver
        match kind:
            case StreamKind.DEFAULT:
                self.handle: Any = 0
            case StreamKind.PRIORITY:
                self.handle = self._driver.call("stream-create-priority", NON_BLOCKING, HIGHEST)
            case _:
                self.handle = self._driver.call("stream-create", NON_BLOCKING)

    @property
    def number(self) -> int:
        return int(self.handle)

    def copy(self, to: Memory, source: Memory) -> None:
        self._driver.call("copy-on-device", to.address, source.address, source.nbytes, self.handle)

    def fill(self, address: int, unit: bytes, count: int) -> None:
        value = int.from_bytes(unit, "little")
        self._driver.call(f"fill-{8 * len(unit)}", address, value, count, self.handle)

    def record(self) -> Any:
        self._contexts.enter()
        event = self._driver.call("event-create", DISABLE_TIMING)
        self._driver.call("event-record", event, self.handle)
        return event

    def wait(self, event: Any) -> None:
        self._driver.call("stream-wait-event", self.handle, event, 0)
        self._driver.call("event-destroy", event)  # the driver keeps the event until the stream reaches it

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


class DriverEvent:
    """An event that processes share (`gpuipc_doctor.api.gpu.SharedEvent`)."""

    def __init__(self, contexts: DeviceContexts, handle: bytes | None = None) -> None:
        """A new event, or the one that another process exported as ``handle``."""
        contexts.enter()
        self._driver = contexts.driver
        if handle is None:
            self._event = self._driver.call("event-create", DISABLE_TIMING | INTERPROCESS)
        else:
            shared = self._driver.handle_from(handle, "event-handle")
            self._event = self._driver.call("ipc-open-event", shared)

    def ipc_handle(self) -> bytes:
        return self._driver.handle_bytes("ipc-get-event", self._driver.call("ipc-get-event", self._event))

    def record(self, stream: GpuStream) -> None:
        assert isinstance(stream, DriverStream)
        self._driver.call("event-record", self._event, stream.handle)

    def wait(self, stream: GpuStream) -> None:
        assert isinstance(stream, DriverStream)
        self._driver.call("stream-wait-event", stream.handle, self._event, 0)

    def destroy(self) -> None:
        self._driver.call("event-destroy", self._event)
