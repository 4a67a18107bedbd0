"""See that memory shared by descriptor leaves nothing behind: no memory, no descriptor, no addresses.

One loop of creating, passing on, importing, mapping and letting go of everything, watched from both ends:
used memory by the exporter, once as it is and once with nobody importing, for a control; open descriptors
and the size of its address space by the importer, who first sees that both rise while something is open.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from gpuipc_doctor.api import (
    ODD_BYTES,
    Check,
    Context,
    Finding,
    Json,
    Ledger,
    Probe,
    ProbeOutcome,
    Worker,
    account,
)

GRANULE = 2 << 20
NBYTES = -(-ODD_BYTES // GRANULE) * GRANULE
ROUNDS = 64


class IpcVmmRelease(Check):
    id = "ipc-vmm-release"
    title = "imports by descriptor leave nothing behind"
    requires = frozenset({"vmm-ipc", "multi-process"})

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for devices in ctx.subjects:
            yield Probe("", {"exporter": share, "importer": attach}, devices, exclusive=True)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        watched, importer = account(done.records["exporter"]), done.records["importer"]
        found = [*watched.judge(NBYTES, ROUNDS), *judge_process(importer)]
        if not found:
            says = "nothing was left of {rounds} imports"
            found.append(Finding.ok("returned", says, *watched.evidence(), rounds=ROUNDS))
        yield from found


def judge_process(importer: Json) -> Iterable[Finding]:
    """What the importer's process has more of than before, as far as that was seen to move at all."""
    open_, left = importer["open"], importer["left"]
    if open_["descriptors"] < 1 or open_["addresses"] < NBYTES:
        yield Finding.error(
            "process-does-not-follow",
            "what the importer holds cannot be told: a descriptor and a mapping changed it by {descriptors} "
            "descriptors and {addresses:mib} of addresses",
            **open_,
        )
        return
    if left["descriptors"] >= ROUNDS // 2:
        yield Finding.fail(
            "descriptors-left",
            "{descriptors} descriptors are open in the importer after {rounds} imports that it let go of",
            remedy="raise the limit of open files (ulimit -n), or restart importers before they reach it",
            descriptors=left["descriptors"],
            rounds=ROUNDS,
        )
    if left["addresses"] >= ROUNDS // 2 * NBYTES:
        yield Finding.fail(
            "addresses-left",
            "{addresses:mib} of addresses stay reserved in the importer after {rounds} imports it unmapped",
            addresses=left["addresses"],
            rounds=ROUNDS,
        )


def share(w: Worker) -> None:
    ledger = Ledger(w)
    w.peer.recv()  # the importer has made its context
    share_rounds(w, "import", 2)  # whatever the first imports cost
    ledger.watch("many imports", lambda: share_rounds(w, "import", ROUNDS))
    ledger.watch("as many that nobody imported", lambda: share_rounds(w, "", ROUNDS))
    w.peer.send("stop")


def share_rounds(w: Worker, ask: str, rounds: int) -> None:
    for _ in range(rounds):
        with w.gpu.create_physical(NBYTES) as memory:
            descriptor = memory.export_descriptor()
            if ask:
                w.peer.send(ask)
                w.peer.send_descriptor(descriptor)
                w.peer.recv()  # the importer has let go of it
            os.close(descriptor)


def attach(w: Worker) -> None:
    w.gpu.memory_info()
    w.peer.send("ready")
    first: Json = {}
    done = 0
    while w.peer.recv() != "stop":
        without = process()
        descriptor = w.peer.recv_descriptor()
        with w.gpu.import_descriptor(descriptor, NBYTES) as memory, memory.map():
            while_open = process()
        os.close(descriptor)
        done += 1
        if done == 2:
            first = process()
            w.record(open=beyond(while_open, without))
        w.peer.send("let go")
    w.record(left=beyond(process(), first))


def process() -> dict[str, int]:
    """How many descriptors this process has open, and how many bytes of addresses it has taken."""
    size = Path("/proc/self/status").read_text().partition("VmSize:")[2].split()[0]
    return {"descriptors": len(list(Path("/proc/self/fd").iterdir())), "addresses": int(size) << 10}


def beyond(now: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {what: now[what] - before[what] for what in now}


CHECK = IpcVmmRelease()
