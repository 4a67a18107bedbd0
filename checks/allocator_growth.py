"""Keep as much allocated all the time, in changing pieces, and see what the allocator comes to hold.

So many bytes stay allocated. In each round half of the blocks, chosen at random, are freed, and as many
bytes are allocated again in pieces of other sizes, which do not fit the holes that were left. Three things
are watched: what is allocated, what the allocator has reserved for it, and how much of the device is in
use. A cache levels off; what still grows at constant allocation in the second half of the rounds is lost.
In the end all is freed and the allocator is told to give its cache back: how much comes back, and how long
that takes beside a kernel that has nothing to do with it, since `cudaFree` waits for the whole device.

A second process, which does nothing, looks at the device before the first begins and after it has ended:
what is still in use then is somebody else's, and so may be the growth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from itertools import pairwise
from random import Random

from gpuipc_doctor.api import (
    Allocator,
    Block,
    Check,
    Context,
    Finding,
    Json,
    MemorySamples,
    MemoryShare,
    Probe,
    ProbeOutcome,
    Series,
    Stream,
    Worker,
    memory_series,
    mib,
    slope,
)

ROUNDS, BLOCKS = 120, 16

ALLOCATED = 0.1
"""Of the share that may be held: what stays allocated. The rest is for what the allocator makes of it; its
cache hides a leak until it is used up."""

UNIT = 64 << 10
"""Sizes are multiples of it, in bytes."""

KEPT = 0.25
"""A lower bound of the slope above this fraction of the mean block, each round, is growth without bound."""

HIGH = 6.0
"""A plateau of so many times what is allocated is worth a warning: on an H200 it is 4 times for CuPy's
MemoryPool, 3.5 times for PyTorch and 1.7 times for the driver's own pool."""

NOISE_BYTES = 4 << 20
"""Change of used memory that says nothing: a block or two of a driver's own."""

BUSY_S = 0.05
SETTLE_S = 2.0
"""For a driver to finish what it does after a process has ended."""


class AllocatorGrowth(Check):
    id = "allocator-growth"
    title = "an allocator's memory levels off and is given back"
    requires = frozenset({"multi-process"})
    needs_allocators = True

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for device, name in ctx.allocators:
            roles = {"program": work, "onlooker": look_on}
            params = {"allocator": name, "share": asdict(ctx.memory)}
            yield Probe(name, roles, (device,), params, deadline_s=60.0, exclusive=True)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        program, others = done.records["program"], done.records["onlooker"]["left"]
        samples, live = program["samples"], program["live"]
        growth, reserved = (slope(*second_half(program, name)) for name in ("used", "reserved"))
        peak = max(second_half(program, "used")[1]) / live
        cached, kept = samples["used"][-3], max(samples["used"][-2:])
        gave_back = f"{program['call']} gave back {mib(cached - kept)} of {mib(cached)}"
        grows, keeps = growth.low > KEPT * live / BLOCKS, kept > NOISE_BYTES
        if (grows or keeps) and abs(others) > NOISE_BYTES:
            yield Finding.error(
                f"{done.probe}: {mib(others)} more are in use after the program ended than before it began, "
                "so what was seen meanwhile was not its doing alone",
                remedy="another process allocates or frees on this device; run the check on an idle one",
            )
        elif grows:
            yield Finding.fail(
                f"{done.probe}: used memory grows by {mib(growth.estimate)} each round, while {mib(live)} "
                "stay allocated",
                f"95 % interval {mib(growth.low)} to {mib(growth.high)}; {BLOCKS // 2} blocks of "
                f"{mib(live / BLOCKS)} on average are freed and allocated each round",
                f"of that, {mib(reserved.estimate)} are reserved by the allocator's own account",
                f"with nothing allocated any more, {gave_back}",
            )
        elif keeps:
            yield Finding.fail(
                f"{done.probe}: {mib(kept)} are not given back, with nothing allocated any more",
                gave_back,
                remedy="until the process ends, nobody else can use this memory",
            )
        elif peak > HIGH:
            yield Finding.warn(
                f"{done.probe}: holds {peak:.1f} times what is allocated", gave_back, waiting(program)
            )
        else:
            yield Finding.ok(
                f"{done.probe}: levels off at {peak:.1f} times what is allocated; {gave_back}",
                waiting(program),
            )

    def series(self, done: ProbeOutcome) -> Iterable[Series]:
        program = done.records["program"]
        freed, released = (program["samples"]["seconds"][at] for at in (-3, -2))
        title = f"{done.probe}: {mib(program['live'])} allocated, in changing pieces"
        yield memory_series(title, program["samples"], [(freed, "all freed"), (released, program["call"])])


