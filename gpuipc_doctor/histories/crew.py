"""The processes of a history: they start when they are needed, and perform what they are sent."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from gpuipc_doctor.api.worker import Child, ChildGone, ChildHangs, ChildProcess
from gpuipc_doctor.histories.actor import RESTED, Answer, Order, act
from gpuipc_doctor.histories.model import Expected
from gpuipc_doctor.histories.operations import Disagreement, Operation, ProcessPlan

Start = Callable[[Callable[[Child], None]], ChildProcess]

BATCH = 64
"""The most operations that a process is sent at a time."""

NEEDS = {
    "import": "export-descriptor",
    "import-pool": "export-descriptor",
    "import-pointer": "export-pointer",
}
"""Operation → the order that goes to the exporter first."""


class Failed(Exception):
    """The driver and the model disagree."""

    def __init__(self, disagreement: Disagreement) -> None:
        super().__init__(disagreement.says)
        self.disagreement = disagreement


class Crew:
    """Performs operations in order. Those that follow each other in one process travel together."""

    def __init__(
        self,
        start: Start,
        plans: dict[int, ProcessPlan],
        limit_s: float,
        settle: Callable[[], object] = lambda: None,
        idle: Callable[[], object] = lambda: None,
    ) -> None:
        """``settle`` waits until a device's figures are as they are after the latest operation; ``idle`` for
        a second.
        """
        self._idle = idle
        self._start = start
        self._settle = settle
        self._settled = False
        self._plans = plans
        self._limit_s = limit_s
        self._children: dict[int, ChildProcess] = {}
        self._waiting: list[tuple[int, Operation, Order]] = []
        self._made: dict[int, Any] = {}
        self._owner: dict[int, int] = {}
        """Object → the process that made it."""
        self.rests: list[tuple[int, dict[str, int]]] = []
        """Processes that have rested since this was emptied last, and what they had then."""
        self.performed = 0
        self.compared = 0

    def add(self, at: int, operation: Operation, expected: Expected) -> None:
        """Perform an operation, now or with those that follow. Raises `Failed`, maybe for an earlier one."""
        if operation.makes:
            self._owner[operation.makes] = operation.by
        if self._waiting and (self._waiting[0][1].by != operation.by or len(self._waiting) == BATCH):
            self.flush()
        if operation.do == "idle":
            self.flush()
            self._idle()
            self.performed += 1
            return
        if operation.do == "kill":
            self.flush()
            self._children.pop(operation.by).kill()
            self.performed += 1
            return
        if operation.do == "rest" and not self._settled:
            self.flush()
            self._settle()
        self._settled = operation.do == "rest"
        needs = NEEDS.get(operation.do)
        descriptors = self._ask(at, operation, needs) if needs else []
        handle = self._made.get(operation.on, b"") if operation.do in ("open", "import-pointer") else b""
        nbytes, stamp = operation.nbytes or expected.nbytes, operation.stamp or expected.stamp
        order = Order(operation.do, operation.on, operation.makes, operation.of, nbytes, stamp, handle)
        self._waiting.append((at, operation, order))
        if needs:
            self.flush(descriptors)

    def _ask(self, at: int, operation: Operation, needs: str) -> list[int]:
        """Have the process that owns an object export it, just before another imports it."""
        self.flush()
        order = Order(needs, operation.on, 0, 0, 0, 0)
        self._waiting.append((at, replace(operation, by=self._owner[operation.on]), order))
        return self.flush()

    def flush(self, descriptors: Sequence[int] = ()) -> list[int]:
        """Perform what waits, with these descriptors, which are closed; returns those that came back."""
        if not self._waiting:
            return []
        waiting, self._waiting = self._waiting, []
        by = waiting[0][1].by
        child = None
        try:
            child = self._child(by)
            child.send([order for _, _, order in waiting], descriptors)
            answer: Answer = child.recv(self._limit_s)
        except ChildGone as gone:
            raise Failed(self._ended(waiting, child, "crash", str(gone))) from None
        except ChildHangs:
            raise Failed(self._ended(waiting, child, "hang", "")) from None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self.performed += answer.done
        self.compared += answer.compared
        if RESTED in answer.made:
            self.rests.append((by, answer.made.pop(RESTED)))
        self._made.update(answer.made)
        if answer.what:
            at, operation, _ = waiting[answer.done]
            call = child.call
            raise Failed(Disagreement(at, answer.what, operation.do, answer.name, call, answer.says))
        return list(child.descriptors)

    def _ended(
        self, waiting: list[tuple[int, Operation, Order]], child: ChildProcess | None, what: str, name: str
    ) -> Disagreement:
        """What a process that ended, or hangs, was about: one by one they were not sent, so it tells."""
        child = child or self._children.get(waiting[0][1].by)  # it has not got so far as to take orders
        call = child.call if child else ""
        at, operation, _ = waiting[min(child.progress if child else 0, len(waiting) - 1)]
        says = f"{call or 'it'} hung" if what == "hang" else f"{call or 'it'} ended the process: {name}"
        return Disagreement(at, what, operation.do, name, call, says)

    def _child(self, by: int) -> ChildProcess:
        if by not in self._children:
            child = self._children[by] = self._start(act)
            plan = self._plans[by]
            child.send((plan.device, plan.primary))
            child.recv(self._limit_s)
        return self._children[by]

    def end(self) -> None:
        """End all processes, as programs end."""
        children, self._children = self._children, {}
        for child in children.values():
            try:
                child.end(self._limit_s)
            except (ChildHangs, ChildGone):
                child.kill()

    def kill(self) -> None:
        """End all processes at once, after one has failed."""
        children, self._children = self._children, {}
        for child in children.values():
            child.kill()


def perform(crew: Crew, operations: Iterable[tuple[int, Operation, Expected]]) -> Disagreement | None:
    """Have a crew perform operations; where it disagrees with the model first."""
    try:
        for at, operation, expected in operations:
            crew.add(at, operation, expected)
        crew.flush()
    except Failed as failed:
        return failed.disagreement
    return None
