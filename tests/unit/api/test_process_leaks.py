"""Losses of a process with each repetition of an operation, and growth that is allowed."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from gpuipc_doctor.api import watched
from gpuipc_doctor.api.process_leaks import figures_of_process, judge_processes
from gpuipc_doctor.model import Finding, Json, Status
from gpuipc_doctor.report import sentences
from tests.checks.judging import MIB, ONE, Kept, each_round, outcome

ROUNDS = 64
GIB = 1 << 30


def judge(**figures: Callable[[int], float]) -> list[Finding]:
    records = {"importer": {**each_round("open", ROUNDS, **figures)}, "exporter": {}}
    return list(judge_processes(outcome(records, ONE, "")))


def test_loss_with_every_twentieth_repetition_of_many_is_found() -> None:
    records = {"importer": each_round("open", 256, descriptors=lambda number: number // 20)}
    (finding,) = judge_processes(outcome(records, ONE, ""))
    assert finding.values["growth"] == pytest.approx(0.05, rel=0.2)


@pytest.mark.parametrize("phase", range(3))
@pytest.mark.parametrize("rounds", [16, 20, 256])
def test_malloc_leak_with_every_third_repetition_is_found(rounds: int, phase: int) -> None:
    lost = each_round("open", rounds, times=3, heap=lambda number: (65 << 10) * ((3 * number + phase) // 3))
    (finding,) = judge_processes(outcome({"importer": lost}, ONE, ""))
    assert (finding.key, finding.status) == ("host-memory-left", Status.WARN)
    assert finding.values["growth"] == pytest.approx((65 << 10) / 3, rel=0.01)


@pytest.mark.parametrize(
    "healthy",
    [
        {"heap": lambda number: 12 * 1024 * number},
        {"heap": lambda number: 8 * MIB * (number % 7 == 0)},
        {},
        {"addresses": lambda number: 300 * GIB * (number > 40)},  # a driver's reservation, on an H200
        {"addresses": lambda number: 300 * GIB * (number > 50)},
        {"addresses": lambda number: 64 * MIB * (number > 48) + 64 * MIB * (number > 56)},
        {"addresses": lambda number: 64 * MIB * (number > 50) + 4096 * (number > 45) + 4096 * (number > 57)},
        {"descriptors": lambda number: (number > 48) + (number > 53) + (number > 58)},
        {"host": lambda number: min(number, 30) * MIB},  # set up by the first calls
        {"host": lambda number: MIB * (number > 45) + MIB * (number > 55)},  # the interpreter's own arenas
        {"descriptors": lambda number: 40 + number % 3},
        {"descriptors": lambda number: min(number, 32)},  # a cache with a limit
        {"descriptors": lambda number: 100 - number},
        {"threads": lambda number: 4 + 8 * (number > 50)},
    ],
)
def test_healthy_process_has_no_loss(healthy: dict[str, Callable[[int], float]]) -> None:
    assert judge(**healthy) == []


def test_memory_of_lost_threads_is_no_separate_loss() -> None:
    grows = {"threads": 1, "host": 8 * MIB, "addresses": 64 * MIB}
    found = judge(**{name: lambda number, each=each: number * each for name, each in grows.items()})
    assert [finding.key for finding in found] == ["threads-left"]


def test_several_losses_of_one_kind_are_one_finding_with_the_largest() -> None:
    small = each_round("message", ROUNDS, times=60, descriptors=lambda number: 6 * number)
    large = each_round("large message", ROUNDS, descriptors=lambda number: 2 * number)
    both = {Kept("usage"): {**small["usage"], **large["usage"]}}
    records = {"rank 0": small, "rank 1": both}
    (finding,) = judge_processes(outcome(records, ONE, ""))
    assert sentences.summary(finding) == "rank 1: open descriptors grow by 2 with each large message"
    assert sentences.evidence(finding) == (
        "rank 0: open descriptors grow by 0.1 with each message",
        "rank 1: open descriptors grow by 0.1 with each message",
    )


@pytest.fixture
def opened() -> Iterator[list[int]]:
    descriptors: list[int] = []
    yield descriptors
    for descriptor in descriptors:
        os.close(descriptor)


def test_rounds_of_a_loop_are_measured_in_this_process(opened: list[int]) -> None:
    usage: dict[str, Json] = {}
    w: Any = SimpleNamespace(keep_usage=usage.__setitem__)
    for number in watched(w, "open", range(15)):
        opened.append(os.open("/dev/null", os.O_RDONLY))
        assert len(opened) == number + 1
    (finding,) = judge_processes(outcome({"importer": {Kept("usage"): usage}}, ONE, ""))
    assert (finding.key, finding.values["growth"]) == ("descriptors-left", 1)


def test_figures_that_may_grow_are_not_recorded(opened: list[int]) -> None:
    usage: dict[str, Json] = {}
    w: Any = SimpleNamespace(keep_usage=usage.__setitem__)
    for _ in watched(w, "open", range(15), but={"descriptors"}):
        opened.append(os.open("/dev/null", os.O_RDONLY))
    assert list(judge_processes(outcome({"importer": {Kept("usage"): usage}}, ONE, ""))) == []


@pytest.mark.parametrize("is_sized", [True, False])
def test_only_the_last_third_is_kept(opened: list[int], is_sized: bool) -> None:
    usage: dict[str, Json] = {}
    w: Any = SimpleNamespace(keep_usage=usage.__setitem__)
    for _ in watched(w, "open", range(15) if is_sized else iter(range(15))):
        opened.append(os.open("/dev/null", os.O_RDONLY))
    (kept,) = usage.values()
    first, *_, last = kept["descriptors"]
    assert (len(kept["descriptors"]), last - first) == (5, 4)


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_loop_of_few_or_no_rounds_has_no_finding(rounds: int) -> None:
    usage: dict[str, Json] = {}
    w: Any = SimpleNamespace(keep_usage=usage.__setitem__)
    for _ in watched(w, "open", range(rounds)):
        pass
    assert list(judge_processes(outcome({"importer": {Kept("usage"): usage}}, ONE, ""))) == []


def test_small_memory_of_the_c_library_is_counted() -> None:
    before, kept = figures_of_process()["heap"], []
    for _ in range(64):
        kept.append(ctypes.create_string_buffer(64 << 10))
    assert figures_of_process()["heap"] - before == pytest.approx(64 * (64 << 10), rel=0.02)


def test_figures_are_those_of_this_process() -> None:
    figures = figures_of_process()
    assert figures["descriptors"] >= 3
    assert figures["threads"] >= 1
    assert figures["host"] > MIB
    assert figures["addresses"] > MIB
