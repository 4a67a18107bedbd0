"""Streams, and the events that order their work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gpuipc_doctor.api.driver_errors import DriverError
from gpuipc_doctor.api.gpu import CopyCall, GpuStream, Memory, StreamKind
from gpuipc_doctor.worker.backends.contexts import DeviceContexts
from gpuipc_doctor.worker.backends.driver import NON_BLOCKING, Driver

DISABLE_TIMING = 2
"""``CU_EVENT_DISABLE_TIMING`` and ``hipEventDisableTiming``."""

SHARED = 1 | DISABLE_TIMING | 4
"""As PyTorch creates events to share: with ``CU_EVENT_BLOCKING_SYNC`` (1) and ``CU_EVENT_INTERPROCESS`` (4),
or HIP's of the same values."""

HIGHEST = -100
"""A priority above the range of every driver, which takes its highest for it."""


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

    def copy_by(self, call: CopyCall, to: int, source: int, nbytes: int) -> None:
        context = self._contexts.enter().handle
        arguments: tuple[Any, ...] = to, source, nbytes
        if call is CopyCall.BY_ADDRESS:
            arguments += self._driver.copy_by_address()
        elif call is CopyCall.PEER:
            peer = self._driver.peer(self._contexts.device, context)
            arguments = to, peer, source, peer, nbytes
        self._driver.call(call.value, *arguments, self.handle)

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

    @contextmanager
    def capture(self, queue: Callable[[], None]) -> Iterator[Callable[[], None]]:
        self._driver.call("capture-begin", self.handle, self._driver.named("capture-of-thread"))
        try:
            queue()
        finally:
            graph = self._driver.call("capture-end", self.handle)
        program = self._driver.call("graph-instantiate", graph, 0)
        self._driver.call("graph-destroy", graph)
        yield lambda: self._driver.call("graph-launch", program, self.handle)
        self._driver.call("graph-program-destroy", program)

    def is_busy(self) -> bool:
        return _is_pending(self._driver, "stream-query", self.handle)


class DriverEvent:
    """An event that processes share (`gpuipc_doctor.api.gpu.SharedEvent`)."""

    def __init__(self, contexts: DeviceContexts, handle: bytes | None = None) -> None:
        """A new event, or the one that another process exported as ``handle``."""
        contexts.enter()
        self._driver = contexts.driver
        if handle is None:
            self._event = self._driver.call("event-create", SHARED)
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

    def is_done(self) -> bool:
        return not _is_pending(self._driver, "event-query", self._event)

    def synchronize(self) -> None:
        self._driver.call("event-synchronize", self._event)

    def destroy(self) -> None:
        self._driver.call("event-destroy", self._event)


def _is_pending(driver: Driver, query: str, handle: Any) -> bool:
    try:
        driver.call(query, handle)
    except DriverError as error:
        if error.fault.code == driver.not_ready:
            return True
        raise
    return False
