"""Free shared memory, allocate at the same address, and check that mappings show the new data, not the freed.

The importer has closed the old segment or still has it open. The new segment has the same size as the old
one, is larger, or is smaller. In a further case the old and the new one are small and share a block with a
third segment, which keeps the block allocated. The new handle must open and show the new data, also after
the data changes. Libraries that cache mappings of freed memory (MPICH before its pull request 7862, UCX)
depend on this. Some drivers refuse a new mapping that overlaps a stale one, and a new handle may equal the
old one. Reused addresses are counted, because without them nothing is tested.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import (
    Check,
    Context,
    DriverError,
    Evidence,
    Finding,
    IpcMapping,
    Probe,
    ProbeOutcome,
    Worker,
    exchange_as_exporter,
    exchange_as_importer,
    judge_exchange,
    pattern,
    unlike_pattern,
    watched,
    write_pattern,
    wrong_pattern,
)

OLD = 8 << 20
SIZES = {
    "same size": (OLD, OLD),
    "larger": (OLD, 12 << 20),
    "smaller": (OLD, 4 << 20),
    "4 KiB": (4096, 4096),
    "64 KiB": (64 << 10, 64 << 10),
}
"""Case → bytes of the freed segment, and bytes of the segment allocated after it."""

PARTS = ("4 KiB", "64 KiB")
"""Cases in which segments share a driver block: the new segment may have the freed segment's handle (seen on
an H100), and a driver may refuse to open the new one while the freed one is open."""

NEIGHBOUR, STAYS = 4096, -1
"""Bytes and number of a segment that stays allocated beside the small ones, in their driver block."""

MAPPING = ("closed", "open")
"""State of the old mapping when the new segment is opened."""

ROUNDS = [(mapping, name) for mapping in MAPPING for name in SIZES]

PAGE = 4096
"""Bytes compared to tell old data from new data."""


class IpcStale(Check):
    id = "ipc-stale"
    title = "a new segment over a freed one shows its own data"
    requires = frozenset({"legacy-ipc", "multi-process"})

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for devices in ctx.subjects:
            yield Probe("", {"exporter": recycle, "importer": look}, devices)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        exporter, importer = done.records["exporter"], done.records["importer"]
        reused = exporter["reused"]
        stale = [wrong for wrong, again in zip(importer["new"], reused, strict=True) if wrong and again]
        wrong = [wrong for wrong, again in zip(importer["new"], reused, strict=True) if wrong and not again]
        wrong += filter(None, importer["old"])
        if stale:
            yield Finding.fail("stale", "a new handle showed wrong data after its address was reused", *stale)
        if wrong:
            yield Finding.fail("wrong-data", "wrong data in a segment at an address not used before", *wrong)
        if importer["overlap"]:
            yield Finding.fail(
                "overlap",
                "a new segment cannot be opened while a stale mapping overlaps it",
                *importer["overlap"],
                remedy="limit or disable MPI's cache of IPC mappings",
            )
        exchanged = list(judge_exchange(done))
        yield from exchanged
        if exporter["same_handles"] and exporter["expected"] == "differs":
            yield Finding.warn(
                "same-handle",
                "a new segment has the handle of a freed one: an MPI that caches open handles would use the "
                "freed memory",
                *exporter["same_handles"],
                remedy="limit or disable MPI's cache of IPC mappings",
            )
        if not (stale or wrong or importer["overlap"] or exchanged):
            says = "{reused} of {rounds} rounds reused the old address"
            how_often = Evidence.measured(says, reused=sum(reused), rounds=len(reused))
            nbytes = sum(SIZES[name][1] for _, name in ROUNDS)
            yield (
                Finding.ok("new-data", "{nbytes:mib} verified in both directions", how_often, nbytes=nbytes)
                if any(reused)
                else Finding.skip(
                    "no-reuse", "nothing was tested: no new segment got the address of a freed one", how_often
                )
            )


def recycle(w: Worker) -> None:
    reused, same_handles, exchanged = [], [], []
    neighbour = w.gpu.alloc(NEIGHBOUR)
    write_pattern(neighbour, NEIGHBOUR, STAYS)
    w.peer.send(neighbour.ipc_handle())
    for number, (mapping, name) in watched(w, "segment over a freed one", enumerate(ROUNDS)):
        what, (old_nbytes, new_nbytes) = new_segment(mapping, name), SIZES[name]
        old = w.gpu.alloc(old_nbytes)
        write_pattern(old, old_nbytes, number, 0)
        old_handle, old_address = old.ipc_handle(), old.address
        w.peer.send(old_handle)
        w.peer.recv()  # opened, and perhaps closed again
        old.free()
        with w.gpu.alloc(new_nbytes) as new:
            write_pattern(new, new_nbytes, number, 1)
            reused.append(new.address == old_address)
            handle = new.ipc_handle()
            if handle == old_handle and name not in PARTS:
                same_handles.append(what)
            w.peer.send(handle)
            if w.peer.recv() == "right":
                exchanged += exchange_as_exporter(w, new, new_nbytes, what)
            w.peer.recv()  # both closed
    w.peer.recv()  # the neighbour is closed
    neighbour.free()
    w.record(
        reused=reused,
        same_handles=same_handles,
        expected=w.gpu.expects("export-after-reuse"),
        exchanged=exchanged,
    )


def look(w: Worker) -> None:
    old_wrong, new_wrong, overlap, exchanged = [], [], [], []
    neighbour = w.gpu.open_ipc(w.peer.recv())
    for number, (mapping, name) in watched(w, "segment over a freed one", enumerate(ROUNDS)):
        what, (old_nbytes, new_nbytes) = new_segment(mapping, name), SIZES[name]
        old = w.gpu.open_ipc(w.peer.recv())
        wrong = unlike_pattern(old, old_nbytes, number, 0)
        old_wrong.append(wrong and f"first segment of round {number + 1}: {wrong}")
        if mapping == "closed":
            old.close()
        w.peer.send("old segment seen")
        handle = w.peer.recv()
        wrong = ""
        with w.step(f"open the {what}"):
            try:
                with w.gpu.open_ipc(handle) as new:
                    wrong = mistaken(new, new_nbytes, number)
                    w.peer.send("mistaken" if wrong else "right")
                    if not wrong:
                        exchanged += exchange_as_importer(w, new, new_nbytes, what)
            except DriverError as error:
                if not error.is_already_mapped:
                    raise
                if name not in PARTS:
                    overlap.append(f"{what}: {error}")
                w.peer.send("refused")
        new_wrong.append(wrong and f"{what} {wrong}")
        old.close()
        with w.step(
            f"round {number + 1}: read an open segment that may lie in one block with the closed ones"
        ):
            old_wrong += wrong_pattern(f"neighbour of the {what}", neighbour, NEIGHBOUR, STAYS)
        w.peer.send("closed")
    neighbour.close()
    w.peer.send("neighbour closed")
    w.record(old=old_wrong, new=new_wrong, overlap=overlap, exchanged=exchanged)


def new_segment(mapping: str, name: str) -> str:
    return f"new segment ({name}, old mapping {mapping})"


def mistaken(new: IpcMapping, nbytes: int, number: int) -> str:
    """Description of the wrong data in a round's new segment; empty if the data is correct."""
    wrong = unlike_pattern(new, nbytes, number, 1)
    shows_old = wrong and new.read(PAGE) == pattern(PAGE, number, 0)
    return wrong and f"shows {'the old' if shows_old else 'wrong'} data: {wrong}"


CHECK = IpcStale()
