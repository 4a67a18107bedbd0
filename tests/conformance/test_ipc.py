"""IPC on every backend: one test for each row that was measured on a real GPU.

A test's docstring begins with its row of ``cuda-ipc-semantics-h200.md``. It runs on CUDA and, if AMD
documents an answer (`gpuipc_doctor.worker.backends.rules`), on HIP.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuipc_doctor.api import pattern
from gpuipc_doctor.api.driver_errors import DriverError
from gpuipc_doctor.api.gpu import HANDLE_BYTES
from gpuipc_doctor.worker.backends.driver import LAZY_ENABLE_PEER_ACCESS
from tests.conformance.conftest import Start, on_backends, on_documented
from tests.conformance.remote import Remote

MIB = 1 << 20
INVALID_VALUE = {"cuda": "CUDA_ERROR_INVALID_VALUE", "hip": "hipErrorInvalidValue"}
INVALID_CONTEXT = {"cuda": "CUDA_ERROR_INVALID_CONTEXT", "hip": "hipErrorInvalidContext"}
INVALID_HANDLE = {"cuda": "CUDA_ERROR_INVALID_HANDLE"}


NOT_OPENED = {
    "cuda": (INVALID_VALUE["cuda"],),
    "hip": (INVALID_VALUE["hip"], "hipErrorInvalidHandle"),
    "ze": ("ZE_RESULT_ERROR_INVALID_ARGUMENT",),
}
"""Errors when a pointer is closed that was not opened; HIP 5 returns the second."""


@contextmanager
def refused(*names: str) -> Iterator[None]:
    """Assert that the block ends with a driver error that has one of these names."""
    with pytest.raises(DriverError) as caught:
        yield
    assert caught.value.fault.name in names


def free_bytes(remote: Remote) -> int:
    return int(remote.gpu.memory_info()[0])


def words(handle: bytes) -> tuple[int, ...]:
    """The handle as eight little-endian numbers of 64 bits."""
    return struct.unpack("<8Q", handle)


# Exporting


@on_documented("export-twice")
def test_export_the_same_allocation_twice(exporter: Remote, documented: str) -> None:
    """export the same allocation twice: same 64 bytes"""
    assert documented == "same"
    buffer = exporter.gpu.alloc(4096)
    assert buffer.ipc_handle() == buffer.ipc_handle()
    assert len(buffer.ipc_handle()) == HANDLE_BYTES


@on_backends("cuda")
def test_word_1_of_the_handle(exporter: Remote) -> None:
    """word 1 (bytes 8 to 15, little endian) of the handle: the exporter's pid"""
    assert words(exporter.gpu.alloc(4096).ipc_handle())[1] == exporter.pid


@on_documented("export-interior-pointer")
def test_export_an_interior_pointer(exporter: Remote, importer: Remote, documented: str) -> None:
    """export an interior pointer (base + 512): success; opening gives the base of the allocation"""
    buffer = exporter.gpu.alloc(4096)
    buffer.write(pattern(4096, 1))
    mapping = importer.gpu.open_ipc(buffer.ipc_handle(512))
    offset = {"base": 0, "interior": 512}[documented]
    assert mapping.read(1024) == pattern(4096, 1)[offset : offset + 1024]


@on_documented("export-imported-pointer")
def test_export_an_imported_pointer(
    backend: str, exporter: Remote, importer: Remote, documented: str
) -> None:
    """export an imported pointer: INVALID_VALUE"""
    assert documented == "refused"
    mapping = importer.gpu.open_ipc(exporter.gpu.alloc(4096).ipc_handle())
    with refused(INVALID_VALUE[backend]):
        importer.driver.call("ipc-get", mapping.address)


