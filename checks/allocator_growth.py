"""Keep as much allocated all the time, in changing pieces, and see what the allocator comes to hold.

So many bytes stay allocated. In each round half of the blocks, chosen at random, are freed, and as many
bytes are allocated again in pieces of other sizes, which do not fit the holes that were left. Three things
are watched: what is allocated, what the allocator has reserved for it, and how much of the device is in
use. A cache levels off; what still grows at constant allocation in the last third of the rounds is lost.
In the end all is freed and the allocator is told to give its cache back: how much comes back, and how long
that takes beside a kernel that has nothing to do with it, since `cudaFree` waits for the whole device.

A second process, which does nothing, looks at the device before the first begins and after it has ended:
what is still in use then is somebody else's, and so may be the growth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from random import Random

from gpuipc_doctor.api import (
    NOISE_BYTES,
    Allocator,
    Block,
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
    give_back,
    interval,
    lasting,
    look_on,
    memory_series,
    mib,
    share,
    share_of_free,
    use_once,
    watched,
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

BUSY_S = 0.05


class AllocatorGrowth(Check):
    id = "allocator-growth"
    title = "an allocator's memory levels off and is given back"
    requires = frozenset({"multi-process"})
    explains_losses = frozenset({"grows", "keeps"})
    needs_allocators = True

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for device, name in ctx.allocators:
            roles = {"program": work, "onlooker": look_on}
            yield allocator_probe(name, device, roles, **share(ctx.memory))

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        program, after = done.records["program"], account(done.records["onlooker"]).entries[0]
        if unsure := blind(done):
            yield unsure
            return
        bad = judge_growth(done.probe, program) or judge_kept(done.probe, program)
        yield after.trust(bad) or judge_plateau(done.probe, program)
        if late := after.late():
            yield late

    def series(self, done: ProbeOutcome) -> Iterable[Series]:
        program = done.records["program"]
        title = f"{done.probe}: {mib(program['live'])} allocated, in changing pieces"
        yield memory_series(title, program["samples"])


def judge_growth(allocator: str, program: Json) -> Finding | None:
    """Judge whether used memory goes on growing while no more is allocated."""
    growth, reserved = (lasting(rounds_of(program, name)) for name in ("used", "reserved"))
    block = program["live"] / BLOCKS
    if growth.low <= KEPT * block:
        return None
    return Finding.fail(
        "grows",
        "{allocator}: used memory grows by {growth:mib} each round, while {live:mib} stay allocated",
        interval(growth, program["rounds"]),
        Evidence.seen(
            "{half} blocks of {block:mib} are freed and made each round", half=BLOCKS // 2, block=block
        ),
        Evidence.seen("{reserved:mib} of it are the allocator's own account", reserved=reserved.estimate),
        gave_back(program),
        allocator=allocator,
        growth=growth.estimate,
        live=program["live"],
    )


def judge_kept(allocator: str, program: Json) -> Finding | None:
    """Judge whether what is free was given back."""
    if program["kept"] <= NOISE_BYTES:
        return None
    return Finding.fail(
        "keeps",
        "{allocator}: {kept:mib} are not given back, with nothing allocated any more",
        gave_back(program),
        remedy="until the process ends, nobody else can use this memory",
        allocator=allocator,
        kept=program["kept"],
    )


def judge_plateau(allocator: str, program: Json) -> Finding:
    """Judge how much is held where used memory levels off."""
    times = max(rounds_of(program, "used")[program["rounds"] // 2 :]) / program["live"]
    told = (gave_back(program), release_time(program))
    if times > HIGH:
        says = "{allocator}: holds {times:times} times what is allocated"
        return Finding.warn("holds-much", says, *told, allocator=allocator, times=times)
    says = "{allocator}: levels off at {times:times} times what is allocated"
    return Finding.ok("levels-off", says, *told, allocator=allocator, times=times)


def rounds_of(program: Json, name: str) -> list[float]:
    """What was sampled before all was freed."""
    sampled: list[float] = program["samples"][name]
    return sampled[: program["rounds"]]


def gave_back(program: Json) -> Evidence:
    cached, kept = program["cached"], program["kept"]
    says = "{call} gave back {returned:mib} of {cached:mib}"
    return Evidence.seen(says, call=program["call"], returned=cached - kept, cached=cached)


def release_time(program: Json) -> Evidence:
    """Whether giving back waits for kernels, and how long it took."""
    times = program["release_s"]
    waits = times["beside"] - times["idle"] > times["kernel"] / 2
    return Evidence.measured(
        "{call} {waits} for kernels: {idle:ms}, and {beside:ms} beside one of {kernel:ms}",
        call=program["call"],
        waits="waits" if waits else "does not wait",
        **times,
    )


def work(w: Worker) -> None:
    begin_when_asked(w)  # the onlooker has looked
    allocator = w.allocator(w.params["allocator"])
    stream, busy = allocator.stream(), allocator.stream()
    busy.spin(BUSY_S)  # loads the kernel, which takes memory of its own
    busy.synchronize()
    use_once(allocator, stream, UNIT)

    samples = MemorySamples(w, allocator)
    room = share_of_free(w)
    each = int(room * ALLOCATED) // BLOCKS // UNIT * UNIT
    live, random = BLOCKS * each, Random(0)
    blocks = [allocator.alloc(each, stream) for _ in range(BLOCKS)]
    # An allocator that caches a little more reserves addresses for that.
    for number in watched(w, "round of allocations", range(ROUNDS), but={"addresses"}):
        with w.step(f"round {number + 1} of {ROUNDS}, {live} B allocated"):
            if samples.take() > room:
                break
            change(allocator, stream, blocks, random)
    w.record(live=live, rounds=len(samples.used), call=allocator.release_call)

    free_all(blocks)
    cached = samples.take("all freed")
    began = w.clock()
    busy.spin(BUSY_S)
    beside = timed(w, lambda: give_back(allocator, stream))
    busy.synchronize()
    kernel = w.clock() - began
    kept = samples.take(allocator.release_call)
    blocks = [allocator.alloc(each, stream) for _ in range(BLOCKS)]
    free_all(blocks)
    idle = timed(w, lambda: give_back(allocator, stream))
    w.record(cached=cached, kept=max(kept, samples.take()), samples=samples.json())
    w.record(release_s={"idle": idle, "beside": beside, "kernel": kernel})


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


def timed(w: Worker, call: Callable[[], None]) -> float:
    """Seconds that a call takes."""
    began = w.clock()
    call()
    return w.clock() - began


CHECK = AllocatorGrowth()
