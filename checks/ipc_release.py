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

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import cycle

from gpuipc_doctor.api import (
    ODD_BYTES,
    Buffer,
    Check,
    Context,
    Finding,
    Gpu,
    IpcMapping,
    Ledger,
    Peer,
    Probe,
    ProbeOutcome,
    Reading,
    Series,
    Tier,
    Worker,
    accounts,
    differences,
    pattern,
    reader_of,
    unlike_pattern,
    watched,
    write_pattern,
)
from gpuipc_doctor.api.worker import Child, ChildGone, ChildHangs

NBYTES = ODD_BYTES
SEGMENTS = 4
"""Number of segments in the loop, during which one more segment stays open."""

OPENS = 256
SAMPLED = range(8, OPENS + 1, 8)
"""Rounds of a loop after which used memory is read."""

GLANCE = 4096
"""Bytes read in each round of the loop."""

IMPORTERS = ("importer", "spare importer")

MANY = "many exits"

EXITS = range(1, 25)
"""Numbers of the importers that exit one after the other."""

HARMS = frozenset({"kills an importer"})


class IpcRelease(Check):
    id = "ipc-release"
    title = "shared memory is released when no process has it open"
    requires = frozenset({"legacy-ipc", "multi-process"})

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for devices in ctx.subjects:
            importers = dict.fromkeys(IMPORTERS, do_as_asked)
            roles = {"exporter": watch_close, **importers}
            yield Probe("close and exit", roles, devices, exclusive=True, ends=frozenset(IMPORTERS))
            if ctx.tier is Tier.SOAK:
                roles, starters = (
                    {"exporter": watch_exits, "starter": start_importers},
                    frozenset({"starter"}),
                )
                yield Probe(MANY, roles, devices, exclusive=True, starters=starters)
        for devices in ctx.exporters:
            roles = {"exporter": watch_kill, **dict.fromkeys(IMPORTERS, do_as_asked)}
            yield Probe("kill", roles, devices, exclusive=True, harms=HARMS, ends=frozenset(IMPORTERS))

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        if failed := done.records.get("starter", {}).get("failed"):
            says = "importer {number} of {exits} did not exit with the segment open, but failed: {call} {how}"
            yield Finding.fail("importer-ended", says, exits=len(EXITS), **failed)
            return
        wrong = [line for record in done.records.values() for line in record.get("wrong", ())]
        found = [finding for each in accounts(done) for finding in each.judge(NBYTES, SEGMENTS + 1)]
        if wrong:
            first = wrong[:3]
            found.append(Finding.fail("wrong-data", "the importer saw wrong data", *first, times=len(wrong)))
        if not found:
            evidence = [item for each in accounts(done) for item in each.evidence()]
            found.append(Finding.ok("returned", "the memory of all segments was released", *evidence))
        yield from found

    def series(self, done: ProbeOutcome) -> Iterable[Series]:
        for each in accounts(done):
            yield from each.series()


# -- exporters --------------------------------------------------------------------------------------------


def watch_close(w: Worker) -> None:
    ledger = Ledger(w)
    before_importer = ledger.mark()
    ask(w.peer, "make a context")
    context = ledger.change_since(before_importer)

    ledger.watch("the importer closed it", lambda: closed_first(w))
    ledger.watch("the exporter freed it and then the importer closed it", lambda: freed_first(w))
    ledger.watch("the importer had opened and closed it many times", lambda: many_times(w, ledger))

    before = ledger.mark() - context  # the second importer joins in
    end_importer(w, ledger, before, "exit", "the importer exited with it open")


def closed_first(w: Worker) -> None:
    with w.gpu.alloc(NBYTES) as buffer:
        ask(w.peer, "open", buffer)
        ask(w.peer, "close")


def freed_first(w: Worker) -> None:
    with w.gpu.alloc(NBYTES) as buffer:
        ask(w.peer, "open", buffer)
    ask(w.peer, "close")


def many_times(w: Worker, ledger: Ledger) -> None:
    buffers = [w.gpu.alloc(NBYTES) for _ in range(SEGMENTS + 1)]
    ask(w.peer, "open and close in a loop", *buffers, written=GLANCE)
    opening, control = watch_loop(w, ledger), watch_loop(w, ledger)
    ledger.enter_loop("open and close", ledger.sampled(SAMPLED), opening, control)
    w.peer.recv()  # the loop is over
    for buffer in buffers:
        buffer.free()


def watch_loop(w: Worker, ledger: Ledger) -> list[Reading]:
    """Used memory in bytes after the `SAMPLED` rounds of the importer's loop, read by this role."""
    samples = list[Reading]()
    for number in SAMPLED:
        w.peer.recv()  # that many rounds are over
        if number in ledger.sampled(SAMPLED):
            samples.append(ledger.sample("open and close", number))
        w.peer.send("go on")
    return samples


