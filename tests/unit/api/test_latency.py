"""Messages there and back: their times, their data, and the findings from both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from queue import Queue
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from gpuipc_doctor.api.latency import (
    LARGE,
    LARGE_ROUNDS,
    OUT_OF_LINE,
    PASSES,
    ROUNDS,
    WARM_UP,
    Latency,
    figures,
    measurements,
    out_of_line,
    record_bandwidth,
    time_there_and_back,
)
from gpuipc_doctor.model import Json
from gpuipc_doctor.report import sentences

SIZES = [0, 8, LARGE]


class Memory:
    """Memory that reads as zeros if it ``forgets``."""

    address = 4096

    def __init__(self, *, forgets: bool = False) -> None:
        self.data, self.forgets = bytearray(max(SIZES)), forgets

    def write(self, data: bytes, offset: int = 0) -> None:
        self.data[offset : offset + len(data)] = data

    def read(self, nbytes: int, offset: int = 0) -> bytes:
        return bytes(nbytes) if self.forgets else bytes(self.data[offset : offset + nbytes])


class Rank:
    """A worker that is one of two ranks; each of its messages takes a microsecond per round."""

    def __init__(self, rank: int, memory: Memory, out: Queue[bytes], into: Queue[bytes]) -> None:
        self.mpi, self.rank, self.memory = self, rank, memory
        self._out, self._into = out, into
        self.rounds: list[tuple[int, int]] = []
        self.usage: dict[str, Json] = {}
        self.keep_usage = self.usage.__setitem__

    @contextmanager
    def step(self, _: str) -> Iterator[None]:
        yield

    def ping_pong(self, address: int, nbytes: int, partner: int, rounds: int) -> list[float]:
        assert (address, partner) == (Memory.address, 1 - self.rank)
        if self.rank == 0:
            self._out.put(bytes(self.memory.data[:nbytes]))
        self.memory.write(self._into.get(timeout=10))
        if self.rank == 1:
            self._out.put(bytes(self.memory.data[:nbytes]))
        self.rounds.append((nbytes, rounds))
        return [1e-6 * (n + 1) for n in range(rounds)]


def timed(*, forgets: bool = False) -> tuple[list[Rank], dict[int, tuple[list[Latency], list[str]]]]:
    """Both ranks, and the results of each; ``forgets`` applies to rank 1's memory."""
    there, back = Queue[bytes](), Queue[bytes]()
    ranks = [Rank(0, Memory(), there, back), Rank(1, Memory(forgets=forgets), back, there)]
    found: dict[int, tuple[list[Latency], list[str]]] = {}

    def run(w: Any) -> None:
        found[w.rank] = time_there_and_back(w, w.memory, SIZES)

    threads = [Thread(target=run, args=(rank,), daemon=True) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return ranks, found


def test_correct_messages_have_times_by_size() -> None:
    ranks, found = timed()
    (latencies, wrong), other = found[0], found[1]
    assert other == (latencies, wrong)
    assert wrong == []
    assert [(latency.size, latency.fastest) for latency in latencies] == [(size, 1e-6) for size in SIZES]
    assert [round(latency.median * 1e6) for latency in latencies] == [ROUNDS // 2 + 1] * 2 + [
        LARGE_ROUNDS // 2 + 1
    ]
    small = [(size, rounds) for size in SIZES if size < LARGE for rounds in (WARM_UP, ROUNDS)]
    assert ranks[0].rounds == [*small * PASSES, *[(LARGE, LARGE_ROUNDS)] * 2 * PASSES]
    watched = {what: samples["times"] for what, samples in ranks[0].usage.items()}
    assert watched == {"small message": WARM_UP + ROUNDS, "large message": 2 * LARGE_ROUNDS}


def test_wrong_data_is_reported_once_per_size_by_the_reading_rank() -> None:
    _, found = timed(forgets=True)
    assert found[0][1] == []
    assert [line.partition(":")[0] for line in found[1][1]] == [
        f"{size} B, from device to device and back, on rank 1" for size in SIZES[1:]
    ]


def test_empty_messages_have_no_bandwidth() -> None:
    lines = [sentences.line(figure) for figure in figures([Latency(0, 1e-6, 2e-6), Latency(8, 1e-6, 2e-6)])]
    assert lines == [
        "0 B: median 2.0 µs, fastest 1.0 µs",
        "8 B: median 2.0 µs, fastest 1.0 µs, 0.004 GB/s",
    ]


def test_first_and_last_small_latency_and_large_bandwidth_are_measured() -> None:
    sizes = [4 * LARGE, LARGE, LARGE - 1, 64, 8, 0]
    told = list(measurements(Latency(size, 1e-6, 2e-6) for size in sizes))
    assert [(figure.name, figure.value, figure.unit, figure.more_is_better) for figure in told] == [
        ("latency, 8 B", 2.0, "µs", False),
        (f"latency, {LARGE - 1} B", 2.0, "µs", False),
        ("bandwidth, 1 MiB", pytest.approx(LARGE / 2e-6 / 1e9), "GB/s", True),
        ("bandwidth, 4 MiB", pytest.approx(4 * LARGE / 2e-6 / 1e9), "GB/s", True),
    ]
    assert [figure.name for figure in measurements([Latency(8, 1e-6, 2e-6)])] == ["latency, 8 B"]


@pytest.mark.parametrize(
    ("us", "sizes"),
    [
        ([1, OUT_OF_LINE + 1, 1], [2]),
        ([1, OUT_OF_LINE - 1, 1], []),
        ([1, OUT_OF_LINE + 1, 2], []),  # too small a multiple of its slower neighbour
        ([2, OUT_OF_LINE + 1, 1], []),
        ([OUT_OF_LINE + 1, 1, OUT_OF_LINE + 1], []),  # the first and last size have one neighbour only
    ],
)
def test_out_of_line_sizes_take_far_longer_than_both_neighbours(us: list[float], sizes: list[int]) -> None:
    latencies = [Latency(1 << n, 1e-6 * each, 1e-6 * each) for n, each in enumerate(us)]
    found = list(out_of_line(reversed(latencies)))
    assert [item.values["size"] for item in found] == sizes


def test_bandwidth_is_that_of_the_fastest_round() -> None:
    prices: list[tuple[float, str]] = []

    @contextmanager
    def alloc(nbytes: int) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(address=nbytes)

    w: Any = SimpleNamespace(
        gpu=SimpleNamespace(alloc=alloc),
        step=lambda _: nullcontext(),
        mpi=SimpleNamespace(rank=1, ping_pong=lambda *_: [3e-3, 1e-3, 2e-3]),
        price=lambda *price: prices.append(price),
    )
    record_bandwidth(w, 4 * LARGE)
    assert prices == [(pytest.approx(4 * LARGE / 1e-3 / 1e9), "GB/s")]
