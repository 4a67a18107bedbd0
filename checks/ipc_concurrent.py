"""Open memory in several processes while its exporter keeps exporting and another process starts.

In each round, three importers open a segment at the same time. Meanwhile the exporter repeatedly exports this
segment and a spare one, because ROCm 10.0 is reported to export the wrong memory in this case. Another
process initialises the driver, if possible on another GPU, because exports are reported to fail after that
with ROCm 7.2.4. All importers then read the exporter's data. One importer, a different one each round, writes
the segment and unmaps it. The exporter reads this data and writes again, and the other importers must see the
new data.

The check uses IPC handles and descriptors. The segments have the smallest size and, if the memory limit
allows, sizes at which offsets need more than 31 or 32 bits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, takewhile

from gpuipc_doctor.api import (
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
    watched,
    write_glances,
    write_pattern,
    wrong_glances,
    wrong_pattern,
)
from gpuipc_doctor.api.patterns import BOUNDARIES, glanced_at

IMPORTERS = ("importer-1", "importer-2", "importer-3")

NEEDS = {"handles": "legacy-ipc", "descriptors": "vmm-ipc"}
"""Method of sharing memory → device capability that it requires."""

WATCHED = {"handles": "open and close", "descriptors": "import"}
"""Method → the steps that importers repeat."""

SIZES, ROUNDS = (1, 4 << 20), 32
"""Bytes of successive segments (rounded up to the granule for descriptors), and number of rounds. The last
third of the rounds has five segments of each size, enough to measure a loss per segment."""

LARGE, LARGE_ROUNDS = tuple(boundary + (2 << 20) for boundary in BOUNDARIES), 2

WHOLE = (0, 1)
"""Numbers of the writes that cover the whole segment: the exporter's first (0) and the importer's (1)."""

SPARE = -1
"""Key of the data in the spare segment, which no importer opens. The other keys are numbers of rounds."""

Exported = bytes | int
"""An IPC handle, or a descriptor."""


class IpcConcurrent(Check):
    id = "ipc-concurrent"
    title = "many importers read correct data while memory is exported"
    requires = frozenset({"legacy-ipc", "multi-process"})

    def probes(self, ctx: Context) -> Iterable[Probe]:
        begun = set[tuple[str, str]]()
        for devices in subjects(ctx):
            room = ctx.room(devices) - 2 * SIZES[-1]
            fits = [nbytes for nbytes in LARGE if nbytes <= room]
            for how, needed in NEEDS.items():
                if all(needed in device.capabilities for device in devices):
                    params = {
                        "how": how,
                        "sizes": SIZES,
                        "rounds": ROUNDS,
                        "large": bool(fits),
                        "whole": True,
                    }
                    kind = (devices[0].backend, how)
                    ends = frozenset(
                        () if kind in begun else {"newcomer"}
                    )  # elsewhere it may know the driver
                    begun.add(kind)
                    yield Probe(how, ROLES, devices, params, ends=ends)
                    if fits:
                        whole = ctx.tier is Tier.SOAK
                        sizes = {"sizes": fits[-1:], "rounds": LARGE_ROUNDS}
                        params = {**params, **sizes, "whole": whole}
                        yield Probe(f"{how}, large", ROLES, devices, params, exclusive=True)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        wrong = [f"{role}: {record}" for role in WITNESSES for record in done.records[role]["wrong"]]
        lost, exports = done.records["exporter"]["lost"], done.records["exporter"]["exports"]
        if wrong:
            says = "wrong data when several importers map a segment while the exporter exports memory"
            yield Finding.fail("wrong-data", says, *wrong[:3], times=len(wrong))
        elif lost:
            says = "wrong data reached the exporter through one of several mappings"
            yield Finding.fail("writes-lost", says, *lost[:3], times=len(lost))
        elif not exports:
            says = "nothing was exported while importers opened memory, so nothing was tested"
            yield Finding.skip("not-concurrent", says, remedy="rerun on a less busy node")
        else:
            says = "{importers} importers opened {rounds} segments at the same time, {verified:mib} correct"
            yield Finding.ok(
                "right",
                says,
                *evidence(exports, large=done.params["large"]),
                rounds=done.params["rounds"],
                importers=len(IMPORTERS),
                verified=done.records["exporter"]["verified"],
            )


def subjects(ctx: Context) -> Iterable[tuple[Device, ...]]:
    """The tested pairs of devices with peer access, and single devices: in ``soak`` all, else those without a
    pair."""
    pairs = [(one, other) for one, other in ctx.neighbours if one.label in other.peers]
    paired = {device for pair in pairs for device in pair}
    alone = [device for device in ctx.devices if ctx.tier is Tier.SOAK or device not in paired]
    return [*((device,) for device in alone), *pairs]


def evidence(exports: int, *, large: bool) -> Iterable[Evidence]:
    yield Evidence.measured("{exports} exports while importers opened memory", exports=exports)
    if not large:
        says = "not tested above {boundary:mib}: the memory limit is too small"
        yield Evidence.measured(says, boundary=BOUNDARIES[0])


# -- the exporter -----------------------------------------------------------------------------------------


def export(w: Worker) -> None:
    newcomer, *importers = w.peers
    lost, exports, verified = [], 0, 0
    hear(importers)  # the importers have created their contexts
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
    """Have all importers open the segment, and keep exporting meanwhile; returns the number of exports."""
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
        hear(importers)  # the importers have read the segment
    return exports


def exchange(w: Worker, importers: Sequence[Peer], number: int, memory: Memory) -> list[str]:
    """Let an importer write and unmap the segment, verify this data and write again. Returns wrong data."""
    readers = list(importers)
    writer = readers.pop(number % len(importers))
    writer.send("write")
    writer.recv()  # the importer has unmapped the segment
    lost = wrong_in(w, memory, memory.nbytes, number, 1)
    write(w, memory, memory.nbytes, number, 2)
    tell(readers, "look")
    hear(readers)  # the importers have unmapped the segment
    return lost


@contextmanager
def segment(w: Worker, nbytes: int) -> Iterator[tuple[Memory, Callable[[], Exported]]]:
    """Allocate memory; yields the memory and a function that exports it.

    After a failed call the memory is not freed, so that importers do not fail before this role does.
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
    """Pass exported memory to ``importer``, unless it is None, and close the descriptor in this process."""
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
    """Initialise the driver and allocate memory while other processes share their memory."""
    w.peer.recv()
    with w.gpu.alloc(SIZES[-1]) as buffer:
        write(w, buffer, buffer.nbytes, SPARE, 1)
        w.record(wrong=wrong_in(w, buffer, buffer.nbytes, SPARE, 1))
    w.peer.send("started")


