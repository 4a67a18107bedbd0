"""Stream-ordered pools as the vendors document them: what they keep reserved, release and reuse.

Both vendors document pools in the same words (``group__CUDA__MALLOC__ASYNC`` of the CUDA driver API, Stream
Ordered Memory Allocator of HIP). Real pools reserve larger blocks than requested, so tests compare with
bounds.
"""

from __future__ import annotations

from typing import Any

import pytest

from gpuipc_doctor.api import pattern
from gpuipc_doctor.api.driver_errors import DriverError
from gpuipc_doctor.api.gpu import REUSES
from tests.conformance.conftest import on_backends
from tests.conformance.remote import Remote

NBYTES = 64 << 20
WRITTEN = 1 << 20
EVERYTHING = 2**64 - 1
SLACK = 4 << 20
"""Memory that the driver may allocate for itself meanwhile."""

pytestmark = on_backends("cuda", "hip")


@pytest.fixture
def gpu(exporter: Remote) -> Any:
    if "memory-pools" not in exporter.devices[0].capabilities:
        pytest.skip("has no memory pools")
    return exporter.gpu


def free_bytes(gpu: Any) -> int:
    return int(gpu.memory_info()[0])


def test_pool_counts_reserved_and_used_bytes(gpu: Any) -> None:
    pool, stream = gpu.create_pool(), gpu.create_stream()
    assert (pool.reserved, pool.used) == (0, 0)
    memory = pool.alloc(NBYTES, stream)
    assert pool.used == NBYTES
    assert pool.reserved >= NBYTES
    memory.free(stream)
    stream.synchronize()
    assert pool.used == 0


def test_pool_memory_holds_written_data(gpu: Any) -> None:
    pool, stream = gpu.create_pool(), gpu.create_stream()
    memory, other = pool.alloc(NBYTES, stream), pool.alloc(NBYTES, stream)
    stream.synchronize()
    memory.write(pattern(WRITTEN, 1), NBYTES - WRITTEN)
    other.write(pattern(WRITTEN, 2), NBYTES - WRITTEN)
    assert memory.read(WRITTEN, NBYTES - WRITTEN) == pattern(WRITTEN, 1)
    stream.copy(memory, other)
    stream.synchronize()
    assert memory.read(WRITTEN, NBYTES - WRITTEN) == pattern(WRITTEN, 2)


def test_without_a_threshold_memory_is_released_at_the_next_synchronisation(gpu: Any) -> None:
    pool, stream = gpu.create_pool(), gpu.create_stream()
    stream.synchronize()
    before = free_bytes(gpu)
    memory = pool.alloc(NBYTES, stream)
    stream.synchronize()
    assert before - free_bytes(gpu) >= NBYTES
    memory.free(stream)
    stream.synchronize()
    assert pool.reserved == 0
    assert before - free_bytes(gpu) <= SLACK


def test_pool_keeps_memory_up_to_its_threshold_until_trimmed(gpu: Any) -> None:
    pool, stream = gpu.create_pool(), gpu.create_stream()
    pool.hold(EVERYTHING)
    stream.synchronize()
    before = free_bytes(gpu)
    memory = pool.alloc(NBYTES, stream)
    memory.free(stream)
    stream.synchronize()
    assert pool.reserved >= NBYTES
    assert before - free_bytes(gpu) >= NBYTES
    pool.trim()
    assert pool.reserved == 0
    assert before - free_bytes(gpu) <= SLACK


def test_trimming_keeps_the_requested_minimum_and_allocated_memory(gpu: Any) -> None:
    pool, stream = gpu.create_pool(), gpu.create_stream()
    pool.hold(EVERYTHING)
    pieces = [pool.alloc(NBYTES, stream) for _ in range(4)]
    stream.synchronize()
    pieces[0].write(pattern(WRITTEN, 1))
    for piece in pieces[1:]:
        piece.free(stream)
    stream.synchronize()
    pool.trim(2 * NBYTES)
    assert 2 * NBYTES <= pool.reserved < 4 * NBYTES
    pool.trim()
    assert NBYTES <= pool.reserved < 2 * NBYTES
    assert pieces[0].read(WRITTEN) == pattern(WRITTEN, 1)


def test_destroyed_pool_releases_all_memory(gpu: Any) -> None:
    stream = gpu.create_stream()
    stream.synchronize()
    before = free_bytes(gpu)
    pool = gpu.create_pool()
    pool.hold(EVERYTHING)
    pool.alloc(NBYTES, stream).free(stream)
    stream.synchronize()
    pool.destroy()
    assert before - free_bytes(gpu) <= SLACK


def address_after_free(
    gpu: Any, *cases: str, event: bool, same_stream: bool = False, done: bool = False
) -> tuple[int, int]:
    """Addresses of memory that one stream freed and of an equal allocation on another stream afterwards.

    With ``done``, the free is complete before the second allocation.
    """
    pool, one, other = gpu.create_pool(), gpu.create_stream(), gpu.create_stream()
    pool.hold(EVERYTHING)
    pool.reuse(*cases)
    memory = pool.alloc(NBYTES, one)
    memory.free(one)
    if done:
        one.synchronize()
    if event:
        other.wait(one.record())
    return memory.address, pool.alloc(NBYTES, one if same_stream else other).address


def test_stream_reuses_its_freed_memory(gpu: Any) -> None:
    freed, given = address_after_free(gpu, event=False, same_stream=True)
    assert given == freed


def test_stream_that_waits_for_the_free_may_reuse_the_memory(gpu: Any) -> None:
    freed, given = address_after_free(gpu, "event-dependencies", event=True)
    assert given == freed


@pytest.mark.parametrize(("cases", "event"), [((), False), ((), True), (("event-dependencies",), False)])
def test_stream_does_not_reuse_memory_if_not_allowed(gpu: Any, cases: tuple[str, ...], event: bool) -> None:
    freed, given = address_after_free(gpu, *cases, event=event)
    assert given != freed


def test_stream_may_reuse_memory_if_all_reuse_is_allowed(backend: str, gpu: Any) -> None:
    """AMD's runtime adds no dependency, so the free must be complete (IsSafeFind of hip_mempool_impl.hpp)."""
    if backend == "hip":
        freed, given = address_after_free(gpu, "internal-dependencies", event=False)
        assert given != freed
    freed, given = address_after_free(gpu, *sorted(REUSES), event=False, done=backend == "hip")
    assert given == freed


def test_freeing_twice_is_refused_by_the_driver(backend: str, exporter: Remote, gpu: Any) -> None:
    pool, stream = gpu.create_pool(), gpu.create_stream()
    memory = pool.alloc(NBYTES, stream)
    memory.free(stream)
    memory.free(stream)  # does nothing
    if backend == "hip":  # until the free is done, hipFreeAsync succeeds by ihipFree (hip_mempool.cpp)
        stream.synchronize()
    with pytest.raises(DriverError) as caught:
        exporter.driver.call("pool-free", memory.address, stream.handle)
    call = {"cuda": "cuMemFreeAsync", "hip": "hipFreeAsync"}[backend]
    assert caught.value.fault.call == call
    assert caught.value.is_refusal


def test_idle_stream_is_not_busy(gpu: Any) -> None:
    stream = gpu.create_stream()
    stream.synchronize()
    assert stream.is_busy() is False