def second_half(program: Mapping[str, Json], name: str) -> tuple[range, list[float]]:
    """Numbers and values of the rounds in which the allocator has had time to fill its cache."""
    half, rounds = program["rounds"] // 2, program["rounds"]
    return range(half, rounds), program["samples"][name][half:rounds]


def waiting(program: Mapping[str, Json]) -> str:
    """Whether giving back waits for kernels, and how long it took."""
    idle, beside, kernel = (1000 * program["release_s"][name] for name in ("idle", "beside", "kernel"))
    waits = "waits" if beside - idle > kernel / 2 else "does not wait"
    took = f"{idle:.1f} ms, and {beside:.1f} ms beside one of {kernel:.0f} ms"
    return f"{program['call']} {waits} for kernels: {took}"


# -- the program that allocates ---------------------------------------------------------------------------


def work(w: Worker) -> None:
    w.peer.recv()  # the onlooker has looked
    allocator = w.allocator(w.params["allocator"])
    stream, busy = allocator.stream(), allocator.stream()
    busy.spin(BUSY_S)  # loads the kernel, which takes memory of its own
    busy.synchronize()
    allocator.alloc(UNIT, stream).free()
    give_back(allocator, stream)

    samples = MemorySamples(w.gpu, allocator, w.clock)
    room = MemoryShare(**w.params["share"]).of(w.gpu.memory_info()[0])
    live = int(room * ALLOCATED) // (BLOCKS * UNIT) * BLOCKS * UNIT
    random = Random(0)
    blocks = [allocator.alloc(live // BLOCKS, stream) for _ in range(BLOCKS)]
    for number in range(ROUNDS):
        with w.step(f"round {number + 1} of {ROUNDS}, {live} B allocated"):
            samples.take()
            if samples.used[-1] > room:
                break
            change(allocator, stream, blocks, random)
    w.record(live=live, rounds=len(samples.used), call=allocator.release_call)

    free_all(blocks)
    samples.take()
    began = w.clock()
    busy.spin(BUSY_S)
    beside = timed(w, lambda: give_back(allocator, stream))
    busy.synchronize()
    kernel = w.clock() - began
    samples.take()
    blocks = [allocator.alloc(live // BLOCKS, stream) for _ in range(BLOCKS)]
    free_all(blocks)
    idle = timed(w, lambda: give_back(allocator, stream))
    samples.take()
    w.record(samples=samples.json(), release_s={"idle": idle, "beside": beside, "kernel": kernel})


def change(allocator: Allocator, stream: Stream, blocks: list[Block], random: Random) -> None:
    """Free half of the blocks and allocate as many bytes again, in as many pieces of other sizes."""
    random.shuffle(blocks)
    old, blocks[:] = blocks[: BLOCKS // 2], blocks[BLOCKS // 2 :]
    units = sum(block.nbytes for block in old) // UNIT
    free_all(old)
    cuts = [0, *sorted(random.sample(range(1, units), BLOCKS // 2 - 1)), units]
    for start, end in pairwise(cuts):
        blocks.append(allocator.alloc((end - start) * UNIT, stream))


def free_all(blocks: Iterable[Block]) -> None:
    for block in blocks:
        block.free()


def give_back(allocator: Allocator, stream: Stream) -> None:
    stream.synchronize()
    allocator.release()


def timed(w: Worker, call: Callable[[], None]) -> float:
    """Seconds that a call takes."""
    began = w.clock()
    call()
    return w.clock() - began


# -- the onlooker -----------------------------------------------------------------------------------------


def look_on(w: Worker) -> None:
    before = w.gpu.memory_used()
    w.peer.send("looked")
    w.peer.wait_gone()
    w.wait_until(lambda: w.gpu.memory_used() - before <= NOISE_BYTES, SETTLE_S)
    w.record(left=w.gpu.memory_used() - before)


CHECK = AllocatorGrowth()
