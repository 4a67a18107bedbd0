"""Pools shared between processes: one test per measured row of cuda-vmm-semantics-h200.md, or per few rows.

A test's docstring begins with its row, measured on a real H200. HIP was not measured: only behaviour that
sharing requires is tested there.
"""

from __future__ import annotations

from typing import Any

import pytest

from gpuipc_doctor.api import pattern
from tests.conformance.conftest import Start, on_backends
from tests.conformance.remote import Remote
from tests.conformance.test_ipc import INVALID_VALUE, refused

MIB = 1 << 20
NBYTES = 64 * MIB
GLANCE = 64 << 10
SLACK = 4 * MIB

on_both = on_backends("cuda", "hip")
on_cuda = on_backends("cuda")


@pytest.fixture(autouse=True)
def _shares(exporter: Remote) -> None:
    if "pool-ipc" not in exporter.devices[0].capabilities:
        pytest.skip("this device exports no pools")


def used(remote: Remote) -> int:
    free, total = remote.gpu.memory_info()
    return int(total - free)


class Shared:
    """A pool of one process, an allocation of it, and the exports of both."""

    def __init__(self, owner: Remote) -> None:
        self.owner = owner
        self.pool = owner.gpu.create_shared_pool()
        self.stream = owner.gpu.create_stream()
        self.memory = self.alloc()
        self.memory.write(pattern(GLANCE, 1))
        self.descriptor = self.pool.export_descriptor()
        self.pointer = self.memory.export_pointer()

    def alloc(self) -> Any:
        memory = self.pool.alloc(NBYTES, self.stream)
        self.stream.synchronize()
        return memory

    def free(self) -> None:
        self.memory.free(self.stream)
        self.stream.synchronize()

    def import_into(self, remote: Remote) -> Any:
        number = self.owner.send_descriptor(self.descriptor, remote)
        pool = remote.gpu.import_pool(number)
        remote.ask("os", "close", number)
        return pool


def free(remote: Remote, memory: Any) -> None:
    stream = remote.gpu.create_stream()
    memory.free(stream)
    stream.synchronize()


@on_both
def test_share_a_pool(exporter: Remote, importer: Remote) -> None:
    """export pool, import, ExportPointer, ImportPointer: success, right both ways"""
    shared = Shared(exporter)
    found = shared.import_into(importer).import_pointer(shared.pointer, NBYTES)
    assert found.read(GLANCE) == pattern(GLANCE, 1)
    found.write(pattern(GLANCE, 2))
    assert shared.memory.read(GLANCE) == pattern(GLANCE, 2)
    shared.memory.write(pattern(GLANCE, 3))
    assert found.read(GLANCE) == pattern(GLANCE, 3)


@on_cuda
def test_the_pools_descriptor(exporter: Remote) -> None:
    """the pool's descriptor: not close-on-exec; export the pool or the pointer again: success; the same 64
    bytes for the pointer"""
    shared = Shared(exporter)
    assert exporter.ask("os", "get_inheritable", shared.descriptor)
    assert shared.pool.export_descriptor() != shared.descriptor
    assert shared.memory.export_pointer() == shared.pointer


@on_both
def test_a_driver_exports_a_pool_again(exporter: Remote, backend: str) -> None:
    """CUDA returns a new descriptor, HIP the same one (MemoryPool::Export of clr's hip_mempool_impl.cpp)."""
    pool = exporter.gpu.create_shared_pool()
    first, second = (exporter.driver.export_descriptor("pool-export", pool._handle) for _ in range(2))
    assert (first == second) is (backend == "hip")


@on_both
def test_a_pool_is_shared_again_after_its_descriptor_was_closed(exporter: Remote, importer: Remote) -> None:
    """The exporter has no additional open descriptor at the end."""
    before = exporter.ask("os", "listdir", "/proc/self/fd")
    pool = exporter.gpu.create_shared_pool()
    for _ in range(2):
        descriptor = pool.export_descriptor()
        number = exporter.send_descriptor(descriptor, importer)
        exporter.ask("os", "close", descriptor)
        importer.gpu.import_pool(number).destroy()
        importer.ask("os", "close", number)
    pool.destroy()
    assert exporter.ask("os", "listdir", "/proc/self/fd") == before


