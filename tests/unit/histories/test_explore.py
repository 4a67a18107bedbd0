"""Exploring with simulated drivers: one hangs, one loses its device, and one is healthy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from gpuipc_doctor.api.worker import ChildGone, ChildHangs
from gpuipc_doctor.histories.explore import LATEST, LOOP, SHRINK_S, Bench, explore
from gpuipc_doctor.histories.generator import Generator
from gpuipc_doctor.histories.leaks import NOISE, changed
from gpuipc_doctor.histories.memory_draft import Limits
from gpuipc_doctor.histories.memory_operations import unavailable
from gpuipc_doctor.histories.operations import Operation
from gpuipc_doctor.histories.performer import RESTED
from gpuipc_doctor.histories.process_loop import Answer, Order
from gpuipc_doctor.histories.steps import steps
from tests.unit.histories.trivial_driver import TrivialDriver

LIMIT_S = 5.0
Fault = Callable[[Order, int], Answer | None]
"""The answer to a process's order with this number, None for success; it may raise."""


class Node:
    """A driver in memory, its processes, and a clock that only advances by waiting."""

    def __init__(self, fault: Fault = lambda order, number: None) -> None:
        self.driver = TrivialDriver()
        self.fault = fault
        self.now = 0.0
        self.used: Callable[[], int] = lambda: 7
        """Used memory of the device in bytes."""
        self.started = self.acting = 0
        self.at_work: dict[int, set[str]] = {}
        """Process → the operations that were sent to it and not answered yet."""
        self.meanwhile: dict[int, set[str]] = {}
        """Process → the operations that others receive before it answers."""

    def start(self, act: object) -> FakeProcess:
        self.started += 1
        return FakeProcess(self, self.started)

    @property
    def bench(self) -> Bench:
        def step(name: str) -> AbstractContextManager[None]:
            return nullcontext()

        return Bench(self.start, lambda: self.now, LIMIT_S, step, self.wait)

    def wait(self, seconds: float) -> None:
        self.now += seconds


class FakeProcess:
    """A process that executes orders on the driver in memory; implements ``api.ChildProcess``."""

    call = "the call"
    descriptors = ()

    def __init__(self, node: Node, number: int) -> None:
        self.pid = self._number = number
        self._node = node
        self._done = 0
        self.progress = 0
        self._message: Any = None

    def send(self, value: Any, descriptors: object = ()) -> None:
        self._message = value
        if isinstance(value, list):
            mine = {order.operation.do for order in value}
            meanwhile = self._node.meanwhile[self._number] = set[str]()
            for other, does in self._node.at_work.items():
                meanwhile |= does
                self._node.meanwhile[other] |= mine
            self._node.at_work[self._number] = mine

    def recv(self, limit_s: float) -> Any:
        if isinstance(self._message, tuple):  # the assignment, with its device
            self._node.fault(Order(Operation("begin", 0)), 0)
            return None
        try:
            return self._perform(limit_s)
        finally:
            del self._node.at_work[self._number]

    def _perform(self, limit_s: float) -> Answer:
        made: dict[int, Any] = {}
        for place, order in enumerate(self._message):
            self.progress = place
            self._done += 1
            try:
                self._node.acting = self._number
                answer = self._node.fault(order, self._done)
            except ChildHangs:
                self._node.now += limit_s
                raise
            if answer:
                return answer._replace(done=place)
            self._node.now += 0.001
            if order.operation.do == "rest":
                made[RESTED] = dict.fromkeys(NOISE, 7) | {"device": self._node.used()}
            elif not order.exports:
                operation = replace(order.operation, by=self._number)
                shown = self._node.driver.perform(operation)
                assert shown is None or shown.agrees(order.parts)
        return Answer(len(self._message), made, 0)

    def kill(self) -> None:
        self._node.driver.perform(Operation("kill", self._number))

    def end(self, limit_s: float) -> str:
        self.kill()
        return "exit 0"


def test_correct_driver_agrees_with_the_model() -> None:
    explored = explore(Node().bench, Generator("cuda", 1, 3), 2000, 1e6)
    assert explored.first is None
    assert explored.operations >= 2000


def test_operations_end_with_the_time() -> None:
    explored = explore(Node().bench, Generator("cuda", 1, 3), 10**9, 1.0)
    assert explored.first is None
    assert 1.0 <= explored.elapsed_s < 1.5


@pytest.mark.parametrize("seed", range(3))
def test_hang_is_shrunk_within_a_minute(seed: int) -> None:
    def second_open_hangs(order: Order, number: int) -> None:
        if order.operation.do == "open" and number > 4:
            raise ChildHangs

    node = Node(second_open_hangs)
    without = unavailable({"contexts", "legacy-ipc", "vmm-ipc", "pool-ipc"})
    explored = explore(node.bench, Generator("cuda", 1, seed, without=without), 5000, 1e6)
    assert explored.first is not None
    assert explored.first.what == "hang"
    assert node.now - explored.elapsed_s <= SHRINK_S + 3 * LIMIT_S < 60
    assert explored.shortest is not None
    assert explored.shortest.operations[-1].do == "open"


@pytest.mark.parametrize("seed", range(4))
def test_race_is_found_and_shrunk_to_two_processes(seed: int) -> None:
    def open_beside_an_allocation_fails(order: Order, number: int) -> Answer | None:
        if order.operation.do == "open" and "allocate" in node.meanwhile[node.acting]:
            return Answer(0, {}, 0, "error", "CUDA_ERROR_INVALID_HANDLE", "it returned 400")
        return None

    node = Node(open_beside_an_allocation_fails)
    explored = explore(node.bench, Generator("cuda", 1, seed), 5000, 1e6)
    assert explored.shortest is not None
    operations = explored.shortest.operations
    assert {"allocate", "open"} == {operation.do for operation in operations}, steps(explored.shortest)
    assert any(operation.beside for operation in operations)
    assert len(operations) <= 4


