"""Free memory that another stream still reads, reallocate it, and check the data that the stream read.

A buffer is filled on stream A; stream B is busy for a while and then copies the buffer; meanwhile the buffer
is freed, and memory of the same size is allocated and overwritten on stream A. The allocator knows only of
stream A and reuses the same memory, so stream B copies the later data.

The first run has no guard and must fail, else the probe cannot detect the race and the result is SKIP. After
that, each documented guard is tried, and every copy must be correct:

- event wait: stream A waits for stream B before the buffer is freed
- record_stream: the allocator learns that stream B also uses the buffer (PyTorch)
- pool per stream: the buffer is allocated for stream B, so that stream A gets other memory

Small and large buffers are tried, since some allocators treat them differently.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import (
    Check,
    Context,
    Evidence,
    Finding,
    Probe,
    ProbeOutcome,
    Worker,
    unlike_pattern,
    write_pattern,
)
from gpuipc_doctor.api.allocator import Allocator, Stream
from gpuipc_doctor.api.allocator import probe as allocator_probe

SIZES = (64 << 10, 4 << 20, 12 << 20)
"""Bytes of the buffers. PyTorch cuts blocks of up to 1 MiB out of pieces of 2 MiB, and blocks of up to 10 MiB
out of 20 MiB; it allocates larger blocks separately (c10/cuda/CUDACachingAllocator.cpp)."""

ROUNDS = 4

BUSY_S = (0.01, 0.04, 0.16)
"""Seconds for which stream B is busy; the longer times are tried if the race was not provoked."""

OVERTAKEN = 4096
"""Bytes compared without a guard, to see whether the race occurs. With a guard, all are compared."""

GUARDS = ("event wait", "pool per stream")
RECORD_STREAM = "record_stream"


class AllocatorStreamReuse(Check):
    id = "allocator-stream-reuse"
    title = "guarded memory that a stream still reads is not reused"
    subject = None
    needs_allocators = True

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for device, name in ctx.allocators:
            roles = {"program": overtake}
            yield allocator_probe(name, device, roles, exclusive=False, concurrent=frozenset(roles))

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        unguarded, guarded = done.records["program"]["unguarded"], done.records["program"]["guarded"]
        leaks = [
            Evidence.seen(
                "with {guard}, {count} of {rounds} copies of {nbytes} B are wrong: {first}",
                guard=guard,
                nbytes=nbytes,
                count=len(wrong),
                rounds=ROUNDS,
                first=wrong[0],
            )
            for guard, by_size in guarded.items()
            for nbytes, wrong in by_size.items()
            if wrong
        ]
        unseen = [nbytes for nbytes, wrong in unguarded.items() if not wrong]
        if leaks:
            yield Finding.fail(
                "guard-failed",
                "{allocator}: memory was reused while a stream still read it, in spite of a documented guard",
                *leaks,
                remedy="synchronise the reading stream before you free its memory",
                allocator=done.probe,
            )
        elif unseen:
            yield Finding.skip(
                "not-provoked",
                "{allocator}: no race could be provoked with blocks of {sizes} B, even without a guard",
                allocator=done.probe,
                sizes=unseen,
            )
        else:
            yield Finding.ok(
                "guards-hold",
                "{allocator}: data correct with {guards}, in {rounds} rounds for each of {sizes} sizes",
                Evidence.control(
                    "without a guard, the stream read the next block's data in {wrong} of {rounds} rounds",
                    wrong=sum(map(len, unguarded.values())),
                    rounds=ROUNDS * len(SIZES),
                ),
                allocator=done.probe,
                guards=list(guarded),
                rounds=ROUNDS,
                sizes=len(SIZES),
            )


def overtake(w: Worker) -> None:
    allocator = w.allocator(w.params["allocator"])
    guards = [*GUARDS, RECORD_STREAM] if allocator.records_streams else GUARDS
    unguarded: dict[str, list[str]] = {}
    guarded: dict[str, dict[str, list[str]]] = {guard: {} for guard in guards}
    for nbytes in SIZES:
        race = Race(allocator, nbytes)
        with w.step(f"{nbytes} B, first use"):
            race.run(0, "", 0.0)  # loads modules that load at first use, and allocates from the driver
        for busy_s in BUSY_S:
            with w.step(f"{nbytes} B without a guard"):
                unguarded[str(nbytes)] = race.repeat("", busy_s)
            if unguarded[str(nbytes)]:
                break
        for guard in guards:
            with w.step(f"{nbytes} B with {guard}"):
                guarded[guard][str(nbytes)] = race.repeat(guard, busy_s)
        race.end()
    w.record(unguarded=unguarded, guarded=guarded)


class Race:
    """Two streams, with a source and a destination buffer of the same size."""

    def __init__(self, allocator: Allocator, nbytes: int) -> None:
        self.allocator = allocator
        self.nbytes = nbytes
        self.a, self.b = allocator.stream(), allocator.stream()
        self.first, self.later, self.seen = (allocator.alloc(nbytes, self.a) for _ in range(3))
        write_pattern(self.later, nbytes, -1)

    def repeat(self, guard: str, busy_s: float) -> list[str]:
        """Run `ROUNDS` rounds; returns the wrong data that stream B read."""
        results = (self.run(number, guard, busy_s) for number in range(ROUNDS))
        return [wrong for wrong in results if wrong]

    def run(self, number: int, guard: str, busy_s: float) -> str:
        a, b = self.a, self.b
        write_pattern(self.first, self.nbytes, number)

        buffer = self.allocator.alloc(self.nbytes, b if guard == "pool per stream" else a)
        a.wait_for(b)  # this stream has nothing to do but, with a pool of its own, this allocation
        a.copy(buffer, self.first)
        b.wait_for(a)
        b.spin(busy_s)
        b.copy(self.seen, buffer)
        if guard == "event wait":
            a.wait_for(b)
        if guard == RECORD_STREAM:
            buffer.used_by(b)
        buffer.free()

        other = self.allocator.alloc(self.nbytes, a)
        a.copy(other, self.later)
        synchronize(a, b)
        other.free()
        return unlike_pattern(self.seen, self.nbytes if guard else OVERTAKEN, number)

    def end(self) -> None:
        for block in (self.first, self.later, self.seen):
            block.free()


def synchronize(*streams: Stream) -> None:
    for stream in streams:
        stream.synchronize()


CHECK = AllocatorStreamReuse()