def attach(w: Worker) -> None:
    wrong: list[str] = []
    w.gpu.memory_info()
    w.peer.send("ready")
    for number, nbytes in watched(w, WATCHED[w.params["how"]], iter(w.peer.recv, None)):
        with (
            w.step(f"round {number + 1}"),
            received(w) as exported,
            opened(w, exported, nbytes) as memory,
        ):
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
    """The handle or descriptor that the exporter passes; a descriptor is closed when the block ends."""
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
    """Write data that encodes the numbers of the round and of the write, at the places that `wrong_in`
    reads."""
    write_all = w.params["whole"] and writing in WHOLE
    (write_pattern if write_all else write_glances)(memory, nbytes, number, writing)


def wrong_in(w: Worker, memory: Memory, nbytes: int, number: int, writing: int) -> list[str]:
    """Differences between the memory and the data written by `write`."""
    read_all = w.params["whole"] and writing in WHOLE
    find_wrong = wrong_pattern if read_all else wrong_glances
    return find_wrong(f"round {number + 1}, {nbytes} B", memory, nbytes, number, writing)


ROLES = {"exporter": export, "newcomer": start} | dict.fromkeys(IMPORTERS, attach)
WITNESSES = ("newcomer", *IMPORTERS)

CHECK = IpcConcurrent()
