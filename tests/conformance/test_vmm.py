"""Physical memory shared between processes: one test per measured row, or per few rows.

A test's docstring begins with its row of ``cuda-vmm-semantics-h200.md``. HIP was not measured: only
behaviour that sharing requires is tested there.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from gpuipc_doctor.api import pattern
from tests.conformance.conftest import Start, on_backends
from tests.conformance.remote import Remote
from tests.conformance.test_ipc import INVALID_VALUE, refused

MIB = 1 << 20
NBYTES = 64 * MIB
WRITTEN = 64 << 10
SLACK = 4 * MIB
"""Memory that the driver may allocate for itself meanwhile."""

on_both = on_backends("cuda", "hip")
on_cuda = on_backends("cuda")

UNKNOWN = "CUDA_ERROR_UNKNOWN"
NOT_SUPPORTED = "CUDA_ERROR_NOT_SUPPORTED"
NOT_PERMITTED = "CUDA_ERROR_NOT_PERMITTED"
DESCRIPTOR, FABRIC, WIN32 = 1, 8, 2


@pytest.fixture(autouse=True)
def _shares(exporter: Remote) -> None:
    if "vmm-ipc" not in exporter.devices[0].capabilities:
        pytest.skip("this device exports no descriptors")


def used(remote: Remote) -> int:
    free, total = remote.gpu.memory_info()
    return int(total - free)


def closed(remote: Remote, number: int) -> None:
    remote.ask("os", "close", number)


def open_descriptors(remote: Remote) -> int:
    return len(list(Path(f"/proc/{remote.pid}/fd").iterdir()))


def address_space(remote: Remote) -> int:
    """Virtual memory of the process in bytes (``VmSize``)."""
    status = Path(f"/proc/{remote.pid}/status").read_text()
    return int(status.partition("VmSize:")[2].split()[0]) << 10


class Segment:
    """Memory of one process, mapped there and exported."""

    def __init__(self, owner: Remote, nbytes: int = NBYTES, seed: int = 1) -> None:
        self.owner = owner
        self.nbytes = nbytes
        self.memory = owner.gpu.create_physical(nbytes)
        self.mapping = self.memory.map()
        self.mapping.write(pattern(WRITTEN, seed))
        self.mapping.write(pattern(WRITTEN, seed + 100), nbytes - WRITTEN)
        self.descriptor = self.memory.export_descriptor()

    def drop(self) -> None:
        self.mapping.unmap()
        self.memory.release()
        closed(self.owner, self.descriptor)


class Import:
    """Another process's segment, passed by ``SCM_RIGHTS`` and mapped in this one."""

    def __init__(self, segment: Segment, to: Remote) -> None:
        self.to = to
        self.nbytes = segment.nbytes
        self.descriptor = segment.owner.send_descriptor(segment.descriptor, to)
        self.memory = to.gpu.import_descriptor(self.descriptor, self.nbytes)
        self.mapping = self.memory.map()

    def drop(self) -> None:
        self.mapping.unmap()
        self.memory.release()
        closed(self.to, self.descriptor)


def right(mapping: Any, nbytes: int = NBYTES, seed: int = 1) -> bool:
    head, tail = mapping.read(WRITTEN), mapping.read(WRITTEN, nbytes - WRITTEN)
    return bool(head == pattern(WRITTEN, seed) and tail == pattern(WRITTEN, seed + 100))


# Sharing


@on_both
def test_by_scm_rights(exporter: Remote, importer: Remote) -> None:
    """`cuMemCreate(POSIX_FD)`, export, SCM_RIGHTS, import, reserve, map, access: success; data right both
    ways"""
    segment = Segment(exporter)
    imported = Import(segment, importer)
    assert right(imported.mapping)
    imported.mapping.write(pattern(WRITTEN, 7), 2 * MIB)
    assert segment.mapping.read(WRITTEN, 2 * MIB) == pattern(WRITTEN, 7)
    segment.mapping.write(pattern(WRITTEN, 8), 2 * MIB)
    assert imported.mapping.read(WRITTEN, 2 * MIB) == pattern(WRITTEN, 8)


@on_both
def test_by_pidfd_getfd(exporter: Remote, importer: Remote) -> None:
    """the same by `pidfd_open` + `pidfd_getfd`: success, right"""
    segment = Segment(exporter)
    number = importer.ask("fetch", exporter.pid, segment.descriptor)
    assert right(importer.gpu.import_descriptor(number, NBYTES).map())