@on_documented(
    *(f"export-{kind}" for kind in ("async-pool", "managed", "pinned-host", "vmm")),
    values=frozenset({"refused"}),
)
def test_export_memory_of_another_kind(backend: str, exporter: Remote, case: str, documented: str) -> None:
    """export memory from `cuMemAllocAsync`, `cuMemAllocManaged`, `cuMemAllocHost`, VMM (`cuMemCreate` +
    `cuMemMap`): INVALID_VALUE, all four"""
    assert documented == "refused"
    kind = case.removeprefix("export-")
    if kind not in exporter.gpu.unexportable_kinds:
        pytest.skip(f"this device cannot allocate {kind}")
    buffer = exporter.gpu.alloc_unexportable(kind)
    with refused(INVALID_VALUE[backend]):
        buffer.ipc_handle()
    buffer.free()


@on_documented("export-after-reuse")
def test_export_the_same_address_again(exporter: Remote, documented: str) -> None:
    """free, allocate the same size again (same address), export: handle bytes differ from the old ones"""
    assert documented == "differs"
    old = exporter.gpu.alloc(4 * MIB)
    address, handle = old.address, old.ipc_handle()
    old.free()
    new = exporter.gpu.alloc(4 * MIB)
    assert new.address == address
    assert new.ipc_handle() != handle


@on_documented("export-part-after-reuse")
def test_export_the_same_part_again(exporter: Remote, importer: Remote, documented: str) -> None:
    """the same with a small buffer in a segment that lives on: the old bytes, which open beside the freed"""
    assert documented == "same"
    _, old = exporter.gpu.alloc(4096), exporter.gpu.alloc(4096)
    address, handle = old.address, old.ipc_handle()
    importer.gpu.open_ipc(handle)
    old.free()
    new = exporter.gpu.alloc(4096)
    assert new.address == address
    assert new.ipc_handle() == handle
    new.write(pattern(4096, 3))
    assert importer.gpu.open_ipc(handle).read() == pattern(4096, 3)


# Opening


@on_documented("open-own-process")
def test_open_its_own_handle(backend: str, exporter: Remote, documented: str) -> None:
    """open an own handle in the exporting process: INVALID_CONTEXT"""
    handle = exporter.gpu.alloc(4096).ipc_handle()
    if documented == "succeeds":
        exporter.gpu.open_ipc(handle)
        return
    with refused(INVALID_CONTEXT[backend]):
        exporter.gpu.open_ipc(handle)


@on_backends("cuda", "hip")
def test_open_in_another_process(exporter: Remote, importer: Remote) -> None:
    """open in another process: success; `cuMemGetAddressRange` gives the exporter's size"""
    buffer = exporter.gpu.alloc(146064)
    buffer.write(pattern(146064, 1))
    mapping = importer.gpu.open_ipc(buffer.ipc_handle())
    assert mapping.nbytes == 146064
    assert mapping.read() == pattern(146064, 1)
    buffer.write(pattern(1000, 2), 5000)
    assert mapping.read(1000, 5000) == pattern(1000, 2)
    mapping.write(pattern(1000, 3), 7000)
    assert buffer.read(1000, 7000) == pattern(1000, 3)


@on_documented("open-twice")
def test_open_the_same_handle_again_in_the_same_context(
    backend: str, exporter: Remote, importer: Remote, documented: str
) -> None:
    """open the same handle again in the same context: reference counted; one close too many is refused"""
    assert documented in ("counted", "separate")
    buffer = exporter.gpu.alloc(4096)
    buffer.write(pattern(4096, 1))
    first, second = (importer.gpu.open_ipc(buffer.ipc_handle()) for _ in range(2))
    assert (first.address == second.address) is (documented == "counted")
    second.close()
    assert first.read(4096) == pattern(4096, 1)
    first.close()
    with refused(*NOT_OPENED[backend]):
        importer.driver.call("ipc-close", first.address)


