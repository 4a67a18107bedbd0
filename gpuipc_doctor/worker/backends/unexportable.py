"""Kinds of memory that IPC handles must refuse to export: each function allocates one piece of one kind.

Each returns (address, size in bytes, function that frees the memory).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gpuipc_doctor.worker.backends.driver import Driver, HandleType

NBYTES = 64 << 10

Allocation = tuple[int, int, Callable[[], None]]


def _pool(driver: Driver, _device: Any) -> Allocation:
    stream = 0
    address = driver.number("pool-alloc", NBYTES, stream)
    driver.call("stream-sync", stream)

    def give_back() -> None:
        driver.call("pool-free", address, stream)
        driver.call("stream-sync", stream)

    return address, NBYTES, give_back


def _allocated(operation: str, flag: int, freed_by: str) -> Callable[[Driver, Any], Allocation]:
    def allocate(driver: Driver, _device: Any) -> Allocation:
        address = driver.number(operation, NBYTES, flag)
        return address, NBYTES, partial(driver.call, freed_by, address)

    return allocate


def _vmm(driver: Driver, device: Any) -> Allocation:
    """Physical memory mapped at reserved addresses; one granule, which may exceed `NBYTES`."""
    request, minimum = driver.vmm_request(device, HandleType.NONE)
    nbytes = driver.number("vmm-granularity", request, minimum)
    memory = driver.call("vmm-create", nbytes, request, 0)
    address = driver.number("vmm-reserve", nbytes, 0, 0, 0)
    driver.call("vmm-map", address, nbytes, 0, memory, 0)

    def give_back() -> None:
        driver.call("vmm-unmap", address, nbytes)
        driver.call("vmm-release", memory)
        driver.call("vmm-free", address, nbytes)

    return address, nbytes, give_back


ALLOCATE: dict[str, Callable[[Driver, Any], Allocation]] = {
    "async-pool": _pool,
    "managed": _allocated("managed-alloc", 1, "mem-free"),  # 1: attached globally
    "pinned-host": _allocated("host-alloc", 0, "host-free"),
    "vmm": _vmm,
}
