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
    Block,
    Bounded,
    Check,
    Context,
    Evidence,
    Finding,
    Json,
    MemorySamples,
    Probe,
    ProbeOutcome,
    Series,
    Stream,
    Worker,
    account,
    allocator_probe,
    begin_when_asked,
    blind,
    difference,
    look_on,
    memory_series,
    mib,
    pattern,
    share,
    share_of_free,
    use_once,
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
        found = [*judge_data(done.probe, program, bystander["wrong"]), *judge_memory(done, program)]
        says = "{allocator}: ran full {times} times within {room:mib}, data right, all given back"
        told, times = given_back(program["releases_s"]), CYCLES * len(PARTS)
        yield from found or [
            Finding.ok("returned", says, told, allocator=done.probe, times=times, room=program["room"])
        ]

    def series(self, done: ProbeOutcome) -> Iterable[Series]:
        program = done.records["program"]
        title = f"{done.probe}: full again and again, {mib(program['room'])} at most"
        yield memory_series(title, program["samples"])


def judge_data(allocator: str, program: Json, overwritten: str) -> Iterable[Finding]:
    """Judge whether there was memory to be had, and whether what was in it, and beside it, stayed."""
    if overwritten:
        says = "{allocator}: another process's memory was overwritten"
        yield Finding.fail("overwrote-others", says, overwritten, allocator=allocator)
    if wrong := program["wrong"]:
        yield Finding.fail("wrong-data", "{allocator}: blocks lost their data", *wrong, allocator=allocator)
    if refused := program["refused"]:
        says = "{allocator}: it ran out of memory with most of it only cached"
        yield Finding.fail("out-of-memory", says, refused, allocator=allocator)


def judge_memory(done: ProbeOutcome, program: Json) -> Iterable[Finding]:
    """Judge whether all came back, and soon."""
    kept, after = program["samples"]["used"][-1], account(done.records["bystander"]).entries[0]
    says = "{allocator}: {kept:mib} did not come back after {call}, with nothing allocated any more"
    keeps = Finding.fail("keeps", says, allocator=done.probe, kept=kept, call=program["call"])
    if found := blind(done) or after.trust(keeps if kept > NOISE_BYTES else None) or after.late():
        yield found


def given_back(releases_s: Sequence[float]) -> Evidence | str:
    if not releases_s:
        return "it never had to give anything back"
    return Evidence.measured(
        "gave back {times} times for want of room; such an allocation took {longest:ms} at most",
        times=len(releases_s),
        longest=max(releases_s),
    )


def run_full(w: Worker) -> None:
    begin_when_asked(w)  # the bystander has its memory
    allocator = w.allocator(w.params["allocator"])
    bounded, stream = Bounded(w, allocator, share_of_free(w)), allocator.stream()
    use_once(allocator, stream, EDGE)
    samples, wrong = MemorySamples(w, allocator), list[str]()
    for cycle in range(CYCLES):
        allocator.release()  # many small blocks out of a few large ones would be a matter of fragmentation
        for parts in PARTS:
            with w.step(f"cycle {cycle + 1}, {parts} blocks"):
                wrong += fill(bounded, stream, parts, samples)
    allocator.release()
    samples.take()
    w.record(room=bounded.room, refused=bounded.refused, releases_s=bounded.releases_s)
    w.record(samples=samples.json(), wrong=wrong, call=allocator.release_call)


def fill(bounded: Bounded, stream: Stream, parts: int, samples: MemorySamples) -> list[str]:
    """Allocate all that may be, in so many blocks, and free them; what of their data they have not kept."""
    nbytes, blocks, lost = int(bounded.room * FILLED) // parts, list[Block](), []
    while len(blocks) < parts and (block := bounded.alloc(nbytes, stream)):
        write_edges(block, len(blocks))
        blocks.append(block)
        samples.take()
    for number, block in enumerate(blocks):
        if wrong := wrong_edges(block, number):
            lost.append(f"block {number + 1} of {parts}: {wrong}")
        block.free()
    stream.synchronize()
    samples.take()
    return lost


def write_edges(block: Block, number: int) -> None:
    block.write(pattern(EDGE, number, 0))
    block.write(pattern(EDGE, number, 1), block.nbytes - EDGE)


def wrong_edges(block: Block, number: int) -> str:
    first = difference(block.read(EDGE), pattern(EDGE, number, 0))
    return first or difference(block.read(EDGE, block.nbytes - EDGE), pattern(EDGE, number, 1))


def stand_by(w: Worker) -> None:
    with w.gpu.alloc(BYSTANDER) as memory:
        memory.write(pattern(BYSTANDER, 0))
        look_on(w)
        w.record(wrong=difference(memory.read(), pattern(BYSTANDER, 0)))


CHECK = AllocatorPressure()
