"""The protocol of `gpuipc_doctor.gpu` over a `Driver`: one code for both vendors."""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

from gpuipc_doctor.backends import rules, unexportable
from gpuipc_doctor.backends.driver import LAZY_ENABLE_PEER_ACCESS, Driver
from gpuipc_doctor.backends.memory import DriverBuffer, DriverMapping
from gpuipc_doctor.backends.streams import DriverPool, DriverStream
from gpuipc_doctor.model import Device

_SETTLING = 5
"""So often what others hold is asked for again, where it changed while the device was asked what is used."""


class DriverGpu:
    """One device as this process numbers it (`gpuipc_doctor.gpu.Gpu`)."""

    def __init__(self, driver: Driver, device: Device, ordinal: int) -> None:
        self.driver = driver
        self.device = device
        self.ordinal = ordinal
        self.latest: DriverContext | None = None
        """The context of this device that was current last and still exists."""

    def create_context(self) -> DriverContext:
        context = DriverContext(self, self.driver.create_context(self.ordinal), primary=False)
        context.make_current()
        return context

    def primary_context(self) -> DriverContext:
        context = DriverContext(self, self.driver.call("primary-retain", self.ordinal), primary=True)
        context.make_current()
        return context

    def enter(self) -> DriverContext:
        """Make sure that a context of this device is current, and say which."""
        current = self.driver.current
        if current is not None and current.gpu is self:
            return current
        if self.latest is None:
            return self.primary_context()
        self.latest.make_current()
        return self.latest

    def alloc(self, nbytes: int) -> DriverBuffer:
        context, driver = self.enter(), self.driver
        address = int(driver.call("mem-alloc", nbytes))
        return DriverBuffer(context, address, nbytes, partial(driver.call, "mem-free", address))

    def alloc_unexportable(self, kind: str) -> DriverBuffer:
        if kind not in self.unexportable_kinds:
            raise ValueError(f"{self.device.label} cannot allocate {kind!r}: {self.unexportable_kinds}")
        context = self.enter()
        return DriverBuffer(context, *unexportable.ALLOCATE[kind](self.driver, self.ordinal))

    @cached_property
    def capabilities(self) -> frozenset[str]:
        """What the device can do in its present mode."""
        return self.driver.capabilities(self.ordinal)

    @cached_property
    def unexportable_kinds(self) -> tuple[str, ...]:
        return self.driver.unexportable_kinds(self.ordinal)

    def open_ipc(self, handle: bytes) -> DriverMapping:
        context, driver = self.enter(), self.driver
        address = int(driver.call("ipc-open", driver.handle_from(handle), LAZY_ENABLE_PEER_ACCESS))
        return DriverMapping(context, address, None, partial(driver.call, "ipc-close", address))

    def allocation_of(self, address: int) -> tuple[int, int]:
        self.enter()
        base, size = self.driver.call("address-range", address)
        return int(base), int(size)

    def create_stream(self) -> DriverStream:
        return DriverStream(self)

    def create_pool(self) -> DriverPool:
        return DriverPool(self)

    def memory_info(self) -> tuple[int, int]:
        self.enter()
        free, total = self.driver.call("mem-info")
        return int(free), int(total)

    def memory_used(self) -> int:
        strangers = self.driver.memory_of_strangers(self.device.uuid)
        for _ in range(_SETTLING):
            free, total = self.memory_info()
            before, strangers = strangers, self.driver.memory_of_strangers(self.device.uuid)
            if strangers == before:
                break
        return total - free - strangers

    def memory_of_this_process(self) -> int | None:
        return self.driver.memory_of_this_process(self.device.uuid)

    def expects(self, case: str) -> str:
        return rules.expects(self.driver.backend, case)


class DriverContext:
    """A context and whether it still exists (`gpuipc_doctor.gpu.GpuContext`)."""

    def __init__(self, gpu: DriverGpu, handle: Any, *, primary: bool) -> None:
        self.gpu = gpu
        self.handle = handle
        self.primary = primary
        self.destroyed = False

    def make_current(self) -> None:
        self.gpu.driver.call("context-set", self.handle)
        self.gpu.driver.current = self.gpu.latest = self

    def destroy(self) -> None:
        if self.destroyed:
            return
        driver = self.gpu.driver
        if self.primary:
            driver.call("primary-reset", self.gpu.ordinal)
        else:
            driver.call("context-destroy", self.handle)
        self.destroyed = True
        # The driver makes another context current, or none: forget, so that the next use sets one.
        if driver.current is self:
            driver.current = None
        if self.gpu.latest is self:
            self.gpu.latest = None
