"""Allocate and free in the order of streams, and see that the driver's pools do as is documented of them.

Giving back: a pool with a release threshold of 0 gives memory back at the next synchronisation; with a larger
one it holds what was freed, and gives that back when it is trimmed, but nothing that is still allocated; and
round after round no memory is lost. Control of the loss: as many rounds of a call that allocates nothing.

Reuse: what one stream freed goes to another only in the cases that the pool's attributes allow
(REUSE_FOLLOW_EVENT_DEPENDENCIES, REUSE_ALLOW_OPPORTUNISTIC, REUSE_ALLOW_INTERNAL_DEPENDENCIES), and never
before the first stream is done with it: it still has copies to make when the other asks, and the data of both
must be right. Where copies are over when they are asked for, there is no race to be seen.

NVIDIA: https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html (cuMemPoolSetAttribute,
cuMemPoolTrimTo). AMD documents the same in the same words (hipMemPoolSetAttribute, hipMemPoolTrimTo):
https://rocm.docs.amd.com/projects/HIP/en/latest/.doxygen/docBin/html/group___stream_o.html
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from gpuipc_doctor.api import (
    REUSES,
    Check,
    Context,
    Finding,
    GpuStream,
    Json,
    Memory,
    MemoryShare,
    Pool,
    Probe,
    ProbeOutcome,
    Worker,
    difference,
    mib,
    pattern,
    slope,
)

NBYTES = 96 << 20
"""Of each allocation whose return is watched. A multiple of the blocks (32 MiB on an H200) in which pools
reserve, and large beside what a driver takes for itself."""

SHARED = 4 << 20
"""Of each allocation that goes from one stream to another."""

BALLAST = 128 << 20
"""Of the copies that keep a stream busy: on an H200 one takes longer than asking for it does."""

PIECES = 4
"""Allocations of that size before the rounds. What is missing and more than that was never ours: others
allocate gibibytes, and every third of them is a multiple of 96 MiB."""

LEAST = 32 << 20
"""Too little to tell from what a driver takes for itself."""

NOISE_BYTES = 4 << 20
"""Change of used memory that says nothing: a block or two of a driver's own."""

ROUNDS = 48
"""Of allocating, freeing and trimming."""

CREEP_BYTES = 64 << 10
"""Growth over all rounds, in bytes, that the lower bound of the slope must exceed to be a loss."""

CHECKED = 1 << 20
"""Bytes of each allocation that are written and read in those rounds."""

COPIES = 100
TIMES = 4
"""How often each case of reuse is tried."""

SETTLE_S = 2.0

CASES = {
    "no reuse allowed": ((), False),
    "no reuse allowed, after an event": ((), True),
    "reuse after events, without an event": (("event-dependencies",), False),
    "reuse after events, after an event": (("event-dependencies",), True),
    "reuse of what is freed and done": (("opportunistic",), False),
    "reuse with a dependency put in": (("internal-dependencies",), False),
    "all reuse allowed": (tuple(sorted(REUSES)), False),
    "all reuse allowed, after an event": (tuple(sorted(REUSES)), True),
}
"""Case → what the pool allows, and whether the second stream waits for the first by an event."""


class DriverAsyncPool(Check):
    id = "driver-async-pool"
    title = "pools of stream-ordered memory give back and reuse"
    requires = frozenset({"memory-pools"})

    def probes(self, ctx: Context) -> Iterable[Probe | Finding]:
        for device in ctx.devices:
            room = ctx.memory.of(device.total_bytes)
            if room < 2 * LEAST:
                yield Finding.skip(f"{device.label}: the site allows {mib(room)}, too little to tell by")
                continue
            yield Probe("", {"allocator": allocate}, (device,), {"share": asdict(ctx.memory)}, exclusive=True)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        seen = done.records["allocator"]
        if seen["room"] < 2 * LEAST:
            yield Finding.error(
                f"only {mib(seen['room'])} of free device memory may be taken: too little to tell by",
                remedy="see who holds the memory, end it, run again",
            )
            return
        yield from judge_giving_back(seen)
        yield from judge_reuse(seen["tries"])