@on_cuda
def test_reopened_descriptor(exporter: Remote, importer: Remote) -> None:
    """the same by opening `/proc/PID/fd/N`: open succeeds, import `UNKNOWN` (999)"""
    segment = Segment(exporter)
    number = importer.ask("os", "open", f"/proc/{exporter.pid}/fd/{segment.descriptor}", os.O_RDWR)
    with refused(UNKNOWN):
        importer.gpu.import_descriptor(number, NBYTES)


@on_cuda
def test_the_descriptor(exporter: Remote) -> None:
    """the descriptor: close-on-exec; every export gives another number"""
    segment = Segment(exporter)
    assert not exporter.ask("os", "get_inheritable", segment.descriptor)
    assert segment.memory.export_descriptor() != segment.descriptor


@on_cuda
def test_resources_used_by_an_import_and_a_map(exporter: Remote, importer: Remote) -> None:
    """descriptors, `cuMemGetInfo`, VmSize changed by an import / a map: 0, 0, 0 / 0, 0 bytes, + its size"""
    segment = Segment(exporter)
    Import(segment, importer).drop()
    number = exporter.send_descriptor(segment.descriptor, importer)
    descriptors, taken, addresses = open_descriptors(importer), used(importer), address_space(importer)
    memory = importer.gpu.import_descriptor(number, NBYTES)
    assert abs(address_space(importer) - addresses) <= SLACK
    memory.map()
    assert open_descriptors(importer) == descriptors
    assert used(importer) == taken
    assert abs(address_space(importer) - addresses - NBYTES) <= SLACK


@on_cuda
def test_handle_types_of_an_import(exporter: Remote, importer: Remote) -> None:
    """what I is told of the import: handle types 0; I exports its import: INVALID_VALUE"""
    imported = Import(Segment(exporter), importer)
    properties = importer.driver.call("vmm-properties", imported.memory.handle)
    assert properties.requestedHandleTypes.value == 0
    with refused(INVALID_VALUE["cuda"]):
        imported.memory.export_descriptor()


@on_cuda
def test_received_descriptor_is_passed_on(exporter: Remote, importer: Remote, start: Start) -> None:
    """but I can pass the received descriptor on to a third process: success, right, also after E and I were
    killed"""
    third = start()
    imported = Import(Segment(exporter), importer)
    number = importer.send_descriptor(imported.descriptor, third)
    exporter.kill()
    importer.kill()
    assert right(third.gpu.import_descriptor(number, NBYTES).map())


@on_cuda
def test_import_twice_and_in_the_exporter(exporter: Remote, importer: Remote) -> None:
    """import twice, import a dup, import in the exporting process: another handle and address each; each
    dropped on its own"""
    segment = Segment(exporter)
    first = Import(segment, importer)
    second = importer.gpu.import_descriptor(importer.ask("os", "dup", first.descriptor), NBYTES).map()
    own = exporter.gpu.import_descriptor(segment.descriptor, NBYTES).map()
    assert len({first.mapping.address, second.address}) == 2
    assert own.address != segment.mapping.address
    first.drop()
    assert right(second)
    assert right(own)


@on_cuda
def test_one_handle_at_two_addresses(exporter: Remote) -> None:
    """one handle mapped at two addresses: success, both right"""
    segment = Segment(exporter)
    other = segment.memory.map()
    assert other.address != segment.mapping.address
    assert right(other)


