"""Export memory in every way and check that each handle opens the right memory and nothing else.

Different segments must have different handles, and each opened handle must show its own segment's data,
before and after the data changes. This also holds for sub-allocations of one block, and after another mapping
of the same or another segment was closed. Memory that cannot be shared must be refused. The handle of an
interior pointer, and a handle opened in a second context of the process, must behave as the vendor documents.
Undocumented behaviour is recorded but not judged.

If the driver should refuse an export but does not (memory that cannot be shared, or a second handle of one
segment), the importer opens the handle as an application would, and the result is judged. Correct data in
both directions is harmless. Wrong data and errors are failures, because a library would use another method if
the export were refused.

One segment is also used as PyTorch, CuPy and UCX use it (`gpuipc_doctor.api.memory_uses`): asynchronous,
generic and peer copies, in the default stream also, from and to pinned, registered and other
imported memory; and an event of the exporter is queried, waited for and recorded by the importer.

VMM memory has a separate probe, because its export, where it succeeded, cost device memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

from gpuipc_doctor.api import (
    Check,
    Context,
    DriverError,
    Evidence,
    Finding,
    Probe,
    ProbeOutcome,
    Worker,
    closing_order,
    differences,
    exchange_as_exporter,
    exchange_as_importer,
    judge_exchange,
    pattern,
    unless_refused,
)
from gpuipc_doctor.api.memory_uses import (
    order_as_exporter,
    order_as_importer,
    use_as_exporter,
    use_as_importer,
)

from ._ipc_handles_strays import (
    EXPORT_TWICE,
    answer,
    export_unexportable,
    export_vmm,
    judge_answers,
    judge_vmm,
    share_stray,
    use_strays,
)

SIZES = (1000, 64 << 10, 12 << 20, 2 << 20)
"""Bytes of the segments: two that the driver places in one block, and two with their own blocks."""

INTERIOR = 512
"""Offset, in bytes, of the interior pointer that is exported."""

NEW_HANDLES = "each export of a segment gives another handle; all of them open it"
VMM = "VMM memory"
HARMS = frozenset({"exports VMM memory"})


class IpcHandles(Check):
    id = "ipc-handles"
    title = "each IPC handle opens its own memory"
    requires = frozenset({"legacy-ipc", "multi-process"})

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for devices in ctx.subjects:
            yield Probe("segments", {"exporter": export, "importer": follow}, devices)
            if "vmm-ipc" in devices[0].capabilities:
                yield Probe(VMM, {"exporter": export_vmm, "importer": use_strays}, devices, harms=HARMS)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        yield from judge_vmm(done) if done.probe == VMM else judge_segments(done)


def judge_segments(done: ProbeOutcome) -> Iterable[Finding]:
    exporter, importer = done.records["exporter"], done.records["importer"]
    answers = exporter["answers"] | importer["answers"]
    bad = [*judge_handles(done), *judge_answers(answers, importer["useless"] + exporter["useless"])]
    if bad:
        yield from bad
        return
    renumbers = answers.get(EXPORT_TWICE, ("",))[0] == "differs"
    yield Finding.ok(
        "as-documented",
        "{segments} segments behave as documented ({rules} rules), {nbytes:mib} verified both ways",
        *([Evidence.seen(NEW_HANDLES)] if renumbers else []),
        segments=len(SIZES),
        rules=len(answers),
        nbytes=sum(SIZES),
    )


def judge_handles(done: ProbeOutcome) -> Iterable[Finding]:
    """Judge the handles of segments that may be shared."""
    yield from judge_exchange(done)
    if collisions := done.records["exporter"]["collisions"]:
        yield Finding.fail("one-handle", "two segments share one IPC handle", *collisions)
    if wrong := done.records["importer"]["wrong"]:
        yield Finding.fail("other-memory", "an IPC handle opened the wrong memory", *wrong)


# -- exporters --------------------------------------------------------------------------------------------


def export(w: Worker) -> None:
    buffers = [w.gpu.alloc(nbytes) for nbytes in SIZES]
    for n, buffer in enumerate(buffers):
        buffer.write(pattern(buffer.nbytes, n))
    handles = [buffer.ipc_handle() for buffer in buffers]
    again = [buffer.ipc_handle() for buffer in buffers]
    w.peer.send([*handles, buffers[-1].ipc_handle(INTERIOR)])
    exchanged = []
    if w.peer.recv() == "all right":
        w.record(uses=use_as_exporter(w, *buffers[2:]) + order_as_exporter(w, buffers[2]))
        for n in closing_order(len(SIZES)):
            exchanged += exchange_as_exporter(w, buffers[n], SIZES[n], f"segment {n + 1}")

    pairs = combinations(enumerate(handles, 1), 2)
    collisions = [f"segments {n} and {m}" for (n, one), (m, other) in pairs if one == other]
    useless = list[str]()
    answers = answer(w, EXPORT_TWICE, "same" if handles == again else "differs")
    if handles != again:
        for n, (buffer, handle) in enumerate(zip(buffers, again, strict=True), 1):
            useless += share_stray(w, f"second handle of segment {n}", buffer, handle, buffer.nbytes)
    for kind in w.gpu.unexportable_kinds:
        if kind != "vmm":
            with w.gpu.alloc_unexportable(kind) as memory:
                answers |= export_unexportable(w, kind, memory, memory.nbytes, useless)
    w.peer.send(None)  # no more stray handles
    w.record(exchanged=exchanged, collisions=collisions, answers=answers, useless=useless)
    w.peer.recv()  # the importer has closed everything
    for buffer in buffers:
        buffer.free()


# -- importers --------------------------------------------------------------------------------------------


def follow(w: Worker) -> None:
    has_contexts = "contexts" in w.gpu.device.capabilities
    first_context = w.gpu.create_context() if has_contexts else w.gpu.primary_context()
    *handles, interior = w.peer.recv()
    wrong, exchanged, mappings = [], [], []
    with w.step("open an interior pointer's handle"), w.gpu.open_ipc(interior) as mapping:
        lands = locate_data(mapping.read(min(4096, mapping.nbytes)))
    if lands == "nowhere":
        wrong.append("an interior pointer's handle opens neither the pointer's data nor its segment's start")

    for n, (handle, nbytes) in enumerate(zip(handles, SIZES, strict=True)):
        with w.step(f"open segment {n + 1}, {nbytes} B"):
            mappings.append(w.gpu.open_ipc(handle))
    with w.step("open segment 1 again and close it once"):
        w.gpu.open_ipc(handles[0]).close()
    for n, (mapping, nbytes) in enumerate(zip(mappings, SIZES, strict=True)):
        with w.step(f"read segment {n + 1}, after segment 1 was opened twice and closed once"):
            data = mapping.read(min(nbytes, mapping.nbytes))
        wrong += differences(f"segment {n + 1}", data, pattern(nbytes, n))

    w.peer.send("some wrong" if wrong else "all right")  # no write here: it might hit other memory
    if not wrong:
        w.record(uses=use_as_importer(w, *mappings[2:]) + order_as_importer(w, mappings[2]))
    for n in closing_order(len(SIZES)):
        with w.step(f"exchange data in segment {n + 1}, with some of the others closed"):
            if not wrong:
                exchanged += exchange_as_importer(w, mappings[n], SIZES[n], f"segment {n + 1}")
            mappings[n].close()
    use_strays(w)

    answers = answer(w, "export-interior-pointer", lands)
    if has_contexts:
        with w.step("open in one context"), w.gpu.open_ipc(handles[-1]) as first:
            second_context = w.gpu.create_context()
            opens = open_again(w, handles[-1], first.address)
            second_context.destroy()
            first_context.make_current()
        answers |= answer(w, "open-in-second-context", opens)
    w.record(wrong=wrong, answers=answers, exchanged=exchanged)
    w.peer.send("closed")


def locate_data(data: bytes) -> str:
    """Where the last segment contains ``data``: ``base``, ``interior`` or ``nowhere``."""
    segment = pattern(SIZES[-1], len(SIZES) - 1)
    starts = {"base": 0, "interior": INTERIOR} if data else {}
    return next((where for where, at in starts.items() if data == segment[at : at + len(data)]), "nowhere")


def open_again(w: Worker, handle: bytes, address: int) -> str:
    """Result of opening a segment that another context of this process already has open."""
    with w.step("open in a second context"):
        mapping = unless_refused(lambda: w.gpu.open_ipc(handle))
        if isinstance(mapping, DriverError):
            return "refused"
        mapping.close()
    return "counted" if mapping.address == address else "separate"


CHECK = IpcHandles()
