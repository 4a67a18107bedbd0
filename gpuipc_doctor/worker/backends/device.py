"""The protocol of `gpuipc_doctor.api.gpu` on top of a `Driver`: the same code for all vendors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import cast

from gpuipc_doctor.api.driver_errors import (
    MOST_PEERS,
    OPENS_MEMORY,
    TOO_MANY_PEERS,
    DriverError,
    NotAlone,
)
from gpuipc_doctor.api.gpu import Gpu, Memory, PhysicalMemory, StreamKind
from gpuipc_doctor.model import Device, Json
from gpuipc_doctor.vendors import SHARED_EVENTS
from gpuipc_doctor.worker.backends import rules, unexportable, vmm
from gpuipc_doctor.worker.backends.buffers import DriverBuffer, DriverMapping, allocation_of
from gpuipc_doctor.worker.backends.contexts import DeviceContexts, DriverContext
from gpuipc_doctor.worker.backends.driver import Driver, HandleType
from gpuipc_doctor.worker.backends.kernels import DriverKernels
from gpuipc_doctor.worker.backends.pools import DriverImportedPool, DriverPool
from gpuipc_doctor.worker.backends.streams import DriverEvent, DriverStream
from gpuipc_doctor.worker.backends.vmm import DriverPhysicalMemory, DriverVmmMapping

PEER_ACCESS_ALREADY_ENABLED = 704
"""``CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`` and ``hipErrorPeerAccessAlreadyEnabled``."""

_SETTLING = 5
"""Retries if other processes' memory changed while the device's used memory was read."""


def without_strangers(driver: Driver, device: Device, read: Callable[[], int], *, has_context: bool) -> int:
    """Used memory minus that of processes outside this run."""
    of_strangers = partial(driver.process_memory.of_strangers, device.uuid, has_context=has_context)
    strangers = of_strangers()
    for _ in range(_SETTLING):
        used = read()
        before, strangers = strangers, of_strangers()
        if strangers == before:
            break
    return used - strangers


class DriverGpu:
    """A device by its number in this process (`gpuipc_doctor.api.gpu.Gpu`)."""

    def __init__(self, driver: Driver, device: Device, ordinal: int) -> None:
        self.driver = driver
        self.device = device
        self.ordinal = ordinal
        self.by_process = False
        self.contexts = DeviceContexts(driver, ordinal)

    def create_context(self) -> DriverContext:
        return self.contexts.create()

    def primary_context(self) -> DriverContext:
        return self.contexts.primary()

    def alloc(self, nbytes: int) -> DriverBuffer:
        self.contexts.enter()
        return self._buffer(self.driver.number("mem-alloc", nbytes), nbytes)

    def alloc_pinned(self, nbytes: int) -> DriverBuffer:
        self.contexts.enter()
        return self._buffer(self.driver.number("host-alloc", nbytes, 0), nbytes, "host-free")

    @contextmanager
    def registered(self, memory: Memory) -> Iterator[None]:
        self.contexts.enter()
        self.driver.call("host-register", memory.address, memory.nbytes, 0)
        yield
        self.contexts.enter()
        self.driver.call("host-unregister", memory.address)

    def alloc_coherent(self, nbytes: int) -> DriverBuffer:
        self.contexts.enter()
        return self._buffer(self.driver.alloc_coherent(nbytes), nbytes)

    def _buffer(self, address: int, nbytes: int, freed_by: str = "mem-free") -> DriverBuffer:
        return DriverBuffer(self.contexts, address, nbytes, partial(self.driver.call, freed_by, address))

    @property
    def plain_memory_is_coherent(self) -> bool:
        return self.driver.plain_memory_is_coherent

    @property
    def shares_events(self) -> bool:
        return SHARED_EVENTS not in self.device.vendor.lacks

    def load_kernels(self) -> DriverKernels:
        return DriverKernels(self.contexts)

    def has_native_atomics(self, other: Gpu) -> bool:
        assert isinstance(other, DriverGpu)
        return self.driver.has_native_atomics(self.contexts.device, other.contexts.device)

    @contextmanager
    def peer_access(self, other: Gpu) -> Iterator[None]:
        assert isinstance(other, DriverGpu)
        peer = self.driver.peer(other.contexts.device, other.contexts.enter().handle)
        self.contexts.enter()
        try:
            self.driver.call("enable-peer", peer, 0)
        except DriverError as error:
            if error.fault.code != PEER_ACCESS_ALREADY_ENABLED:  # opening an IPC handle may enable it
                raise
            yield
            return
        yield
        self.contexts.enter()
        self.driver.call("disable-peer", peer)

    def alloc_unexportable(self, kind: str) -> DriverBuffer:
        if kind not in self.unexportable_kinds:
            raise ValueError(f"{self.device.label} cannot allocate {kind!r}: {self.unexportable_kinds}")
        self.contexts.enter()
        return DriverBuffer(self.contexts, *unexportable.ALLOCATE[kind](self.driver, self.contexts.device))

    @cached_property
    def capabilities(self) -> frozenset[str]:
        """The device's capabilities in its current mode."""
        return self.driver.capabilities(self.contexts.device)

    def refuses_by_design(self, error: DriverError) -> str:
        call, name, peers = error.fault.call, error.fault.name, len(self.device.peers)
        if error.is_not_supported and (kind := self.driver.kind(self.contexts.device)):
            return f"is {kind}, which has no such feature"
        if name in TOO_MANY_PEERS and peers > MOST_PEERS:
            return f"has {peers} peers, of which the driver admits {MOST_PEERS}"
        if OPENS_MEMORY.search(call) and not error.is_out_of_memory and self.driver.is_in_gvisor:
            return "is in a sandbox that passes no peer mappings (gVisor, by /proc/version)"
        return ""

    @cached_property
    def unexportable_kinds(self) -> tuple[str, ...]:
        return self.driver.unexportable_kinds(self.contexts.device)

    def open_ipc(self, handle: bytes) -> DriverMapping:
        self.contexts.enter()
        address = self.driver.open_handle(handle)
        return DriverMapping(self.contexts, address, None, partial(self.driver.call, "ipc-close", address))

    def allocation_of(self, address: int) -> tuple[int, int]:
        return allocation_of(self.contexts, address)

    def ordinal_of(self, address: int) -> int:
        self.contexts.enter()
        return self.driver.ordinal_of(address)

    def name_of(self, operation: str) -> str:
        return self.driver.calls[operation]

    def create_event(self) -> DriverEvent:
        return DriverEvent(self.contexts)

    def open_event(self, handle: bytes) -> DriverEvent:
        return DriverEvent(self.contexts, handle)

    def create_stream(self, kind: StreamKind = StreamKind.OWN) -> DriverStream:
        return DriverStream(self.contexts, kind)

    def create_pool(self) -> DriverPool:
        return DriverPool(self.contexts)

    def create_shared_pool(self) -> DriverPool:
        return DriverPool(self.contexts, HandleType.DESCRIPTOR)

    def import_pool(self, descriptor: int) -> DriverImportedPool:
        return DriverImportedPool(self.contexts, descriptor)

    @cached_property
    def granule(self) -> int:
        return vmm.granule(self.driver, self.contexts.device, HandleType.DESCRIPTOR)

    @cached_property
    def fabric_granule(self) -> int:
        return vmm.granule(self.driver, self.contexts.device, HandleType.FABRIC)

    def create_physical(self, nbytes: int) -> DriverPhysicalMemory:
        return DriverPhysicalMemory.create(self.contexts, nbytes, HandleType.DESCRIPTOR)

    def map_adjacent(self, parts: Sequence[PhysicalMemory], *, grants: int = 0) -> DriverVmmMapping:
        return DriverVmmMapping(self.contexts, cast("Sequence[DriverPhysicalMemory]", parts), grants)

    def create_fabric(self, nbytes: int) -> DriverPhysicalMemory:
        return DriverPhysicalMemory.create(self.contexts, nbytes, HandleType.FABRIC)

    def import_descriptor(self, descriptor: int, nbytes: int) -> DriverPhysicalMemory:
        handle = self.driver.import_descriptor("vmm-import", descriptor)
        return DriverPhysicalMemory(self.contexts, handle, nbytes)

    @property
    def claims_dmabuf(self) -> bool | None:
        return self.driver.claims_dmabuf(self.contexts.device)

    def export_dmabuf(self, address: int, nbytes: int) -> int:
        self.contexts.enter()
        return self.driver.export_dmabuf(address, nbytes)

    def import_fabric(self, handle: bytes, nbytes: int) -> DriverPhysicalMemory:
        return DriverPhysicalMemory(self.contexts, self.driver.import_fabric(handle), nbytes)

    @property
    def fabric_channels(self) -> list[str]:
        channels = self.driver.absence.root.glob("dev/nvidia-caps-imex-channels/channel*")
        return sorted(f"/{path.relative_to(self.driver.absence.root)}" for path in channels)

    def memory_info(self) -> tuple[int, int]:
        self.contexts.enter()
        return self.driver.memory_info(self.device)

    def memory_left(self) -> tuple[int, int]:
        """(free, total) bytes; from NVML if no context can be created."""
        try:
            return self.memory_info()
        except DriverError:
            left = self.driver.process_memory.left(self.device.uuid)
            if left is None:
                raise
            return left

    def memory_used(self) -> int:
        if self.by_process:
            self.contexts.enter()
            held = self.driver.process_memory.of_this_probe(self.device.uuid)
            if held is None:
                raise NotAlone(f"the driver does not tell what this process holds of {self.device.label}")
            return held

        def used() -> int:
            free, total = self.memory_info()
            return total - free

        return without_strangers(self.driver, self.device, used, has_context=True)

    def memory_of_this_process(self) -> int | None:
        return self.driver.process_memory.of_this_process(self.device.uuid)

    def memory_holders(self) -> list[dict[str, Json]]:
        return self.driver.process_memory.holders(self.device.uuid)

    def pcie_link(self) -> dict[str, Json] | None:
        return self.driver.process_memory.pcie_link(self.device.uuid)

    def expects(self, case: str) -> str:
        return rules.expects(self.driver.backend, case, self.driver.generation)
