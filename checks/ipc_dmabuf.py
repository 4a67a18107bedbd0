"""Export memory as a dma-buf, as UCX, NCCL and libfabric do for a network adapter (GPUDirect RDMA).

Memory is exported, then a part of it, and VMM memory. Freed memory must stay in its dma-buf, and memory that
is allocated instead must have its own. A thousand exports must leave no descriptor behind. Exported memory
must be released when it is freed; the control is VMM memory that is not exported. What the driver states
(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) must be so.

The data is read if a dma-buf can be mapped. NVIDIA's driver refuses that (nv_dma_buf_mmap in
open-gpu-kernel-modules), so that only an adapter reads its dma-bufs: the check then says that the data was
not read, and shows only that exports succeed, are large enough and are released.

If this node has RDMA adapters, memory is registered with each (`ibv_reg_dmabuf_mr`), and no data is sent. An
adapter that cannot do so is a SKIP; so is a GPU whose driver exports no dma-bufs and does not state that it
does: NVIDIA's proprietary kernel module, or AMD's runtime before 7.0.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from gpuipc_doctor.api import (
    ODD_BYTES,
    BackendUnavailable,
    Buffer,
    Check,
    Context,
    DriverError,
    Finding,
    Memory,
    Meter,
    Probe,
    ProbeOutcome,
    Worker,
    differences,
    leak_report,
    pattern,
    unless_refused,
    watched,
    write_pattern,
)
from gpuipc_doctor.api.data_patterns import GLANCE
from gpuipc_doctor.api.offered_memory import round_up

NBYTES, PART, OFFSET = 4 << 20, 256 << 10, (1 << 20) + (64 << 10)
"""Bytes of the memory and of a part of it, and where the part begins: multiples of each host's page size."""

ROUNDS, EXPORTS = 40, 25
"""A thousand exports."""

ROLE = "allocator"
"""As in other checks of single processes, which then run in the same one."""

KEPT = 4
"""Allocations of each kind that are exported and freed while used memory is watched."""


class IpcDmabuf(Check):
    id = "ipc-dmabuf"
    title = "memory exported as dma-buf is correct and released"
    requires = frozenset({"multi-process"})

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for device in ctx.devices:
            yield Probe("", {ROLE: export}, (device,), exclusive=True)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        seen = done.records[ROLE]
        if refused := seen["refused"]:
            yield Finding.skip(
                "refused",
                "this GPU's driver exports no dma-bufs ({refused})",
                remedy="for GPUDirect RDMA, use NVIDIA's open kernel module or nvidia-peermem, or ROCm 7",
                refused=refused,
            )
            return
        bad = leak_report(done.roles[ROLE]).judge(ODD_BYTES, KEPT)
        if wrong := seen["wrong"]:
            says = "a dma-buf does not show the memory that was exported"
            remedy = (
                "update the driver; until then use no dma-bufs: NCCL_DMABUF_ENABLE=0, UCX_CUDA_COPY_DMABUF=no"
            )
            bad.append(Finding.fail("wrong-data", says, *wrong[:3], remedy=remedy, times=len(wrong)))
        if seen["claimed"] is False:
            says = "dma-bufs work, but the driver states that the GPU has none"
            remedy = "UCX, NCCL and libfabric ask first: they will not use them; update the driver"
            bad.append(Finding.warn("not-stated", says, remedy=remedy))
        yield from bad
        yield from judge_adapters(seen["adapters"])
        if not bad:
            unread = "their data was not read: {unread}" if seen["unread"] else "their data was read"
            vmm = [f"VMM memory is refused: {seen['vmm']}"] if seen["vmm"] else []
            yield Finding.ok(
                "exported",
                f"{{exports}} exports left nothing behind; {unread}",
                *vmm,
                *([] if seen["adapters"] else ["no RDMA adapter here: memory was not registered with one"]),
                exports=ROUNDS * EXPORTS,
                unread=seen["unread"],
            )


def judge_adapters(adapters: dict[str, list[str]]) -> Iterable[Finding]:
    """``adapters``: name → the function that failed and the error, or nothing."""
    lines = [f"{name}: {' '.join(failed) or 'registered'}" for name, failed in adapters.items()]
    failures = [failed for failed in adapters.values() if failed]
    if any(call == "ibv_reg_dmabuf_mr" and error != CANNOT for call, error in failures):
        yield Finding.warn(
            "not-registered",
            "an RDMA adapter does not register the memory by its dma-buf",
            *lines,
            remedy="update the adapter's driver and rdma-core; or load nvidia-peermem, which needs none",
        )
    elif adapters and len(failures) == len(adapters):
        says = "no RDMA adapter here can register memory by a dma-buf"
        yield Finding.skip("adapter-cannot", says, *lines)
    elif adapters:
        yield Finding.ok("registered", "RDMA adapters registered the memory", *lines)


CANNOT = os.strerror(95)
"""``EOPNOTSUPP``: the adapter's driver has no dma-bufs, as that of Soft-RoCE."""