@on_cuda
def test_memory_without_an_exportable_pointer(exporter: Remote) -> None:
    """ExportPointer of base + 512; of cuMemAlloc, VMM, default-pool memory; export of a NONE pool:
    INVALID_VALUE"""
    shared = Shared(exporter)
    addresses = [
        shared.memory.address + 512,
        exporter.gpu.alloc(NBYTES).address,
        exporter.gpu.create_physical(NBYTES).map().address,
        exporter.gpu.alloc_unexportable("async-pool").address,
    ]
    for address in addresses:
        with refused(INVALID_VALUE["cuda"]):
            exporter.driver.call("pool-export-pointer", address)
    with refused(INVALID_VALUE["cuda"]):
        exporter.gpu.create_pool().export_descriptor()


@on_cuda
def test_import_the_same_pointer_twice(exporter: Remote, importer: Remote) -> None:
    """import the same pointer twice: success, same address, not reference counted: one free ends both; import
    again after freeing it: success, right"""
    shared = Shared(exporter)
    pool = shared.import_into(importer)
    first, second = (pool.import_pointer(shared.pointer, NBYTES) for _ in range(2))
    assert first.address == second.address
    free(importer, first)
    with refused(INVALID_VALUE["cuda"]):
        second.read(GLANCE)
    assert pool.import_pointer(shared.pointer, NBYTES).read(GLANCE) == pattern(GLANCE, 1)


@on_cuda
def test_a_pointer_is_exported_after_its_pool(exporter: Remote) -> None:
    """Found on an H200 (driver 580.159.04): before the pool was exported, `INVALID_VALUE`."""
    pool, stream = exporter.gpu.create_shared_pool(), exporter.gpu.create_stream()
    memory = pool.alloc(NBYTES, stream)
    stream.synchronize()
    with refused(INVALID_VALUE["cuda"]):
        memory.export_pointer()
    pool.export_descriptor()
    assert memory.export_pointer()


@on_cuda
def test_imported_pool_cannot_export(exporter: Remote, importer: Remote) -> None:
    """I exports the imported pointer; zero or random bytes as a pointer: `INVALID_VALUE`"""
    shared = Shared(exporter)
    pool = shared.import_into(importer)
    found = pool.import_pointer(shared.pointer, NBYTES)
    with refused(INVALID_VALUE["cuda"]):
        found.export_pointer()
    for data in (bytes(64), pattern(64, 5)):
        with refused(INVALID_VALUE["cuda"]):
            pool.import_pointer(data, NBYTES)


@on_cuda
def test_a_pointer_belongs_to_its_pool(exporter: Remote, importer: Remote) -> None:
    """pointer of one pool imported through another: `INVALID_VALUE`"""
    one, other = Shared(exporter), Shared(exporter)
    with refused(INVALID_VALUE["cuda"]):
        one.import_into(importer).import_pointer(other.pointer, NBYTES)


@on_cuda
def test_destroy_an_imported_pool(exporter: Remote, importer: Remote) -> None:
    """I destroys its pool with a pointer open / without: `INVALID_VALUE` / success"""
    shared = Shared(exporter)
    pool = shared.import_into(importer)
    found = pool.import_pointer(shared.pointer, NBYTES)
    with refused(INVALID_VALUE["cuda"]):
        pool.destroy()
    free(importer, found)
    pool.destroy()


@on_cuda
def test_contexts_that_end(exporter: Remote, importer: Remote) -> None:
    """I's context destroyed and re-created with a pointer open: old pointer right; import again success"""
    context = importer.gpu.create_context()
    shared = Shared(exporter)
    pool = shared.import_into(importer)
    found = pool.import_pointer(shared.pointer, NBYTES)
    context.destroy()
    importer.gpu.create_context()
    assert found.read(GLANCE) == pattern(GLANCE, 1)
    assert pool.import_pointer(shared.pointer, NBYTES).address == found.address


@on_cuda
def test_on_another_gpu(exporter: Remote, start: Start, two_devices: None) -> None:
    """I on GPU 1: import succeeds, copy `INVALID_VALUE` until `cuMemPoolSetAccess`, then right"""
    shared, importer = Shared(exporter), start(ordinal=1)
    pool = shared.import_into(importer)
    found = pool.import_pointer(shared.pointer, NBYTES)
    with refused(INVALID_VALUE["cuda"]):
        found.read(GLANCE)
    pool.give_access()
    assert found.read(GLANCE) == pattern(GLANCE, 1)


