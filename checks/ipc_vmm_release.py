"""See that memory shared by descriptor leaves nothing behind: no memory, no descriptor, no addresses.

One loop of creating, exporting, importing, mapping and releasing, watched from both ends: used memory of each
end's device, and what each process has. The control is as long a loop in which nothing is imported. The
importer first sees that its descriptors and addresses rise while something is open. Each import is looked at,
since one may show wrong data after many others.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from gpuipc_doctor.api import (
    ODD_BYTES,
    Account,
    Check,
    Context,
    Finding,
    Json,
    Ledger,
    Probe,
    ProbeOutcome,
    Series,
    Worker,
    account,
    figures_of_process,
    glanced_at,
    watched,
    write_glances,
    wrong_glances,
)

ROUNDS = 160
"""So many show a loss of 64 KiB with each import, in used memory that moves in steps of 2 MiB."""

SAMPLED = range(4, ROUNDS + 1, 4)
"""Rounds of a loop after which used memory is read."""

WARM_UP = 2
"""Rounds for what the first imports cost."""

IMPORT, LOOK_ON = "import", "no import"


class IpcVmmRelease(Check):
    id = "ipc-vmm-release"
    title = "imports by descriptor leave nothing behind"
    requires = frozenset({"vmm-ipc", "multi-process"})

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for devices in ctx.subjects:
            yield Probe("", {"exporter": share, "importer": attach}, devices, exclusive=True)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        exporter, importer = (done.records[role] for role in ("exporter", "importer"))
        found = [finding for each in accounts(done) for finding in each.judge(exporter["nbytes"], ROUNDS)]
        found += judge_figures(importer["open"], exporter["nbytes"])
        if wrong := importer["wrong"]:
            says = "an imported descriptor shows wrong data"
            found.append(Finding.fail("wrong-data", says, *wrong[:3], times=len(wrong)))
        if not found:
            evidence = [item for each in accounts(done) for item in each.evidence()]
            says = "nothing was left of {rounds} imports, {verified:mib} verified"
            verified = ROUNDS * glanced_at(exporter["nbytes"])
            found.append(Finding.ok("returned", says, *evidence, rounds=ROUNDS, verified=verified))
        yield from found

    def series(self, done: ProbeOutcome) -> Iterable[Series]:
        for each in accounts(done):
            yield from each.series()


def accounts(done: ProbeOutcome) -> list[Account]:
    """Of each device; both roles see the same of one."""
    return [account(done.records[role]) for role in ("exporter", "importer")[: len(done.devices)]]


def judge_figures(while_open: Json, nbytes: int) -> Iterable[Finding]:
    """Judge whether the figures of the importer's process moved while it had something open."""
    if while_open["descriptors"] < 1 or while_open["addresses"] < nbytes:
        yield Finding.error(
            "process-does-not-follow",
            "what the importer holds cannot be told: a descriptor and a mapping changed it by {descriptors} "
            "descriptors and {addresses:mib} of addresses",
            **while_open,
        )


def share(w: Worker) -> None:
    nbytes = -(-ODD_BYTES // w.gpu.granule) * w.gpu.granule
    w.peer.recv()  # the importer has opened its ledger
    ledger, used = Ledger(w), dict[str, list[int]]()

    def loop(what: str, rounds: int = ROUNDS) -> None:
        used[what] = share_rounds(w, ledger, nbytes, what, rounds)

    loop(IMPORT, WARM_UP)
    ledger.watch("many imports", lambda: loop(IMPORT))
    ledger.watch("as many rounds without an import", lambda: loop(LOOK_ON))
    ledger.enter_loop(IMPORT, ledger.sampled(SAMPLED), used[IMPORT], used[LOOK_ON])
    w.peer.send(None)
    w.record(nbytes=nbytes)


def share_rounds(w: Worker, ledger: Ledger, nbytes: int, what: str, rounds: int) -> list[int]:
    """Have each round's memory imported, or not; used memory after those that are sampled."""

    def share_one(number: int) -> None:
        step = w.step(f"{what}, round {number} of {rounds}")
        with step, w.gpu.create_physical(nbytes) as memory, memory.map() as mapping:
            write_glances(mapping, nbytes, number)
            descriptor = memory.export_descriptor()
            if what == IMPORT:
                w.peer.send_descriptor(descriptor)
            w.peer.recv()  # the importer has released it
            os.close(descriptor)

    w.peer.send([what, nbytes, rounds])
    return ledger.used_after(ledger.sampled(SAMPLED), watched(w, "export", range(1, rounds + 1)), share_one)


def attach(w: Worker) -> None:
    ledger, used, wrong = Ledger(w), dict[str, list[int]](), list[str]()
    w.peer.send("ready")
    while told := w.peer.recv():
        what, nbytes, rounds = told
        used[what] = []
        for number in watched(w, what, range(1, rounds + 1)):
            with w.step(f"{what}, round {number} of {rounds}"):
                if what == IMPORT:
                    wrong += import_one(w, nbytes, number)
            if number in ledger.sampled(SAMPLED):
                used[what].append(ledger.used())
            w.peer.send("released")
    ledger.enter_loop(IMPORT, ledger.sampled(SAMPLED), used[IMPORT], used[LOOK_ON])
    w.record(wrong=wrong)


def import_one(w: Worker, nbytes: int, number: int) -> list[str]:
    """Import and map what the exporter passes, record what that changes of this process; the wrong data."""
    without = figures_of_process()
    descriptor = w.peer.recv_descriptor()
    with w.gpu.import_descriptor(descriptor, nbytes) as memory, memory.map() as mapping:
        while_open = figures_of_process()
        wrong = wrong_glances(f"import {number}", mapping, nbytes, number)
    os.close(descriptor)
    w.record(open={name: while_open[name] - without[name] for name in ("descriptors", "addresses")})
    return wrong


CHECK = IpcVmmRelease()
