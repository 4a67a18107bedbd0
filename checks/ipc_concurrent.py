"""Attach to memory from several processes while the one that owns it goes on exporting, and another starts.

Each round has a segment of its own, which three importers open at the same time. Until they all have, the
exporter exports it and a spare one again and again. (ROCm 10.0 is reported to hand out other memory then.)
Meanwhile one more process initialises the driver, on another GPU where there is a pair of them. (Exports are
reported to fail from then on with ROCm 7.2.4.) In each round all read what the exporter wrote; one importer,
each in its turn, writes the segment and unmaps it; the exporter reads that and writes again, and the
importers that still have it mapped must see it. So by IPC handles and by descriptors, with segments of the
smallest size and, where the site's share of memory reaches so far, with segments in which an offset has more
than 31 or 32 bits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, takewhile

from gpuipc_doctor.api import (
    BOUNDARIES,
    Check,
    Context,
    Device,
    Evidence,
    Finding,
    Memory,
    Peer,
    Probe,
    ProbeOutcome,
    Tier,
    Worker,
    glanced_at,
    watched,
    write_glances,
    write_pattern,
    wrong_glances,
    wrong_pattern,
)

IMPORTERS = ("importer-1", "importer-2", "importer-3")

NEEDS = {"handles": "legacy-ipc", "descriptors": "vmm-ipc"}
"""How memory is shared, and what a device must be able to do for it."""

WATCHED = {"handles": "open and close", "descriptors": "import"}
"""What an importer repeats."""

SIZES, ROUNDS = (1, 4 << 20), 16
"""Bytes of the segments of the rounds in turn; for descriptors, the next multiple of the device's granule."""

OPENS = 8
"""How often an importer opens each segment in the second half of the rounds, by which what a process loses is
judged. Then so few rounds show a loss with every eighth open."""

PAGE = 4096
"""Bytes that an importer reads of what it opens and closes at once."""

LARGE, LARGE_ROUNDS = tuple(boundary + (2 << 20) for boundary in BOUNDARIES), 2

WHOLE = (0, 1)
"""The exporter's first writing of a round and the importer's: all of the segment is written, and verified."""

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
            room = ctx.room(devices) - 2 * SIZES[-1]
            fits = [nbytes for nbytes in LARGE if nbytes <= room]
            for how, needed in NEEDS.items():
                if all(needed in device.capabilities for device in devices):
                    params = {
                        "how": how,
                        "sizes": SIZES,
                        "rounds": ROUNDS,
                        "opens": OPENS,
                        "large": bool(fits),
                        "whole": True,
                    }
                    yield Probe(how, ROLES, devices, params)
                    if fits:
                        whole = ctx.tier is Tier.SOAK
                        sizes = {"sizes": fits[-1:], "rounds": LARGE_ROUNDS, "opens": 1}
                        params = {**params, **sizes, "whole": whole}
                        yield Probe(f"{how}, large", ROLES, devices, params, exclusive=True)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        wrong = [f"{role}: {one}" for role in WITNESSES for one in done.records[role]["wrong"]]
        lost, exports = done.records["exporter"]["lost"], done.records["exporter"]["exports"]
        if wrong:
            says = "wrong data when several importers map it while the exporter exports"
            yield Finding.fail("wrong-data", says, *wrong[:3], times=len(wrong))
        elif lost:
            says = "wrong data reached the memory's owner through one of several mappings of it"
            yield Finding.fail("writes-lost", says, *lost[:3], times=len(lost))
        elif not exports:
            says = "nothing was exported while others attached, so nothing was tested"
            yield Finding.skip("not-concurrent", says, remedy="rerun on a less busy node")
        else:
            says = "{rounds} segments correct for {importers} importers at once, {verified:mib} verified"
            yield Finding.ok(
                "right",
                says,
                *evidence(exports, large=done.params["large"]),
                rounds=done.params["rounds"],
                importers=len(IMPORTERS),
                verified=done.records["exporter"]["verified"],
            )


def subjects(ctx: Context) -> Iterable[tuple[Device, ...]]:
    """Pairs of devices that reach each other, and devices that are in none; in ``soak`` each device, too."""
    pairs = [(one, other) for one, other in ctx.neighbours if one.label in other.peers]
    paired = {device for pair in pairs for device in pair}
    alone = [device for device in ctx.devices if ctx.tier is Tier.SOAK or device not in paired]
    return [*((device,) for device in alone), *pairs]


def evidence(exports: int, *, large: bool) -> Iterable[Evidence]:
    yield Evidence.measured("{exports} exports while others attached", exports=exports)
    if not large:
        says = "not tested above {boundary:mib}: the memory limit is too small"
        yield Evidence.measured(says, boundary=BOUNDARIES[0])


# -- the exporter -----------------------------------------------------------------------------------------


def export(w: Worker) -> None:
    newcomer, *importers = w.peers
    lost, exports, verified = [], 0, 0
    hear(importers)  # they have made their contexts
    newcomer.send("start")
    rounds = takewhile(lambda done: done < w.params["rounds"] or not newcomer.has_news(), count())
    for number in watched(w, "shared segment", rounds):
        nbytes = w.params["sizes"][number % len(w.params["sizes"])]
        with w.step(f"round {number + 1}"), segment(w, nbytes) as (memory, export_it):
            exports += share(w, importers, number, memory, export_it)
            lost += exchange(w, importers, number, memory)
            verified += memory.nbytes if w.params["whole"] else glanced_at(memory.nbytes)
    newcomer.recv()
    tell(importers, None)
    w.record(lost=lost, exports=exports, verified=verified)


