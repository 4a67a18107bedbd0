"""Fill an allocator repeatedly and check that it releases its cache.

The allocator is limited to a small share of the device's memory, as if the device had no more. Blocks of one
size fill nearly all of this share and are freed. Larger blocks follow, which do not fit into the cached ones,
so the allocator must release its cache and allocate from the driver. There must be no error, each block must
keep its data while allocated, and at the end no memory may be missing. An allocator without a limit (CuPy's
MemoryAsyncPool) is asked to release its cache whenever it would exceed the share.

Another process has its own memory on the device, which must not change. This process also reads used memory
before the tested process starts and after it has ended. A loss is a FAIL only if it recurs in a second run
with new processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuipc_doctor.api import (
    NOISE_BYTES,
    Check,
    Context,
    Evidence,
    Finding,
    Probe,
    ProbeOutcome,
    Series,
    Worker,
    begin_when_asked,
    blind,
    difference,
    leak_report,
    look_on,
    pattern,
    share,
    share_of_free,
)
from gpuipc_doctor.api.allocator import Block, Stream, use_once
from gpuipc_doctor.api.allocator import probe as allocator_probe
from gpuipc_doctor.api.data_patterns import mib
from gpuipc_doctor.api.memory_limit import Bounded
from gpuipc_doctor.api.program_memory import (
    MemorySamples,
    judge_hidden,
    judge_loss,
    repeat_if_lost,
    used_since_the_start,
)
from gpuipc_doctor.api.program_memory import series as memory_series

CYCLES = 4
PARTS = (11, 7, 3)
"""Number of blocks in each filling of a cycle. The blocks of a later filling are larger, so that they do not
fit into cached ones."""

FILLED = 0.9
"""Fraction of the allocator's limit to use; the rest is for rounding."""

EDGE = 64 << 10
"""Bytes written and verified at both ends of each block."""

BYSTANDER = 32 << 20
"""Bytes of the other process's memory."""


class AllocatorPressure(Check):
    id = "allocator-pressure"
    title = "a full allocator releases its cache"
    subject = None
    requires = frozenset({"multi-process"})
    needs_allocators = True
    searches = True

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for device, name in ctx.allocators:
            yield allocator_probe(name, device, ROLES, **share(ctx.memory))

    def again(self, failed: ProbeOutcome) -> Iterable[Probe]:
        if failed.completed and not list(judge_data(failed)):
            yield from repeat_if_lost(failed, ROLES, lost)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        loss = blind(done) or judge_loss(done, lost)
        if not done.completed:
            yield from filter(None, [loss])
            return
        program, after = done.records["program"], leak_report(done.roles["onlooker"]).entries[0]
        loss = loss or judge_hidden(done.roles["program"], done.roles["onlooker"])
        found = [*judge_data(done), *filter(None, [loss or after.late()])]
        says = "{allocator}: filled {times} times within {room:mib}, data correct, all released"
        told, times = given_back(program["releases_s"]), CYCLES * len(PARTS)
        yield from found or [
            Finding.ok("returned", says, told, allocator=done.probe, times=times, room=program["room"])
        ]

    def series(self, done: ProbeOutcome) -> Iterable[Series]:
        program = done.records["program"]
        title = f"{done.probe}: repeated fills of up to {mib(program['room'])}"
        yield memory_series(title, program["samples"])


def judge_data(done: ProbeOutcome) -> Iterable[Finding]:
    """Judge whether allocations succeeded, and whether the blocks and the other process's memory kept their
    data."""
    allocator, program = done.probe, done.records["program"]
    if overwritten := done.records["onlooker"]["wrong"]:
        says = "{allocator}: another process's memory was overwritten"
        yield Finding.fail("overwrote-others", says, overwritten, allocator=allocator)
    if wrong := program["wrong"]:
        yield Finding.fail("wrong-data", "{allocator}: blocks lost their data", *wrong, allocator=allocator)
    if refused := program["refused"]:
        says = "{allocator}: out of memory although most of the memory was only cached"
        yield Finding.fail("out-of-memory", says, refused, allocator=allocator)


def lost(done: ProbeOutcome) -> Finding | None:
    """The FAIL if memory stayed in use after the program released everything."""
    program = done.records["program"]
    kept = used_since_the_start(done.roles["program"])[-1]
    if kept <= NOISE_BYTES:
        return None
    says = "{allocator}: {kept:mib} not released after {call} although every block was freed"
    return Finding.fail("keeps", says, allocator=done.probe, kept=kept, call=program["call"])


def given_back(releases_s: Sequence[float]) -> Evidence | str:
    if not releases_s:
        return "the allocator never needed to release its cache"
    return Evidence.measured(
        "memory ran out {times} times; the allocator then released its cache within {longest:ms}",
        times=len(releases_s),
        longest=max(releases_s),
    )


def run_full(w: Worker) -> None:
    begin_when_asked(w)  # the second process has its memory
    allocator = w.allocator(w.params["allocator"])
    bounded, stream = Bounded(w, allocator, share_of_free(w)), allocator.stream()
    use_once(allocator, stream, EDGE)
    samples, wrong = MemorySamples(w, allocator), list[str]()
    for cycle in range(CYCLES):
        allocator.release()  # cutting many small blocks from few large ones would only test fragmentation
        for parts in PARTS:
            with w.step(f"cycle {cycle + 1}, {parts} blocks"):
                wrong += fill(bounded, stream, parts, samples)
    allocator.release()
    samples.last()
    w.record(room=bounded.room, refused=bounded.refused, releases_s=bounded.releases_s)
    w.record(samples=samples.json(), wrong=wrong, call=allocator.release_call)


def fill(bounded: Bounded, stream: Stream, parts: int, samples: MemorySamples) -> list[str]:
    """Allocate all allowed memory as ``parts`` blocks, then free them; returns the blocks with wrong data."""
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


ROLES = {"program": run_full, "onlooker": stand_by}

CHECK = AllocatorPressure()
