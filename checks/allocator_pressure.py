"""Let an allocator run full again and again, and see that it then gives back what it only keeps.

The allocator may take so many bytes and no more, a small share of the device's memory, as if the device had
no more. Blocks of one size fill nearly all of it and are freed; the next, larger ones fit into none of
them, so the allocator must give back what it has cached and take memory anew. There must be no error; each
block must keep its data while it is allocated; and at the end nothing may be missing. Where the library has
no such bound (CuPy's MemoryAsyncPool), it is told to give back what it keeps whenever it would hold more
than the share.

A second process has memory of its own on the device, whose bytes must stay as they are. It also sees what
is in use before and after the first, so that memory of others is not mistaken for memory lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuipc_doctor.api import (
    NOISE_BYTES,
    Allocator,
    Block,
    Check,
    Context,
    DriverError,
    Evidence,
    Finding,
    Ledger,
    MemorySamples,
    Probe,
    ProbeOutcome,
    Series,
    Stream,
    Worker,
    account,
    allocator_probe,
    blind,
    difference,
    memory_series,
    mib,
    pattern,
    share,
    share_of_free,
)

CYCLES = 4
PARTS = (11, 7, 3)
"""How many blocks fill the allocator, in turn; each time they are larger, so that none of before fits."""

FILLED = 0.9
"""Of what the allocator may take: the rest is for its rounding."""

EDGE = 64 << 10
"""Bytes that are written and read again at either end of each block."""

BYSTANDER = 32 << 20
"""Bytes of the other process's memory."""


class AllocatorPressure(Check):
    id = "allocator-pressure"
    title = "a full allocator gives back what it only keeps"
    requires = frozenset({"multi-process"})
    needs_allocators = True

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for device, name in ctx.allocators:
            roles = {"program": run_full, "bystander": stand_by}
            yield allocator_probe(name, device, roles, **share(ctx.memory))

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        program, bystander = done.records["program"], done.records["bystander"]
        room, kept, after = program["room"], program["samples"]["used"][-1], account(bystander).entries[0]
        found = []
        if bystander["wrong"]:
            says = "{allocator}: another process's memory was overwritten"
            found.append(Finding.fail("overwrote-others", says, bystander["wrong"], allocator=done.probe))
        if wrong := program["wrong"]:
            says = "{allocator}: blocks lost their data"
            found.append(Finding.fail("wrong-data", says, *wrong, allocator=done.probe))
        if refused := program["refused"]:
            says = "{allocator}: it ran out of memory with most of it only cached"
            found.append(Finding.fail("out-of-memory", says, refused, allocator=done.probe))
        if unsure := blind(done):
            found.append(unsure)
        elif kept > NOISE_BYTES and not after.is_back:
            found.append(after.somebody_elses())
        elif kept > NOISE_BYTES:
            says = "{allocator}: {kept:mib} did not come back after {call}, with nothing allocated any more"
            values = {"allocator": done.probe, "kept": kept, "call": program["call"]}
            found.append(Finding.fail("keeps", says, **values))
        elif late := after.late():
            found.append(late)
        yield from found or [
            Finding.ok(
                "returned",
                "{allocator}: ran full {times} times within {room:mib}, data right, all given back",
                given_back(program["releases_s"]),
                allocator=done.probe,
                times=CYCLES * len(PARTS),
                room=room,
            )
        ]

    def series(self, done: ProbeOutcome) -> Iterable[Series]:
        program = done.records["program"]
        yield memory_series(
            f"{done.probe}: full again and again, {mib(program['room'])} at most", program["samples"]
        )


def given_back(releases_s: Sequence[float]) -> Evidence | str:
    if not releases_s:
        return "it never had to give anything back"
    return Evidence.measured(
        "gave back {times} times for want of room; such an allocation took {longest:ms} at most",
        times=len(releases_s),
        longest=max(releases_s),
    )