def export(w: Worker) -> None:
    w.record(claimed=w.gpu.claims_dmabuf, refused="", unread="", vmm="", adapters={})
    with w.gpu.alloc(NBYTES) as memory:
        write_pattern(memory, NBYTES, 1)
        if refused := refusal(w, memory):
            w.record(refused=refused)
            return
        wrong = export_parts(w, memory)
    for _ in watched(w, "export", range(ROUNDS), EXPORTS):
        with w.gpu.alloc(NBYTES) as memory:
            for _ in range(EXPORTS):
                os.close(w.gpu.export_dmabuf(memory.address, NBYTES))
    meter = Meter(w)
    for what, use in USES.items():
        if use is export_plain or "vmm-ipc" in w.gpu.device.capabilities:
            meter.watch(f"{what} was freed", partial(repeat, w, use, wrong))
    w.record(wrong=wrong)


def refusal(w: Worker, memory: Memory) -> str:
    """Why the device has no dma-bufs; raises the driver's error if it states that it has."""
    try:
        refused = unless_refused(lambda: w.gpu.export_dmabuf(memory.address, NBYTES))
    except BackendUnavailable:
        return "its library has no such function"
    if isinstance(refused, int):
        os.close(refused)
        return ""
    if w.gpu.claims_dmabuf:
        raise refused
    return str(refused)


def export_parts(w: Worker, memory: Buffer) -> list[str]:
    """Export memory and a part of it, free it, and export what is allocated instead."""
    begins = OFFSET if w.gpu.expects("dma-buf-of-part") == "base" else 0
    with exported(w, memory.address, NBYTES) as whole:
        wrong = differ(w, "memory", whole, NBYTES, 1)
        write_pattern(memory, NBYTES, 2)
        wrong += differ(w, "memory, after a later write", whole, NBYTES, 2)
        w.record(adapters=w.fabric.register_dmabuf(whole, memory.address, NBYTES))
        write_pattern(memory, PART, 3, offset=OFFSET)
        with exported(w, memory.address + OFFSET, PART) as part:
            wrong += differ(w, "a part of it", part, PART, 3, begins)
        write_pattern(memory, NBYTES, 4)
        memory.free()
        wrong += differ(w, "freed memory", whole, NBYTES, 4)
        with w.gpu.alloc(NBYTES) as other:
            write_pattern(other, NBYTES, 5)
            with exported(w, other.address, NBYTES) as instead:
                wrong += differ(w, "memory allocated after it was freed", instead, NBYTES, 5)
            wrong += differ(w, "freed memory, after another allocation", whole, NBYTES, 4)
    return wrong


@contextmanager
def exported(w: Worker, address: int, nbytes: int) -> Iterator[int]:
    descriptor = w.gpu.export_dmabuf(address, nbytes)
    yield descriptor
    os.close(descriptor)


def differ(w: Worker, what: str, descriptor: int, nbytes: int, key: int, begins: int = 0) -> list[str]:
    """How a dma-buf differs from the pattern that begins at ``begins``; records why it cannot be read."""
    size, needed = os.lseek(descriptor, 0, os.SEEK_END), begins + nbytes
    if size < needed:
        return [f"{what}: {size} B instead of {needed} B"]
    try:
        with w.armed("mmap"):
            view = mmap.mmap(descriptor, needed, mmap.MAP_SHARED, mmap.PROT_READ)
    except OSError as error:
        w.record(unread=f"mmap: {error.strerror}")
        return []
    data, wrong = pattern(nbytes, key), list[str]()
    with view, w.step(f"read {what}"):
        for at in (0, nbytes // 2, nbytes - GLANCE):
            read = view[begins + at : begins + at + GLANCE]
            wrong += differences(f"{what}, at {at}", read, data[at : at + GLANCE])
    return wrong


def repeat(w: Worker, use: Callable[[Worker, int], list[str]], wrong: list[str]) -> None:
    for number in range(KEPT):
        wrong += use(w, number)


def export_plain(w: Worker, number: int) -> list[str]:
    with w.gpu.alloc(ODD_BYTES) as memory:
        os.close(w.gpu.export_dmabuf(memory.address, ODD_BYTES))
    return []


def export_vmm(w: Worker, number: int, *, exports: bool = True) -> list[str]:
    """How the dma-buf of new VMM memory differs from it; records why the driver refuses to export it."""
    wrong = list[str]()
    with w.gpu.create_physical(round_up(ODD_BYTES, w.gpu.granule)) as physical, physical.map() as mapping:
        write_pattern(mapping, NBYTES, number)
        try:
            descriptor = w.gpu.export_dmabuf(mapping.address, mapping.nbytes) if exports else None
        except DriverError as error:
            if not error.is_refusal:
                raise
            w.record(vmm=str(error))
        else:
            if descriptor is not None:
                wrong = differ(w, "VMM memory", descriptor, NBYTES, number)
                os.close(descriptor)
    return wrong


CONTROL = "VMM memory that was not exported"
USES: dict[str, Callable[[Worker, int], list[str]]] = {
    "exported memory": export_plain,
    CONTROL: partial(export_vmm, exports=False),
    "exported VMM memory": export_vmm,
}
"""What is freed while used memory is watched, and the function that allocates, exports and frees it."""

CHECK = IpcDmabuf()
