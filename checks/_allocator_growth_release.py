"""Release the cache of `allocator-growth`: how much is released, and whether that waits for kernels."""

from __future__ import annotations

from gpuipc_doctor.api import (
    NOISE_BYTES,
    Evidence,
    Finding,
    RoleOutcome,
    Worker,
)
from gpuipc_doctor.api.allocator import Allocator, Stream, give_back
from gpuipc_doctor.api.program_memory import used_since_the_start

BUSY_S = 0.05
"""Seconds of an unrelated kernel."""


def time_release(w: Worker, allocator: Allocator, stream: Stream) -> float:
    """Release the cache; returns the seconds that it took."""
    began = w.clock()
    give_back(allocator, stream)
    return w.clock() - began


def time_release_beside(w: Worker, allocator: Allocator, stream: Stream, busy: Stream) -> tuple[float, float]:
    """Release the cache while a kernel runs in ``busy``; returns the seconds of the release and of the
    kernel."""
    began = w.clock()
    busy.spin(BUSY_S)
    seconds = time_release(w, allocator, stream)
    busy.synchronize()
    return seconds, w.clock() - began


def judge_kept(allocator: str, program: RoleOutcome) -> Finding | None:
    """Judge whether free memory was released."""
    _, kept = cached_and_kept(program)
    if kept <= NOISE_BYTES:
        return None
    return Finding.fail(
        "keeps",
        "{allocator}: {kept:mib} not released although every block was freed",
        gave_back(program),
        remedy="restart the process if other processes need the memory",
        allocator=allocator,
        kept=kept,
    )


def cached_and_kept(program: RoleOutcome) -> tuple[float, float]:
    """Bytes used after everything was freed, and after the cache was released."""
    cached, *kept = used_since_the_start(program)[program.records["rounds"] :]
    return cached, max(kept)


def gave_back(program: RoleOutcome) -> Evidence:
    cached, kept = cached_and_kept(program)
    says = "{call} released {returned:mib} of {cached:mib}"
    return Evidence.seen(says, call=program.records["call"], returned=cached - kept, cached=cached)


def release_time(program: RoleOutcome) -> Evidence:
    """Evidence: how long releasing the cache took, and whether the release waits for kernels."""
    times = program.records["release_s"]
    waits = times["beside"] - times["idle"] > times["kernel"] / 2
    return Evidence.measured(
        "{call} {waits} for kernels: {idle:ms} on an idle device, {beside:ms} during a kernel of {kernel:ms}",
        call=program.records["call"],
        waits="waits" if waits else "does not wait",
        **times,
    )
