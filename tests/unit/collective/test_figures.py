"""Slow pairs, bus bandwidth, and growth from one communicator to the next."""

from __future__ import annotations

from itertools import combinations

import pytest

from gpuipc_doctor.collective.bandwidth import Pair, bus, slow
from gpuipc_doctor.collective.communicators import growing


def pairs(gpus: int, rates: dict[tuple[int, int], float]) -> list[Pair]:
    return [Pair(*pair, rates.get(pair, 100.0)) for pair in combinations(range(gpus), 2)]


def test_one_slow_pair_of_28_is_found() -> None:
    assert [pair[:2] for pair in slow(pairs(8, {(2, 5): 69.0}))] == [(2, 5)]


@pytest.mark.parametrize(
    ("gpus", "rates"),
    [
        (8, {}),
        (8, {(2, 5): 75.0}),
        (2, {(0, 1): 1.0}),  # nothing to compare with
        (4, {(0, 2): 20.0, (0, 3): 20.0, (1, 2): 20.0, (1, 3): 20.0}),  # two bridged pairs
        (4, {(0, 1): 400.0, (2, 3): 400.0}),
        (
            8,
            {pair: 50.0 for pair in combinations(range(8), 2) if (pair[0] < 4) != (pair[1] < 4)},
        ),  # two sockets
    ],
)
def test_links_of_several_kinds_are_not_slow_pairs(gpus: int, rates: dict[tuple[int, int], float]) -> None:
    assert slow(pairs(gpus, rates)) == []


def test_all_pairs_of_one_gpu_may_be_slow() -> None:
    rates = {pair: 50.0 for pair in combinations(range(8), 2) if 3 in pair}
    assert len(slow(pairs(8, rates))) == 7


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    assert bus(8, 1 << 30, 5.2e-3) == pytest.approx(361e9, rel=0.01)


@pytest.mark.parametrize(
    ("samples", "least", "growth"),
    [
        ([5, 5, 5, 5], 1, 0),
        ([0, 9, 9, 9], 1, 0),  # taken once
        ([0, 9, 10, 11], 1, 1),
        ([0, 9, 10, 10], 1, 0),
        ([8, 16, 24, 32], 9, 0),
        ([8, 16, 24, 32], 8, 8),
        ([0, 8, 16], 1, 0),
        ([], 1, 0),
    ],
)
def test_growth_counts_only_if_every_communicator_adds_to_it(
    samples: list[int], least: int, growth: int
) -> None:
    assert growing(samples, least) == growth