@on_documented("open-in-second-context")
def test_open_in_context_2_while_open_in_context_1(
    backend: str, exporter: Remote, importer: Remote, documented: str
) -> None:
    """open in context 2 of a process while open in its context 1: INVALID_HANDLE; after closing: success"""
    handle = exporter.gpu.alloc(4096).ipc_handle()
    one = importer.gpu.create_context()
    first = importer.gpu.open_ipc(handle)
    two = importer.gpu.create_context()
    if documented in ("counted", "separate"):
        same = importer.gpu.open_ipc(handle).address == first.address
        assert same is (documented == "counted")
        return
    with refused(INVALID_HANDLE[backend]):
        importer.gpu.open_ipc(handle)
    one.make_current()
    first.close()
    two.make_current()
    importer.gpu.open_ipc(handle)


@on_documented("open-another-in-second-context")
def test_open_another_in_context_2_while_one_is_open_in_context_1(
    backend: str, exporter: Remote, importer: Remote, documented: str
) -> None:
    """open another allocation of the exporter in context 2 while one is open in context 1: INVALID_HANDLE"""
    buffers = [exporter.gpu.alloc(4 * MIB) for _ in range(2)]
    one = importer.gpu.create_context()
    first = importer.gpu.open_ipc(buffers[0].ipc_handle())
    two = importer.gpu.create_context()
    if documented == "succeeds":
        importer.gpu.open_ipc(buffers[1].ipc_handle())
        return
    with refused(INVALID_HANDLE[backend]):
        importer.gpu.open_ipc(buffers[1].ipc_handle())
    one.make_current()
    first.close()
    two.make_current()
    importer.gpu.open_ipc(buffers[1].ipc_handle())


@on_documented("open-over-stale-part")
def test_open_a_buffer_in_place_of_freed_memory_still_open(
    exporter: Remote, importer: Remote, documented: str
) -> None:
    """open a small buffer in the place of a freed larger one of its segment that is open: ALREADY_MAPPED"""
    assert documented == "refused"
    _, old = exporter.gpu.alloc(4096), exporter.gpu.alloc(4096)
    stale = importer.gpu.open_ipc(old.ipc_handle())
    old.free()
    new = exporter.gpu.alloc(256)
    with refused("CUDA_ERROR_ALREADY_MAPPED"):
        importer.gpu.open_ipc(new.ipc_handle())
    stale.close()
    importer.gpu.open_ipc(new.ipc_handle())


@on_documented("open-flags-zero")
def test_open_with_flags_0(backend: str, exporter: Remote, importer: Remote, documented: str) -> None:
    """open with flags 0 (not LAZY_ENABLE_PEER_ACCESS): INVALID_VALUE"""
    importer.gpu.primary_context()
    handle = importer.driver.handle_from(exporter.gpu.alloc(4096).ipc_handle())
    refuses = 0 if documented == "refused" else LAZY_ENABLE_PEER_ACCESS
    with refused(INVALID_VALUE[backend]):
        importer.driver.call("ipc-open", handle, refuses)


@on_documented("open-zero-handle", "open-random-handle")
def test_open_bytes_that_are_not_a_handle(backend: str, importer: Remote, case: str, documented: str) -> None:
    """open 64 zero bytes, or random bytes: INVALID_VALUE"""
    handle = bytes(HANDLE_BYTES) if case == "open-zero-handle" else pattern(HANDLE_BYTES, 5)
    if documented == "crashes":
        with pytest.raises(EOFError, match="-11, in hipIpcOpenMemHandle"):
            importer.gpu.open_ipc(handle)
        return
    also = {"hip": ("hipErrorInvalidDevicePointer",), "cuda": ()}[backend]
    with refused(INVALID_VALUE[backend], *also):
        importer.gpu.open_ipc(handle)


@on_documented("open-tampered-handle")
def test_open_with_one_bit_flipped(exporter: Remote, importer: Remote, documented: str) -> None:
    """open with one bit of byte 40 flipped: success (not authenticated)"""
    assert documented == "succeeds"
    handle = bytearray(exporter.gpu.alloc(4096).ipc_handle())
    handle[40] ^= 1
    importer.gpu.open_ipc(bytes(handle))