def test_fault_of_one_process_is_shrunk_to_sequential_operations() -> None:
    def third_open_fails(order: Order, number: int) -> Answer | None:
        fails = order.operation.do == "open" and number > 30
        return Answer(0, {}, 0, "error", "CUDA_ERROR_INVALID_HANDLE", "it returned 400") if fails else None

    explored = explore(Node(third_open_fails).bench, Generator("cuda", 1, 2), 5000, 1e6)
    assert explored.shortest is not None
    assert not any(operation.beside for operation in explored.shortest.operations)


COMPOSED = Limits(composed=True)
KIB = 1 << 10


def leaking(do: str, nbytes: int) -> Node:
    """A node on which each operation of this kind leaks, also beyond the end of its process."""
    leaked = 0

    def leak(order: Order, number: int) -> None:
        nonlocal leaked
        leaked += nbytes * (order.operation.do == do)

    node = Node(leak)
    node.used = lambda: 7 + leaked
    return node


@pytest.mark.parametrize(
    ("do", "kib"),
    [
        ("destroy-pool", 64),
        ("destroy-pool", 21 << 10),
        ("destroy-pool", 64 << 10),
        ("open-event", 64),
        ("unmap", 2048),
        ("close", 64),
        ("read-in-thread", 2048),
        ("fork", 64 << 10),
    ],
)
def test_leak_of_one_kind_of_operation_is_found_in_its_scene(do: str, kib: int) -> None:
    explored = explore(leaking(do, kib * KIB).bench, Generator("cuda", 1, 14, COMPOSED), 2600, 1e6)
    assert explored.again is not None
    assert (explored.again.what, explored.again.name) == ("leak", "device")
    assert f"grows by {kib} KiB" in explored.again.says
    assert explored.shortest is not None
    assert do in {operation.do for operation in explored.shortest.operations}
    assert len(explored.shortest.operations) <= 9, steps(explored.shortest)


@pytest.mark.parametrize(
    "movement", ["drifts", "drifts fast", "saws", "wanders", "reserves", "reserves later"]
)
def test_counter_that_moves_without_a_leak_is_no_leak(movement: str) -> None:
    node, calls = Node(), Counter[str]()
    chance = Random(5)
    walk = [chance.randrange(-30 << 20, 30 << 20) for _ in range(10_000)]

    def count(order: Order, number: int) -> None:
        calls[order.operation.do] += 1

    node.fault = count
    node.used = {
        "drifts": lambda: int(node.now * (2 << 20)),
        "drifts fast": lambda: int(node.now * (200 << 20)),
        "saws": lambda: int(abs(node.now % 20 - 10) * (40 << 20)),
        "wanders": lambda: sum(walk[: int(node.now * 2)]),
        "reserves": lambda: len(calls) << 21,
        "reserves later": lambda: sum(min(times, 12) for times in calls.values()) << 20,
    }[movement]
    explored = explore(node.bench, Generator("cuda", 1, 14, COMPOSED), 2600, 1e6)
    assert explored.first is None
    assert node.now < 60


def test_vanished_device_is_not_a_repeatable_disagreement() -> None:
    gone = False

    def vanishes(order: Order, number: int) -> Answer | None:
        nonlocal gone
        if order.operation.do == "begin":
            if gone:
                raise ChildGone("exit 1")
            return None
        gone = gone or number > 60
        return Answer(0, {}, 0, "error", "CUDA_ERROR_UNKNOWN", "it returned 999") if gone else None

    explored = explore(Node(vanishes).bench, Generator("cuda", 1, 1), 5000, 1e6)
    assert explored.first is not None
    assert explored.again is None
    assert "ended the process" in explored.unusable


def test_failure_that_does_not_repeat_leaves_a_usable_device() -> None:
    failed = False

    def once(order: Order, number: int) -> Answer | None:
        nonlocal failed
        if failed or number < 60 or order.operation.do == "rest":
            return None
        failed = True
        return Answer(0, {}, 0, "error", "CUDA_ERROR_UNKNOWN", "it returned 999")

    explored = explore(Node(once).bench, Generator("cuda", 1, 1), 5000, 1e6)
    assert explored.first is not None
    assert (explored.again, explored.unusable) == (None, "")


@pytest.mark.full
def test_long_history_that_fails_once_is_replayed_in_part_and_reported_as_a_whole() -> None:
    orders = 0

    def once(order: Order, number: int) -> Answer | None:
        nonlocal orders
        orders += order.operation.do not in ("begin", "rest")
        failed = orders == 30_000
        return Answer(0, {}, 0, "error", "CUDA_ERROR_UNKNOWN", "it returned 999") if failed else None

    explored = explore(Node(once).bench, Generator("cuda", 1, 1), 100_000, 1e6)
    assert explored.again is None
    assert explored.history is not None
    assert len(explored.history.operations) >= 30_000
    assert orders - 30_000 < LATEST + (LOOP + 2) * 250  # the latest operations, and the phase in a loop


def test_what_an_idle_counter_does_is_that_of_one_process() -> None:
    """On two GPUs two processes' figures differ by hundreds of MiB, which was taken for a moving counter."""
    rests = [(1, {"device": 600 << 20}), (2, {"device": 900 << 20})] * 2
    assert changed(rests) == 0
    assert changed([*rests, (2, {"device": 901 << 20})]) == 1 << 20
