"""An allocator limited to a share of the device's memory, by its library or by `api`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpuipc_doctor.api import DriverError, share, share_of_free
from gpuipc_doctor.api.memory_limit import Bounded
from gpuipc_doctor.model import DriverFault, MemoryShare

MIB = 1 << 20


class Allocator:
    """Keeps freed memory until `release`, or until its limit is reached."""

    def __init__(self, *, has_bound: bool, leaks: bool = False) -> None:
        self.allocated = self.reserved = 0
        self.limit = 0
        self.name = "CUDA_ERROR_OUT_OF_MEMORY"
        self._has_bound, self._leaks = has_bound, leaks

    def bound(self, nbytes: int) -> bool:
        self.limit = nbytes if self._has_bound else 0
        return self._has_bound

    def held(self) -> tuple[int, int]:
        return self.allocated, self.reserved

    def release(self) -> None:
        if not self._leaks:
            self.reserved = self.allocated

    def alloc(self, nbytes: int, _: object) -> object:
        if self.limit and self.reserved + nbytes > self.limit:
            self.release()
            if self.reserved + nbytes > self.limit:
                raise DriverError(DriverFault("cuMemAlloc", 2, self.name))
        self.allocated += nbytes
        self.reserved += nbytes
        return object()

    def free_all(self) -> None:
        self.allocated = 0


def bounded(allocator: Allocator, free: int = 1000 * MIB) -> Any:
    times = iter(range(1000))
    gpu = SimpleNamespace(memory_info=lambda: (free, 1000 * MIB))
    w: Any = SimpleNamespace(clock=lambda: float(next(times)), gpu=gpu)
    held: Any = allocator
    return Bounded(w, held, 100 * MIB)


@pytest.mark.parametrize("has_bound", [True, False])
def test_cached_memory_is_released_for_an_allocation(has_bound: bool) -> None:
    allocator = Allocator(has_bound=has_bound)
    within = bounded(allocator)
    assert within.alloc(90 * MIB, None)
    assert within.releases_s == []
    allocator.free_all()
    assert within.alloc(70 * MIB, None)
    assert (len(within.releases_s), allocator.reserved) == (1, 70 * MIB)


@pytest.mark.parametrize("has_bound", [True, False])
def test_allocator_that_releases_nothing_stays_within_the_limit(has_bound: bool) -> None:
    allocator = Allocator(has_bound=has_bound, leaks=True)
    within = bounded(allocator)
    assert within.alloc(60 * MIB, None)
    allocator.free_all()
    assert within.alloc(70 * MIB, None) is None
    assert within.refused == (
        "cannot allocate 70.0 MiB: 0.0 MiB is allocated and 60.0 MiB reserved; the limit is 100.0 MiB"
    )
    assert within.alloc(1, None) is None


def test_whole_limit_may_be_allocated() -> None:
    assert bounded(Allocator(has_bound=False)).alloc(100 * MIB, None)


@pytest.mark.parametrize(
    ("name", "free"), [("CUDA_ERROR_OUT_OF_MEMORY", 99 * MIB), ("CUDA_ERROR_ILLEGAL_ADDRESS", 1000 * MIB)]
)
def test_full_or_failing_device_is_not_the_allocators_limit(name: str, free: int) -> None:
    allocator = Allocator(has_bound=True, leaks=True)
    allocator.name = name
    within = bounded(allocator, free)
    assert within.alloc(60 * MIB, None)
    with pytest.raises(DriverError):
        within.alloc(60 * MIB, None)


def test_role_uses_its_share_of_the_memory_free_now() -> None:
    gpu = SimpleNamespace(memory_info=lambda: (50 * MIB, 1000 * MIB))
    w: Any = SimpleNamespace(params=share(MemoryShare(fraction=0.1)), gpu=gpu)
    assert share_of_free(w) == 5 * MIB
