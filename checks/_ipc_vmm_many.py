"""Many imports at a time, mapped as PyTorch's expandable segments map them.

These map part by part, and grant access to a range of several parts when all are mapped, some of them again.
Sources: ``ExpandableSegment::setAccess`` and ``mapAndSetAccess`` of PyTorch's CUDACachingAllocator.cpp.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack

from gpuipc_doctor.api import (
    Finding,
    ProbeOutcome,
    Worker,
    closing_order,
    write_glances,
    write_pattern,
    wrong_glances,
    wrong_pattern,
)
from gpuipc_doctor.api.gpu import Memory
from gpuipc_doctor.api.offered_memory import pass_physical

from ._ipc_vmm_sharing import judge_wrong

MANY = 65
"""Number of imports: more than a table of 64 holds. Fewer where the check may hold less memory."""

RANGES = {2: "access granted once to two imports", 4: "access granted twice to two imports"}
"""The imports before this number, after those of the range before, are mapped side by side → how."""

WHOLE = frozenset({*range(max(RANGES)), MANY - 1})
"""The segments that are verified whole: those of the ranges, and the last. Of the others, samples are."""

FROM_EXPORTER, FROM_IMPORTER = 1, 2
"""Keys of the data, beside the number of the segment."""


def export_many(w: Worker) -> None:
    wrong, fitting = [], int(w.params["room"]) // w.gpu.granule
    count = max(max(RANGES), min(MANY, fitting))
    w.peer.send(count)
    with ExitStack() as resources:
        memories = [resources.enter_context(w.gpu.create_physical(w.gpu.granule)) for _ in range(count)]
        views = [resources.enter_context(memory.map()) for memory in memories]
        for n, view in enumerate(views):
            write(n)(view, w.gpu.granule, n, FROM_EXPORTER)
        for memory in memories:
            pass_physical(w.peer, memory)
        w.peer.recv()  # the importer has read all, and written other data
        for n, view in enumerate(views):
            wrong += compare(n)(f"segment {n + 1} of {count}", view, w.gpu.granule, n, FROM_IMPORTER)
        w.peer.send("read")
        w.peer.recv()  # the importer has unmapped
    w.record(wrong=wrong)


def attach_many(w: Worker) -> None:
    imports, wrong, count = [], [], w.peer.recv()
    for n in range(count):
        nbytes, descriptor = w.peer.recv(), w.peer.recv_descriptor()
        with w.step(f"import segment {n + 1} of {count}, the others stay"):
            imports.append(w.gpu.import_descriptor(descriptor, nbytes))
        os.close(descriptor)
    places = dict[int, tuple[str, Memory, int]]()
    mappings, first = [], 0
    for grants, (end, how) in enumerate(RANGES.items(), 1):
        with w.step(how):
            mappings.append(w.gpu.map_adjacent(imports[first:end], grants=grants))
        places |= {n: (how, mappings[-1], (n - first) * nbytes) for n in range(first, end)}
        first = end
    for n in range(first, count):
        mappings.append(imports[n].map())
        places[n] = "each mapped by itself", mappings[-1], 0
    for n, (how, mapping, offset) in places.items():
        what = f"segment {n + 1} of {count}, {how}"
        wrong += compare(n)(what, mapping, nbytes, n, FROM_EXPORTER, offset=offset)
        write(n)(mapping, nbytes, n, FROM_IMPORTER, offset=offset)
    w.peer.send("written")
    w.peer.recv()  # the exporter has read
    for number in closing_order(len(mappings)):
        mappings[number].unmap()
    for memory in imports:
        memory.release()
    w.record(wrong=wrong, count=count)
    w.peer.send("unmapped")


def write(segment: int) -> Callable[..., None]:
    return write_pattern if segment in WHOLE else write_glances


def compare(segment: int) -> Callable[..., list[str]]:
    return wrong_pattern if segment in WHOLE else wrong_glances


def judge_many(done: ProbeOutcome) -> Iterable[Finding]:
    bad = [finding for record in done.records.values() for finding in judge_wrong(record)]
    says = "{count} imports at a time, also with access granted to two of them at once, and again"
    yield from bad or [Finding.ok("many", says, count=done.records["importer"]["count"])]