@on_cuda
@pytest.mark.parametrize(
    ("offset", "nbytes"), [(0, NBYTES // 2), (NBYTES // 2, NBYTES // 2), (0, NBYTES * 2)]
)
def test_a_handle_is_mapped_whole(exporter: Remote, offset: int, nbytes: int) -> None:
    """a part of a handle mapped, more than it has: `NOT_SUPPORTED` (801)"""
    memory = exporter.gpu.create_physical(NBYTES)
    address = exporter.driver.call("vmm-reserve", 2 * NBYTES, 0, 0, 0)
    with refused(NOT_SUPPORTED):
        exporter.driver.call("vmm-map", address, nbytes, offset, memory.handle, 0)


@on_both
def test_two_importers_see_each_others_writes(exporter: Remote, importer: Remote, start: Start) -> None:
    """two importers at once: success, right, see each other's writes"""
    segment = Segment(exporter)
    one, other = Import(segment, importer), Import(segment, start())
    one.mapping.write(pattern(WRITTEN, 9), 2 * MIB)
    assert other.mapping.read(WRITTEN, 2 * MIB) == pattern(WRITTEN, 9)


@on_cuda
@pytest.mark.skipif(shutil.which("unshare") is None or os.geteuid() != 0, reason="needs unshare, as root")
def test_from_a_new_pid_namespace(exporter: Remote, start: Start) -> None:
    """import from a new pid namespace: success by SCM_RIGHTS; `pidfd_open` of the outer pid ESRCH"""
    segment = Segment(exporter)
    inside = start(prefix=("unshare", "--pid", "--fork", "--mount-proc"))
    assert right(Import(segment, inside).mapping)
    with pytest.raises(AssertionError, match="ProcessLookupError"):
        inside.ask("fetch", exporter.pid, segment.descriptor)


@on_cuda
def test_without_a_context(exporter: Remote, importer: Remote) -> None:
    """importer or exporter with `cuInit` only: create, export, import, unmap, release succeed; only copies
    give `INVALID_CONTEXT` (201)"""
    memory = exporter.gpu.create_physical(NBYTES)
    number = exporter.send_descriptor(memory.export_descriptor(), importer)
    imported = importer.gpu.import_descriptor(number, NBYTES)
    address = importer.driver.call("vmm-reserve", NBYTES, 0, 0, 0)
    importer.driver.call("vmm-map", address, NBYTES, 0, imported.handle, 0)
    with refused("CUDA_ERROR_INVALID_CONTEXT"):
        importer.driver.call("copy-on-device", address, address, 16, 0)
    importer.driver.call("vmm-unmap", address, NBYTES)
    imported.release()
    assert not {"cuCtxCreate", "cuDevicePrimaryCtxRetain"} & {*importer.calls(), *exporter.calls()}


@on_both
@pytest.mark.parametrize("nbytes", [2 * MIB, 3 << 30])
def test_sizes(exporter: Remote, importer: Remote, nbytes: int) -> None:
    """3 GiB and 2 MiB: success, right at both ends"""
    assert right(Import(Segment(exporter, nbytes), importer).mapping, nbytes)


@on_both
def test_importers_import_while_the_exporter_allocates(
    exporter: Remote, importer: Remote, start: Start
) -> None:
    """rounds in which importers attach while E allocates, exports once per importer and releases earlier
    rounds"""
    importers = [importer, start()]
    earlier: list[Segment] = []
    for n in range(10):
        segment = Segment(exporter, 4 * MIB, n)
        imports = [Import(segment, each) for each in importers]
        if earlier:
            earlier.pop().drop()
        assert all(right(each.mapping, 4 * MIB, n) for each in imports)
        for each in imports:
            each.drop()
        earlier.append(segment)


# Wrong descriptors


@on_cuda
def test_import_of_other_files(exporter: Remote, importer: Remote) -> None:
    """import of /dev/null, pipe, socket, file, memfd, a closed number: `UNKNOWN`, all; a good import
    afterwards succeeds"""
    numbers = [
        importer.ask("os", "open", "/dev/null", os.O_RDWR),
        importer.ask("os", "open", __file__, os.O_RDONLY),
        importer.ask("os", "memfd_create", "nothing"),
        *importer.ask("os", "pipe"),
        900,
    ]
    for number in numbers:
        with refused(UNKNOWN):
            importer.gpu.import_descriptor(number, NBYTES)
    assert right(Import(Segment(exporter), importer).mapping)


@on_cuda
def test_pool_and_memory_descriptors_are_not_interchangeable(exporter: Remote) -> None:
    """a pool's descriptor as memory, memory's as a pool: `NOT_SUPPORTED`"""
    pool, segment = exporter.gpu.create_shared_pool(), Segment(exporter)
    with refused(NOT_SUPPORTED):
        exporter.gpu.import_descriptor(pool.export_descriptor(), NBYTES)
    with refused(NOT_SUPPORTED):
        exporter.gpu.import_pool(segment.descriptor)


@on_cuda
def test_fetched_number_refers_to_another_allocation(exporter: Remote, importer: Remote) -> None:
    """E closes fd N, exports a smaller allocation and gets N again; I fetches "N": success, silently the
    other allocation; only mapping with the old size fails"""
    old = Segment(exporter)
    closed(exporter, old.descriptor)
    new = Segment(exporter, NBYTES // 2)
    assert new.descriptor == old.descriptor
    memory = importer.gpu.import_descriptor(importer.ask("fetch", exporter.pid, old.descriptor), NBYTES)
    with refused(NOT_SUPPORTED):
        memory.map()


@on_both
def test_early_close_is_harmless(exporter: Remote, importer: Remote) -> None:
    """E closes after sending; I closes after importing: no harm"""
    segment = Segment(exporter)
    number = exporter.send_descriptor(segment.descriptor, importer)
    closed(exporter, segment.descriptor)
    memory = importer.gpu.import_descriptor(number, NBYTES)
    closed(importer, number)
    assert right(memory.map())


# Contexts: the twin of seed 002


@on_both
@pytest.mark.parametrize("primary", [True, False])
@pytest.mark.parametrize("left_open", [True, False])
def test_import_after_the_importers_context_ended(
    exporter: Remote, importer: Remote, primary: bool, left_open: bool
) -> None:
    """I: cuCtxDestroy, cuCtxCreate, import and map again; mapping closed before or left open: success, right.
    I's old mapping in the new context: still there, right"""
    make = importer.gpu.primary_context if primary else importer.gpu.create_context
    segment, context = Segment(exporter), make()
    old = Import(segment, importer)
    if not left_open:
        old.drop()
    context.destroy()
    make()
    assert right(Import(segment, importer).mapping)
    if left_open:
        assert right(old.mapping)
        old.drop()


@on_both
@pytest.mark.parametrize("primary", [True, False])
def test_import_after_the_exporters_context_ended(exporter: Remote, importer: Remote, primary: bool) -> None:
    """E: cuCtxDestroy or primary reset with the memory exported: I still reads, imports again; E exports
    again even without a context and reads its old mapping in the next one"""
    context = exporter.gpu.primary_context() if primary else exporter.gpu.create_context()
    segment = Segment(exporter)
    imported = Import(segment, importer)
    context.destroy()
    assert right(imported.mapping)
    segment.descriptor = segment.memory.export_descriptor()
    assert right(Import(segment, importer).mapping)
    exporter.gpu.create_context()
    assert right(segment.mapping)


# Lifetimes: memory is released with its last handle, mapping, descriptor or descriptor in a message


@pytest.fixture
def witness(start: Start) -> Remote:
    """A third process with its own context, so that the memory of contexts does not change meanwhile."""
    remote = start()
    remote.gpu.memory_info()
    return remote


@on_both
def test_a_descriptor_alone_pins_memory(exporter: Remote, importer: Remote, witness: Remote) -> None:
    """E unmaps, releases, closes; I holds only the descriptor: pinned; I imports, right; I closes fd: pinned;
    releases: pinned, still reads; unmaps: back"""
    importer.gpu.memory_info()
    exporter.gpu.memory_info()
    before = used(witness)
    segment = Segment(exporter)
    number = exporter.send_descriptor(segment.descriptor, importer)
    segment.drop()
    assert used(witness) - before >= NBYTES
    memory = importer.gpu.import_descriptor(number, NBYTES)
    mapping = memory.map()
    closed(importer, number)
    memory.release()
    assert right(mapping)
    assert used(witness) - before >= NBYTES
    mapping.unmap()
    assert used(witness) - before <= SLACK


@on_both
@pytest.mark.parametrize("killed", [True, False])
def test_import_when_the_exporter_is_gone(
    exporter: Remote, importer: Remote, witness: Remote, killed: bool
) -> None:
    """E exits before I imports: pinned; import and re-import succeed, right. E SIGKILLed while I has it
    mapped: the same; back when I let go of all"""
    importer.gpu.memory_info()
    before = used(witness)
    segment = Segment(exporter)
    earlier = Import(segment, importer) if killed else None
    number = exporter.send_descriptor(segment.descriptor, importer)
    exporter.kill() if killed else exporter.exit()
    mapping = importer.gpu.import_descriptor(number, NBYTES).map()
    assert right(mapping)
    if earlier:
        assert right(earlier.mapping)
    importer.kill()
    assert used(witness) - before <= SLACK


@on_both
def test_a_descriptor_in_a_message_pins_memory(exporter: Remote, witness: Remote) -> None:
    """descriptor sent, E exits, I never receives it: pinned until I's socket is closed"""
    before = used(witness)
    segment = Segment(exporter)
    exporter.ask("send", segment.descriptor)
    exporter.kill()
    assert used(witness) - before >= NBYTES
    exporter._descriptors.close()
    assert used(witness) - before <= SLACK


@on_both
def test_a_process_without_a_driver_pins_memory(exporter: Remote, importer: Remote, witness: Remote) -> None:
    """descriptor held by a process without CUDA, all others gone: pinned; a new process can import it,
    right"""
    before = used(witness)
    segment = Segment(exporter)
    here = importer.ask("fetch", exporter.pid, segment.descriptor)  # the importer has not opened a driver yet
    exporter.kill()
    assert used(witness) - before >= NBYTES
    closed(importer, here)
    assert used(witness) - before <= SLACK


@on_cuda
def test_retaining_pins_memory(exporter: Remote, witness: Remote) -> None:
    """`cuMemRetainAllocationHandle` without its release: pinned"""
    exporter.gpu.memory_info()
    before = used(witness)
    segment = Segment(exporter)
    retained = exporter.driver.call("vmm-retain", segment.mapping.address)
    segment.drop()
    assert used(witness) - before >= NBYTES
    exporter.driver.call("vmm-release", retained)
    assert used(witness) - before <= SLACK


@on_both
def test_many_rounds_leave_nothing(exporter: Remote, importer: Remote) -> None:
    """300 rounds, all steps done (after 20 of warm-up): memory, descriptors, VmSize of both unchanged"""

    def rounds(count: int) -> None:
        for n in range(count):
            segment = Segment(exporter, 2 * MIB, n)
            imported = Import(segment, importer)
            assert right(imported.mapping, 2 * MIB, n)
            imported.drop()
            segment.drop()

    rounds(5)
    both = exporter, importer
    descriptors, addresses = sum(map(open_descriptors, both)), sum(map(address_space, both))
    before = used(importer)
    rounds(20)
    assert used(importer) - before <= SLACK
    assert sum(map(open_descriptors, both)) == descriptors
    assert sum(map(address_space, both)) - addresses <= SLACK


@on_cuda
@pytest.mark.parametrize(
    ("forgotten", "memory", "descriptors", "addresses"),
    [("release", 1, 0, 0), ("close", 1, 1, 0), ("unmap", 1, 0, 1), ("address", 0, 0, 1)],
)
def test_leaks_of_an_importer_that_omits_a_step(
    exporter: Remote, importer: Remote, forgotten: str, memory: int, descriptors: int, addresses: int
) -> None:
    """30 rounds, I forgets `cuMemRelease`, `close(fd)`, unmap and address free, only `cuMemAddressFree`: what
    grows"""
    rounds = 4
    segment = Segment(exporter)
    Import(segment, importer).drop()
    segment.drop()
    before = used(importer), open_descriptors(importer), address_space(importer)
    for _ in range(rounds):
        segment = Segment(exporter)
        imported = Import(segment, importer)
        if forgotten == "address":
            importer.driver.call("vmm-unmap", imported.mapping.address, NBYTES)
        elif forgotten != "unmap":
            imported.mapping.unmap()
        if forgotten != "release":
            imported.memory.release()
        if forgotten != "close":
            closed(importer, imported.descriptor)
        segment.drop()
    assert abs(used(importer) - before[0] - memory * rounds * NBYTES) <= SLACK
    assert open_descriptors(importer) - before[1] == descriptors * rounds
    assert abs(address_space(importer) - before[2] - addresses * rounds * NBYTES) <= SLACK


# Access and misuse


@on_cuda
def test_access_that_was_not_granted(exporter: Remote) -> None:
    """copy to a mapping without `cuMemSetAccess`: `INVALID_VALUE`, the context lives on"""
    memory = exporter.gpu.create_physical(NBYTES)
    buffer = exporter.gpu.alloc(4096)
    address = exporter.driver.call("vmm-reserve", NBYTES, 0, 0, 0)
    exporter.driver.call("vmm-map", address, NBYTES, 0, memory.handle, 0)
    with refused(INVALID_VALUE["cuda"]):
        exporter.driver.call("copy-on-device", buffer.address, address, 4096, 0)
    buffer.write(b"lives on")


@on_both
def test_another_gpus_memory(exporter: Remote, start: Start, two_devices: None) -> None:
    """GPU 0's memory, importer's context on GPU 1, access for GPU 1: success, right"""
    assert right(Import(Segment(exporter), start(ordinal=1)).mapping)


@on_cuda
def test_an_importer_that_sees_the_other_gpu_only(exporter: Remote, start: Start, two_devices: None) -> None:
    """importer with `CUDA_VISIBLE_DEVICES=1`: success, right"""
    assert right(Import(Segment(exporter), start(env={"CUDA_VISIBLE_DEVICES": "1"})).mapping)


@on_cuda
@pytest.mark.parametrize("nbytes", [0, 1000, 2 * MIB + 64 * 1024])
def test_invalid_sizes(exporter: Remote, nbytes: int) -> None:
    """create of 0, 1000 bytes, 2 MiB + 64 KiB: `INVALID_VALUE`"""
    with refused(INVALID_VALUE["cuda"]):
        exporter.gpu.create_physical(nbytes)


@on_cuda
def test_misuse(exporter: Remote) -> None:
    """map over a mapping, unmap of a part, address free while mapped, `cuMemFree`, `cuMemFreeAsync`,
    `cuIpcCloseMemHandle` on a mapping: `INVALID_VALUE`; unmap twice: success"""
    segment = Segment(exporter)
    address = segment.mapping.address
    for call in [
        ("vmm-map", address, NBYTES, 0, segment.memory.handle, 0),
        ("vmm-unmap", address, NBYTES // 2),
        ("vmm-free", address, NBYTES),
        ("mem-free", address),
        ("pool-free", address, 0),
        ("ipc-close", address),
    ]:
        with refused(INVALID_VALUE["cuda"]):
            exporter.driver.call(*call)
    assert right(segment.mapping)
    exporter.driver.call("vmm-unmap", address, NBYTES)
    exporter.driver.call("vmm-unmap", address, NBYTES)


@on_cuda
def test_release_while_mapped(exporter: Remote) -> None:
    """release while mapped; then map that handle again; release twice more: success; success;
    `INVALID_VALUE`"""
    segment = Segment(exporter)
    segment.memory.release()
    segment.memory.map()
    with refused(INVALID_VALUE["cuda"]):
        exporter.driver.call("vmm-release", segment.memory.handle)


@on_cuda
def test_map_of_a_released_handle(exporter: Remote) -> None:
    """map of a handle released and nowhere mapped: SIGSEGV (documented as undefined)"""
    memory = exporter.gpu.create_physical(NBYTES)
    address = exporter.driver.call("vmm-reserve", NBYTES, 0, 0, 0)
    handle = memory.handle
    memory.release()
    with pytest.raises(EOFError, match=f"-{signal.SIGSEGV}, in cuMemMap"):
        exporter.driver.call("vmm-map", address, NBYTES, 0, handle, 0)


# Handle types and fabric


@on_cuda
def test_a_fabric_handle_without_a_channel(exporter: Remote) -> None:
    """`cuMemCreate(FABRIC)`: `NOT_PERMITTED` (800), although the device says that it knows such handles"""
    if any(Path("/dev/nvidia-caps-imex-channels").glob("channel*")):
        pytest.skip("there is an IMEX channel here")
    assert "fabric-handles" in exporter.devices[0].capabilities
    with refused(NOT_PERMITTED):
        exporter.gpu.create_fabric(NBYTES)


@on_cuda
def test_an_export_of_another_type(exporter: Remote) -> None:
    """POSIX_FD exported as FABRIC: `INVALID_VALUE`; import FABRIC of 64 zero or random bytes:
    `NOT_SUPPORTED`"""
    with refused(INVALID_VALUE["cuda"]):
        exporter.gpu.create_physical(NBYTES).export_fabric()
    for handle in (bytes(64), pattern(64, 3)):
        with refused(NOT_SUPPORTED):
            exporter.gpu.import_fabric(handle, NBYTES)


@on_cuda
def test_legacy_export_of_an_import(exporter: Remote, importer: Remote) -> None:
    """`cuIpcGetMemHandle` on VMM memory (POSIX_FD, imported): `INVALID_VALUE`"""
    segment = Segment(exporter)
    imported = Import(segment, importer)
    for remote, mapping in ((exporter, segment.mapping), (importer, imported.mapping)):
        with refused(INVALID_VALUE["cuda"]):
            remote.driver.call("ipc-get", mapping.address)


@on_cuda
def test_retaining_other_memory(exporter: Remote) -> None:
    """`cuMemRetainAllocationHandle` of cuMemAlloc memory: `INVALID_VALUE`"""
    buffer = exporter.gpu.alloc(NBYTES)
    with refused(INVALID_VALUE["cuda"]):
        exporter.driver.call("vmm-retain", buffer.address)
