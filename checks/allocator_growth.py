"""Keep a constant amount allocated, in changing pieces, and check that the allocator's memory levels off.

In each round a random half of the blocks is freed, and as many bytes are allocated in pieces of other sizes,
which do not fit into the freed blocks. The probe records the allocated bytes, the allocator's reserved bytes
and the device's used memory. A cache levels off; growth in the last third of the rounds is a leak. At the end
everything is freed and the allocator is asked to release its cache. The probe measures how much is released,
and whether the release waits for an unrelated kernel, since `cudaFree` waits for the whole device.

An idle process reads the device's used memory before the tested process starts and after it has ended. A loss
is a FAIL only if it recurs in a second run with new processes.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from random import Random

from gpuipc_doctor.api import (
    Check,
    Context,
    Evidence,
    Finding,
    Probe,
    ProbeOutcome,
    RoleOutcome,
    Series,
    Worker,
    begin_when_asked,
    blind,
    leak_report,
    look_on,
    share,
    share_of_free,
    watched,
)
from gpuipc_doctor.api.allocator import Allocator, Block, Stream, use_once
from gpuipc_doctor.api.allocator import probe as allocator_probe
from gpuipc_doctor.api.data_patterns import mib
from gpuipc_doctor.api.loop_growth import interval
from gpuipc_doctor.api.program_memory import (
    MemorySamples,
    judge_hidden,
    judge_loss,
    repeat_if_lost,
    used_since_the_start,
)
from gpuipc_doctor.api.program_memory import series as memory_series
from gpuipc_doctor.api.slopes import lasting

from ._allocator_growth_release import (
    BUSY_S,
    gave_back,
    judge_kept,
    release_time,
    time_release,
    time_release_beside,
)

ROUNDS, BLOCKS = 120, 16

ALLOCATED = 0.1
"""Fraction of the memory limit that stays allocated. The rest is for the allocator's overhead and cache."""

UNIT = 64 << 10
"""Every block has a multiple of this many bytes."""

KEPT = 0.25
"""Maximum growth per round, as a fraction of a mean block."""

HIGH = 6.0
"""If reserved memory levels off at this many times the allocated memory or more, the result is WARN. On an
H200 the factor is 4 for CuPy's MemoryPool, 3.5 for PyTorch and 1.7 for the driver's own pool."""


class AllocatorGrowth(Check):
    id = "allocator-growth"
    title = "an allocator's memory levels off and is released"
    subject = None
    requires = frozenset({"multi-process"})
    searches = True
    explains_losses = frozenset({"grows", "keeps"})
    needs_allocators = True

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for device, name in ctx.allocators:
            yield allocator_probe(name, device, ROLES, **share(ctx.memory))

    def again(self, failed: ProbeOutcome) -> Iterable[Probe]:
        yield from repeat_if_lost(failed, ROLES, lost)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        if found := blind(done) or judge_loss(done, lost):
            yield found
        elif done.completed:
            program = done.roles["program"]
            hidden = judge_hidden(program, done.roles["onlooker"])
            yield hidden or judge_plateau(done.probe, program)
        if done.completed and (late := leak_report(done.roles["onlooker"]).entries[0].late()):
            yield late

    def series(self, done: ProbeOutcome) -> Iterable[Series]:
        program = done.records["program"]
        title = f"{done.probe}: {mib(program['live'])} allocated throughout, in blocks of changing sizes"
        yield memory_series(title, program["samples"])


def lost(done: ProbeOutcome) -> Finding | None:
    """The FAIL for growth, or for memory that was not released at the end; else None."""
    program = done.roles["program"]
    return judge_growth(done.probe, program) or judge_kept(done.probe, program)


def judge_growth(allocator: str, role: RoleOutcome) -> Finding | None:
    """Judge whether used memory keeps growing while allocated memory stays constant."""
    program, used = role.records, used_since_the_start(role)
    growth, reserved = (lasting(each[: program["rounds"]]) for each in (used, program["samples"]["reserved"]))
    block = program["live"] / BLOCKS
    if growth.low <= KEPT * block:
        return None
    return Finding.fail(
        "grows",
        "{allocator}: used memory grows by {growth:mib} each round; allocated memory stays at {live:mib}",
        interval(growth, program["rounds"]),
        Evidence.seen(
            "{half} blocks of {block:mib} are freed and allocated each round", half=BLOCKS // 2, block=block
        ),
        Evidence.seen(
            "the allocator's reserved memory grows by {reserved:mib} each round", reserved=reserved.estimate
        ),
        gave_back(role),
        allocator=allocator,
        growth=growth.estimate,
        live=program["live"],
    )


def judge_plateau(allocator: str, role: RoleOutcome) -> Finding:
    """Judge how much memory is reserved once usage levels off."""
    program, rounds = role.records, role.records["rounds"]
    times = max(used_since_the_start(role)[rounds // 2 : rounds]) / program["live"]
    told = (gave_back(role), release_time(role))
    if times > HIGH:
        says = "{allocator}: holds {times:times} times the allocated memory"
        return Finding.warn("holds-much", says, *told, allocator=allocator, times=times)
    says = "{allocator}: used memory levels off at {times:times} times the allocated memory"
    return Finding.ok("levels-off", says, *told, allocator=allocator, times=times)


def work(w: Worker) -> None:
    begin_when_asked(w)  # the second process has read used memory
    allocator = w.allocator(w.params["allocator"])
    stream, busy = allocator.stream(), allocator.stream()
    busy.spin(BUSY_S)  # loads the kernel, which also takes memory
    busy.synchronize()
    use_once(allocator, stream, UNIT)

    samples = MemorySamples(w, allocator)
    room = share_of_free(w)
    each = int(room * ALLOCATED) // BLOCKS // UNIT * UNIT
    live, random = BLOCKS * each, Random(0)
    blocks = [allocator.alloc(each, stream) for _ in range(BLOCKS)]
    # An allocator that caches slightly more reserves address space for it.
    for number in watched(w, "round of allocations", range(ROUNDS), but={"addresses"}):
        with w.step(f"round {number + 1} of {ROUNDS}, {live} B allocated"):
            if samples.take() > room:
                break
            change(allocator, stream, blocks, random)
    w.record(live=live, rounds=len(samples.used), call=allocator.release_call)

    free_all(blocks)
    samples.take("all freed")
    beside, kernel = time_release_beside(w, allocator, stream, busy)
    samples.take(allocator.release_call)
    free_all([allocator.alloc(each, stream) for _ in range(BLOCKS)])
    idle = time_release(w, allocator, stream)
    samples.last()
    w.record(samples=samples.json())
    w.record(release_s={"idle": idle, "beside": beside, "kernel": kernel})


def change(allocator: Allocator, stream: Stream, blocks: list[Block], random: Random) -> None:
    """Free half of the blocks, and allocate as many bytes in as many blocks of other sizes."""
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


ROLES = {"program": work, "onlooker": look_on}

CHECK = AllocatorGrowth()