@on_cuda
def test_the_exporter_frees_first_and_allocates_again(exporter: Remote, importer: Remote) -> None:
    """E frees first, no trim, allocates the same size at once: same address, same pointer bytes; I's open
    pointer and a new import both show the new data: no error anywhere"""
    shared = Shared(exporter)
    shared.pool.hold(2**64 - 1)
    pool = shared.import_into(importer)
    found = pool.import_pointer(shared.pointer, NBYTES)
    address = shared.memory.address
    shared.free()
    shared.memory = shared.alloc()
    assert shared.memory.address == address
    shared.memory.write(pattern(GLANCE, 2))
    assert shared.memory.export_pointer() == shared.pointer
    assert found.read(GLANCE) == pattern(GLANCE, 2)


@on_cuda
def test_the_exporter_frees_first_and_trims(exporter: Remote, importer: Remote) -> None:
    """E frees first and trims: I still reads the old bytes; pointer data of memory freed and trimmed before
    anyone imported it: import succeeds, old bytes right; E's next allocation has other pointer bytes"""
    shared = Shared(exporter)
    pool = shared.import_into(importer)
    shared.free()
    shared.pool.trim()
    found = pool.import_pointer(shared.pointer, NBYTES)
    assert found.read(GLANCE) == pattern(GLANCE, 1)
    assert shared.alloc().export_pointer() != shared.pointer
    assert found.read(GLANCE) == pattern(GLANCE, 1)


@on_both
@pytest.mark.parametrize("killed", [True, False])
def test_the_exporter_is_gone(exporter: Remote, importer: Remote, start: Start, killed: bool) -> None:
    """E exits or is SIGKILLed: I reads, imports pointers exported before; memory back when I frees and
    destroys its pool"""
    witness = start()
    importer.gpu.memory_info()
    before = used(witness)
    shared = Shared(exporter)
    pool = shared.import_into(importer)
    exporter.kill() if killed else exporter.exit()
    found = pool.import_pointer(shared.pointer, NBYTES)
    assert found.read(GLANCE) == pattern(GLANCE, 1)
    free(importer, found)
    pool.destroy()
    assert used(witness) - before <= SLACK


@on_cuda
def test_the_exporter_destroys_its_pool(exporter: Remote, importer: Remote) -> None:
    """E destroys its pool with memory out: success; I still reads"""
    shared = Shared(exporter)
    found = shared.import_into(importer).import_pointer(shared.pointer, NBYTES)
    shared.pool.destroy()
    assert found.read(GLANCE) == pattern(GLANCE, 1)


@on_cuda
def test_memory_whose_pointer_was_exported(exporter: Remote, importer: Remote, start: Start) -> None:
    """Memory whose pointer was exported does not come back at free: pinned after `cuMemFreeAsync`,
    synchronise, `cuMemPoolTrimTo`; back when E's pool, I's imported pool and every descriptor of the pool are
    gone"""
    witness = start()
    exporter.gpu.memory_info()
    importer.gpu.memory_info()
    before = used(witness)
    shared = Shared(exporter)
    pool = shared.import_into(importer)
    free(importer, pool.import_pointer(shared.pointer, NBYTES))
    shared.free()
    shared.pool.trim()
    assert shared.pool.reserved == 0
    assert used(witness) - before >= NBYTES
    pool.destroy()
    shared.pool.destroy()
    exporter.ask("os", "close", shared.descriptor)
    assert used(witness) - before <= SLACK


@on_cuda
def test_rounds_with_the_importer_first(exporter: Remote, importer: Remote, start: Start) -> None:
    """It is bounded when the importer frees first: rounds stay at one allocation, since the next export
    replaces the last"""
    witness = start()
    exporter.gpu.memory_info()
    importer.gpu.memory_info()
    before = used(witness)
    shared = Shared(exporter)
    pool = shared.import_into(importer)
    for _ in range(4):
        free(importer, pool.import_pointer(shared.memory.export_pointer(), NBYTES))
        shared.free()
        shared.pool.trim()
        shared.memory = shared.alloc()
    assert used(witness) - before <= 2 * NBYTES + SLACK
