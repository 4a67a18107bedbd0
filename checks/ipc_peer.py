"""Open one GPU's memory from another GPU and write through the mapping, as peer-to-peer MPI and NCCL do.

In both directions, data is also copied from device to device. Copies from and to the host may use another
path, so they do not show what a PCI bridge or an IOMMU does to traffic between two GPUs.

A link may be wrong for one kind of memory only: small and large buffers, physical memory and pools are also
shared; all of them is read, and samples are written back.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from gpuipc_doctor.api import (
    Check,
    Context,
    Finding,
    IpcMapping,
    Memory,
    Probe,
    ProbeOutcome,
    Worker,
    difference,
    differences,
    exchange_as_exporter,
    exchange_as_importer,
    judge_exchange,
    pattern,
    write_glances,
    write_pattern,
    wrong_glances,
    wrong_pattern,
)

NBYTES = 4 << 20

FROM_EXPORTER, FROM_IMPORTER = 1, 2
"""Keys of the patterns that are copied from device to device, and of the samples."""

BUFFERS = {"64 KiB": 64 << 10, "8 MiB": 8 << 20}
PHYSICAL, POOL = "physical memory", "pool memory"
NEEDED = {PHYSICAL: "vmm-ipc", POOL: "pool-ipc"}
"""Further kinds of memory: buffers by name, and what other kinds need of both devices."""

SAMPLED = 2 << 20
"""Bytes of physical memory, before rounding up to the device's granularity, and of pool memory."""

ACS = "check the settings of PCIe ACS and of the IOMMU: either can redirect traffic between two GPUs"


class IpcPeer(Check):
    id = "ipc-peer"
    title = "memory of one GPU opens on another, with correct data"
    requires = frozenset({"legacy-ipc", "multi-process"})

    def probes(self, ctx: Context) -> Iterable[Probe | Finding]:
        for pair in ctx.pairs:
            able = pair[0].capabilities & pair[1].capabilities
            left_out = {PHYSICAL} if "exports VMM memory" in ctx.harmful else set()
            more = [kind for kind, needed in NEEDED.items() if needed in able and kind not in left_out]
            roles = {"exporter": export, "importer": open_from_peer}
            yield Probe("", roles, pair, {"kinds": [*BUFFERS, *more]})
        if not ctx.pairs:
            yield Finding.skip("no-pair", "fewer than two devices of one vendor to test")

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        if wrong := done.records["importer"]["wrong"]:
            yield Finding.fail("wrong-data", "wrong data read from the other device", wrong)
        found = list(judge_exchange(done))
        if not (wrong or found):  # otherwise the copies are also wrong
            copied = [line for record in done.records.values() for line in record["copied"]]
            says = "wrong data after a copy from device to device"
            found = [Finding.fail("wrong-copy", says, *copied, remedy=ACS)] if copied else []
        if lines := [line for record in done.records.values() for line in record["sampled"]]:
            found.append(Finding.fail("wrong-kind", "wrong data in some kinds of memory", *lines, remedy=ACS))
        if not (wrong or found):
            says = "{nbytes:mib} verified in both directions; also {kinds}"
            found = [Finding.ok("right", says, nbytes=NBYTES, kinds=done.params["kinds"])]
        yield from found


def export(w: Worker) -> None:
    with w.gpu.alloc(NBYTES) as buffer:
        buffer.write(pattern(NBYTES))
        w.peer.send(buffer.ipc_handle())
        w.record(exchanged=exchange_as_exporter(w, buffer, NBYTES))
        buffer.write(pattern(NBYTES, FROM_EXPORTER))
        w.peer.send("written")
        w.peer.recv()  # the importer has copied it to its device, other data back, and closed it
        w.record(
            copied=differences("to the exporter's device", buffer.read(), pattern(NBYTES, FROM_IMPORTER))
        )
    sampled = []
    for kind in w.params["kinds"]:
        with shared(w, kind) as memory:
            w.peer.recv()  # the importer has read, and written other data
            sampled += wrong_glances(f"{kind}, written by the importer", memory, memory.nbytes, FROM_IMPORTER)
            w.peer.send("read")
            w.peer.recv()  # the importer has closed it
    w.record(sampled=sampled)


