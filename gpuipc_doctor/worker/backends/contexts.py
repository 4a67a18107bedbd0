"""Contexts of one device, and which of them to make current before a call."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from gpuipc_doctor.worker.backends.driver import Driver


class DeviceContexts:
    """The contexts of this process on the driver's device with this number."""

    def __init__(self, driver: Driver, ordinal: int) -> None:
        self.driver = driver
        self.ordinal = ordinal
        self.latest: DriverContext | None = None
        """The context that was made current last, if it still exists."""
        self._made: list[DriverContext] = []
        """Those that may still exist, in the order in which they were made."""
        self._is_first = True

    @cached_property
    def device(self) -> Any:
        return self.driver.device_at(self.ordinal)

    def create(self) -> DriverContext:
        """A new context, made current."""
        return self._begin(self.driver.create_context(self.device), primary=False)

    def primary(self) -> DriverContext:
        """The primary context, retained and made current."""
        return self._begin(self.driver.call("primary-retain", self.device), primary=True)

    def enter(self) -> DriverContext:
        """Ensure that a context of this device is current; returns it."""
        if self.latest is None:
            return self.primary()
        if self.driver.current is not self.latest:
            self.latest.make_current()
        return self.latest

    def end(self, *, keep_primary: bool) -> None:
        """Destroy the contexts of this device, except the primary one if it is kept."""
        for context in [made for made in self._made if not (keep_primary and made.primary)]:
            context.destroy()
        self._made = [context for context in self._made if not context.destroyed]

    def _begin(self, handle: Any, *, primary: bool) -> DriverContext:
        context = DriverContext(self, handle, primary=primary)
        self._made.append(context)
        context.make_current()
        if self._is_first:
            self._is_first = False
            self.driver.take_working_memory()
        return context


class DriverContext:
    """A context, and whether it still exists (`gpuipc_doctor.api.gpu.GpuContext`)."""

    def __init__(self, siblings: DeviceContexts, handle: Any, *, primary: bool) -> None:
        self.handle = handle
        self.primary = primary
        self.destroyed = False
        self._siblings = siblings
        self._driver = siblings.driver

    def make_current(self) -> None:
        self._driver.call("context-set", self.handle)
        self._driver.current = self._siblings.latest = self

    def destroy(self) -> None:
        if self.destroyed:
            return
        if self.primary:
            self._driver.call("primary-reset", self._siblings.device)
        else:
            self._driver.call("context-destroy", self.handle)
        self.destroyed = True
        # The driver makes another context current, or none: forget it, so that the next use sets one.
        if self._driver.current is self:
            self._driver.current = None
        if self._siblings.latest is self:
            self._siblings.latest = None
