"""Free in one stream, allocate in another, and check that the driver's pools reuse memory only as documented.

Memory freed on one stream is reused on a second stream only if the pool's attributes allow it
(REUSE_FOLLOW_EVENT_DEPENDENCIES, REUSE_ALLOW_OPPORTUNISTIC, REUSE_ALLOW_INTERNAL_DEPENDENCIES), and never
before the first stream has finished. The second stream allocates while copies on the first stream are still
pending; the data that each stream copies must be correct. If the copies finish too early to be observed, the
result is SKIP.

NVIDIA: https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html (cuMemPoolSetAttribute).
AMD documents the same in the same words (hipMemPoolSetAttribute):
https://rocm.docs.amd.com/projects/HIP/en/latest/.doxygen/docBin/html/group___stream_o.html
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import product

from gpuipc_doctor.api import (
    Check,
    Context,
    Finding,
    GpuStream,
    Json,
    Memory,
    Pool,
    Probe,
    ProbeOutcome,
    Worker,
    difference,
    pattern,
    share,
    share_of_free,
    watched,
)
from gpuipc_doctor.api.gpu import REUSES

SHARED = 2 << 20
"""Bytes of each allocation that is passed from one stream to another."""

BALLAST = 128 << 20
"""Bytes of each copy that keeps a stream busy: enough that the copy takes longer than its launch on an
H200."""

COPIES = 100
"""Maximum number of copies that keep a stream busy; fewer if that many take longer than `BUSY_S`."""

BUSY_S = 0.1
"""Maximum seconds for which a stream is kept busy: long compared with an allocation on a slow device."""

FIRST_COPIES = 10
"""Number of copies with which the mean time of a copy is measured."""

TIMES = 4
"""Number of attempts at each case of reuse."""

CASES = {
    "no reuse allowed": ((), False),
    "no reuse allowed, with an event": ((), True),
    "event dependencies, without an event": (("event-dependencies",), False),
    "event dependencies, with an event": (("event-dependencies",), True),
    "opportunistic reuse": (("opportunistic",), False),
    "internal dependencies": (("internal-dependencies",), False),
    "all reuse allowed": (tuple(sorted(REUSES)), False),
    "all reuse allowed, with an event": (tuple(sorted(REUSES)), True),
}
"""Case → (attributes of the pool, whether the second stream waits for the first by an event)."""


class DriverPoolReuse(Check):
    id = "driver-pool-reuse"
    title = "stream-ordered pools reuse memory only when it is free"
    subject = None
    requires = frozenset({"memory-pools"})

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for device in ctx.devices:
            roles = {"allocator": reuse}
            yield Probe("", roles, (device,), share(ctx.memory), exclusive=True, concurrent=frozenset(roles))

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        tries = done.records["allocator"]["tries"]
        strayed = [attempt["case"] for attempt in tries if attempt["given"] and not may_be_given(**attempt)]
        if wrong := wrong_data(tries):
            says = "wrong data in pool memory that one stream freed and another allocated"
            yield Finding.fail("wrong-data", says, *wrong)
        if strayed:
            yield Finding.warn(
                "given-too-early",
                "memory freed on one stream was reused on another before it was free, in {times} tries",
                *dict.fromkeys(strayed),
                times=len(strayed),
            )
        if not (wrong or strayed):
            given = sum(attempt["given"] for attempt in tries)
            yield Finding.ok(
                "reused-as-allowed",
                "memory passed from one stream to another {tries} times, all data correct",
                f"the second stream reused the first stream's memory {given} times, always as allowed",
                tries=len(tries),
            )
        if not any(attempt["busy"] for attempt in tries):
            yield Finding.skip(
                "no-race",
                "no race was provoked: the first stream finished before the second allocated",
            )


def wrong_data(tries: Sequence[Json]) -> list[str]:
    """Cases in which a stream read wrong data, and how often each occurred."""
    found: dict[str, list[str]] = {}
    for attempt in tries:
        for stream, wrong in zip(("first", "second"), attempt["wrong"], strict=True):
            if wrong:
                found.setdefault(f"{attempt['case']}, {stream} stream", []).append(wrong)
    return [f"{where}, in {len(wrong)} of {TIMES} tries: {wrong[0]}" for where, wrong in found.items()]


def may_be_given(case: str, busy: bool, **_: Json) -> bool:
    """Whether the pool's attributes allow the second stream to reuse memory freed by the first."""
    reuses, with_event = CASES[case]
    by_event = "event-dependencies" in reuses and with_event
    when_done = "opportunistic" in reuses and not busy
    return by_event or when_done or "internal-dependencies" in reuses


def reuse(w: Worker) -> None:
    room = share_of_free(w)
    nbytes, ballast = min(SHARED, room // 32), min(BALLAST, room // 4)
    streams = w.gpu.create_stream(), w.gpu.create_stream()
    sources = w.gpu.alloc(nbytes), w.gpu.alloc(nbytes)
    results = w.gpu.alloc(nbytes), w.gpu.alloc(nbytes)
    ballasts = w.gpu.alloc(ballast), w.gpu.alloc(ballast)

    with w.step("check that a copy keeps its stream busy"):
        began = w.clock()
        for _ in range(FIRST_COPIES):
            streams[0].copy(*ballasts)
        is_busy = streams[0].is_busy()
        streams[0].synchronize()
        copy_s = (w.clock() - began) / FIRST_COPIES
        copies = math.ceil(BUSY_S / max(copy_s, BUSY_S / COPIES)) if is_busy else 0

    tries = []
    for name, number in watched(w, "pool shared by two streams", product(CASES, range(TIMES))):
        cases, with_event = CASES[name]
        pool = w.gpu.create_pool()
        pool.hold(room)
        pool.reuse(*cases)
        expected = [pattern(nbytes, number, stream) for stream in range(2)]
        for source, data in zip(sources, expected, strict=True):
            source.write(data)
        with w.step(f"{name}, {number + 1} of {TIMES}"):
            seen = hand_over(pool, streams, sources, results, [ballasts] * copies, with_event)
        wrong = [difference(result.read(), data) for result, data in zip(results, expected, strict=True)]
        tries.append({"case": name, "wrong": wrong, **seen})
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
    """Copy data through pool memory on the first stream, free the memory, and do the same on the second
    stream.

    Returns whether the second stream was ``given`` the freed memory, and whether the first was still
    ``busy``.
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


CHECK = DriverPoolReuse()
