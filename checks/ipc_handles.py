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

VMM memory has a separate probe, because its export, where it succeeded, cost device memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

from gpuipc_doctor.api import (
    Buffer,
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

SIZES = (1000, 64 << 10, 12 << 20, 2 << 20)
"""Bytes of the segments: two that the driver places in one block, and two with their own blocks."""

INTERIOR = 512
"""Offset, in bytes, of the interior pointer that is exported."""

NEW_HANDLES = "each export of a segment gives another handle; all of them open it"
VMM = "VMM memory"
HARMS = frozenset({"exports VMM memory"})

EXPORT_TWICE = "export-twice"
"""A case that no vendor documents: a driver may give a new handle each time, if all open the memory."""

Answers = dict[str, tuple[str, str]]
"""Case → (observed, documented) behaviour."""


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
        exporter, importer = done.records["exporter"], done.records["importer"]
        answers, useless = exporter["answers"], importer["useless"] + exporter["useless"]
        if done.probe == VMM:
            says = "exporting VMM memory by IPC handle is refused, as documented"
            yield from [*judge_answers(answers, useless)] or [Finding.ok("vmm-refused", says)]
            return
        answers = answers | importer["answers"]
        says = "{segments} segments behave as documented ({rules} rules), {nbytes:mib} verified both ways"
        yield from [*judge_segments(done), *judge_answers(answers, useless)] or [
            Finding.ok(
                "as-documented",
                says,
                *([Evidence.seen(NEW_HANDLES)] if answers.get(EXPORT_TWICE, ("",))[0] == "differs" else []),
                segments=len(SIZES),
                rules=len(answers),
                nbytes=sum(SIZES),
            )
        ]


def judge_segments(done: ProbeOutcome) -> Iterable[Finding]:
    """Judge the handles of segments that may be shared."""
    yield from judge_exchange(done)
    if collisions := done.records["exporter"]["collisions"]:
        yield Finding.fail("one-handle", "two segments share one IPC handle", *collisions)
    if wrong := done.records["importer"]["wrong"]:
        yield Finding.fail("other-memory", "an IPC handle opened the wrong memory", *wrong)


def judge_answers(answers: Answers, useless: Sequence[str]) -> Iterable[Finding]:
    """Compare each case with the documented behaviour, and judge how a difference affects users."""
    if useless:
        yield Finding.fail(
            "useless-handle",
            "an export that is documented to fail succeeded; its handle cannot be used",
            *useless,
        )
    if surprises := [
        f"{case}: {seen}; documented: {expected}"
        for case, (seen, expected) in answers.items()
        if expected not in ("unspecified", seen) and case != EXPORT_TWICE
    ]:
        says = "IPC handles do not behave as this vendor documents"
        yield Finding.warn("undocumented", says, *surprises)


# -- exporters --------------------------------------------------------------------------------------------


def export(w: Worker) -> None:
    buffers = [w.gpu.alloc(nbytes) for nbytes in SIZES]
    for n, buffer in enumerate(buffers):
        buffer.write(pattern(buffer.nbytes, n))
    handles, again = ([buffer.ipc_handle() for buffer in buffers] for _ in range(2))
    w.peer.send([*handles, buffers[-1].ipc_handle(INTERIOR)])
    exchanged = []
    for n in closing_order(len(SIZES)) if w.peer.recv() == "all right" else []:
        exchanged += exchange_as_exporter(w, buffers[n], SIZES[n], f"segment {n + 1}")

    pairs = combinations(enumerate(handles, 1), 2)
    collisions = [f"segments {n} and {m}" for (n, one), (m, other) in pairs if one == other]
    answers, useless = answer(w, EXPORT_TWICE, "same" if handles == again else "differs"), list[str]()
    if answers[EXPORT_TWICE][0] == "differs":
        for n, (buffer, handle) in enumerate(zip(buffers, again, strict=True), 1):
            useless += share(w, f"second handle of segment {n}", buffer, handle, buffer.nbytes)
    for kind in w.gpu.unexportable_kinds:
        if kind != "vmm":
            with w.gpu.alloc_unexportable(kind) as memory:
                answers |= export_unexportable(w, kind, memory, memory.nbytes, useless)
    w.peer.send(None)  # no more stray handles
    w.record(exchanged=exchanged, collisions=collisions, answers=answers, useless=useless)
    w.peer.recv()  # the importer has closed everything
    for buffer in buffers:
        buffer.free()


def export_vmm(w: Worker) -> None:
    useless: list[str] = []
    with w.gpu.alloc_unexportable("vmm") as memory:
        # No device has access to the memory: the handle is only opened.
        answers = export_unexportable(w, "vmm", memory, 0, useless)
    w.peer.send(None)
    w.record(answers=answers, useless=useless)


def export_unexportable(w: Worker, kind: str, memory: Buffer, nbytes: int, useless: list[str]) -> Answers:
    """Try to export this kind of memory. If the driver should refuse but does not, let the importer use
    it."""
    with w.step(f"export {kind} memory"):
        handle = unless_refused(memory.ipc_handle)
    if isinstance(handle, DriverError):
        return answer(w, f"export-{kind}", "refused")
    if w.gpu.expects(f"export-{kind}") == "refused":
        useless += share(w, f"{kind} memory", memory, handle, nbytes)
    return answer(w, f"export-{kind}", "succeeds")


def share(w: Worker, what: str, memory: Buffer, handle: bytes, nbytes: int) -> list[str]:
    """Have the importer use a handle whose export should have failed; returns its errors and wrong data."""
    w.peer.send((what, handle, nbytes))
    if w.peer.recv() == "refused":
        return []
    useless = exchange_as_exporter(w, memory, nbytes, what)
    w.peer.recv()  # the importer has closed it
    return useless


# -- importers --------------------------------------------------------------------------------------------


def follow(w: Worker) -> None:
    first_context = w.gpu.create_context()
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
    for n in closing_order(len(SIZES)):
        with w.step(f"exchange data in segment {n + 1}, with some of the others closed"):
            if not wrong:
                exchanged += exchange_as_importer(w, mappings[n], SIZES[n], f"segment {n + 1}")
            mappings[n].close()
    use_strays(w)

    with w.step("open in one context"), w.gpu.open_ipc(handles[-1]) as first:
        second_context = w.gpu.create_context()
        opens = open_again(w, handles[-1], first.address)
        second_context.destroy()
        first_context.make_current()
    answers = answer(w, "export-interior-pointer", lands) | answer(w, "open-in-second-context", opens)
    w.record(wrong=wrong, answers=answers, exchanged=exchanged)
    w.peer.send("closed")


def locate_data(data: bytes) -> str:
    """Where the last segment contains ``data``: ``base``, ``interior`` or ``nowhere``."""
    segment = pattern(SIZES[-1], len(SIZES) - 1)
    starts = {"base": 0, "interior": INTERIOR} if data else {}
    return next((where for where, at in starts.items() if data == segment[at : at + len(data)]), "nowhere")


def use_strays(w: Worker) -> None:
    """Use each handle whose export should have been refused; record the errors and wrong data."""
    useless: list[str] = []
    while stray := w.peer.recv():
        useless += use(w, *stray)
    w.record(useless=useless)


def use(w: Worker, what: str, handle: bytes, nbytes: int) -> list[str]:
    with w.step(f"open {what}"):
        mapping = unless_refused(lambda: w.gpu.open_ipc(handle))
        if isinstance(mapping, DriverError):
            w.peer.send("refused")
            return [f"{what}: {mapping}"]
        with mapping:
            w.peer.send("opened")
            useless = exchange_as_importer(w, mapping, nbytes, what)
        w.peer.send("closed")
    return useless


def open_again(w: Worker, handle: bytes, address: int) -> str:
    """Result of opening a segment that another context of this process already has open."""
    with w.step("open in a second context"):
        mapping = unless_refused(lambda: w.gpu.open_ipc(handle))
        if isinstance(mapping, DriverError):
            return "refused"
        mapping.close()
    return "counted" if mapping.address == address else "separate"


def answer(w: Worker, case: str, seen: str) -> Answers:
    return {case: (seen, w.gpu.expects(case))}


CHECK = IpcHandles()