def run_full(w: Worker) -> None:
    w.peer.recv()  # the bystander has its memory
    allocator = w.allocator(w.params["allocator"])
    room = share_of_free(w)
    is_bounded = allocator.bound(room)
    stream = allocator.stream()
    allocator.alloc(EDGE, stream).free()
    stream.synchronize()
    allocator.release()
    run = Run(w, allocator, stream, room, is_bounded)
    for cycle in range(CYCLES):
        allocator.release()  # many small blocks out of a few large ones would be a matter of fragmentation
        for parts in PARTS:
            with w.step(f"cycle {cycle + 1}, {parts} blocks"):
                run.fill(parts)
    allocator.release()
    run.samples.take()
    w.record(
        room=room,
        samples=run.samples.json(),
        wrong=run.wrong,
        refused=run.refused,
        releases_s=run.releases_s,
        call=allocator.release_call,
    )


class Run:
    """What is learned while the allocator runs full."""

    def __init__(self, w: Worker, allocator: Allocator, stream: Stream, room: int, is_bounded: bool) -> None:
        self.w = w
        self.allocator = allocator
        self.stream = stream
        self.room = room
        self.is_bounded = is_bounded
        self.samples = MemorySamples(w, allocator)
        self.wrong: list[str] = []
        self.refused = ""
        self.releases_s: list[float] = []

    def fill(self, parts: int) -> None:
        """Allocate all that may be, in so many blocks, see that each keeps its data, and free them."""
        nbytes = int(self.room * FILLED) // parts
        blocks: list[Block] = []
        while len(blocks) < parts and not self.refused:
            if block := self.alloc(nbytes):
                write_edges(block, len(blocks))
                blocks.append(block)
                self.samples.take()
        for number, block in enumerate(blocks):
            if wrong := wrong_edges(block, number):
                self.wrong.append(f"block {number + 1} of {parts}: {wrong}")
            block.free()
        self.stream.synchronize()
        self.samples.take()

    def alloc(self, nbytes: int) -> Block | None:
        """A block; or None, and why not in ``refused``, where there is no room for it."""
        reserved = self.allocator.held()[1]
        began = self.w.clock()
        if not self.is_bounded and reserved + nbytes > self.room:
            self.allocator.release()
            if self.allocator.held()[1] + nbytes > self.room:
                self.refuse(nbytes)
                return None
        try:
            block = self.allocator.alloc(nbytes, self.stream)
        except DriverError as error:
            if not error.is_out_of_memory or self.w.gpu.memory_info()[0] < self.room:
                raise  # it is the device that has no more
            self.refuse(nbytes)
            return None
        if self.allocator.held()[1] < reserved:
            self.releases_s.append(self.w.clock() - began)
        return block

    def refuse(self, nbytes: int) -> None:
        allocated, reserved = self.allocator.held()
        self.refused = (
            f"asked for {mib(nbytes)} with {mib(allocated)} allocated and {mib(reserved)} reserved, of "
            f"{mib(self.room)} that it may take"
        )


def write_edges(block: Block, number: int) -> None:
    block.write(pattern(EDGE, number, 0))
    block.write(pattern(EDGE, number, 1), block.nbytes - EDGE)


def wrong_edges(block: Block, number: int) -> str:
    first = difference(block.read(EDGE), pattern(EDGE, number, 0))
    return first or difference(block.read(EDGE, block.nbytes - EDGE), pattern(EDGE, number, 1))


# -- the bystander ----------------------------------------------------------------------------------------


def stand_by(w: Worker) -> None:
    ledger = Ledger(w)
    with w.gpu.alloc(BYSTANDER) as memory:
        memory.write(pattern(BYSTANDER, 0))
        before = ledger.mark()
        w.peer.send("ready")
        w.peer.wait_gone()
        ledger.enter("the program ended", before)
        w.record(wrong=difference(memory.read(), pattern(BYSTANDER, 0)))


CHECK = AllocatorPressure()