def allocate(w: Worker) -> None:
    room = MemoryShare(**w.params["share"]).of(w.gpu.memory_info()[0])
    w.record(room=room)
    if room >= 2 * LEAST:
        give_back(w, room)
        reuse(w, room)


# -- give back -------------------------------------------------------------------------------------------


def give_back(w: Worker, room: int) -> None:
    nbytes = min(NBYTES, room // 2)
    pool, stream = w.gpu.create_pool(), w.gpu.create_stream()
    with w.step("allocate and free once, so that the driver has what it needs"):
        allocate_and_free(pool, stream, nbytes)
        pool.trim()
    before = w.gpu.memory_used()

    with w.step("release threshold 0"):
        allocate_and_free(pool, stream, nbytes)
        unheld = left(w, pool, before)

    pool.hold(2 * nbytes)
    with w.step("release threshold above what is allocated"):
        allocate_and_free(pool, stream, nbytes)
        held = left(w, pool, before, expected=nbytes)

    with w.step("trim while half of the memory is allocated"):
        pieces = [pool.alloc(nbytes, stream) for _ in range(2)]
        stream.synchronize()
        pieces[0].write(pattern(CHECKED, 0))
        pieces[1].free(stream)
        stream.synchronize()
        pool.trim()
        half = left(w, pool, before, expected=nbytes)
        wrong = difference(pieces[0].read(CHECKED), pattern(CHECKED, 0))
        pieces[0].free(stream)
        stream.synchronize()

    with w.step("trim when nothing is allocated"):
        pool.trim()
        trimmed = left(w, pool, before)

    growing = [round_(w, pool, stream, nbytes, n) for n in range(1, ROUNDS + 1)]
    control = [w.gpu.memory_used() for _ in range(ROUNDS)]
    with w.step("destroy the pool"):
        pool.destroy()
        destroyed = not_back(w, before)
    w.record(
        nbytes=nbytes,
        unheld=unheld,
        held=held,
        half=half,
        wrong=wrong,
        trimmed=trimmed,
        growing=[after for after, _ in growing],
        wrong_in_rounds=[data for _, data in growing if data],
        control=control,
        destroyed=destroyed,
    )


def allocate_and_free(pool: Pool, stream: GpuStream, nbytes: int) -> None:
    pool.alloc(nbytes, stream).free(stream)
    stream.synchronize()


def round_(w: Worker, pool: Pool, stream: GpuStream, nbytes: int, number: int) -> tuple[int, str]:
    """One round: the bytes in use on the device after it, and what was wrong with the data."""
    with w.step(f"allocate, free and trim, round {number} of {ROUNDS}"):
        memory = pool.alloc(nbytes, stream)
        stream.synchronize()
        memory.write(pattern(CHECKED, number), nbytes - CHECKED)
        wrong = difference(memory.read(CHECKED, nbytes - CHECKED), pattern(CHECKED, number))
        memory.free(stream)
        stream.synchronize()
        pool.trim()
        return w.gpu.memory_used(), f"round {number}: {wrong}" if wrong else ""


def not_back(w: Worker, before: int, expected: int = 0) -> int:
    """Bytes in use beyond ``before``, once no more than ``expected`` are or `SETTLE_S` have passed."""
    w.wait_until(lambda: w.gpu.memory_used() - before - expected <= NOISE_BYTES, SETTLE_S)
    return w.gpu.memory_used() - before


def left(w: Worker, pool: Pool, before: int, expected: int = 0) -> dict[str, int]:
    """What the pool says that it has, and what the device lacks, in bytes."""
    missing = not_back(w, before, expected)
    return {"reserved": pool.reserved, "used": pool.used, "missing": missing}


def judge_giving_back(seen: Json) -> list[Finding]:
    """Judge what a pool held and gave back, and whether memory was lost meanwhile."""
    nbytes, trimmed = seen["nbytes"], seen["trimmed"]
    loss = judge_loss(seen["growing"], seen["control"])
    findings = [loss]
    if wrong := [*filter(None, [seen["wrong"]]), *seen["wrong_in_rounds"]]:
        findings.append(Finding.fail("memory of a pool did not hold what was written to it", *wrong))
    if trimmed["reserved"]:
        findings.append(
            Finding.fail(
                f"trimming a pool left {mib(trimmed['reserved'])} reserved, though nothing was allocated",
                f"{mib(seen['held']['reserved'])} were reserved before; destroying the pool gives them back",
            )
        )
    elif trimmed["used"]:
        findings.append(
            Finding.fail(f"a pool counts {mib(trimmed['used'])} as allocated, though all were freed")
        )
    elif not loss:  # what was lost in the rounds is missing in the end, too
        findings.append(judge_missing(trimmed["missing"], nbytes, "the pool was trimmed"))
    if not loss:
        findings.append(judge_missing(seen["destroyed"], nbytes, "the pool was destroyed"))
    return list(filter(None, findings)) or list(judge_threshold(seen))


def judge_missing(missing: int, nbytes: int, end: str) -> Finding | None:
    """Judge the bytes by which used memory differs from before, once ``end``."""
    if abs(missing) <= NOISE_BYTES:
        return None
    pieces = round(missing / nbytes)
    if 0 < pieces <= PIECES and abs(missing - pieces * nbytes) <= NOISE_BYTES:
        return Finding.fail(
            f"{mib(missing)} of device memory did not come back when {end}",
            f"allocations of {mib(nbytes)} were freed; waited {SETTLE_S:g} s for them",
        )
    return Finding.error(
        f"used device memory changed by {mib(missing)} across the probe, which is nothing of ours",
        f"seen when {end}",
        remedy="another process allocates or frees on this device; run the check on an idle one",
    )


def judge_loss(growing: Sequence[int], control: Sequence[int]) -> Finding | None:
    """Judge used memory, in bytes, after each round and after as many calls that allocate nothing."""
    rounds = range(ROUNDS)
    growth = slope(rounds, growing)
    if growth.low <= max(CREEP_BYTES / ROUNDS, slope(rounds, control).high):
        return None
    return Finding.fail(
        f"used device memory grows by {mib(growth.estimate)} with each allocation that is freed and trimmed",
        f"95 % interval {mib(growth.low)} to {mib(growth.high)}, {ROUNDS} rounds",
    )


def judge_threshold(seen: Json) -> Iterable[Finding]:
    """Judge when memory went back: drivers *try* to do as the release threshold says."""
    nbytes, unheld, held = seen["nbytes"], seen["unheld"], seen["held"]
    if unheld["reserved"]:
        yield Finding.warn(
            f"a pool whose release threshold is 0 still held {mib(unheld['reserved'])} after synchronising",
            f"{mib(nbytes)} were allocated from it and freed; trimming gave them back",
            remedy="trim pools where memory is to be left to others",
        )
    if held["reserved"] < nbytes:
        yield Finding.warn(
            f"a pool held {mib(held['reserved'])} although its release threshold is {mib(2 * nbytes)}",
            f"{mib(nbytes)} were allocated from it and freed: each such allocation must wait for the device",
        )
    if not unheld["reserved"] and held["reserved"] >= nbytes:
        yield Finding.ok(
            "memory came back at the release threshold, by trimming and by destroying",
            f"{ROUNDS} rounds of {mib(nbytes)} lost nothing",
            f"trimmed while {mib(nbytes)} were allocated, the pool kept {mib(seen['half']['reserved'])}",
        )


# -- reuse -----------------------------------------------------------------------------------------------


def reuse(w: Worker, room: int) -> None:
    nbytes, ballast = min(SHARED, room // 32), min(BALLAST, room // 4)
    streams = w.gpu.create_stream(), w.gpu.create_stream()
    sources = w.gpu.alloc(nbytes), w.gpu.alloc(nbytes)
    results = w.gpu.alloc(nbytes), w.gpu.alloc(nbytes)
    ballasts = w.gpu.alloc(ballast), w.gpu.alloc(ballast)

    with w.step("see whether copies keep a stream busy"):
        streams[0].copy(*ballasts)
        copies = COPIES if streams[0].is_busy() else 0
        streams[0].synchronize()

    tries = []
    for name, (cases, with_event) in CASES.items():
        pool = w.gpu.create_pool()
        pool.hold(room)
        pool.reuse(*cases)
        for number in range(TIMES):
            expected = [pattern(nbytes, number, stream) for stream in range(2)]
            for source, data in zip(sources, expected, strict=True):
                source.write(data)
            with w.step(f"{name}, {number + 1} of {TIMES}"):
                seen = hand_over(pool, streams, sources, results, [ballasts] * copies, with_event)
            wrong = [difference(result.read(), data) for result, data in zip(results, expected, strict=True)]
            tries.append({"case": name, "wrong": wrong, **seen})
            pool.trim()
        pool.destroy()
    w.record(tries=tries)


def hand_over(
    pool: Pool,
    streams: Sequence[GpuStream],
    sources: Sequence[Memory],
    results: Sequence[Memory],
    ballast: Iterable[Sequence[Memory]],
    with_event: bool,
) -> dict[str, bool]:
    """Have each stream copy its source to its result by way of pool memory, the second after the first frees.

    Tells whether the second was ``given`` what the first freed, and whether that was still ``busy`` then.
    """
    first, second = streams
    memory = pool.alloc(sources[0].nbytes, first)
    first.copy(memory, sources[0])
    for to, source in ballast:
        first.copy(to, source)
    first.copy(results[0], memory)
    memory.free(first)
    if with_event:
        second.wait(first.record())

    again = pool.alloc(sources[1].nbytes, second)
    busy = first.is_busy()
    second.copy(again, sources[1])
    second.copy(results[1], again)
    again.free(second)
    first.synchronize()
    second.synchronize()
    return {"given": again.address == memory.address, "busy": busy}


def judge_reuse(tries: Sequence[Json]) -> Iterable[Finding]:
    """Judge for each try who was given whose memory, and the data of both streams."""
    wrong: dict[str, list[str]] = {}
    for one in tries:
        for stream, found in zip(("first", "second"), one["wrong"], strict=True):
            if found:
                wrong.setdefault(f"{one['case']}, {stream} stream", []).append(found)
    strayed = [one["case"] for one in tries if one["given"] and not may_be_given(**one)]
    if wrong:
        yield Finding.fail(
            "data were wrong where one stream allocated what another might have freed",
            *(f"{where}, in {len(found)} of {TIMES} tries: {found[0]}" for where, found in wrong.items()),
        )
    if strayed:
        yield Finding.warn(
            f"what one stream freed went to another in {len(strayed)} tries in which it must not",
            *dict.fromkeys(strayed),
        )
    if not wrong and not strayed:
        given = sum(one["given"] for one in tries)
        yield Finding.ok(
            f"{len(tries)} times one stream freed and another allocated, and all data were right",
            f"the second was given the first's memory {given} times, always as allowed",
        )
    if not any(one["busy"] for one in tries):
        yield Finding.skip(
            "no race could be seen: the first stream's copies were over before the second asked for memory"
        )


def may_be_given(case: str, busy: bool, **_: Json) -> bool:
    """Whether the pool's attributes let the second stream have memory that the first freed."""
    reuses, with_event = CASES[case]
    by_event = "event-dependencies" in reuses and with_event
    when_done = "opportunistic" in reuses and not busy
    return by_event or when_done or "internal-dependencies" in reuses


CHECK = DriverAsyncPool()
