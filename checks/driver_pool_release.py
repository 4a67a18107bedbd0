"""Allocate and free in stream order, and check that the driver's pools release memory as documented.

With a release threshold of 0, a pool releases freed memory at the next synchronisation; with a larger
threshold the pool keeps freed memory until it is trimmed. A trim must not release allocated memory, and no
round may lose memory. As a control, a call that allocates nothing is repeated for as many rounds. Used memory
is compared with its level before the pool was created. If memory is missing after a trim or after a pool's
destruction, the step is repeated with another pool, because a pool may lose memory at its first trim only
(ROCm 7.2.4).

NVIDIA: https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html (cuMemPoolSetAttribute,
cuMemPoolTrimTo). AMD documents the same in the same words (hipMemPoolSetAttribute, hipMemPoolTrimTo):
https://rocm.docs.amd.com/projects/HIP/en/latest/.doxygen/docBin/html/group___stream_o.html
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import (
    Check,
    Context,
    Finding,
    GpuStream,
    Json,
    Meter,
    Pool,
    Probe,
    ProbeOutcome,
    Series,
    Worker,
    difference,
    leak_report,
    pattern,
    share,
    share_of_free,
    unlike_pattern,
    watched,
    write_pattern,
)
from gpuipc_doctor.api.leak_report import holders

from ._driver_pool_release_threshold import cross_threshold, judge_threshold

NBYTES = 96 << 20
"""Bytes of each watched allocation: a multiple of the 32 MiB blocks that a pool reserves on an H200, and
large compared with the driver's own allocations."""

PIECES = 4
"""Number of watched allocations."""

LEAST = 32 << 20
"""Losses of fewer bytes cannot be distinguished from the driver's own allocations."""

ROUNDS = range(1, 49)
"""Rounds of allocating, freeing and trimming."""

WHAT = "allocation that is freed and trimmed"

CHECKED = 1 << 20
"""Bytes of each allocation that are written and verified per round."""


class DriverPoolRelease(Check):
    id = "driver-pool-release"
    title = "stream-ordered pools release their memory"
    subject = None
    requires = frozenset({"memory-pools"})

    def probes(self, ctx: Context) -> Iterable[Probe | Finding]:
        for device in ctx.devices:
            room = ctx.memory.of(device.total_bytes)
            if room < 2 * LEAST:
                says = "{device}: the site allows {room:mib}, too little for the test"
                yield Finding.skip("share-too-small", says, device=device.label, room=room)
            else:
                yield Probe(
                    "",
                    {"allocator": give_back},
                    (device,),
                    share(ctx.memory),
                    exclusive=True,
                    by_process=True,
                )

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        seen = done.records["allocator"]
        if seen["room"] < 2 * LEAST:
            yield Finding.error(
                "too-little-free",
                "only {room:mib} of free device memory may be used: too little for the test",
                *holders(seen["holders"]),
                remedy="stop the processes that hold device memory, then rerun",
                room=seen["room"],
            )
            return
        nbytes = seen["nbytes"]
        watched = leak_report(done.roles["allocator"])
        bad = [*judge_data(seen), *watched.judge(nbytes, PIECES), *judge_trimmed(seen)]
        found = bad or list(judge_threshold(seen))
        yield from found
        if not found:
            yield Finding.ok(
                "returned",
                "pools released memory at the threshold, when trimmed and destroyed; {verified:mib} verified",
                *watched.evidence(),
                "a pool that was trimmed while half of its memory was allocated kept that half",
                verified=nbytes + len(ROUNDS) * CHECKED,
            )

    def series(self, done: ProbeOutcome) -> Iterable[Series]:
        if done.roles["allocator"].meters:
            yield from leak_report(done.roles["allocator"]).series()


def judge_data(seen: Json) -> Iterable[Finding]:
    if wrong := seen["wrong"]:
        yield Finding.fail("wrong-data", "memory of a pool lost the data written to it", *wrong)


def judge_trimmed(seen: Json) -> Iterable[Finding]:
    """Judge the memory that a pool without allocations reports after a trim."""
    reserved, used = seen["trimmed"]["reserved"], seen["trimmed"]["used"]
    if reserved:
        yield Finding.fail(
            "trim-keeps",
            "trimming a pool left {reserved:mib} reserved although nothing was allocated",
            "destroying the pool releases the reserved memory",
            reserved=reserved,
        )
    elif used:
        says = "a pool reports {used:mib} used although all of its memory was freed"
        yield Finding.fail("counts-freed", says, used=used)


def give_back(w: Worker) -> None:
    room = share_of_free(w)
    nbytes = min(NBYTES, room // 2)
    w.record(room=room, nbytes=nbytes, holders=w.gpu.memory_holders())
    if room < 2 * LEAST:
        return
    meter, stream = Meter(w), w.gpu.create_stream()
    with w.step("create and destroy a pool, so that the driver is set up"):
        create_and_trim(w, stream, nbytes).destroy()
    before = meter.mark()
    pool = w.gpu.create_pool()

    cross_threshold(w, pool, stream, nbytes)
    with w.step("trim while half of the memory is allocated"):
        kept, other = (pool.alloc(nbytes, stream) for _ in range(2))
        stream.synchronize()
        write_pattern(kept, nbytes, 0)
        other.free(stream)
        stream.synchronize()
        pool.trim()
        wrong = [unlike_pattern(kept, nbytes, 0)]
        kept.free(stream)
        stream.synchronize()

    with w.step("trim when nothing is allocated"):
        pool.trim()
        w.record(trimmed={"reserved": pool.reserved, "used": pool.used})
        if not pool.reserved:
            other_pools: list[Pool] = []
            end = "the pool was trimmed"
            meter.enter(end, before, lambda: other_pools.append(create_and_trim(w, stream, nbytes)))
            for other_pool in other_pools:
                other_pool.destroy()

    def use(number: int) -> None:
        wrong.append(use_once(w, pool, stream, nbytes, number))

    sampled = meter.sampled(ROUNDS)
    growing = meter.used_after(sampled, watched(w, WHAT, ROUNDS), use, WHAT)
    meter.enter_loop(WHAT, sampled, growing, [meter.used() for _ in sampled])
    with w.step("destroy the pool"):
        pool.destroy()
        end = "the pool was destroyed"
        meter.enter(end, before, lambda: create_and_trim(w, stream, nbytes).destroy())
    w.record(wrong=[line for line in wrong if line])


def create_and_trim(w: Worker, stream: GpuStream, nbytes: int) -> Pool:
    """Create a pool, allocate and free as much as in the tested pool, and trim it."""
    pool = w.gpu.create_pool()
    for memory in [pool.alloc(nbytes, stream) for _ in range(2)]:
        memory.free(stream)
    stream.synchronize()
    pool.trim()
    return pool


def use_once(w: Worker, pool: Pool, stream: GpuStream, nbytes: int, number: int) -> str:
    """Perform one round; returns a description of wrong data, empty if all data was correct."""
    expected, offset = pattern(CHECKED, number), nbytes - CHECKED
    with w.step(f"allocate, free and trim, round {number} of {max(ROUNDS)}"):
        memory = pool.alloc(nbytes, stream)
        stream.synchronize()
        memory.write(expected, offset)
        wrong = difference(memory.read(CHECKED, offset), expected)
        memory.free(stream)
        stream.synchronize()
        pool.trim()
    return wrong


CHECK = DriverPoolRelease()
