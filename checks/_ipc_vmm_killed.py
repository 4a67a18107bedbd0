"""Kill the exporter, whose memory must live on, or the importer, whose memory must be released."""

from __future__ import annotations

import os
from collections.abc import Iterable

from gpuipc_doctor.api import (
    ODD_BYTES,
    Finding,
    Meter,
    Peer,
    ProbeOutcome,
    Worker,
    leak_report,
    write_pattern,
    wrong_pattern,
)
from gpuipc_doctor.api.offered_memory import pass_physical, round_up

from ._ipc_vmm_sharing import import_and_map, judge_wrong

# -- an exporter that is gone -----------------------------------------------------------------------------


def export_and_die(w: Worker) -> None:
    with w.gpu.create_physical(w.gpu.granule) as memory, memory.map() as mapping:
        write_pattern(mapping, memory.nbytes)
        pass_physical(w.peer, memory)
    w.peer.send("released")
    w.peer.recv()  # the importer has it mapped
    w.die()


def outlive(w: Worker) -> None:
    nbytes, descriptor, wrong = w.peer.recv(), w.peer.recv_descriptor(), []
    w.peer.recv()  # the exporter has released everything
    with w.step("import what the exporter released"):
        memory = w.gpu.import_descriptor(descriptor, nbytes)
        mapping = memory.map()
    wrong += wrong_pattern("memory released by the exporter", mapping, nbytes)
    w.peer.send("mapped")
    w.peer.wait_gone()
    wrong += wrong_pattern("memory mapped when the exporter was killed", mapping, nbytes)
    mapping.unmap()
    memory.release()
    with import_and_map(w, "import after the exporter was killed", descriptor, nbytes) as mapping:
        wrong += wrong_pattern("memory imported afterwards", mapping, nbytes)
    os.close(descriptor)
    w.record(wrong=wrong)


def judge_gone(done: ProbeOutcome) -> Iterable[Finding]:
    bad = list(judge_wrong(done.records["importer"]))
    says = "memory outlived its exporter while a descriptor was open"
    yield from bad or [Finding.ok("outlives", says)]


# -- an importer that is gone -----------------------------------------------------------------------------


def share_and_watch(w: Worker) -> None:
    meter, (importer, spare) = Meter(w), w.peers
    nbytes, lost = round_up(ODD_BYTES, w.gpu.granule), list[str]()

    def lose(importer: Peer) -> None:
        with w.gpu.create_physical(nbytes) as memory, memory.map() as mapping:
            pass_physical(importer, memory)
            importer.wait_gone()
            lost.extend(wrong_pattern("data written by the killed importer", mapping, nbytes))

    before = meter.mark()
    lose(importer)
    if not meter.enter("the importer was killed with it mapped", before, lambda: lose(spare)):
        spare.send(None)
    w.record(wrong=lost, nbytes=nbytes)


def write_and_die(w: Worker) -> None:
    if nbytes := w.peer.recv():
        gpu = w.gpus[-1]  # before the descriptor: the driver may start a child, which would inherit it
        descriptor = w.peer.recv_descriptor()
        with w.step("import and write"):
            write_pattern(gpu.import_descriptor(descriptor, nbytes).map(), nbytes)
        w.die()


def judge_killed(done: ProbeOutcome) -> Iterable[Finding]:
    exporter = done.records["exporter"]
    bad, watched = list(judge_wrong(exporter)), leak_report(done.roles["exporter"])
    bad += watched.judge(exporter["nbytes"])
    says = "memory was released after its importer was killed"
    yield from bad or [Finding.ok("returned", says, *watched.evidence())]
