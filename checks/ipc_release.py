"""See that shared device memory comes back once nobody has it open any more.

Five ends of a mapping: the importer closes it; the exporter frees first and the importer closes later; the
importer has opened and closed it many times; it exits with it open; it is killed with it open. After each,
and after the exporter's free, as much memory must be in use as before it. Where it is not, the same is done
once more; a spare importer repeats an exit or a kill. The many times must not creep, and each time the handle
must lead to its own segment; the control is as long a loop that opens nothing.

The segment is memory of the exporter's device, so it must come back there, wherever the importer's context
was. What an open and close costs may be kept on either device, so over a pair both are watched for creep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import cycle

from gpuipc_doctor.api import (
    ODD_BYTES,
    Account,
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
    Series,
    Worker,
    account,
    differences,
    pattern,
    unlike_pattern,
    watched,
    write_pattern,
)

NBYTES = ODD_BYTES
SEGMENTS = 4
"""How many take turns in the loop."""

OPENS = 256
SAMPLED = range(8, OPENS + 1, 8)
"""Rounds of a loop after which used memory is read."""

GLANCE = 4096
"""Bytes that are looked at in each round of the loop."""

IMPORTERS = ("importer", "spare importer")

HARMS = frozenset({"kills an importer"})


class IpcRelease(Check):
    id = "ipc-release"
    title = "shared memory is given back when nobody has it open"
    requires = frozenset({"legacy-ipc", "multi-process"})

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for devices in ctx.subjects:
            importers = dict.fromkeys(IMPORTERS, do_as_asked)
            yield Probe("close and exit", {"exporter": watch_close, **importers}, devices, exclusive=True)
            yield Probe("kill", {"exporter": watch_kill, **importers}, devices, exclusive=True, harms=HARMS)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        wrong = [line for record in done.records.values() for line in record.get("wrong", ())]
        found = [finding for each in accounts(done) for finding in each.judge(NBYTES, SEGMENTS)]
        if wrong:
            first = wrong[:3]
            found.append(Finding.fail("wrong-data", "the importer saw wrong data", *first, times=len(wrong)))
        if not found:
            evidence = [item for each in accounts(done) for item in each.evidence()]
            found.append(Finding.ok("returned", "memory came back", *evidence))
        yield from found

    def series(self, done: ProbeOutcome) -> Iterable[Series]:
        for each in accounts(done):
            yield from each.series()


def accounts(done: ProbeOutcome) -> list[Account]:
    """Of each device; both roles see the same of one."""
    roles = ("exporter", "importer")[: len(done.devices)]
    return [account(done.records[role]) for role in roles if "ledger" in done.records[role]]


# -- exporters --------------------------------------------------------------------------------------------


def watch_close(w: Worker) -> None:
    ledger = Ledger(w)
    before_importer = ledger.mark()
    ask(w.peer, "make a context")
    context = ledger.mark() - before_importer

    ledger.watch("the importer closed it", lambda: closed_first(w))
    ledger.watch("the exporter freed it and then the importer closed it", lambda: freed_first(w))
    ledger.watch("the importer had opened and closed it many times", lambda: many_times(w, ledger))

    before = ledger.mark() - context  # which goes along
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
    buffers = [w.gpu.alloc(NBYTES) for _ in range(SEGMENTS)]
    ask(w.peer, "open and close in a loop", *buffers, written=GLANCE)
    opening, control = watch_loop(w, ledger), watch_loop(w, ledger)
    ledger.enter_loop("open and close", ledger.sampled(SAMPLED), opening, control)
    w.peer.recv()  # the loop is over
    for buffer in buffers:
        buffer.free()


def watch_loop(w: Worker, ledger: Ledger) -> list[int]:
    """Used memory, in bytes, after those `SAMPLED` rounds of the importer's loop that are read here."""
    samples = []
    for number in SAMPLED:
        w.peer.recv()  # so many rounds are over
        if number in ledger.sampled(SAMPLED):
            samples.append(ledger.used())
        w.peer.send("go on")
    return samples


def watch_kill(w: Worker) -> None:
    ledger = Ledger(w)
    end_importer(w, ledger, ledger.mark(), "die", "the importer was killed with it open")


def end_importer(w: Worker, ledger: Ledger, before: int, how: str, end: str) -> None:
    """Have the importer end with a segment open, and the spare one, too, if memory is missing then."""

    def end_one(importer: Peer) -> None:
        with w.gpu.alloc(NBYTES) as buffer:
            ask(importer, "open", buffer)
            importer.send((how, []))
            importer.wait_gone()

    importer, spare = w.peers
    end_one(importer)
    if not ledger.enter(end, before, lambda: end_one(spare)):
        spare.send(("exit", []))


def ask(importer: Peer, act: str, *buffers: Buffer, written: int = NBYTES) -> None:
    """Have an importer do something with these segments, and wait until it has, or begins with its loop.

    So many bytes of each are ``written`` for it to see.
    """
    for number, buffer in enumerate(buffers, 1):
        write_pattern(buffer, written, number)
    importer.send((act, [buffer.ipc_handle() for buffer in buffers]))
    importer.recv()


# -- the importers ----------------------------------------------------------------------------------------


def do_as_asked(w: Worker) -> None:
    gpu, wrong = w.gpus[-1], list[str]()  # its driver initialises while the exporter's does
    while True:
        w.record(wrong=wrong)
        act, handles = w.peer.recv()
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
            case "exit":
                return
            case "die":
                w.die()
        w.peer.send("done")


def open_segment(gpu: Gpu, wrong: list[str], handle: bytes) -> IpcMapping:
    """Open a segment, and note what is wrong with its data."""
    mapping = gpu.open_ipc(handle)
    if unlike := unlike_pattern(mapping, NBYTES, 1):
        wrong.append(f"opened to be closed later: {unlike}")
    return mapping


def open_many_times(w: Worker, ledger: Ledger, wrong: list[str], handles: Sequence[bytes]) -> None:
    segments = cycle(enumerate(handles, 1))
    opening = repeat(w, ledger, "open and close", lambda: glance(w, wrong, *next(segments)))
    control = repeat(w, ledger, "only ask for the free memory", w.gpu.memory_info)
    ledger.enter_loop("open and close", ledger.sampled(SAMPLED), opening, control)


def repeat(w: Worker, ledger: Ledger, what: str, call: Callable[[], object]) -> list[int]:
    """Make a call `OPENS` times; read used memory, as the exporter does, after the `SAMPLED` ones."""
    samples = []
    for done in watched(w, what, range(1, OPENS + 1)):
        with w.step(f"{what}, round {done} of {OPENS}"):
            call()
        if done in SAMPLED:
            w.peer.send(done)  # the exporter reads it at the same time
            if done in ledger.sampled(SAMPLED):
                samples.append(ledger.used())
            w.peer.recv()
    return samples


def glance(w: Worker, wrong: list[str], number: int, handle: bytes) -> None:
    """Open a segment, note where its beginning is not its own, and close it."""
    with w.gpu.open_ipc(handle) as mapping:
        opened = f"opened segment {number} of {SEGMENTS} in a loop"
        wrong += differences(opened, mapping.read(GLANCE), beginning(number))


@cache
def beginning(number: int) -> bytes:
    return pattern(GLANCE, number)


CHECK = IpcRelease()
