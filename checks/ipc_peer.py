"""Open one GPU's memory from another, and write through the mapping: what peer-to-peer MPI and NCCL do."""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import Check, Context, Finding, Probe, ProbeOutcome, Worker, difference, pattern

NBYTES = 4 << 20
THERE, BACK = 1, 2
"""Which way the data went; part of its key."""


class IpcPeer(Check):
    id = "ipc-peer"
    title = "one GPU's memory opens on another, with right data both ways"
    requires = frozenset({"legacy-ipc", "multi-process"})

    def probes(self, ctx: Context) -> Iterable[Probe | Finding]:
        for pair in ctx.pairs:
            yield Probe("", {"exporter": export, "importer": open_from_peer}, pair)
        if not ctx.pairs:
            yield Finding.skip("no two devices of one backend to pair")

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        exporter, importer = done.records["exporter"], done.records["importer"]
        here, there = (device.label for device in done.devices)
        if wrong := importer["wrong"] or exporter["wrong"]:
            yield Finding.fail(f"wrong data between {here} and {there}", wrong)
        else:
            yield Finding.ok(f"{NBYTES >> 20} MiB right both ways")


def export(w: Worker) -> None:
    with w.gpu.alloc(NBYTES) as buffer:
        buffer.write(pattern(NBYTES, THERE))
        w.peer.send(buffer.ipc_handle())
        w.peer.recv()  # the importer has written
        wrong = difference(buffer.read(), pattern(NBYTES, BACK))
    w.record(wrong=wrong and f"written through the mapping: {wrong}")


def open_from_peer(w: Worker) -> None:
    with w.gpu.open_ipc(w.peer.recv()) as mapping:
        wrong = difference(mapping.read(NBYTES), pattern(NBYTES, THERE))
        mapping.write(pattern(NBYTES, BACK))
    w.record(wrong=wrong and f"read through the mapping: {wrong}")
    w.peer.send("written")


CHECK = IpcPeer()
