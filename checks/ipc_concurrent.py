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

from collections.abc import Iterable, Sequence
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
)
from gpuipc_doctor.api.data_patterns import BOUNDARIES

from ._ipc_concurrent_segments import Segment, allocate, count_written, find_wrong, open_given, write

IMPORTERS = ("importer-1", "importer-2", "importer-3")

NEEDS = {"handles": "legacy-ipc", "descriptors": "vmm-ipc"}
"""Method of sharing memory → device capability that it requires."""

WATCHED = {"handles": "open and close", "descriptors": "import"}
"""Method → the steps that importers repeat."""

SIZES, ROUNDS = (1, 4 << 20), 32
"""Bytes of successive segments (rounded up to the granule for descriptors), and number of rounds. The last
third of the rounds has five segments of each size, enough to measure a loss per segment."""

LARGE, LARGE_ROUNDS = tuple(boundary + (2 << 20) for boundary in BOUNDARIES), 2

SPARE = -1
"""Key of the data in the spare segment, which no importer opens. The other keys are numbers of rounds."""

NOT_LARGE = Evidence.measured(
    "not tested above {boundary:mib}: the memory limit is too small", boundary=BOUNDARIES[0]
)


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
                if not all(needed in device.capabilities for device in devices):
                    continue
                kind = (devices[0].backend, how)  # once begun, the newcomer may know the driver
                ends = frozenset[str]() if kind in begun else frozenset({"newcomer"})
                begun.add(kind)
                params = {"how": how, "sizes": SIZES, "rounds": ROUNDS, "large": bool(fits), "whole": True}
                yield Probe(how, ROLES, devices, params, ends=ends)
                if fits:
                    sizes = {"sizes": fits[-1:], "rounds": LARGE_ROUNDS, "whole": ctx.tier is Tier.SOAK}
                    yield Probe(f"{how}, large", ROLES, devices, {**params, **sizes}, exclusive=True)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        exporter = done.records["exporter"]
        wrong = [f"{role}: {record}" for role in WITNESSES for record in done.records[role]["wrong"]]
        if wrong:
            says = "wrong data when several importers map a segment while the exporter exports memory"
            yield Finding.fail("wrong-data", says, *wrong[:3], times=len(wrong))
        elif lost := exporter["lost"]:
            says = "wrong data reached the exporter through one of several mappings"
            yield Finding.fail("writes-lost", says, *lost[:3], times=len(lost))
        elif not exporter["exports"]:
            says = "nothing was exported while importers opened memory, so nothing was tested"
            yield Finding.skip("not-concurrent", says, remedy="rerun on a less busy node")
        else:
            exports = exporter["exports"]
            yield Finding.ok(
                "right",
                "{importers} importers opened {rounds} segments at the same time, {verified:mib} correct",
                Evidence.measured("{exports} exports while importers opened memory", exports=exports),
                *([] if done.params["large"] else [NOT_LARGE]),
                rounds=done.params["rounds"],
                importers=len(IMPORTERS),
                verified=exporter["verified"],
            )


def subjects(ctx: Context) -> Iterable[tuple[Device, ...]]:
    """Pairs of devices with peer access, and single devices: in ``soak`` all, else those without a pair."""
    pairs = [(one, other) for one, other in ctx.neighbours if one.label in other.peers]
    paired = {device for pair in pairs for device in pair}
    alone = [device for device in ctx.devices if ctx.tier is Tier.SOAK or device not in paired]
    return [*((device,) for device in alone), *pairs]


def export(w: Worker) -> None:
    newcomer, *importers = w.peers
    lost, exports, verified = [], 0, 0
    hear(importers)  # the importers have created their contexts
    newcomer.send("start")

    def is_wanted(number: int) -> bool:
        return number < w.params["rounds"] or not newcomer.has_news()

    for number in watched(w, "shared segment", takewhile(is_wanted, count())):
        nbytes = w.params["sizes"][number % len(w.params["sizes"])]
        with w.step(f"round {number + 1}"), allocate(w, nbytes) as segment:
            exports += share(w, importers, number, segment)
            lost += exchange(w, importers, number, segment.memory)
            verified += count_written(w, segment.memory.nbytes)
    newcomer.recv()
    for importer in importers:
        importer.send(None)
    w.record(lost=lost, exports=exports, verified=verified)


def share(w: Worker, importers: Sequence[Peer], number: int, segment: Segment) -> int:
    """Have all importers open the segment, and keep exporting meanwhile; returns the number of exports."""
    exports = 0
    with allocate(w, SIZES[number % len(SIZES)]) as spare:
        write(w, segment.memory, segment.memory.nbytes, number, 0)
        write(w, spare.memory, spare.memory.nbytes, SPARE, 0)
        for importer in importers:
            importer.send([number, segment.memory.nbytes])
            segment.export_to(importer)
        while not all(importer.has_news() for importer in importers):
            segment.export_to(None)
            spare.export_to(None)
            exports += 2
        hear(importers)  # the importers have read the segment
    return exports


def exchange(w: Worker, importers: Sequence[Peer], number: int, memory: Memory) -> list[str]:
    """Let an importer write and unmap the segment, verify this data and write again. Returns wrong data."""
    readers = list(importers)
    writer = readers.pop(number % len(importers))
    writer.send("write")
    writer.recv()  # the importer has unmapped the segment
    lost = find_wrong(w, memory, memory.nbytes, number, 1)
    write(w, memory, memory.nbytes, number, 2)
    for reader in readers:
        reader.send("look")
    hear(readers)  # the importers have unmapped the segment
    return lost


def hear(importers: Iterable[Peer]) -> None:
    for importer in importers:
        importer.recv()


def start(w: Worker) -> None:
    """Initialise the driver and allocate memory while other processes share their memory."""
    w.peer.recv()
    with w.gpu.alloc(SIZES[-1]) as buffer:
        write(w, buffer, buffer.nbytes, SPARE, 1)
        w.record(wrong=find_wrong(w, buffer, buffer.nbytes, SPARE, 1))
    w.peer.send("started")


def attach(w: Worker) -> None:
    wrong: list[str] = []
    w.gpu.memory_info()
    w.peer.send("ready")
    for number, nbytes in watched(w, WATCHED[w.params["how"]], iter(w.peer.recv, None)):
        with w.step(f"round {number + 1}"), open_given(w, nbytes) as memory:
            wrong += find_wrong(w, memory, nbytes, number, 0)
            w.peer.send("looked")
            if w.peer.recv() == "write":
                write(w, memory, nbytes, number, 1)
            else:
                wrong += find_wrong(w, memory, nbytes, number, 2)
        w.peer.send("unmapped")
    w.record(wrong=wrong)


ROLES = {"exporter": export, "newcomer": start} | dict.fromkeys(IMPORTERS, attach)
WITNESSES = ("newcomer", *IMPORTERS)

CHECK = IpcConcurrent()
