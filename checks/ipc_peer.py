"""Open one GPU's memory from another GPU and write through the mapping, as peer-to-peer MPI and NCCL do.

In both directions, data is also copied from device to device. Copies from and to the host may use another
path, so they do not show what a PCI bridge or an IOMMU does to traffic between two GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import (
    Check,
    Context,
    Finding,
    IpcMapping,
    Probe,
    ProbeOutcome,
    Worker,
    difference,
    differences,
    exchange_as_exporter,
    exchange_as_importer,
    judge_exchange,
    pattern,
)

NBYTES = 4 << 20

FROM_EXPORTER, FROM_IMPORTER = 1, 2
"""Keys of the patterns that are copied from device to device."""

ACS = "check the settings of PCIe ACS and of the IOMMU: either can redirect traffic between two GPUs"


class IpcPeer(Check):
    id = "ipc-peer"
    title = "memory of one GPU opens on another, with correct data"
    requires = frozenset({"legacy-ipc", "multi-process"})

    def probes(self, ctx: Context) -> Iterable[Probe | Finding]:
        for pair in ctx.pairs:
            yield Probe("", {"exporter": export, "importer": open_from_peer}, pair)
        if not ctx.pairs:
            yield Finding.skip("no-pair", "fewer than two devices of one vendor to test")

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        if wrong := done.records["importer"]["wrong"]:
            yield Finding.fail("wrong-data", "wrong data read from the other device", wrong)
        found = list(judge_exchange(done))
        if not (wrong or found):  # otherwise the copies are also wrong
            copied = [line for record in done.records.values() for line in record["copied"]]
            says = "wrong data after a copy from device to device"
            right = Finding.ok("right", "{nbytes:mib} verified in both directions", nbytes=NBYTES)
            found = [Finding.fail("wrong-copy", says, *copied, remedy=ACS) if copied else right]
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


def open_from_peer(w: Worker) -> None:
    with w.gpu.open_ipc(w.peer.recv()) as mapping:
        wrong = difference(mapping.read(NBYTES), pattern(NBYTES))
        w.record(wrong=wrong, exchanged=exchange_as_importer(w, mapping, NBYTES))
        w.peer.recv()  # the exporter has written for the copies
        w.record(copied=copy_both_ways(w, mapping))
    w.peer.send("closed")


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
