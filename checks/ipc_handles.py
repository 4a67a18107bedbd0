"""Export segments in every way and see that each handle leads where it must, and only there.

Two segments have two handles; opened, each shows its own data, then and when it changes, sub-allocations of
one block included; the handle of an interior pointer leads where this vendor documents; memory of kinds that
cannot be shared is refused; and opening in a second context of the process does what this vendor documents.
What a vendor leaves open is recorded and not judged.

Where a handle is given out that should not be, an application opens it: a kind of memory that should be
refused, or a second handle of one segment. What it meets then is judged. Right data both ways harms nobody;
wrong data does, and so does an error, since a library that was refused at once would have gone another way.

Memory of VMM has a probe of its own: where its export was not refused, nodes have lost device memory by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import combinations

from gpuipc_doctor.api import (
    Buffer,
    Check,
    Context,
    DriverError,
    Finding,
    Json,
    Probe,
    ProbeOutcome,
    Worker,
    difference,
    exchange_as_exporter,
    exchange_as_importer,
    judge_exchange,
    pattern,
)

SIZES = (1000, 1000, 2 << 20)
"""Bytes of the segments: two that the driver places in one block, and one with a block of its own."""

INTERIOR = 512
"""Offset, in bytes, of the interior pointer that is exported."""


VMM = "VMM memory"
HARMS = frozenset({"exports VMM memory"})

Stray = tuple[Buffer, bytes, int]
"""Memory, a handle of it that is documented not to be, and how many bytes of it may be written and read."""


class IpcHandles(Check):
    id = "ipc-handles"
    title = "IPC handles lead to the memory that they were made for"
    requires = frozenset({"legacy-ipc", "multi-process"})

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for devices in ctx.subjects:
            yield Probe("segments", {"exporter": export, "importer": follow}, devices)
            if "vmm-ipc" in devices[0].capabilities:
                yield Probe(VMM, {"exporter": export_vmm, "importer": follow_vmm}, devices, harms=HARMS)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        answers = {case: answer for role in done.records.values() for case, answer in role["answers"].items()}
        found = [*([] if done.probe == VMM else judge_segments(done)), *judge_answers(done, answers)]
        if not found and done.probe == VMM:
            found.append(Finding.ok("vmm-refused", "no legacy handle is made of VMM memory, as documented"))
        elif not found:
            says = "{segments} segments and {rules} rules as documented"
            found.append(Finding.ok("as-documented", says, segments=len(SIZES), rules=len(answers)))
        yield from found


def judge_segments(done: ProbeOutcome) -> Iterable[Finding]:
    """Judge where the handles led that may be made."""
    exporter, importer = done.records["exporter"], done.records["importer"]
    yield from judge_exchange(done)
    if exporter["collisions"]:
        yield Finding.fail("one-handle", "two segments have one handle", *exporter["collisions"])
    if importer["wrong"]:
        yield Finding.fail("other-memory", "a handle led to other memory than its own", *importer["wrong"])


def judge_answers(done: ProbeOutcome, answers: Mapping[str, Json]) -> Iterable[Finding]:
    """Judge what was seen of each case beside what is documented, and what an application would suffer."""
    if useless := done.records["importer"]["useless"] + done.records["exporter"]["useless"]:
        yield Finding.fail(
            "useless-handle",
            "a handle was given out that is documented to be refused, and cannot be used",
            *useless,
        )
    if surprises := [
        f"{case}: {seen}, where {expected} is documented"
        for case, (seen, expected) in answers.items()
        if expected not in ("unspecified", seen)
    ]:
        says = "handles behave otherwise than documented for this vendor"
        yield Finding.warn("undocumented", says, *surprises)


# -- exporters --------------------------------------------------------------------------------------------


def export(w: Worker) -> None:
    with ExitStack() as held:
        buffers = [held.enter_context(w.gpu.alloc(nbytes)) for nbytes in SIZES]
        for number, buffer in enumerate(buffers):
            buffer.write(pattern(buffer.nbytes, number))
        handles = [buffer.ipc_handle() for buffer in buffers]
        again = [buffer.ipc_handle() for buffer in buffers]
        answers = {"export-twice": answer(w, "export-twice", "same" if handles == again else "differs")}
        strays = {}
        if answers["export-twice"] == ("differs", "same"):
            for number, (buffer, handle) in enumerate(zip(buffers, again, strict=True)):
                strays[f"second handle of segment {number + 1}"] = (buffer, handle, buffer.nbytes)
        for kind in w.gpu.unexportable_kinds:
            if kind != "vmm":
                memory = held.enter_context(w.gpu.alloc_unexportable(kind))
                answers |= export_unexportable(w, kind, memory, memory.nbytes, strays)
        w.record(collisions=list(collisions(handles)), answers=answers)
        w.peer.send((handles, buffers[-1].ipc_handle(INTERIOR)))
        offer(w, strays)

        exchanged = []
        for number, buffer in enumerate(buffers if w.peer.recv() == "all right" else []):
            exchanged += exchange_as_exporter(w, buffer, buffer.nbytes, f"segment {number + 1}")
        w.record(exchanged=exchanged, useless=share(w, strays))
        w.peer.recv()  # the importer has closed everything


def export_vmm(w: Worker) -> None:
    strays: dict[str, Stray] = {}
    with w.gpu.alloc_unexportable("vmm") as memory:
        # Nobody has been granted access to it: it is opened and no more.
        w.record(answers=export_unexportable(w, "vmm", memory, 0, strays))
        offer(w, strays)
        w.record(useless=share(w, strays))
        w.peer.recv()  # the importer has closed it


def collisions(handles: list[bytes]) -> Iterator[str]:
    for first, second in combinations(range(len(handles)), 2):
        if handles[first] == handles[second]:
            yield f"segments {first + 1} and {second + 1}"


def export_unexportable(
    w: Worker, kind: str, memory: Buffer, nbytes: int, strays: dict[str, Stray]
) -> dict[str, tuple[str, str]]:
    """Ask for the handle of memory that may be refused; what was answered. One that should is a stray."""
    handle, case = handle_of(w, kind, memory), f"export-{kind}"
    if handle and w.gpu.expects(case) == "refused":
        strays[f"{kind} memory"] = (memory, handle, nbytes)
    return {case: answer(w, case, "succeeds" if handle else "refused")}


def handle_of(w: Worker, kind: str, memory: Buffer) -> bytes | None:
    """The handle of memory of this kind; None where it is refused."""
    with w.step(f"export {kind} memory"):
        try:
            return memory.ipc_handle()
        except DriverError as error:
            if not error.is_refusal:
                raise
            return None


def offer(w: Worker, strays: Mapping[str, Stray]) -> None:
    w.peer.send([(what, handle, nbytes) for what, (_, handle, nbytes) in strays.items()])


def share(w: Worker, strays: Mapping[str, Stray]) -> list[str]:
    """Use the strays that the importer could open; what an application would suffer."""
    useless = []
    for what, (memory, _, nbytes) in strays.items():
        if w.peer.recv() == "opened":
            useless += exchange_as_exporter(w, memory, nbytes, what)
    return useless


# -- importers --------------------------------------------------------------------------------------------


def follow(w: Worker) -> None:
    first_context = w.gpu.create_context()
    handles, interior = w.peer.recv()
    strays = w.peer.recv()
    wrong = []
    with ExitStack() as held:
        mappings = []
        for number, (handle, nbytes) in enumerate(zip(handles, SIZES, strict=True)):
            with w.step(f"open segment {number + 1}, {nbytes} B"):
                mappings.append(held.enter_context(w.gpu.open_ipc(handle)))
        for number, (mapping, nbytes) in enumerate(zip(mappings, SIZES, strict=True)):
            data = mapping.read(min(nbytes, mapping.nbytes))
            if wrong_data := difference(data, pattern(nbytes, number)):
                wrong.append(f"segment {number + 1}: {wrong_data}")

    with w.step("open an interior pointer's handle"), w.gpu.open_ipc(interior) as mapping:
        lands = landing(mapping.read(min(4096, mapping.nbytes)))
    answers = {"export-interior-pointer": answer(w, "export-interior-pointer", lands)}
    if lands == "nowhere":
        wrong.append("an interior pointer's handle shows neither its own nor its segment's first bytes")

    exchanged = []
    w.peer.send("some wrong" if wrong else "all right")  # nothing is written where other memory may be
    for number, (handle, nbytes) in enumerate([] if wrong else zip(handles, SIZES, strict=True)):
        with w.step(f"exchange data in segment {number + 1}"), w.gpu.open_ipc(handle) as mapping:
            exchanged += exchange_as_importer(w, mapping, nbytes, f"segment {number + 1}")
    useless = use_all(w, strays)

    case = "open-in-second-context"
    with w.step("open in one context"), w.gpu.open_ipc(handles[-1]) as mapping:
        second_context = w.gpu.create_context()
        answers[case] = answer(w, case, open_again(w, handles[-1]))
        second_context.destroy()
        first_context.make_current()
    w.record(wrong=wrong, answers=answers, exchanged=exchanged, useless=useless)
    w.peer.send("closed")


def follow_vmm(w: Worker) -> None:
    w.record(answers={}, useless=use_all(w, w.peer.recv()))
    w.peer.send("closed")


def landing(data: bytes) -> str:
    """Where in the last segment these bytes are from; ``nowhere`` if there are none."""
    segment = pattern(SIZES[-1], len(SIZES) - 1)
    if not data:
        return "nowhere"
    if data == segment[: len(data)]:
        return "base"
    return "interior" if data == segment[INTERIOR : INTERIOR + len(data)] else "nowhere"


def use_all(w: Worker, strays: Sequence[tuple[str, bytes, int]]) -> list[str]:
    return [trouble for stray in strays for trouble in use(w, *stray)]


def use(w: Worker, what: str, handle: bytes, nbytes: int) -> list[str]:
    """Do with a stray handle what an application does; what it would suffer."""
    with w.step(f"open {what}"):
        try:
            with w.gpu.open_ipc(handle) as mapping:
                w.peer.send("opened")
                return exchange_as_importer(w, mapping, nbytes, what)
        except DriverError as error:
            if not error.is_refusal:
                raise
            w.peer.send("refused")
            return [f"{what}: {error}"]


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
