"""Let many importers exit while a segment is open, one after the other, so that small losses add up."""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import (
    ODD_BYTES,
    Finding,
    Meter,
    ProbeOutcome,
    Reading,
    Worker,
    write_pattern,
    wrong_pattern,
)
from gpuipc_doctor.api.worker import Child, ChildGone, ChildHangs

EXITS = range(1, 25)
"""Numbers of the importers."""

GLANCE = 4096
"""Bytes of each segment that are written and read."""


def watch_exits(w: Worker) -> None:
    """Watch used memory while importers exit. Control: importers that opened nothing."""
    meter = Meter(w)
    sampled = meter.sampled(EXITS)

    def end_importers(what: str, *, opens: bool) -> list[Reading]:
        def end_one(number: int) -> None:
            end_importer(w, meter, number, opens=opens)

        return meter.used_after(sampled, EXITS, end_one, what)

    end_importer(w, meter, 0, opens=True)  # for what the first one costs
    opened = end_importers("exit with it open", opens=True)
    control = end_importers("exit", opens=False)
    meter.enter_loop("exit with it open", sampled, opened, control)
    w.peer.send(None)


def end_importer(w: Worker, meter: Meter, number: int, *, opens: bool) -> None:
    with w.gpu.alloc(ODD_BYTES) as buffer:
        write_pattern(buffer, GLANCE, number)
        w.peer.send([number, buffer.ipc_handle() if opens else b""])
        w.peer.recv()  # the importer has exited
    meter.mark()  # the driver may release its memory only now


def start_importers(w: Worker) -> None:
    """Start an importer for each segment; each importer exits while its segment is open."""
    wrong = list[str]()
    while segment := w.peer.recv():
        number, _ = segment
        try:
            importer = w.start(open_and_exit)
            importer.send(segment)
            wrong += importer.recv(w.deadline_s)
            importer.end(w.deadline_s)
        except (ChildGone, ChildHangs) as error:
            w.record(failed={"number": number, "how": str(error) or "no answer", "call": importer.call})
            return
        w.peer.send("gone")
    w.record(wrong=wrong)


def open_and_exit(child: Child) -> None:
    number, handle = child.recv()
    gpu = child.gpus[-1]
    gpu.memory_info()  # makes its context
    wrong = list[str]()
    if handle:
        mapping = gpu.open_ipc(handle)
        wrong = wrong_pattern(f"importer {number}", mapping, GLANCE, number)
    child.send(wrong)


def judge_failed(done: ProbeOutcome) -> Iterable[Finding]:
    """Judge an importer that ended too soon."""
    if failed := done.records.get("starter", {}).get("failed"):
        says = "importer {number} of {exits} did not exit with the segment open, but failed: {call} {how}"
        yield Finding.fail("importer-ended", says, exits=len(EXITS), **failed)
