"""Check that shared device memory is released once no process has it open.

A mapping ends in five ways: the importer closes it; the exporter frees the memory before the importer closes
the mapping; the importer opens and closes it many times; the importer exits, or is killed, while the mapping
is open. After each of these, and after the exporter frees the memory, used memory must return to its earlier
level. Otherwise the step is repeated; a spare importer repeats an exit or a kill.

Many opens must not leak, each must open its own segment, and no close may end another mapping. The control is
an equally long loop without opens. In ``soak`` many importers exit, one after the other, so that small losses
add up. As a control, importers exit that opened nothing. An open and close may leak on the exporter's or on
the importer's device, so both are watched.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import (
    ODD_BYTES,
    Buffer,
    Check,
    Context,
    Finding,
    Meter,
    Peer,
    Probe,
    ProbeOutcome,
    Reading,
    Series,
    Tier,
    Worker,
    leak_reports,
    write_pattern,
    wrong_pattern,
)

from ._ipc_release_exits import judge_failed, start_importers, watch_exits
from ._ipc_release_loop import GLANCE, SEGMENTS, open_and_close, watch_loop

NBYTES = ODD_BYTES

IMPORTERS = ("importer", "spare importer")

HARMS = frozenset({"kills an importer"})


class IpcRelease(Check):
    id = "ipc-release"
    title = "shared memory is released when no process has it open"
    requires = frozenset({"legacy-ipc", "multi-process"})

    def probes(self, ctx: Context) -> Iterable[Probe]:
        importers, ends = dict.fromkeys(IMPORTERS, do_as_asked), frozenset(IMPORTERS)
        for devices in ctx.subjects:
            roles = {"exporter": watch_close, **importers}
            yield Probe("close and exit", roles, devices, exclusive=True, by_process=True, ends=ends)
            if ctx.tier is Tier.SOAK:
                roles = {"exporter": watch_exits, "starter": start_importers}
                yield Probe("many exits", roles, devices, exclusive=True, starters=frozenset({"starter"}))
        for devices in ctx.exporters:
            roles = {"exporter": watch_kill, **importers}
            yield Probe("kill", roles, devices, exclusive=True, by_process=True, harms=HARMS, ends=ends)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        if failed := list(judge_failed(done)):
            yield from failed
            return
        watched = leak_reports(done)
        found = [finding for each in watched for finding in each.judge(NBYTES, SEGMENTS + 1)]
        if wrong := [line for record in done.records.values() for line in record.get("wrong", ())]:
            first = wrong[:3]
            found.append(
                Finding.fail(
                    "wrong-data",
                    "memory opened from another process shows wrong data",
                    *first,
                    times=len(wrong),
                )
            )
        if not found:
            evidence = [item for each in watched for item in each.evidence()]
            found.append(Finding.ok("returned", "the memory of all segments was released", *evidence))
        yield from found

    def series(self, done: ProbeOutcome) -> Iterable[Series]:
        for each in leak_reports(done):
            yield from each.series()


# -- exporters --------------------------------------------------------------------------------------------


def watch_close(w: Worker) -> None:
    meter = Meter(w)
    before_importer = meter.mark()
    ask(w.peer, "make a context")
    context = meter.change_since(before_importer)

    meter.watch("the importer closed it", lambda: close_first(w))
    meter.watch("the exporter freed it and then the importer closed it", lambda: free_first(w))
    meter.watch("the importer had opened and closed it many times", lambda: open_many_times(w, meter))

    before = meter.mark().less(context, None)  # the second importer joins in
    end_importer(w, meter, before, "exit", "the importer exited with it open")


def close_first(w: Worker) -> None:
    with w.gpu.alloc(NBYTES) as buffer:
        ask(w.peer, "open", buffer)
        ask(w.peer, "close")


def free_first(w: Worker) -> None:
    with w.gpu.alloc(NBYTES) as buffer:
        ask(w.peer, "open", buffer)
    ask(w.peer, "close")


def open_many_times(w: Worker, meter: Meter) -> None:
    buffers = [w.gpu.alloc(NBYTES) for _ in range(SEGMENTS + 1)]
    ask(w.peer, "open and close in a loop", *buffers, written=GLANCE)
    watch_loop(w, meter)
    for buffer in buffers:
        buffer.free()


def watch_kill(w: Worker) -> None:
    meter = Meter(w)
    end_importer(w, meter, meter.mark(), "die", "the importer was killed with it open")


def end_importer(w: Worker, meter: Meter, before: Reading, how: str, end: str) -> None:
    """End the importer while it has a segment open. If memory is then missing, repeat this with a spare
    importer."""

    def end_one(importer: Peer) -> None:
        with w.gpu.alloc(NBYTES) as buffer:
            ask(importer, "open", buffer)
            importer.send((how, []))
            importer.wait_gone()

    importer, spare = w.peers
    end_one(importer)
    if not meter.enter(end, before, lambda: end_one(spare)):
        spare.send(("exit", []))


def ask(importer: Peer, act: str, *buffers: Buffer, written: int = NBYTES) -> None:
    """Write ``written`` bytes of data to each segment, and have an importer perform ``act`` on the segments.

    Returns when the importer is done or starts its loop.
    """
    for number, buffer in enumerate(buffers, 1):
        write_pattern(buffer, written, number)
    importer.send((act, [buffer.ipc_handle() for buffer in buffers]))
    importer.recv()


# -- the importers ----------------------------------------------------------------------------------------


def do_as_asked(w: Worker) -> None:
    wrong = list[str]()
    while True:
        w.record(wrong=wrong)
        act, handles = w.peer.recv()
        if act == "exit":
            return
        gpu = w.gpus[-1]  # not before: the spare importer is seldom needed
        match act:
            case "make a context":
                meter = Meter(w, gpu)
            case "open":
                mapping = gpu.open_ipc(handles[0])
                wrong += wrong_pattern("segment left open", mapping, NBYTES, 1)
            case "close":
                mapping.close()
            case "open and close in a loop":
                w.peer.send("it begins")
                open_and_close(w, meter, wrong, handles)
            case "die":
                w.die()
        w.peer.send("done")


CHECK = IpcRelease()
