"""Open one GPU's memory from another GPU and write through the mapping, as peer-to-peer MPI and NCCL do.

Both ends write in turn and read the other's data, because a mapping may show correct data when opened and
still be a copy. In both directions, data is also copied from device to device. Copies from and to the host
may use another path, so they do not show what a PCI bridge or an IOMMU does to traffic between two GPUs.

A link may be wrong for one kind of memory only: small and large buffers, physical memory and pools are also
shared; all of them is read, and samples are written back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpuipc_doctor.api import (
    Check,
    Context,
    Evidence,
    Finding,
    IpcMapping,
    Memory,
    Observed,
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
from gpuipc_doctor.api.offered_memory import (
    BY_DESCRIPTOR,
    BY_HANDLE,
    BY_POINTER,
    SHARED_BY,
    offer_memory,
    open_offered,
)

NBYTES = 4 << 20

FROM_EXPORTER, FROM_IMPORTER = 1, 2
"""Keys of the patterns that are copied from device to device, and of the samples."""

KINDS = {
    "64 KiB": (BY_HANDLE, 64 << 10),
    "8 MiB": (BY_HANDLE, 8 << 20),
    "physical memory": (BY_DESCRIPTOR, 2 << 20),
    "pool memory": (BY_POINTER, 2 << 20),
}
"""Further kind of memory → how it is shared, and its bytes, before they are rounded up to the granularity."""

AVOID = (
    "check dmesg for Xid and PCIe errors; until the cause is found, let jobs copy through the host: "
    "NCCL_P2P_DISABLE=1, UCX_TLS=^cuda_ipc"
)


class IpcPeer(Check):
    id = "ipc-peer"
    title = "memory of one GPU opens on another, with correct data"
    requires = frozenset({"legacy-ipc", "multi-process"})

    def probes(self, ctx: Context) -> Iterable[Probe | Finding]:
        for pair in ctx.pairs:
            able = pair[0].capabilities & pair[1].capabilities
            left_out = BY_DESCRIPTOR if "exports VMM memory" in ctx.harmful else ""
            kinds = [kind for kind, (way, _) in KINDS.items() if SHARED_BY[way] <= able and way != left_out]
            yield Probe("", {"exporter": export, "importer": open_from_peer}, pair, {"kinds": kinds})
        if not ctx.pairs:
            yield Finding.skip("no-pair", "fewer than two devices of one vendor to test")

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        found = []
        if wrong := done.records["importer"]["wrong"]:
            found.append(Finding.fail("wrong-data", "wrong data read from the other device", wrong))
        found += judge_exchange(done)
        if not found:  # otherwise the copies are also wrong
            copied = [line for record in done.records.values() for line in record["copied"]]
            says = "wrong data after a copy from device to device"
            found = [Finding.fail("wrong-copy", says, *copied, remedy=AVOID)] if copied else []
        if lines := [line for record in done.records.values() for line in record["sampled"]]:
            found.append(
                Finding.fail("wrong-kind", "wrong data in some kinds of memory", *lines, remedy=AVOID)
            )
        if not found:
            says = "{nbytes:mib} verified in both directions; also {kinds}"
            yield Finding.ok("right", says, nbytes=NBYTES, kinds=done.params["kinds"])
        control = [line for record in done.records.values() for line in record["control"]]
        says = "{lines}" if control else "the same data are right in each GPU's memory, through the host"
        seen = Evidence.control(f"control, without peer access: {says}", lines=control)
        for bad in found:
            yield replace(bad, evidence=(*bad.evidence, seen), values={**bad.values, "control": control})


def export(w: Worker) -> None:
    with w.gpu.alloc(NBYTES) as buffer:
        buffer.write(pattern(NBYTES))
        w.record(control=differences("the exporter's device", buffer.read(), pattern(NBYTES)))
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
        with offer_memory(w, *KINDS[kind], prepare=write_all) as memory:
            w.peer.recv()  # the importer has read, and written other data
            sampled += wrong_glances(f"{kind}, written by the importer", memory, memory.nbytes, FROM_IMPORTER)
            w.peer.send("read")
            w.peer.recv()  # the importer has closed it
    w.record(sampled=sampled)


def open_from_peer(w: Worker) -> None:
    with w.gpu.open_ipc(w.peer.recv()) as mapping:
        wrong = difference(mapping.read(NBYTES), pattern(NBYTES))
        w.observe(Observed.WRONG, wrong)
        w.record(wrong=wrong, exchanged=exchange_as_importer(w, mapping, NBYTES))
        w.peer.recv()  # the exporter has written for the copies
        w.record(copied=copy_both_ways(w, mapping))
    w.peer.send("closed")
    sampled = []
    for kind in w.params["kinds"]:
        with w.step(f"open {kind}"), open_offered(w, *KINDS[kind]) as memory:
            sampled += wrong_pattern(f"{kind}, written by the exporter", memory, memory.nbytes, FROM_EXPORTER)
            write_glances(memory, memory.nbytes, FROM_IMPORTER)
            w.peer.send("written")
            w.peer.recv()  # the exporter has read
        w.peer.send("closed")
    w.record(sampled=sampled)


def write_all(memory: Memory) -> None:
    write_pattern(memory, memory.nbytes, FROM_EXPORTER)


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
        w.record(control=differences("the importer's device", own.read(), pattern(NBYTES, FROM_IMPORTER)))
        with w.step("copy to the other device"):
            stream.copy(mapping, own)
            stream.synchronize()
    return copied


CHECK = IpcPeer()
