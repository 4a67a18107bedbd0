"""Check that sharing memory by descriptor leaks no memory, descriptors or addresses.

A loop creates, exports, imports, maps and releases memory, while both processes watch their device's used
memory and their own resources. The control is an equally long loop without imports. First the importer
verifies that its counts of descriptors and addresses rise while an import is open. The data of every import
is verified, because the first imports may be correct and later ones wrong. The end of an import must change
neither the exporter's memory, verified after each, nor a mapping that stays open at each end, after every
fourth.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack

from gpuipc_doctor.api import (
    ODD_BYTES,
    Check,
    Context,
    Finding,
    Json,
    Meter,
    PhysicalMemory,
    Probe,
    ProbeOutcome,
    Reading,
    Series,
    Worker,
    leak_reports,
    reader_of,
    watched,
    write_glances,
    wrong_glances,
)
from gpuipc_doctor.api.data_patterns import glanced_at
from gpuipc_doctor.api.offered_memory import round_up
from gpuipc_doctor.api.process_leaks import figures_of_process

ROUNDS = 160
"""Number of rounds: enough to show a loss of 64 KiB per import, although used memory changes in steps of 2
MiB."""

SAMPLED = range(4, ROUNDS + 1, 4)
"""Rounds of a loop after which used memory is read, and the mapping that stays."""

MAPPINGS = ROUNDS // 2
"""Maximum mappings of the first import until the importer's reserved addresses rise: a driver may keep freed
addresses and map there first, and so it does on an H200 after imports from a pool (driver 580.159.04)."""

WARM_UP = 2
"""Rounds not judged, for the initial cost of imports."""

IMPORT, LOOK_ON = "import", "no import"

STAYS = 0
"""Key of the data in memory that stays mapped. The other keys are the rounds' numbers, from 1."""

MAPPING_STAYS = "the mapping that stays"


class IpcVmmRelease(Check):
    id = "ipc-vmm-release"
    title = "imports by descriptor leave nothing behind"
    requires = frozenset({"vmm-ipc", "multi-process"})

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for devices in ctx.subjects:
            yield Probe("", {"exporter": share, "importer": attach}, devices, exclusive=True)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        exporter, importer = (done.records[role] for role in ("exporter", "importer"))
        found = [finding for each in leak_reports(done) for finding in each.judge(exporter["nbytes"], ROUNDS)]
        found += judge_figures(importer["open"], exporter["nbytes"])
        if wrong := importer["wrong"]:
            says = "an imported descriptor shows wrong data"
            found.append(Finding.fail("wrong-data", says, *wrong[:3], times=len(wrong)))
        if wrong := exporter["wrong"]:
            says = "the exporter sees wrong data after an import of its memory was unmapped"
            found.append(Finding.fail("wrong-at-exporter", says, *wrong[:3], times=len(wrong)))
        if not found:
            evidence = [item for each in leak_reports(done) for item in each.evidence()]
            says = "nothing leaked in {rounds} imports, {verified:mib} verified"
            verified = sum(glanced_at(exporter["nbytes"], turn) for turn in range(1, ROUNDS + 1))
            found.append(Finding.ok("returned", says, *evidence, rounds=ROUNDS, verified=verified))
        yield from found

    def series(self, done: ProbeOutcome) -> Iterable[Series]:
        for each in leak_reports(done):
            yield from each.series()


def judge_figures(while_open: Json, nbytes: int) -> Iterable[Finding]:
    """Judge whether the importer's resource counts rose while it had an import open."""
    if while_open["descriptors"] < 1 or while_open["addresses"] < nbytes:
        yield Finding.error(
            "process-does-not-follow",
            "cannot count the importer's resources: an import added only {descriptors} descriptors and "
            "{addresses:mib} of address space",
            **while_open,
        )


def share(w: Worker) -> None:
    nbytes = round_up(ODD_BYTES, w.gpu.granule)
    w.gpu.primary_context()  # both create their contexts at the same time
    w.peer.send("ready")
    w.peer.recv()  # the importer has started to watch its resources
    meter, used, wrong = Meter(w), dict[str, list[Reading]](), list[str]()
    with w.gpu.create_physical(nbytes) as memory, memory.map() as stays:
        write_glances(stays, nbytes, STAYS)
        descriptor = memory.export_descriptor()
        w.peer.send(nbytes)
        w.peer.send_descriptor(descriptor)
        w.peer.recv()  # the importer has it mapped
        os.close(descriptor)

        read_stays = reader_of(w, MAPPING_STAYS, stays, nbytes, STAYS)

        def loop(what: str, rounds: int = ROUNDS) -> None:
            used[what] = share_rounds(w, meter, read_stays, nbytes, what, rounds, wrong)

        loop(IMPORT, WARM_UP)
        meter.watch("many imports", lambda: loop(IMPORT))
        meter.watch("as many rounds without an import", lambda: loop(LOOK_ON))
        meter.enter_loop(IMPORT, meter.sampled(SAMPLED), used[IMPORT], used[LOOK_ON])
        w.peer.send(None)
        w.peer.recv()  # the importer has watched used memory
    w.record(nbytes=nbytes, wrong=wrong)


