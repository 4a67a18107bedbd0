"""Open one GPU's memory from another, and write through the mapping: what peer-to-peer MPI and NCCL do."""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import (
    Check,
    Context,
    Finding,
    Probe,
    ProbeOutcome,
    Worker,
    difference,
    exchange_as_exporter,
    exchange_as_importer,
    judge_exchange,
    pattern,
)

NBYTES = 4 << 20


class IpcPeer(Check):
    id = "ipc-peer"
    title = "one GPU's memory opens on another, with right data both ways"
    requires = frozenset({"legacy-ipc", "multi-process"})

    def probes(self, ctx: Context) -> Iterable[Probe | Finding]:
        for pair in ctx.pairs:
            yield Probe("", {"exporter": export, "importer": open_from_peer}, pair)
        if not ctx.pairs:
            yield Finding.skip("no-pair", "no two devices of one backend to pair")

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        if wrong := done.records["importer"]["wrong"]:
            yield Finding.fail("wrong-data", "wrong data was read from the other device", wrong)
        exchanged = list(judge_exchange(done))
        yield from exchanged
        if not (wrong or exchanged):
            yield Finding.ok("right", "{nbytes:mib} verified both ways", nbytes=NBYTES)


def export(w: Worker) -> None:
    with w.gpu.alloc(NBYTES) as buffer:
        buffer.write(pattern(NBYTES))
        w.peer.send(buffer.ipc_handle())
        w.record(exchanged=exchange_as_exporter(w, buffer, NBYTES))
        w.peer.recv()  # the importer has closed it


def open_from_peer(w: Worker) -> None:
    with w.gpu.open_ipc(w.peer.recv()) as mapping:
        wrong = difference(mapping.read(NBYTES), pattern(NBYTES))
        w.record(wrong=wrong, exchanged=exchange_as_importer(w, mapping, NBYTES))
    w.peer.send("closed")


CHECK = IpcPeer()
