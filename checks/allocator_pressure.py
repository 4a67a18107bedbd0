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

from collections.abc import Iterable
from dataclasses import asdict

from gpuipc_doctor.api import (
    Allocator,
    Block,
    Check,
    Context,
    DriverError,
    Finding,
    MemorySamples,
    MemoryShare,
    Probe,
    ProbeOutcome,
    Series,
    Stream,
    Worker,
    difference,
    memory_series,
    mib,
    pattern,
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

NOISE_BYTES = 4 << 20
"""Change of used memory that says nothing: a block or two of a driver's own."""

SETTLE_S = 2.0
"""For a driver to finish what it does after a process has ended."""


class AllocatorPressure(Check):
    id = "allocator-pressure"
    title = "a full allocator gives back what it only keeps"
    requires = frozenset({"multi-process"})
    needs_allocators = True

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for device, name in ctx.allocators:
            roles = {"program": run_full, "bystander": stand_by}
            params = {"allocator": name, "share": asdict(ctx.memory)}
            yield Probe(name, roles, (device,), params, deadline_s=60.0, exclusive=True)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        program, bystander = done.records["program"], done.records["bystander"]
        room, samples = program["room"], program["samples"]
        kept, others = samples["used"][-1], bystander["left"]
        bad = []
        if bystander["wrong"]:
            bad.append(
                Finding.fail(f"{done.probe}: another process's memory was overwritten", bystander["wrong"])
            )
        if program["wrong"]:
            bad.append(Finding.fail(f"{done.probe}: blocks lost their data", *program["wrong"]))
        if program["refused"]:
            bad.append(
                Finding.fail(
                    f"{done.probe}: it ran out of memory with most of it only cached",
                    f"{program['refused']}, of {mib(room)} that it may take",
                )
            )
        if kept > NOISE_BYTES and abs(others) > NOISE_BYTES:
            bad.append(
                Finding.error(
                    f"{done.probe}: {mib(others)} more are in use after the program ended than before it "
                    f"began, so not all of the {mib(kept)} that are missing are its own",
                    remedy="another process allocates or frees on this device; run the check on an idle one",
                )
            )
        elif kept > NOISE_BYTES:
            bad.append(
                Finding.fail(
                    f"{done.probe}: {mib(kept)} of {mib(max(samples['used']))} did not come back after "
                    f"{program['call']}, with nothing allocated any more"
                )
            )
        yield from bad or [
            Finding.ok(
                f"{done.probe}: ran full {CYCLES * len(PARTS)} times within {mib(room)}, data right, all "
                "given back",
                given_back(program["releases_s"]),
            )
        ]

    def series(self, done: ProbeOutcome) -> Iterable[Series]:
        program = done.records["program"]
        yield memory_series(
            f"{done.probe}: full again and again, {mib(program['room'])} at most", program["samples"]
        )


def given_back(releases_s: list[float]) -> str:
    if not releases_s:
        return "it never had to give anything back"
    longest = f"{1000 * max(releases_s):.1f} ms at most"
    return f"gave back {len(releases_s)} times for want of room; such an allocation took {longest}"


def run_full(w: Worker) -> None:
    w.peer.recv()  # the bystander has its memory
    allocator = w.allocator(w.params["allocator"])
    room = MemoryShare(**w.params["share"]).of(w.gpu.memory_info()[0])
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
        self.samples = MemorySamples(w.gpu, allocator, w.clock)
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
        self.refused = f"asked for {mib(nbytes)} with {mib(allocated)} allocated and {mib(reserved)} reserved"


def write_edges(block: Block, number: int) -> None:
    block.write(pattern(EDGE, number, 0))
    block.write(pattern(EDGE, number, 1), block.nbytes - EDGE)


def wrong_edges(block: Block, number: int) -> str:
    first = difference(block.read(EDGE), pattern(EDGE, number, 0))
    return first or difference(block.read(EDGE, block.nbytes - EDGE), pattern(EDGE, number, 1))


# -- the bystander ----------------------------------------------------------------------------------------


def stand_by(w: Worker) -> None:
    with w.gpu.alloc(BYSTANDER) as memory:
        memory.write(pattern(BYSTANDER, 0))
        before = w.gpu.memory_used()
        w.peer.send("ready")
        w.peer.wait_gone()
        w.wait_until(lambda: w.gpu.memory_used() - before <= NOISE_BYTES, SETTLE_S)
        w.record(wrong=difference(memory.read(), pattern(BYSTANDER, 0)), left=w.gpu.memory_used() - before)


CHECK = AllocatorPressure()