@on_documented("open-on-peer-device")
@pytest.mark.usefixtures("two_devices")
def test_open_from_a_context_on_another_gpu(exporter: Remote, start: Start, documented: str) -> None:
    """open GPU 0's memory from a context on GPU 1 (NVLink): success, data right"""
    assert documented == "succeeds"
    importer = start(ordinal=1)
    if exporter.devices[0].label not in importer.devices[1].peers:
        pytest.skip("these two devices do not reach each other")
    buffer = exporter.gpu.alloc(MIB)
    buffer.write(pattern(MIB, 1))
    assert importer.gpu.open_ipc(buffer.ipc_handle()).read() == pattern(MIB, 1)


@on_documented("open-without-seeing-the-exporters-device")
@pytest.mark.usefixtures("two_devices")
def test_open_without_seeing_the_exporters_device(exporter: Remote, start: Start, documented: str) -> None:
    """open GPU 0's memory in a process with `CUDA_VISIBLE_DEVICES=1`: success, data right"""
    assert documented == "succeeds"
    importer = start(env={"CUDA_VISIBLE_DEVICES": "1"})
    assert importer.gpu.device.uuid == exporter.devices[1].uuid
    buffer = exporter.gpu.alloc(MIB)
    buffer.write(pattern(MIB, 1))
    assert importer.gpu.open_ipc(buffer.ipc_handle()).read() == pattern(MIB, 1)


@on_backends("cuda", "hip")
@pytest.mark.usefixtures("two_devices")
def test_memory_of_the_second_gpu_is_said_to_be_its_own(start: Start) -> None:
    """cuda-bindings 13.3.1 says that it is the first one's: no row, seen with two H200s."""
    second = start(ordinal=1)
    assert second.gpu.ordinal_of(second.gpu.alloc(4096).address) == 1


@on_backends("cuda")
def test_open_from_another_pid_namespace(exporter: Remote, start: Start) -> None:
    """open from another pid namespace (`unshare -p`): success here"""
    new_namespace = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    if shutil.which("unshare") is None or subprocess.run([*new_namespace, "true"], check=False).returncode:
        pytest.skip("this process may not create a pid namespace")
    buffer = exporter.gpu.alloc(4096)
    buffer.write(pattern(4096, 1))
    importer = start(prefix=new_namespace)
    assert importer.gpu.open_ipc(buffer.ipc_handle()).read() == pattern(4096, 1)


# Freeing and closing


@on_documented("free-imported-pointer")
def test_free_an_imported_pointer(backend: str, exporter: Remote, importer: Remote, documented: str) -> None:
    """`cuMemFree` on an imported pointer: INVALID_VALUE; a later `cuIpcCloseMemHandle` still succeeds"""
    assert documented == "refused"
    mapping = importer.gpu.open_ipc(exporter.gpu.alloc(4096).ipc_handle())
    with refused(INVALID_VALUE[backend]):
        importer.driver.call("mem-free", mapping.address)
    mapping.close()


@on_documented("close-own-allocation")
def test_close_an_own_allocation(backend: str, exporter: Remote, documented: str) -> None:
    """close a pointer that is not an import, or an own allocation: INVALID_VALUE"""
    assert documented == "refused"
    buffer = exporter.gpu.alloc(4096)
    with refused(*NOT_OPENED[backend]):
        exporter.driver.call("ipc-close", buffer.address)


@on_documented("close-unknown-pointer")
def test_close_a_pointer_that_is_not_an_import(backend: str, exporter: Remote, documented: str) -> None:
    """close a pointer that is not an import, or an own allocation: INVALID_VALUE"""
    assert documented == "refused"
    exporter.gpu.primary_context()
    with refused(*NOT_OPENED[backend]):
        exporter.driver.call("ipc-close", 0x7F0000000000)


@on_backends("cuda")
def test_memory_type_of_a_host_pointer(exporter: Remote) -> None:
    """`cuPointerGetAttribute(MEMORY_TYPE)` of a plain host pointer: INVALID_VALUE"""
    exporter.gpu.primary_context()
    api = exporter.driver.api
    error, _ = api.cuPointerGetAttribute(api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 0x1000)
    assert error.name == "CUDA_ERROR_INVALID_VALUE"


