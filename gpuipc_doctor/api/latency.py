"""Latency of messages between two ranks, and whether repeated messages arrive correctly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gpuipc_doctor.api.data_patterns import unlike_pattern, write_pattern, write_zeros
from gpuipc_doctor.api.gpu import Memory
from gpuipc_doctor.api.process_leaks import watched
from gpuipc_doctor.api.worker import Worker
from gpuipc_doctor.model import Evidence, Measurement

PASSES, WARM_UP, ROUNDS = 4, 5, 25
"""Passes over all sizes; in each pass, untimed and then timed rounds of each size.

A slow size must be slow in every pass: ranks that share a processor for a while slow all rounds of one pass
(1 ms instead of 1 µs was seen).
"""

LARGE, LARGE_ROUNDS = 1 << 20, 3
"""Messages from this many bytes on are repeated less often."""

OUT_OF_LINE = 20.0
"""A latency is reported if it is this many times the latencies of both neighbouring sizes."""


class Latency(NamedTuple):
    """One-way times in seconds of blocking device-to-device messages of ``size`` bytes."""

    size: int
    fastest: float
    median: float


def time_there_and_back(w: Worker, memory: Memory, sizes: list[int]) -> tuple[list[Latency], list[str]]:
    """Send the first bytes of ``memory`` to the other rank and back; returns the latencies and the wrong
    data.

    Only rank 0 has the data at first, so both ranks end with data that they received. Writing and reading the
    data is not timed.
    """
    from statistics import median

    times: dict[int, list[float]] = {size: [] for size in sizes}
    wrong: dict[int, str] = {}
    for what, rounds, group in (
        ("small message", ROUNDS, [size for size in sizes if size < LARGE]),
        ("large message", LARGE_ROUNDS, [size for size in sizes if size >= LARGE]),
    ):
        warm_up = min(WARM_UP, rounds)
        for number, size in watched(w, what, enumerate(group * PASSES), times=warm_up + rounds):
            if w.mpi.rank == 0:
                write_pattern(memory, size, number)
            else:
                write_zeros(memory, size)
            with w.step(f"time {size} B, device to device"):
                w.mpi.ping_pong(memory.address, size, 1 - w.mpi.rank, warm_up)
                times[size] += w.mpi.ping_pong(memory.address, size, 1 - w.mpi.rank, rounds)
            if change := unlike_pattern(memory, size, number):
                wrong.setdefault(
                    size, f"{size} B, from device to device and back, on rank {w.mpi.rank}: {change}"
                )
    return [Latency(size, min(each), median(each)) for size, each in times.items()], list(wrong.values())


def record_bandwidth(w: Worker, nbytes: int) -> None:
    """Record the bandwidth in both directions, which shows the cost of a workaround."""
    with w.gpu.alloc(nbytes) as buffer, w.step("measure the bandwidth"):
        times = w.mpi.ping_pong(buffer.address, nbytes, 1 - w.mpi.rank, LARGE_ROUNDS)
    w.price(nbytes / min(times) / 1e9, "GB/s")


def figures(latencies: Iterable[Latency]) -> Iterator[Evidence]:
    """Latency and bandwidth by size."""
    for size, fastest, usual in latencies:
        says = "{size} B: median {median:us}, fastest {fastest:us}"
        values = {"size": size, "median": usual, "fastest": fastest}
        if size:
            says, values = f"{says}, {{speed}} GB/s", {**values, "speed": float(f"{size / usual / 1e9:.3g}")}
        yield Evidence.measured(says, **values)


def measurements(latencies: Iterable[Latency]) -> Iterator[Measurement]:
    """Latency of the shortest and the longest small message, and bandwidth of each size of large messages.

    These figures are compared between nodes and over time. The message of 0 bytes is left out.
    """
    timed = sorted(latency for latency in latencies if latency.size)
    small, large = (
        [latency for latency in timed if (latency.size >= LARGE) is is_large] for is_large in (False, True)
    )
    for latency in dict.fromkeys((*small[:1], *small[-1:])):
        yield Measurement(f"latency, {latency.size} B", latency.median * 1e6, "µs")
    for latency in large:
        speed = latency.size / latency.median / 1e9
        yield Measurement(f"bandwidth, {latency.size >> 20} MiB", speed, "GB/s", more_is_better=True)


def out_of_line(latencies: Iterable[Latency]) -> Iterator[Evidence]:
    """Sizes that take far longer than the next smaller and the next larger one."""
    ordered = sorted(latencies)
    for before, here, after in zip(ordered, ordered[1:], ordered[2:], strict=False):
        # The fastest round: a busy processor slows most rounds but not all.
        around = max(before.fastest, after.fastest)
        if here.fastest > OUT_OF_LINE * around:
            yield Evidence.measured(
                "{size} B take {fastest:us}, but {smaller} B and {larger} B at most {around:us}",
                size=here.size,
                fastest=here.fastest,
                smaller=before.size,
                larger=after.size,
                around=around,
            )