def watch_kill(w: Worker) -> None:
    ledger = Ledger(w)
    end_importer(w, ledger, ledger.mark(), "die", "the importer was killed with it open")


def end_importer(w: Worker, ledger: Ledger, before: int, how: str, end: str) -> None:
    """End the importer while it has a segment open. If memory is then missing, repeat this with a spare
    importer."""

    def end_one(importer: Peer) -> None:
        with w.gpu.alloc(NBYTES) as buffer:
            ask(importer, "open", buffer)
            importer.send((how, []))
            importer.wait_gone()

    importer, spare = w.peers
    end_one(importer)
    if not ledger.enter(end, before, lambda: end_one(spare)):
        spare.send(("exit", []))


def watch_exits(w: Worker) -> None:
    ledger = Ledger(w)
    sampled = ledger.sampled(EXITS)

    def used_by(what: str, *, opens: bool) -> list[Reading]:
        def act(number: int) -> None:
            exit_one(w, ledger, number, opens=opens)

        return ledger.used_after(sampled, EXITS, act, what)

    exit_one(w, ledger, 0, opens=True)  # for what the first one costs
    opened, control = used_by("exit with it open", opens=True), used_by("exit", opens=False)
    ledger.enter_loop("exit with it open", sampled, opened, control)
    w.peer.send(None)


def exit_one(w: Worker, ledger: Ledger, number: int, *, opens: bool) -> None:
    with w.gpu.alloc(NBYTES) as buffer:
        write_pattern(buffer, GLANCE, number)
        w.peer.send([number, buffer.ipc_handle() if opens else b""])
        w.peer.recv()  # the importer has exited
    ledger.mark()  # the driver may release its memory only now


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
                ledger = Ledger(w, gpu)
            case "open":
                mapping = open_segment(gpu, wrong, handles[0])
            case "close":
                mapping.close()
            case "open and close in a loop":
                w.peer.send("it begins")
                open_many_times(w, ledger, wrong, handles)
            case "die":
                w.die()
        w.peer.send("done")


def open_segment(gpu: Gpu, wrong: list[str], handle: bytes) -> IpcMapping:
    """Open a segment and record wrong data."""
    mapping = gpu.open_ipc(handle)
    if unlike := unlike_pattern(mapping, NBYTES, 1):
        wrong.append(f"segment left open: {unlike}")
    return mapping


def open_many_times(w: Worker, ledger: Ledger, wrong: list[str], handles: Sequence[bytes]) -> None:
    segments = cycle(enumerate(handles[:SEGMENTS], 1))
    with w.gpu.open_ipc(handles[SEGMENTS]) as stays:
        read_stays = reader_of(w, "the segment that stays open", stays, GLANCE, SEGMENTS + 1)

        def look(after: str) -> None:
            wrong.extend(read_stays(after))

        opening = repeat(w, ledger, "open and close", lambda: glance(w, wrong, *next(segments)), look)
        control = repeat(w, ledger, "only ask for the free memory", w.gpu.memory_info, look)
        ledger.enter_loop("open and close", ledger.sampled(SAMPLED), opening, control)


def repeat(
    w: Worker, ledger: Ledger, what: str, call: Callable[[], object], look: Callable[[str], None]
) -> list[Reading]:
    """Run `OPENS` rounds of ``call`` and ``look``; returns used memory in bytes at the `SAMPLED` rounds."""
    samples = list[Reading]()
    for done in watched(w, what, range(1, OPENS + 1)):
        step = f"{what}, round {done} of {OPENS}"
        with w.step(step):
            call()
        look(step)
        if done in SAMPLED:
            w.peer.send(done)  # the exporter reads used memory at the same time
            if done in ledger.sampled(SAMPLED):
                samples.append(ledger.used())
            w.peer.recv()
    return samples


def glance(w: Worker, wrong: list[str], number: int, handle: bytes) -> None:
    """Open a segment, record wrong data at its start, and close it."""
    with w.gpu.open_ipc(handle) as mapping:
        opened = f"segment {number} of {SEGMENTS}, opened in turn"
        wrong += differences(opened, mapping.read(GLANCE), beginning(number))


@cache
def beginning(number: int) -> bytes:
    return pattern(GLANCE, number)


def start_importers(w: Worker) -> None:
    """Start an importer for each segment; each importer exits while its segment is open."""
    wrong = list[str]()
    while told := w.peer.recv():
        number, _ = told
        try:
            importer = w.start(open_and_exit)
            importer.send(told)
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
        wrong = differences(f"importer {number}", mapping.read(GLANCE), beginning(number))
    child.send(wrong)


CHECK = IpcRelease()