@on_documented("mapping-when-its-context-is-destroyed")
def test_destroy_the_importers_context(exporter: Remote, importer: Remote, documented: str) -> None:
    """destroy the importer's context with the mapping open: success; reopen in a new context: success"""
    buffer = exporter.gpu.alloc(146064)
    buffer.write(pattern(146064, 1))
    context = importer.gpu.create_context()
    mapping = importer.gpu.open_ipc(buffer.ipc_handle())
    context.destroy()
    importer.gpu.create_context()
    if documented == "stays":
        assert mapping.read(4096) == pattern(4096, 1)
    assert importer.gpu.open_ipc(buffer.ipc_handle()).read() == pattern(146064, 1)


@on_documented("mapping-when-the-primary-context-is-reset")
def test_reset_the_importers_primary_context(exporter: Remote, importer: Remote, documented: str) -> None:
    """the same with the primary context and `cuDevicePrimaryCtxReset`: success, success"""
    buffer = exporter.gpu.alloc(146064)
    buffer.write(pattern(146064, 1))
    context = importer.gpu.primary_context()
    mapping = importer.gpu.open_ipc(buffer.ipc_handle())
    context.destroy()
    importer.gpu.primary_context()
    if documented == "stays":
        assert mapping.read(4096) == pattern(4096, 1)
    assert importer.gpu.open_ipc(buffer.ipc_handle()).read() == pattern(146064, 1)


# Owners of memory, and its release


@on_backends("cuda")
def test_memory_info_change_by_a_mapping(exporter: Remote, importer: Remote) -> None:
    """`cuMemGetInfo` change by a mapping: 0 bytes"""
    buffer = exporter.gpu.alloc(64 * MIB)
    before = free_bytes(importer)
    importer.gpu.open_ipc(buffer.ipc_handle())
    assert free_bytes(importer) == before


@on_documented("mapping-when-the-exporter-frees")
def test_exporter_frees_while_open_twice(
    backend: str, exporter: Remote, importer: Remote, documented: str
) -> None:
    """exporter frees while the importer has it open twice: memory comes back only at the last close"""
    assert documented == "stays"
    buffer = exporter.gpu.alloc(64 * MIB)
    buffer.write(pattern(MIB, 1))
    handle = buffer.ipc_handle()
    first, second = (importer.gpu.open_ipc(handle) for _ in range(2))
    before = free_bytes(importer)
    buffer.free()
    assert free_bytes(importer) == before
    assert first.read(MIB) == pattern(MIB, 1)
    if backend == "ze":  # the descriptor was closed with the memory
        with refused("EBADF"):
            importer.gpu.open_ipc(handle)
    else:
        third = importer.gpu.open_ipc(handle)
        assert third.read(MIB) == pattern(MIB, 1)
        third.close()
    first.close()
    assert free_bytes(importer) == before
    second.close()
    assert free_bytes(importer) == before + 64 * MIB


@on_documented("open-freed-everywhere")
def test_open_memory_that_is_gone_everywhere(
    backend: str, exporter: Remote, importer: Remote, documented: str
) -> None:
    """open a handle whose memory is gone everywhere: INVALID_VALUE"""
    assert documented == "refused"
    buffer = exporter.gpu.alloc(4 * MIB)
    handle = buffer.ipc_handle()
    importer.gpu.open_ipc(handle).close()
    buffer.free()
    with refused(INVALID_VALUE[backend]):
        importer.gpu.open_ipc(handle)


@on_documented("open-stale-handle")
def test_open_a_stale_handle_beside_the_new_one(exporter: Remote, importer: Remote, documented: str) -> None:
    """with the new handle open, open the *old* handle too: success, so only the data can tell"""
    assert documented == "succeeds"
    old = exporter.gpu.alloc(4 * MIB)
    address, stale = old.address, old.ipc_handle()
    old.free()
    new = exporter.gpu.alloc(4 * MIB)
    assert new.address == address
    new.write(pattern(4 * MIB, 2))
    assert importer.gpu.open_ipc(new.ipc_handle()).read() == pattern(4 * MIB, 2)
    importer.gpu.open_ipc(stale)


