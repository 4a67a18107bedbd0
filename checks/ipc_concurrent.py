"""Attach to memory from several processes while the one that owns it goes on exporting, and another starts.

Each round has a segment of its own, which three importers open at the same time. Until they all have, the
exporter exports it and a spare one again and again. (ROCm 10.0 is reported to hand out other memory then.)
Meanwhile one more process initialises the driver, on another GPU where there is a pair of them. (Exports are
reported to fail from then on with ROCm 7.2.4.) In each round all read what the owner wrote; one importer,
each in its turn, writes it anew; the owner reads that and writes again, and all must see it. So by IPC
handles and by descriptors, with segments of the smallest size and, where the site's share of memory reaches
so far, with segments in which an offset has more than 31 or 32 bits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from gpuipc_doctor.api import (
    Check,
    Context,
    Device,
    Evidence,
    EvidenceKind,
    Finding,
    Memory,
    Peer,
    Probe,
    ProbeOutcome,
    Tier,
    Worker,
    difference,
    pattern,
)

IMPORTERS = ("importer-1", "importer-2", "importer-3")

NEEDS = {"handles": "legacy-ipc", "descriptors": "vmm-ipc"}
"""How memory is shared, and what a device must be able to do for it."""

SIZES, ROUNDS = (1, 4 << 20), 8
"""Bytes of the segments of the rounds in turn; for descriptors, multiples of the device's granule."""

BOUNDARIES = (2 << 30, 4 << 30)
"""Bytes from which on an offset does not fit into 31 and into 32 bits."""

GRANULE = 2 << 20
LARGE, LARGE_ROUNDS = tuple(boundary + GRANULE for boundary in BOUNDARIES), 2

GLANCE = 16 << 10
"""Bytes that are written and read at each end of a segment, and on both sides of the boundaries in it."""

SPARE = -1
"""In place of a round's number in the data of the segment that nobody is to get."""

Exported = bytes | int
"""An IPC handle, or a descriptor."""


class IpcConcurrent(Check):
    id = "ipc-concurrent"
    title = "memory is right for many who attach while it is exported"
    requires = frozenset({"legacy-ipc", "multi-process"})

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for devices in subjects(ctx):
            room = ctx.memory.of(devices[0].total_bytes) - 2 * SIZES[-1]
            fits = [nbytes for nbytes in LARGE if nbytes <= room]
            for how, needed in NEEDS.items():
                if all(needed in device.capabilities for device in devices):
                    params = {"how": how, "sizes": SIZES, "rounds": ROUNDS, "large": bool(fits)}
                    yield Probe(how, ROLES, devices, params)
                    if fits:
                        params = {**params, "sizes": fits[-1:], "rounds": LARGE_ROUNDS}
                        yield Probe(f"{how}, large", ROLES, devices, params, exclusive=True)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        wrong = [f"{role}: {one}" for role in WITNESSES for one in done.records[role]["wrong"]]
        lost, exports = done.records["exporter"]["lost"], done.records["exporter"]["exports"]
        if wrong:
            says = "memory shows wrong data where several attach while its owner exports"
            yield Finding.fail("wrong-data", says, *wrong[:3], times=len(wrong))
        elif lost:
            says = "wrong data reached the memory's owner through one of several mappings of it"
            yield Finding.fail("writes-lost", says, *lost[:3], times=len(lost))
        elif not exports:
            says = "nothing was exported while others attached, so nothing was tested"
            yield Finding.skip("not-concurrent", says, remedy="run it again, beside less load")
        else:
            says = "{rounds} segments right for {importers} importers at once, up to {largest:mib}"
            yield Finding.ok(
                "right",
                says,
                *evidence(exports, large=done.params["large"]),
                rounds=done.params["rounds"],
                importers=len(IMPORTERS),
                largest=max(done.params["sizes"]),
            )


def subjects(ctx: Context) -> Iterable[tuple[Device, ...]]:
    """Pairs of devices that reach each other, and devices that are in none; in ``soak`` each device, too."""
    pairs = [(one, other) for one, other in ctx.neighbours if one.label in other.peers]
    paired = {device for pair in pairs for device in pair}
    alone = [device for device in ctx.devices if ctx.tier is Tier.SOAK or device not in paired]
    return [*((device,) for device in alone), *pairs]


def evidence(exports: int, *, large: bool) -> Iterable[Evidence]:
    yield Evidence(EvidenceKind.MEASURED, "{exports} exports while others attached", {"exports": exports})
    if not large:
        says = "not tested: more than {boundary:mib}, for which the share of memory is too small"
        yield Evidence(EvidenceKind.MEASURED, says, {"boundary": BOUNDARIES[0]})


# -- the exporter -----------------------------------------------------------------------------------------


def export(w: Worker) -> None:
    newcomer, *importers = w.peers
    lost, exports, done = [], 0, 0
    for importer in importers:
        importer.recv()  # it has made its context
    newcomer.send("start")
    while done < w.params["rounds"] or not newcomer.has_news():
        with w.step(f"round {done + 1}"), segment(w, size(w, done)) as (memory, export_it):
            exports += share(w, importers, done, memory, export_it)
            lost += exchange(importers, done, memory, size(w, done))
        done += 1
    newcomer.recv()
    for importer in importers:
        importer.send(None)
    w.record(lost=lost, exports=exports)


