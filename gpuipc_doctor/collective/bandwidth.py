"""Latency and bandwidth of one all-reduce, and of messages by pair."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from statistics import median
from typing import NamedTuple

from gpuipc_doctor.api import Buffer, Communicator, GpuStream, Json, Worker
from gpuipc_doctor.collective.all_ranks import Crew

SMALL = 8
SIZES = (1 << 20, 16 << 20, 256 << 20)
"""Bytes of the all-reduces for the bandwidth: the next is measured only if it will not take too long."""

TOO_LONG_S = 0.1
"""Longest expected time of one all-reduce."""

PAIR_BYTES, LEAST_PAIR_BYTES = 64 << 20, 4 << 20
PASSES = 5

SLOW = 0.7
"""A pair is slow below this fraction of the median bandwidth of all pairs."""

FEW = 0.25
"""Fraction of the pairs that may be slow. If more pairs are, the node has links of several kinds."""

FEWEST_PAIRS = 3


class Pair(NamedTuple):
    """The bandwidth between rank ``a`` and rank ``b`` in bytes per second: that of the slower direction.

    One direction is measured at a time. In both at once, NCCL 2.28 is a third slower between opposite ranks
    of its ring (four H200s, all pairs with the same links), since both messages then share its channels.
    """

    a: int
    b: int
    rate: float


def slow(pairs: list[Pair]) -> list[Pair]:
    """The pairs that are far slower than the usual one; empty if they may just have another kind of link."""
    if len(pairs) < FEWEST_PAIRS:
        return []
    usual = median(pair.rate for pair in pairs)
    found = [pair for pair in pairs if pair.rate < SLOW * usual]
    return found if len(found) <= max(1, FEW * len(pairs)) else []


def bus(ranks: int, nbytes: int, seconds: float) -> float:
    """Bus bandwidth of an all-reduce in bytes per second, as nccl-tests define it: what a link carries."""
    return 2 * (ranks - 1) / ranks * nbytes / seconds


def measure(w: Worker, crew: Crew, comm: Communicator, room: int) -> dict[str, Json]:
    """The figures; equal on all ranks."""
    stream = w.gpu.create_stream()
    figures: dict[str, Json] = {}
    with w.step(f"latency of an all-reduce of {SMALL} B"), w.gpu.alloc(SMALL) as buffer:
        figures["latency"] = _latency(w, crew, comm, buffer, stream)
    if crew.size == 1:
        return figures
    for size in (size for size in SIZES if size <= room):
        expected = figures["seconds"] * size / figures["nbytes"] if "seconds" in figures else 0.0
        if expected > TOO_LONG_S:
            break
        with w.step(f"bandwidth of an all-reduce of {size} B"), w.gpu.alloc(size) as buffer:
            figures |= {"nbytes": size, "seconds": _all_reduce(w, crew, comm, buffer, stream)}
    if "seconds" not in figures:
        return figures
    fast = figures["seconds"] * PAIR_BYTES / figures["nbytes"] < TOO_LONG_S and room >= 2 * PAIR_BYTES
    nbytes = PAIR_BYTES if fast else LEAST_PAIR_BYTES
    if nbytes > room:
        return figures
    with w.gpu.alloc(nbytes) as buffer:

        def of(pair: tuple[int, int]) -> Pair:
            with w.step(f"bandwidth between rank {pair[0]} and rank {pair[1]}"):
                return _pair(w, crew, comm, pair, buffer, stream)

        pairs = [of(pair) for pair in combinations(range(crew.size), 2)]
        again = {(pair.a, pair.b) for pair in slow(pairs)}  # what was slow once may have been disturbed
        pairs = [
            max(pair, of(pair[:2]), key=lambda one: one.rate) if pair[:2] in again else pair for pair in pairs
        ]
    return {**figures, "pair_bytes": nbytes, "pairs": [list(pair) for pair in pairs]}


def _slowest(crew: Crew, seconds: float) -> float:
    """The time of the slowest rank, which all ranks then know."""
    return float(max(crew.all_say(seconds)))


def _timed(w: Worker, stream: GpuStream, times: int, queue: Callable[[], None]) -> float:
    """Seconds of one operation, of many that are queued together."""
    began = w.clock()
    for _ in range(times):
        queue()
    stream.synchronize()
    return (w.clock() - began) / times


def _passes(crew: Crew, once: Callable[[], float]) -> Iterator[float]:
    for _ in range(PASSES):
        crew.all_say(None)
        yield _slowest(crew, once())


def _latency(w: Worker, crew: Crew, comm: Communicator, buffer: Buffer, stream: GpuStream) -> float:
    def queue() -> None:
        comm.all_reduce(buffer.address, buffer.address, SMALL // 4, "int32", stream)

    _timed(w, stream, 10, queue)
    return min(_passes(crew, lambda: _timed(w, stream, 20, queue)))


def _all_reduce(w: Worker, crew: Crew, comm: Communicator, buffer: Buffer, stream: GpuStream) -> float:
    def queue() -> None:
        comm.all_reduce(buffer.address, buffer.address, buffer.nbytes // 4, "float32", stream)

    warm = _slowest(crew, _timed(w, stream, 1, queue))
    times = max(1, min(10, int(0.05 / warm)))
    return min(_passes(crew, lambda: _timed(w, stream, times, queue)))


def _pair(
    w: Worker, crew: Crew, comm: Communicator, pair: tuple[int, int], buffer: Buffer, stream: GpuStream
) -> Pair:
    """Send from each rank of the pair to the other; all other ranks wait."""
    return Pair(*pair, min(_one_way(w, crew, comm, *way, buffer, stream) for way in (pair, pair[::-1])))


def _one_way(
    w: Worker, crew: Crew, comm: Communicator, source: int, target: int, buffer: Buffer, stream: GpuStream
) -> float:
    """Bytes per second from one rank to another."""
    times = 4 if buffer.nbytes == PAIR_BYTES else 1

    def queue() -> None:
        if crew.rank == source:
            comm.send(buffer.address, buffer.nbytes // 4, "float32", target, stream)
        else:
            comm.recv(buffer.address, buffer.nbytes // 4, "float32", source, stream)

    def once() -> float:
        return _timed(w, stream, times, queue) if crew.rank in (source, target) else 0.0

    once()  # connects the pair
    return buffer.nbytes / min(_passes(crew, once))
