"""The processes of a history: started when needed, they perform operations on request."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from gpuipc_doctor.api.worker import Child, ChildGone, ChildHangs, ChildProcess
from gpuipc_doctor.histories.memory_operations import TYPES
from gpuipc_doctor.histories.memory_state import Expected
from gpuipc_doctor.histories.operations import Disagreement, Operation, ProcessPlan
from gpuipc_doctor.histories.performer import RESTED
from gpuipc_doctor.histories.process_loop import Answer, Order, serve

Start = Callable[[Callable[[Child], None]], ChildProcess]

Batch = list[tuple[int, Operation, Order]]
"""Operations of one process, each with its index in the history."""

BATCH = 64
"""Maximum operations sent to a process at a time."""


class Failed(Exception):
    """The driver and the model disagree."""

    def __init__(self, disagreement: Disagreement) -> None:
        super().__init__(disagreement.says)
        self.disagreement = disagreement


class Processes:
    """Performs operations in order. Consecutive operations of one process are sent together.

    Operations that may be performed at the same time are sent to their processes before any has answered.
    """

    def __init__(
        self,
        start: Start,
        plans: dict[int, ProcessPlan],
        limit_s: float,
        settle: Callable[[], object] = lambda: None,
        idle: Callable[[], object] = lambda: None,
    ) -> None:
        """``settle`` waits until the device's memory figures are stable; ``idle`` waits some seconds."""
        self._idle = idle
        self._start = start
        self._settle = settle
        self._settled = False
        self._plans = plans
        self._limit_s = limit_s
        self._children: dict[int, ChildProcess] = {}
        self._waiting: dict[int, Batch] = {}
        self._made: dict[int, Any] = {}
        self._owner: dict[int, int] = {}
        """Object → the process that made it."""
        self.rests: list[tuple[int, dict[str, int]]] = []
        """(process, usage) of the processes that have rested since the caller last cleared the list."""
        self.performed = 0
        self.compared = 0

    def add(self, at: int, operation: Operation, expected: Expected) -> None:
        """Perform an operation, now or together with later ones. Raises `Failed`, possibly for an earlier
        one."""
        if operation.makes:
            self._owner[operation.makes] = operation.by
        others = self._waiting.keys() - {operation.by}
        if (others and not expected.beside) or len(self._waiting.get(operation.by, ())) == BATCH:
            self.flush()
        if operation.do in ("idle", "kill"):
            self.flush()
            if operation.do == "idle":
                self._idle()
            else:
                self._children.pop(operation.by).kill()
            self.performed += 1
            return
        if operation.do == "rest" and not self._settled:
            self.flush()
            self._settle()
        self._settled = operation.do == "rest"
        asked = TYPES[operation.do]
        descriptors = self._ask(at, operation) if asked.exports else []
        handle = self._made.get(operation.on, b"") if asked.takes_handle else b""
        nbytes, stamp = operation.nbytes or expected.nbytes, operation.stamp or expected.stamp
        sized = replace(operation, nbytes=nbytes, stamp=stamp)
        order = Order(sized, handle, expected.parts)
        self._waiting.setdefault(operation.by, []).append((at, operation, order))
        if asked.exports:
            self.flush(descriptors)

    def _ask(self, at: int, operation: Operation) -> list[int]:
        """Have the exporter export the object, just before another process imports it."""
        self.flush()
        owner = self._owner[operation.on]
        self._waiting[owner] = [(at, replace(operation, by=owner), Order(operation, exports=True))]
        return self.flush()

    def flush(self, descriptors: Sequence[int] = ()) -> list[int]:
        """Send the pending operations with ``descriptors`` (closed afterwards); returns the received
        descriptors."""
        waiting, self._waiting = self._waiting, {}
        returned, failures = list[int](), list[Disagreement]()
        try:
            for by, batch in waiting.items():
                if failed := self._unless_it_ends(batch, partial(self._send, by, batch, descriptors)):
                    raise Failed(failed)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        for by, batch in waiting.items():
            if failed := self._unless_it_ends(batch, partial(self._answer, by, batch)):
                others = (one for of, other in waiting.items() if of != by for one in other)
                beside = tuple(sorted(at for at, _, _ in others if at > failed.at))
                failures.append(replace(failed, beside=beside))
            else:
                returned += self._children[by].descriptors
        if failures:
            raise Failed(min(failures, key=lambda failed: (failed.what == "hang", failed.at)))
        return returned

    def _unless_it_ends(self, batch: Batch, talk: Callable[[], Disagreement | None]) -> Disagreement | None:
        """The result of ``talk``, or the disagreement if the process ends or hangs."""
        try:
            return talk()
        except ChildGone as gone:
            return self._ended(batch, "crash", str(gone))
        except ChildHangs:
            return self._ended(batch, "hang", "")

    def _send(self, by: int, batch: Batch, descriptors: Sequence[int]) -> None:
        self._child(by).send([order for _, _, order in batch], descriptors)

    def _answer(self, by: int, batch: Batch) -> Disagreement | None:
        """Receive a process's answer to its operations; returns the disagreement, if any."""
        child = self._children[by]
        answer: Answer = child.recv(self._limit_s)
        self.performed += answer.done
        self.compared += answer.compared
        if RESTED in answer.made:
            self.rests.append((by, answer.made.pop(RESTED)))
        self._made.update(answer.made)
        if not answer.what:
            return None
        at, operation, _ = batch[answer.done]
        call = answer.call or child.call  # after an error, the process asks what kind of GPU this is
        return Disagreement(at, answer.what, operation.do, answer.name, call, answer.says)

    def _ended(self, batch: Batch, what: str, name: str) -> Disagreement:
        """The operation of ``batch`` during which the process ended or hung, from the progress that it
        recorded."""
        child = self._children.get(batch[0][1].by)  # None if it could not be started
        call = child.call if child else ""
        at, operation, _ = batch[min(child.progress if child else 0, len(batch) - 1)]
        says = f"{call or 'process'} hung" if what == "hang" else f"{call or 'it'} ended the process: {name}"
        return Disagreement(at, what, operation.do, name, call, says)

    def _child(self, by: int) -> ChildProcess:
        if by not in self._children:
            child = self._children[by] = self._start(serve)
            plan = self._plans[by]
            child.send((plan.device, plan.primary))
            child.recv(self._limit_s)
        return self._children[by]

    def end(self) -> None:
        """Let all processes exit normally and wait."""
        children, self._children = self._children, {}
        for child in children.values():
            try:
                child.end(self._limit_s)
            except (ChildHangs, ChildGone):
                child.kill()

    def kill(self) -> None:
        """Kill all processes after one of them has failed."""
        children, self._children = self._children, {}
        for child in children.values():
            child.kill()


def perform(
    processes: Processes, operations: Iterable[tuple[int, Operation, Expected]]
) -> Disagreement | None:
    """Perform operations with these processes; returns the first disagreement with the model."""
    try:
        for at, operation, expected in operations:
            processes.add(at, operation, expected)
        processes.flush()
    except Failed as failed:
        return failed.disagreement
    return None