def share(
    w: Worker, importers: Sequence[Peer], number: int, memory: Memory, export_it: Callable[[], Exported]
) -> int:
    """Have all importers open the segment, and export until they have; says how often that was."""
    nbytes, spare_nbytes, exports = size(w, number), size(w, number, spare=True), 0
    with segment(w, spare_nbytes) as (spare, export_spare):
        fill(memory, nbytes, number, 0)
        fill(spare, spare_nbytes, SPARE, 0)
        for importer in importers:
            importer.send([number, nbytes])
            give(importer, export_it())
        while not all(importer.has_news() for importer in importers):
            drop(export_it())
            drop(export_spare())
            exports += 2
        for importer in importers:
            importer.recv()  # it has looked
    return exports


def exchange(importers: Sequence[Peer], number: int, memory: Memory, nbytes: int) -> list[str]:
    """Have one importer write, read that, write again for all to see; what did not arrive here."""
    writer = importers[number % len(importers)]
    writer.send("write")
    writer.recv()
    lost = unlike(memory, nbytes, number, 1)
    fill(memory, nbytes, number, 2)
    for importer in importers:
        importer.send("look")
    for importer in importers:
        importer.recv()  # it has unmapped it
    return lost


def size(w: Worker, number: int, *, spare: bool = False) -> int:
    """Bytes of a round's segment, or of the spare one beside it, which is no large one."""
    sizes = SIZES if spare else w.params["sizes"]
    nbytes: int = sizes[number % len(sizes)]
    return nbytes if w.params["how"] == "handles" else -(-nbytes // w.gpu.granule) * w.gpu.granule


@contextmanager
def segment(w: Worker, nbytes: int) -> Iterator[tuple[Memory, Callable[[], Exported]]]:
    """New memory, and what exports it.

    It is not freed here when a call fails: importers that attach to it then would fail first, and be blamed.
    """
    if w.params["how"] == "handles":
        buffer = w.gpu.alloc(nbytes)
        yield buffer, buffer.ipc_handle
        buffer.free()
    else:
        memory = w.gpu.create_physical(nbytes)
        mapping = memory.map()
        yield mapping, memory.export_descriptor
        mapping.unmap()
        memory.release()


def give(importer: Peer, exported: Exported) -> None:
    if isinstance(exported, bytes):
        importer.send(exported)
    else:
        importer.send_descriptor(exported)
        os.close(exported)


def drop(exported: Exported) -> None:
    if isinstance(exported, int):
        os.close(exported)


# -- the others -------------------------------------------------------------------------------------------


def start(w: Worker) -> None:
    """Initialise the driver, and have memory of its own, while others share theirs."""
    w.peer.recv()
    with w.gpu.alloc(SIZES[-1]) as buffer:
        fill(buffer, buffer.nbytes, SPARE, 1)
        w.record(wrong=unlike(buffer, buffer.nbytes, SPARE, 1))
    w.peer.send("started")


def attach(w: Worker) -> None:
    wrong: list[str] = []
    w.gpu.memory_info()
    w.peer.send("ready")
    while told := w.peer.recv():
        number, nbytes = told
        with w.step(f"round {number + 1}"), attached(w, nbytes) as memory:
            wrong += unlike(memory, nbytes, number, 0)
            w.peer.send("looked")
            while w.peer.recv() == "write":
                fill(memory, nbytes, number, 1)
                w.peer.send("written")
            wrong += unlike(memory, nbytes, number, 2)
        w.peer.send("unmapped")
    w.record(wrong=wrong)


@contextmanager
def attached(w: Worker, nbytes: int) -> Iterator[Memory]:
    if w.params["how"] == "handles":
        with w.gpu.open_ipc(w.peer.recv()) as opened:
            yield opened
    else:
        descriptor = w.peer.recv_descriptor()
        with w.gpu.import_descriptor(descriptor, nbytes) as memory, memory.map() as mapping:
            yield mapping
        os.close(descriptor)


# -- data -------------------------------------------------------------------------------------------------


def fill(memory: Memory, nbytes: int, *key: int) -> None:
    for offset, length in parts(nbytes):
        memory.write(pattern(length, *key, offset), offset)


def unlike(memory: Memory, nbytes: int, number: int, writing: int) -> list[str]:
    """Where the memory does not show what was written in this round; ``writing`` counts from 0."""
    return [
        f"round {number + 1}, {nbytes} B, at {offset}: {wrong}"
        for offset, length in parts(nbytes)
        if (wrong := difference(memory.read(length, offset), pattern(length, number, writing, offset)))
    ]


def parts(nbytes: int) -> list[tuple[int, int]]:
    """(offset, bytes) of what is looked at in a segment."""
    if nbytes <= 2 * GLANCE:
        return [(0, nbytes)]
    inner = [boundary - GLANCE // 2 for boundary in BOUNDARIES if boundary < nbytes]
    return [(offset, GLANCE) for offset in (0, *inner, nbytes - GLANCE)]


ROLES = {"exporter": export, "newcomer": start} | dict.fromkeys(IMPORTERS, attach)
WITNESSES = ("newcomer", *IMPORTERS)

CHECK = IpcConcurrent()
