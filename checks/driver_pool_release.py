"""Allocate and free in the order of a stream, and see that the driver's pools give memory back as documented.

A pool with a release threshold of 0 gives memory back at the next synchronisation; with a larger one it holds
what was freed, and gives that back when it is trimmed, but nothing that is still allocated; and round after
round no memory is lost. Control of the loss: as many rounds of a call that allocates nothing. What is missing
after a trim or a destroyed pool is looked for once more, by another one.

NVIDIA: https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html (cuMemPoolSetAttribute,
cuMemPoolTrimTo). AMD documents the same in the same words (hipMemPoolSetAttribute, hipMemPoolTrimTo):
https://rocm.docs.amd.com/projects/HIP/en/latest/.doxygen/docBin/html/group___stream_o.html
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import (
    SETTLE_S,
    Check,
    Context,
    Finding,
    GpuStream,
    Json,
    Ledger,
    Pool,
    Probe,
    ProbeOutcome,
    Series,
    Worker,
    account,
    difference,
    holders,
    pattern,
    share,
    share_of_free,
    unlike_pattern,
    watched,
    write_pattern,
)

NBYTES = 96 << 20
"""Of each allocation whose return is watched. A multiple of the blocks (32 MiB on an H200) in which pools
reserve, and large beside what a driver takes for itself."""

PIECES = 4
"""Allocations of that size before the rounds. What is missing and more than that was never ours: others
allocate gibibytes, and every third of them is a multiple of 96 MiB."""

LEAST = 32 << 20
"""Too little to tell from what a driver takes for itself."""

ROUNDS = range(1, 49)
"""Of allocating, freeing and trimming."""

WHAT = "allocation that is freed and trimmed"

CHECKED = 1 << 20
"""Bytes of each allocation that are written and read in those rounds."""


class DriverPoolRelease(Check):
    id = "driver-pool-release"
    title = "pools of stream-ordered memory give it back"
    requires = frozenset({"memory-pools"})

    def probes(self, ctx: Context) -> Iterable[Probe | Finding]:
        for device in ctx.devices:
            room = ctx.memory.of(device.total_bytes)
            if room < 2 * LEAST:
                says = "{device}: the site allows {room:mib}, too little to tell by"
                yield Finding.skip("share-too-small", says, device=device.label, room=room)
            else:
                yield Probe("", {"allocator": give_back}, (device,), share(ctx.memory), exclusive=True)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        seen = done.records["allocator"]
        if seen["room"] < 2 * LEAST:
            yield Finding.error(
                "too-little-free",
                "only {room:mib} of free device memory may be taken: too little to tell by",
                *holders(seen["holders"]),
                remedy="stop the processes holding it, then rerun",
                room=seen["room"],
            )
        else:
            nbytes = seen["nbytes"]
            bad = [*judge_memory(seen), *account(seen).judge(nbytes, PIECES), *judge_trimmed(seen)]
            yield from bad or judge_threshold(seen)

    def series(self, done: ProbeOutcome) -> Iterable[Series]:
        if "ledger" in done.records["allocator"]:
            yield from account(done.records["allocator"]).series()


def judge_memory(seen: Json) -> Iterable[Finding]:
    """Judge whether memory of the pool held what was written to it."""
    if wrong := seen["wrong"]:
        yield Finding.fail("wrong-data", "memory of a pool did not hold what was written to it", *wrong)


def judge_trimmed(seen: Json) -> Iterable[Finding]:
    """Judge what a pool says that it has, trimmed with nothing allocated."""
    reserved, used = seen["trimmed"]["reserved"], seen["trimmed"]["used"]
    if reserved:
        yield Finding.fail(
            "trim-keeps",
            "trimming a pool left {reserved:mib} reserved, though nothing was allocated",
            "destroying the pool gives them back",
            reserved=reserved,
        )
    elif used:
        says = "a pool counts {used:mib} as allocated, though all were freed"
        yield Finding.fail("counts-freed", says, used=used)


def judge_threshold(seen: Json) -> Iterable[Finding]:
    """Judge when memory went back: drivers *try* to do as the release threshold says."""
    nbytes, unheld, held = seen["nbytes"], seen["unheld"], seen["held"]
    if unheld:
        yield Finding.warn(
            "held-below-threshold",
            "a pool whose release threshold is 0 still held {reserved:mib} after synchronising",
            "trimming gave them back",
            remedy="trim pools when other processes need the memory",
            reserved=unheld,
        )
    if held < nbytes:
        yield Finding.warn(
            "not-held",
            "a pool held {reserved:mib} although its release threshold is {threshold:mib}",
            "more was allocated from it and freed; allocating that again must wait for the device",
            reserved=held,
            threshold=2 * nbytes,
        )
    if not unheld and held >= nbytes:
        yield Finding.ok(
            "returned",
            "memory came back at the threshold, by trimming and by destroying; {verified:mib} verified",
            *account(seen).evidence(),
            "trimmed while half of it was allocated, a pool kept what was allocated",
            verified=nbytes + len(ROUNDS) * CHECKED,
        )


def give_back(w: Worker) -> None:
    room = share_of_free(w)
    nbytes = min(NBYTES, room // 2)
    w.record(room=room, nbytes=nbytes, holders=w.gpu.memory_holders())
    if room < 2 * LEAST:
        return
    ledger = Ledger(w)
    pool, stream = w.gpu.create_pool(), w.gpu.create_stream()
    with w.step("allocate and free once, so that the driver has what it needs"):
        trim(pool, stream, nbytes)
    before = ledger.mark()

    with w.step("release threshold 0"):
        allocate_and_free(pool, stream, nbytes)
        w.wait_until(lambda: not pool.reserved, SETTLE_S)
        w.record(unheld=pool.reserved)

    pool.hold(2 * nbytes)
    with w.step("release threshold above what is allocated"):
        allocate_and_free(pool, stream, nbytes)
        w.record(held=pool.reserved)

    with w.step("trim while half of the memory is allocated"):
        kept, freed = (pool.alloc(nbytes, stream) for _ in range(2))
        stream.synchronize()
        write_pattern(kept, nbytes, 0)
        freed.free(stream)
        stream.synchronize()
        pool.trim()
        wrong = [unlike_pattern(kept, nbytes, 0)]
        kept.free(stream)
        stream.synchronize()

    with w.step("trim when nothing is allocated"):
        pool.trim()
        w.record(trimmed={"reserved": pool.reserved, "used": pool.used})
        if not pool.reserved:
            ledger.enter("the pool was trimmed", before, lambda: trim(pool, stream, nbytes))

    sampled = ledger.sampled(ROUNDS)
    growing = ledger.used_after(
        sampled, watched(w, WHAT, ROUNDS), lambda number: use(w, pool, stream, nbytes, number, wrong)
    )
    ledger.enter_loop(WHAT, sampled, growing, [ledger.used() for _ in sampled])
    with w.step("destroy the pool"):
        pool.destroy()
        ledger.enter("the pool was destroyed", before, lambda: create_and_destroy(w, stream, nbytes))
    w.record(wrong=[one for one in wrong if one])


def allocate_and_free(pool: Pool, stream: GpuStream, nbytes: int) -> None:
    pool.alloc(nbytes, stream).free(stream)
    stream.synchronize()


def trim(pool: Pool, stream: GpuStream, nbytes: int) -> None:
    """Trim a pool from which memory was allocated and freed."""
    allocate_and_free(pool, stream, nbytes)
    pool.trim()


def create_and_destroy(w: Worker, stream: GpuStream, nbytes: int) -> None:
    pool = w.gpu.create_pool()
    trim(pool, stream, nbytes)
    pool.destroy()


def use(w: Worker, pool: Pool, stream: GpuStream, nbytes: int, number: int, wrong: list[str]) -> None:
    """One round, whose wrong data is added to ``wrong``."""
    with w.step(f"allocate, free and trim, round {number} of {max(ROUNDS)}"):
        memory = pool.alloc(nbytes, stream)
        stream.synchronize()
        memory.write(pattern(CHECKED, number), nbytes - CHECKED)
        wrong.append(difference(memory.read(CHECKED, nbytes - CHECKED), pattern(CHECKED, number)))
        memory.free(stream)
        stream.synchronize()
        pool.trim()


CHECK = DriverPoolRelease()