def open_from_peer(w: Worker) -> None:
    with w.gpu.open_ipc(w.peer.recv()) as mapping:
        wrong = difference(mapping.read(NBYTES), pattern(NBYTES))
        w.record(wrong=wrong, exchanged=exchange_as_importer(w, mapping, NBYTES))
        w.peer.recv()  # the exporter has written for the copies
        w.record(copied=copy_both_ways(w, mapping))
    w.peer.send("closed")
    sampled = []
    for kind in w.params["kinds"]:
        with w.step(f"open {kind}"), opened(w, kind) as memory:
            sampled += wrong_pattern(f"{kind}, written by the exporter", memory, memory.nbytes, FROM_EXPORTER)
            write_glances(memory, memory.nbytes, FROM_IMPORTER)
            w.peer.send("written")
            w.peer.recv()  # the exporter has read
        w.peer.send("closed")
    w.record(sampled=sampled)


@contextmanager
def shared(w: Worker, kind: str) -> Iterator[Memory]:
    """Memory of this kind, written and offered to the importer, which closes it first."""
    if kind in BUFFERS:
        with w.gpu.alloc(BUFFERS[kind]) as buffer:
            write_pattern(buffer, buffer.nbytes, FROM_EXPORTER)
            w.peer.send(buffer.ipc_handle())
            yield buffer
    elif kind == PHYSICAL:
        nbytes = -(-SAMPLED // w.gpu.granule) * w.gpu.granule
        with w.gpu.create_physical(nbytes) as physical, physical.map() as mapping:
            write_pattern(mapping, nbytes, FROM_EXPORTER)
            w.peer.send(nbytes)
            send(w, physical.export_descriptor())
            yield mapping
    else:
        pool, stream = w.gpu.create_shared_pool(), w.gpu.create_stream()
        memory = pool.alloc(SAMPLED, stream)
        stream.synchronize()
        write_pattern(memory, SAMPLED, FROM_EXPORTER)
        descriptor = pool.export_descriptor()  # must come first, or no pointer of it can be exported
        w.peer.send(memory.export_pointer())
        send(w, descriptor)
        yield memory
        memory.free(stream)
        stream.synchronize()
        pool.destroy()


@contextmanager
def opened(w: Worker, kind: str) -> Iterator[Memory]:
    """The other side of `shared`."""
    offer = w.peer.recv()
    if kind in BUFFERS:
        with w.gpu.open_ipc(offer) as mapping:
            yield mapping
        return
    descriptor = w.peer.recv_descriptor()
    if kind == PHYSICAL:
        with w.gpu.import_descriptor(descriptor, offer) as physical, physical.map() as view:
            yield view
    else:
        pool, stream = w.gpu.import_pool(descriptor), w.gpu.create_stream()
        pool.give_access()
        memory = pool.import_pointer(offer, SAMPLED)
        yield memory
        memory.free(stream)
        stream.synchronize()
        pool.destroy()
    os.close(descriptor)


def send(w: Worker, descriptor: int) -> None:
    w.peer.send_descriptor(descriptor)
    os.close(descriptor)


def copy_both_ways(w: Worker, mapping: IpcMapping) -> list[str]:
    """Copy memory from the other device, then copy new data to it; returns the wrong data of the first
    copy."""
    stream = w.gpu.create_stream()
    with w.gpu.alloc(NBYTES) as own:
        with w.step("copy from the other device"):
            stream.copy(own, mapping)
            stream.synchronize()
        copied = differences("from the exporter's device", own.read(), pattern(NBYTES, FROM_EXPORTER))
        own.write(pattern(NBYTES, FROM_IMPORTER))
        with w.step("copy to the other device"):
            stream.copy(mapping, own)
            stream.synchronize()
    return copied


CHECK = IpcPeer()
