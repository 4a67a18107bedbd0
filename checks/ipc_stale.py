"""Free shared memory, allocate anew over the same address, and see that nobody is shown the old data.

The importer has the old segment still open, or has closed it; the new segment is as large, larger or
smaller. The new handle must open and show the new data. A cache that keeps mappings beyond the exporter's
free (MPICH before its pull request 7862, UCX's IPC cache) lives from what is tested here: with a stale
mapping open, some drivers refuse a new one that overlaps it, and a new handle that equals the old one
cannot be told from it. Where no address comes again nothing is tested, so that is counted.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import (
    Check,
    Context,
    DriverError,
    Finding,
    Probe,
    ProbeOutcome,
    Worker,
    difference,
    pattern,
)

OLD = 8 << 20
NEW_SIZES = {"same size": OLD, "larger": 12 << 20, "smaller": 4 << 20}
"""Bytes of the freed segment, and of those allocated after it."""

MAPPING = ("closed", "open")
"""What the importer has done with the old mapping by then."""


class IpcStale(Check):
    id = "ipc-stale"
    title = "memory allocated over a freed segment is not mistaken for it"
    requires = frozenset({"legacy-ipc", "multi-process"})

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for devices in ctx.subjects:
            yield Probe("", {"exporter": recycle, "importer": look}, devices)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        exporter, importer = done.records["exporter"], done.records["importer"]
        if importer["stale"]:
            yield Finding.fail(
                "a new handle showed wrong data after its address was reused", *importer["stale"]
            )
        if importer["overlap"]:
            yield Finding.fail(
                "overlapping mapping: a new segment cannot be opened while a stale mapping is",
                *importer["overlap"],
                remedy="MPI: limit or switch off its cache of IPC mappings, so that none outlives its memory",
            )
        if exporter["same_handles"] and exporter["expected"] == "differs":
            yield Finding.warn("a new segment has the handle of a freed one", *exporter["same_handles"])
        if not (importer["stale"] or importer["overlap"]):
            reused = f"{exporter['reused']} of {len(exporter['rounds'])} rounds got the old address"
            yield (
                Finding.ok("new handles show new data", reused)
                if exporter["reused"]
                else Finding.skip("no address was reused, so nothing was tested", reused)
            )


def rounds() -> list[tuple[str, str, int]]:
    return [(mapping, name, nbytes) for mapping in MAPPING for name, nbytes in NEW_SIZES.items()]


def recycle(w: Worker) -> None:
    reused, same_handles = 0, []
    for number, (mapping, name, nbytes) in enumerate(rounds()):
        old = w.gpu.alloc(OLD)
        old.write(pattern(OLD, number, 0))
        old_handle, old_address = old.ipc_handle(), old.address
        w.peer.send(old_handle)
        w.peer.recv()  # opened, and closed again or not
        old.free()
        with w.gpu.alloc(nbytes) as new:
            new.write(pattern(nbytes, number, 1))
            reused += new.address == old_address
            handle = new.ipc_handle()
            if handle == old_handle:
                same_handles.append(f"{name}, old mapping {mapping}")
            w.peer.send(handle)
            w.peer.recv()  # verified and closed
    w.record(
        reused=reused,
        same_handles=same_handles,
        expected=w.gpu.expects("export-after-reuse"),
        rounds=[f"{name}, old mapping {mapping}" for mapping, name, _ in rounds()],
    )


def look(w: Worker) -> None:
    stale, overlap = [], []
    for number, (mapping, name, nbytes) in enumerate(rounds()):
        what = f"new segment ({name}), old mapping {mapping}"
        old = w.gpu.open_ipc(w.peer.recv())
        if wrong := difference(old.read(OLD), pattern(OLD, number, 0)):
            stale.append(f"first segment of round {number + 1}: {wrong}")
        if mapping == "closed":
            old.close()
        w.peer.send("old segment seen")
        handle = w.peer.recv()
        with w.step(f"open the {what}"):
            try:
                with w.gpu.open_ipc(handle) as new:
                    data = new.read(nbytes)
            except DriverError as error:
                if not error.is_already_mapped:
                    raise
                overlap.append(f"{what}: {error}")
            else:
                if wrong := difference(data, pattern(nbytes, number, 1)):
                    shows_old = data[:4096] == pattern(4096, number, 0)
                    stale.append(f"{what}: {'the old data: ' if shows_old else ''}{wrong}")
        old.close()
        w.peer.send("new segment seen")
    w.record(stale=stale, overlap=overlap)


CHECK = IpcStale()