def share(
    w: Worker, importers: Sequence[Peer], number: int, memory: Memory, export_it: Callable[[], Exported]
) -> int:
    """Have all importers open the segment, and export until they have; says how often that was."""
    exports = 0
    with segment(w, SIZES[number % len(SIZES)]) as (spare, export_spare):
        write(w, memory, memory.nbytes, number, 0)
        write(w, spare, spare.nbytes, SPARE, 0)
        for importer in importers:
            importer.send([number, memory.nbytes])
            give(export_it(), importer)
        while not all(importer.has_news() for importer in importers):
            give(export_it(), None)
            give(export_spare(), None)
            exports += 2
        hear(importers)  # they have looked
    return exports


def exchange(w: Worker, importers: Sequence[Peer], number: int, memory: Memory) -> list[str]:
    """Have one importer write and unmap, read that, write again for the others; what was lost."""
    readers = list(importers)
    writer = readers.pop(number % len(importers))
    writer.send("write")
    writer.recv()  # it has unmapped the segment
    lost = wrong_in(w, memory, memory.nbytes, number, 1)
    write(w, memory, memory.nbytes, number, 2)
    tell(readers, "look")
    hear(readers)  # they have unmapped it
    return lost


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
        memory = w.gpu.create_physical(-(-nbytes // w.gpu.granule) * w.gpu.granule)
        mapping = memory.map()
        yield mapping, memory.export_descriptor
        mapping.unmap()
        memory.release()


def give(exported: Exported, importer: Peer | None) -> None:
    """Give it to an importer, or to nobody."""
    if isinstance(exported, int):
        if importer:
            importer.send_descriptor(exported)
        os.close(exported)
    elif importer:
        importer.send(exported)


def tell(importers: Iterable[Peer], what: str | None) -> None:
    for importer in importers:
        importer.send(what)


def hear(importers: Iterable[Peer]) -> None:
    for importer in importers:
        importer.recv()


# -- the others -------------------------------------------------------------------------------------------


def start(w: Worker) -> None:
    """Initialise the driver, and have memory of its own, while others share theirs."""
    w.peer.recv()
    with w.gpu.alloc(SIZES[-1]) as buffer:
        write(w, buffer, buffer.nbytes, SPARE, 1)
        w.record(wrong=wrong_in(w, buffer, buffer.nbytes, SPARE, 1))
    w.peer.send("started")


def attach(w: Worker) -> None:
    wrong: list[str] = []
    w.gpu.memory_info()
    w.peer.send("ready")
    what, opens = WATCHED[w.params["how"]], w.params["opens"]
    for number, nbytes in watched(w, what, iter(w.peer.recv, None), opens):
        with w.step(f"round {number + 1}"), received(w) as exported:
            for _ in range(opens - 1 if number >= w.params["rounds"] // 2 else 0):
                with opened(w, exported, nbytes) as memory:
                    read = min(nbytes, PAGE)
                    wrong += wrong_pattern(f"round {number + 1}, {nbytes} B", memory, read, number, 0)
            with opened(w, exported, nbytes) as memory:
                wrong += wrong_in(w, memory, nbytes, number, 0)
                w.peer.send("looked")
                if w.peer.recv() == "write":
                    write(w, memory, nbytes, number, 1)
                else:
                    wrong += wrong_in(w, memory, nbytes, number, 2)
        w.peer.send("unmapped")
    w.record(wrong=wrong)


@contextmanager
def received(w: Worker) -> Iterator[Exported]:
    """What the exporter passes in a round. A descriptor is closed in the end."""
    if w.params["how"] == "handles":
        yield w.peer.recv()
    else:
        descriptor = w.peer.recv_descriptor()
        yield descriptor
        os.close(descriptor)


@contextmanager
def opened(w: Worker, exported: Exported, nbytes: int) -> Iterator[Memory]:
    if isinstance(exported, int):
        with w.gpu.import_descriptor(exported, nbytes) as memory, memory.map() as mapping:
            yield mapping
    else:
        with w.gpu.open_ipc(exported) as mapped:
            yield mapped


def write(w: Worker, memory: Memory, nbytes: int, number: int, writing: int) -> None:
    """Write in this round: all of the memory, or where it is looked at. ``writing`` counts from 0."""
    write_all = w.params["whole"] and writing in WHOLE
    (write_pattern if write_all else write_glances)(memory, nbytes, number, writing)


def wrong_in(w: Worker, memory: Memory, nbytes: int, number: int, writing: int) -> list[str]:
    """Where the memory does not show what `write` wrote."""
    read_all = w.params["whole"] and writing in WHOLE
    find_wrong = wrong_pattern if read_all else wrong_glances
    return find_wrong(f"round {number + 1}, {nbytes} B", memory, nbytes, number, writing)


ROLES = {"exporter": export, "newcomer": start} | dict.fromkeys(IMPORTERS, attach)
WITNESSES = ("newcomer", *IMPORTERS)

CHECK = IpcConcurrent()
