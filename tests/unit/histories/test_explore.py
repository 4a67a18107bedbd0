"""Exploring on made-up drivers: one that hangs, one whose device vanishes, and one that is well."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from gpuipc_doctor.api.worker import ChildGone, ChildHangs
from gpuipc_doctor.histories.actor import RESTED, Answer, Order
from gpuipc_doctor.histories.explore import SHRINK_S, Bench, explore
from gpuipc_doctor.histories.generator import Generator
from gpuipc_doctor.histories.leaks import NOISE
from gpuipc_doctor.histories.operations import Operation
from tests.unit.histories.trivial_driver import TrivialDriver

LIMIT_S = 5.0
Fault = Callable[[Order, int], Answer | None]
"""What becomes of an order, as the so-manieth of its process, instead of success; it may raise."""


class Node:
    """A driver in memory, its processes, and a clock that only waiting moves."""

    def __init__(self, fault: Fault = lambda order, number: None) -> None:
        self.driver = TrivialDriver()
        self.fault = fault
        self.now = 0.0
        self.started = 0

    def start(self, act: object) -> FakeProcess:
        self.started += 1
        return FakeProcess(self, self.started)

    @property
    def bench(self) -> Bench:
        def step(name: str) -> AbstractContextManager[None]:
            return nullcontext()

        return Bench(self.start, lambda: self.now, LIMIT_S, step)


class FakeProcess:
    """A process that performs orders on the driver in memory; implements ``api.ChildProcess``."""

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

    def recv(self, limit_s: float) -> Any:
        if isinstance(self._message, tuple):  # its device
            self._node.fault(Order("begin", 0, 0, 0, 0, 0), 0)
            return None
        made: dict[int, Any] = {}
        for place, order in enumerate(self._message):
            self.progress = place
            self._done += 1
            try:
                answer = self._node.fault(order, self._done)
            except ChildHangs:
                self._node.now += limit_s
                raise
            if answer:
                return answer._replace(done=place)
            self._node.now += 0.001
            if order.do == "rest":
                made[RESTED] = dict.fromkeys(NOISE, 7)
            elif not order.do.startswith("export"):
                fields = {"on": order.on, "makes": order.makes, "of": order.of, "stamp": order.stamp}
                shown = self._node.driver.perform(Operation(order.do, self._number, **fields))
                assert order.do != "read" or order.stamp in (0, shown)
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
        if order.do == "open" and number > 4:
            raise ChildHangs

    node = Node(second_open_hangs)
    explored = explore(node.bench, Generator("cuda", 1, seed), 5000, 1e6)
    assert explored.first is not None
    assert explored.first.what == "hang"
    assert node.now - explored.elapsed_s <= SHRINK_S + 3 * LIMIT_S < 60
    assert explored.shortest is not None
    assert explored.shortest.operations[-1].do == "open"


def test_device_that_vanishes_is_no_disagreement_that_repeats() -> None:
    gone = False

    def vanishes(order: Order, number: int) -> Answer | None:
        nonlocal gone
        if order.do == "begin":
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
        if failed or number < 60 or order.do == "rest":
            return None
        failed = True
        return Answer(0, {}, 0, "error", "CUDA_ERROR_UNKNOWN", "it returned 999")

    explored = explore(Node(once).bench, Generator("cuda", 1, 1), 5000, 1e6)
    assert explored.first is not None
    assert (explored.again, explored.unusable) == (None, "")