def share_rounds(
    w: Worker,
    meter: Meter,
    read_stays: Callable[[str], list[str]],
    nbytes: int,
    what: str,
    rounds: int,
    wrong: list[str],
) -> list[Reading]:
    """Share each round's memory, or none for the control; returns used memory after the sampled rounds."""

    def share_one(number: int) -> None:
        step = w.step(f"{what}, round {number} of {rounds}")
        with step, w.gpu.create_physical(nbytes) as memory, memory.map() as mapping:
            is_read = what == IMPORT or number in SAMPLED
            if is_read:
                write_glances(mapping, nbytes, number, turn=number)
            descriptor = memory.export_descriptor()
            if what == IMPORT:
                w.peer.send_descriptor(descriptor)
            else:
                w.peer.send("mapped")  # so that both read used memory at the same point of each loop
            w.peer.recv()  # the importer has released it
            os.close(descriptor)
            if is_read:
                own = f"memory of round {number}"
                wrong.extend(wrong_glances(own, mapping, nbytes, number, turn=number))
        if number in SAMPLED:
            wrong.extend(read_stays(f"{what}, round {number} of {rounds}"))

    w.peer.send([what, rounds])
    numbers = watched(w, "export", range(1, rounds + 1))
    return meter.used_after(meter.sampled(SAMPLED), numbers, share_one, what)


def attach(w: Worker) -> None:
    w.gpu.primary_context()
    w.peer.recv()  # the exporter also has a context
    meter, used, wrong = Meter(w), dict[str, list[Reading]](), list[str]()
    w.peer.send("ready")
    nbytes, descriptor = w.peer.recv(), w.peer.recv_descriptor()
    with w.gpu.import_descriptor(descriptor, nbytes) as memory, memory.map() as stays:
        os.close(descriptor)
        w.peer.send("mapped")
        read_stays = reader_of(w, MAPPING_STAYS, stays, nbytes, STAYS)
        while told := w.peer.recv():
            what, rounds = told
            used[what] = []
            for number in watched(w, what, range(1, rounds + 1)):
                with w.step(f"{what}, round {number} of {rounds}"):
                    if what == IMPORT:
                        wrong += import_one(w, nbytes, number)
                    else:
                        w.peer.recv()
                if number in SAMPLED:
                    wrong += read_stays(f"{what}, round {number} of {rounds}")
                if number in meter.sampled(SAMPLED):
                    used[what].append(meter.sample(what, number))
                w.peer.send("released")
        meter.enter_loop(IMPORT, meter.sampled(SAMPLED), used[IMPORT], used[LOOK_ON])
        w.peer.send("watched")
    w.record(wrong=wrong)


def import_one(w: Worker, nbytes: int, number: int) -> list[str]:
    """Import and map memory; returns wrong data. With the first import, records how the counts of resources
    rise.
    """
    without = figures_of_process() if number == 1 else {}
    descriptor = w.peer.recv_descriptor()
    with w.gpu.import_descriptor(descriptor, nbytes) as memory, memory.map() as mapping:
        if number == 1:
            w.record(open=rise_while_open(without, memory, nbytes))
        wrong = wrong_glances(f"import {number}", mapping, nbytes, number, turn=number)
    os.close(descriptor)
    return wrong


def rise_while_open(without: dict[str, int], memory: PhysicalMemory, nbytes: int) -> dict[str, int]:
    """Rise of ``descriptors`` and bytes of ``addresses`` since ``without``, mapping the import again until
    addresses rise."""
    rise = dict[str, int]()
    with ExitStack() as mappings:
        for number in range(MAPPINGS):
            if number:  # the first is the caller's
                mappings.enter_context(memory.map())
            now = figures_of_process()
            rise = {name: now[name] - without[name] for name in ("descriptors", "addresses")}
            if rise["addresses"] >= nbytes:
                break
    return rise


CHECK = IpcVmmRelease()
