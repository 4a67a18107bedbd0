"""Export segments in every way and see that each handle leads where it must, and only there.

Two segments have two handles; opened, each shows its own data, sub-allocations of one block included; the
handle of an interior pointer leads where this vendor documents; memory of kinds that cannot be shared is
refused; and opening in a second context of the process does what this vendor documents. What a vendor
leaves open is recorded and not judged.
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

SIZES = (1000, 1000, 2 << 20)
"""Bytes of the segments: two that the driver places in one block, and one with a block of its own."""

INTERIOR = 512
"""Offset, in bytes, of the interior pointer that is exported."""


class IpcHandles(Check):
    id = "ipc-handles"
    title = "IPC handles lead to the memory that they were made for"
    requires = frozenset({"legacy-ipc", "multi-process"})

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for devices in ctx.subjects:
            yield Probe("", {"exporter": export, "importer": follow}, devices)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        exporter, importer = done.records["exporter"], done.records["importer"]
        answers = {**exporter["answers"], **importer["answers"]}
        surprises = [
            f"{case}: {seen}, where {expected} is documented"
            for case, (seen, expected) in answers.items()
            if expected not in ("unspecified", seen)
        ]
        if exporter["collisions"]:
            yield Finding.fail("two segments have one handle", *exporter["collisions"])
        if importer["wrong"]:
            yield Finding.fail("a handle led to other memory than its own", *importer["wrong"])
        if surprises:
            yield Finding.warn("handles behave otherwise than documented for this vendor", *surprises)
        if not (exporter["collisions"] or importer["wrong"] or surprises):
            yield Finding.ok(f"{len(SIZES)} segments and {len(answers)} rules as documented")


def export(w: Worker) -> None:
    buffers = [w.gpu.alloc(nbytes) for nbytes in SIZES]
    for number, buffer in enumerate(buffers):
        buffer.write(pattern(buffer.nbytes, number))
    handles = [buffer.ipc_handle() for buffer in buffers]
    again = [buffer.ipc_handle() for buffer in buffers]
    answers = {"export-twice": answer(w, "export-twice", "same" if handles == again else "differs")}
    for kind in w.gpu.unexportable_kinds:
        case = f"export-{kind}"
        answers[case] = answer(w, case, export_unexportable(w, kind))
    w.record(
        collisions=[
            f"segments {first + 1} and {second + 1}"
            for second in range(len(handles))
            for first in range(second)
            if handles[first] == handles[second]
        ],
        answers=answers,
    )
    w.peer.send((handles, buffers[-1].ipc_handle(INTERIOR)))
    w.peer.recv()  # the importer has closed everything
    for buffer in buffers:
        buffer.free()


def export_unexportable(w: Worker, kind: str) -> str:
    with w.gpu.alloc_unexportable(kind) as buffer, w.step(f"export {kind} memory"):
        try:
            buffer.ipc_handle()
        except DriverError as error:
            if not error.is_refusal:
                raise
            return "refused"
    return "succeeds"


def follow(w: Worker) -> None:
    first_context = w.gpu.create_context()
    handles, interior = w.peer.recv()
    wrong = []
    mappings = []
    for number, (handle, nbytes) in enumerate(zip(handles, SIZES, strict=True)):
        with w.step(f"open segment {number + 1}, {nbytes} B"):
            mappings.append(w.gpu.open_ipc(handle))
    for number, (mapping, nbytes) in enumerate(zip(mappings, SIZES, strict=True)):
        data = mapping.read(min(nbytes, mapping.nbytes))
        if wrong_data := difference(data, pattern(nbytes, number)):
            wrong.append(f"segment {number + 1}: {wrong_data}")
    for mapping in mappings:
        mapping.close()

    with w.step("open an interior pointer's handle"), w.gpu.open_ipc(interior) as mapping:
        lands = landing(mapping.read(min(4096, mapping.nbytes)))
    answers = {"export-interior-pointer": answer(w, "export-interior-pointer", lands)}
    if lands == "nowhere":
        wrong.append("an interior pointer's handle shows neither its own nor its segment's first bytes")

    case = "open-in-second-context"
    with w.step("open in one context"), w.gpu.open_ipc(handles[-1]) as mapping:
        second_context = w.gpu.create_context()
        answers[case] = answer(w, case, open_again(w, handles[-1]))
        second_context.destroy()
        first_context.make_current()
    w.record(wrong=wrong, answers=answers)
    w.peer.send("closed")


def landing(data: bytes) -> str:
    """Where in the last segment these bytes are from; ``nowhere`` if there are none."""
    segment = pattern(SIZES[-1], len(SIZES) - 1)
    if not data:
        return "nowhere"
    if data == segment[: len(data)]:
        return "base"
    return "interior" if data == segment[INTERIOR : INTERIOR + len(data)] else "nowhere"


def open_again(w: Worker, handle: bytes) -> str:
    """What opening in this context does while another context of the process has the segment open."""
    with w.step("open in a second context"):
        try:
            mapping = w.gpu.open_ipc(handle)
        except DriverError as error:
            if not error.is_refusal:
                raise
            return "refused"
        mapping.close()
    return "counted"


def answer(w: Worker, case: str, seen: str) -> tuple[str, str]:
    """What was seen beside what this vendor documents."""
    return seen, w.gpu.expects(case)


CHECK = IpcHandles()