@on_backends("cuda")
def test_open_a_bigger_buffer_beside_a_stale_mapping(exporter: Remote, importer: Remote) -> None:
    """free, allocate a bigger buffer, open it while a stale mapping is open: success, at another address"""
    old = exporter.gpu.alloc(4 * MIB)
    stale = importer.gpu.open_ipc(old.ipc_handle())
    old.free()
    new = exporter.gpu.alloc(8 * MIB)
    new.write(pattern(8 * MIB, 2))
    mapping = importer.gpu.open_ipc(new.ipc_handle())
    assert mapping.address != stale.address
    assert mapping.read() == pattern(8 * MIB, 2)


@on_backends("cuda", "hip")
def test_importer_killed_with_mappings_open(exporter: Remote, start: Start) -> None:
    """importer SIGKILLed with mappings open: its mappings go; exporter's free returns the memory"""
    before = free_bytes(exporter)
    buffer = exporter.gpu.alloc(64 * MIB)
    victim = start()
    for _ in range(2):
        victim.gpu.open_ipc(buffer.ipc_handle())
    victim.kill()
    buffer.free()
    # Not exactly: on the H200 the driver still used 64 KiB.
    assert before - free_bytes(exporter) < MIB


@on_backends("cuda")
def test_two_allocations_in_one_block(exporter: Remote, importer: Remote) -> None:
    """two 1000-byte allocations: 1024 bytes apart in one block; handles differ only in word 3"""
    buffers = [exporter.gpu.alloc(1000) for _ in range(2)]
    for number, buffer in enumerate(buffers):
        buffer.write(pattern(1000, number))
    low, high = sorted(buffer.address for buffer in buffers)
    assert high - low == 1024
    handles = [buffer.ipc_handle() for buffer in buffers]
    assert [n for n, pair in enumerate(zip(*map(words, handles), strict=True)) if pair[0] != pair[1]] == [3]
    mappings = [importer.gpu.open_ipc(handle) for handle in handles]
    assert mappings[1].address - mappings[0].address == buffers[1].address - buffers[0].address
    mappings[0].close()
    assert mappings[1].read(1000) == pattern(1000, 1)


@pytest.mark.parametrize("how", ["exit", "kill"])
@on_documented("open-after-exporter-exit")
def test_exporter_ends_after_the_importer_opened(
    backend: str, exporter: Remote, importer: Remote, how: str, documented: str
) -> None:
    """exporter exits or is SIGKILLed after the importer opened: importer still reads the right bytes and may
    open again; once all its mappings are closed, opening gives `INVALID_HANDLE`"""
    assert documented == "refused"
    buffer = exporter.gpu.alloc(4 * MIB)
    buffer.write(pattern(4 * MIB, 1))
    handle = buffer.ipc_handle()
    first = importer.gpu.open_ipc(handle)
    exporter.kill() if how == "kill" else exporter.exit()
    assert first.read() == pattern(4 * MIB, 1)
    second = importer.gpu.open_ipc(handle)
    assert second.read() == pattern(4 * MIB, 1)
    first.close()
    second.close()
    with refused(INVALID_HANDLE[backend]):
        importer.gpu.open_ipc(handle)


def test_every_measured_row_has_a_test() -> None:
    table = Path(__file__).with_name("cuda-ipc-semantics-h200.md").read_text()
    cases = [row.split("|")[1].strip() for row in table.splitlines() if row.startswith("| ")][1:]
    tests = [function for name, function in globals().items() if name.startswith("test_")]
    held = [" ".join((test.__doc__ or "").split()) for test in tests]
    assert len(cases) == 29
    assert [case for case in cases if not any(text.startswith(f"{case}: ") for text in held)] == []
