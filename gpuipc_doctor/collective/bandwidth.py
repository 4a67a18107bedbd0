"""Latency and bandwidth of one all-reduce, and of messages by pair."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from statistics import median
from typing import NamedTuple

from gpuipc_doctor.api import Buffer, Communicator, Json, Worker
from gpuipc_doctor.collective.all_ranks import AllRanks

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


def measure(w: Worker, ranks: AllRanks, comm: Communicator, room: int) -> dict[str, Json]:
    """The figures; equal on all ranks."""
    timer = _Timer(w, ranks, comm)
    figures: dict[str, Json] = {}
    with w.step(f"latency of an all-reduce of {SMALL} B"), w.gpu.alloc(SMALL) as buffer:
        figures["latency"] = timer.latency(buffer)
    if ranks.size == 1:
        return figures
    for size in (size for size in SIZES if size <= room):
        expected = figures["seconds"] * size / figures["nbytes"] if "seconds" in figures else 0.0
        if expected > TOO_LONG_S:
            break
        with w.step(f"bandwidth of an all-reduce of {size} B"), w.gpu.alloc(size) as buffer:
            figures |= {"nbytes": size, "seconds": timer.all_reduce(buffer)}
    if "seconds" not in figures:
        return figures
    fast = figures["seconds"] * PAIR_BYTES / figures["nbytes"] < TOO_LONG_S and room >= 2 * PAIR_BYTES
    nbytes = PAIR_BYTES if fast else LEAST_PAIR_BYTES
    if nbytes > room:
        return figures
    with w.gpu.alloc(nbytes) as buffer:
        pairs = [timer.pair(pair, buffer) for pair in combinations(range(ranks.size), 2)]
        again = {pair[:2] for pair in slow(pairs)}  # what was slow once may have been disturbed
        pairs = [
            max(pair, timer.pair(pair[:2], buffer), key=lambda one: one.rate) if pair[:2] in again else pair
            for pair in pairs
        ]
    return {**figures, "pair_bytes": nbytes, "pairs": [list(pair) for pair in pairs]}


class _Timer:
    """Times operations of all ranks in one stream."""

    def __init__(self, w: Worker, ranks: AllRanks, comm: Communicator) -> None:
        self._w, self._ranks, self._comm = w, ranks, comm
        self._stream = w.gpu.create_stream()

    def _once(self, times: int, queue: Callable[[], None]) -> float:
        """Seconds of one operation, of many that are queued together."""
        began = self._w.clock()
        for _ in range(times):
            queue()
        self._stream.synchronize()
        return (self._w.clock() - began) / times

    def _slowest(self, seconds: float) -> float:
        """The time of the slowest rank, which all ranks then know."""
        return float(max(self._ranks.all_say(seconds)))

    def _fastest_pass(self, once: Callable[[], float]) -> float:
        def in_step() -> float:
            self._ranks.all_say(None)
            return self._slowest(once())

        return min(in_step() for _ in range(PASSES))

    def latency(self, buffer: Buffer) -> float:
        def queue() -> None:
            self._comm.all_reduce(buffer.address, buffer.address, SMALL // 4, "int32", self._stream)

        self._once(10, queue)
        return self._fastest_pass(lambda: self._once(20, queue))

    def all_reduce(self, buffer: Buffer) -> float:
        def queue() -> None:
            count = buffer.nbytes // 4
            self._comm.all_reduce(buffer.address, buffer.address, count, "float32", self._stream)

        warm = self._slowest(self._once(1, queue))
        times = max(1, min(10, int(0.05 / warm)))
        return self._fastest_pass(lambda: self._once(times, queue))

    def pair(self, pair: tuple[int, int], buffer: Buffer) -> Pair:
        """Send from each rank of the pair to the other; all other ranks wait."""
        with self._w.step(f"bandwidth between rank {pair[0]} and rank {pair[1]}"):
            return Pair(*pair, min(self._one_way(*way, buffer) for way in (pair, pair[::-1])))

    def _one_way(self, source: int, target: int, buffer: Buffer) -> float:
        """Bytes per second from one rank to another."""
        rank, count = self._ranks.rank, buffer.nbytes // 4
        times = 4 if buffer.nbytes == PAIR_BYTES else 1

        def queue() -> None:
            if rank == source:
                self._comm.send(buffer.address, count, "float32", target, self._stream)
            else:
                self._comm.recv(buffer.address, count, "float32", source, self._stream)

        def once() -> float:
            return self._once(times, queue) if rank in (source, target) else 0.0

        once()  # connects the pair
        return buffer.nbytes / self._fastest_pass(once)
