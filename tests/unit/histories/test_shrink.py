"""The shrinker, with simulated failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from gpuipc_doctor.histories.generator import Generator
from gpuipc_doctor.histories.memory_model import Model
from gpuipc_doctor.histories.memory_operations import SIMPLER
from gpuipc_doctor.histories.operations import History, Operation
from gpuipc_doctor.histories.shrink import SMALLEST, renumber, shrink
from gpuipc_doctor.histories.steps import steps

Fault = Callable[[Sequence[Operation]], bool]
"""Whether the last of these operations fails, after the others."""


def reopen(done: Sequence[Operation]) -> bool:
    """A process that has opened something and ended its context cannot open anything."""
    last = done[-1]
    own = [operation.do for operation in done[:-1] if operation.by == last.by]
    return last.do == "open" and "open" in own and "end-context" in own[own.index("open") :]


def third_import(done: Sequence[Operation]) -> bool:
    """The third open of any process is wrong."""
    last = done[-1]
    return (
        last.do == "open"
        and [(operation.do, operation.by) for operation in done].count(("open", last.by)) == 3
    )


def large(done: Sequence[Operation]) -> bool:
    """A close is wrong after an allocation of more than 1 MiB."""
    return done[-1].do == "close" and any(
        operation.do == "allocate" and operation.nbytes > 1 << 20 for operation in done
    )


def recycled(done: Sequence[Operation]) -> bool:
    """An open is wrong if another buffer of the same process was freed before."""
    owners = {operation.makes: operation.by for operation in done if operation.do == "allocate"}
    freed = {owners[operation.on] for operation in done if operation.do == "free"}
    return done[-1].do == "open" and owners[done[-1].on] in freed


class Node:
    """Replays the legal operations of a history on a driver with one fault."""

    def __init__(self, history: History, fault: Fault) -> None:
        self.history = history
        self.fault = fault
        self.replays = 0

    def fails(self, operations: Sequence[Operation]) -> Sequence[Operation] | None:
        self.replays += 1
        model, done = Model(self.history), list[Operation]()
        for operation in operations:
            if not model.illegal(operation):
                model.apply(operation)
                done.append(operation)
                if self.fault(done):
                    return done
        return None


def failing(fault: Fault, seed: int) -> tuple[Node, Sequence[Operation]]:
    generator = Generator("cuda", 1, seed)
    node = Node(History("cuda", generator.plans), fault)
    operations = [operation for _ in range(40) for operation, _ in generator.phase()]
    found = node.fails(operations)
    assert found is not None
    return node, found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("fault", "most"),
    [(reopen, 4), (third_import, 4), (large, 4), (recycled, 4)],
    ids=lambda it: getattr(it, "__name__", ""),
)
def test_failing_history_shrinks_to_few_operations(fault: Fault, most: int, seed: int) -> None:
    node, found = failing(fault, seed)
    shortest = shrink(found, node.fails, lambda: node.replays < 2000, SIMPLER)
    assert node.fails(shortest) == shortest
    assert len(shortest) <= most, steps(renumber(node.history.of(shortest)))


def test_shrinking_stops_when_there_is_no_time() -> None:
    node, found = failing(reopen, 0)
    node.replays = 0
    assert shrink(found, node.fails, lambda: node.replays < 5, SIMPLER) != []
    assert node.replays <= 6


def test_sizes_shrink_if_the_history_still_fails() -> None:
    node, _ = failing(reopen, 0)
    history = [
        Operation("allocate", 1, makes=1, nbytes=8 << 20),
        Operation("open", 2, on=1, makes=2),
        Operation("end-context", 2),
        Operation("open", 2, on=1, makes=3),
    ]
    shortest = shrink(history, node.fails, lambda: True, SIMPLER)
    assert [operation.nbytes for operation in shortest] == [SMALLEST, 0, 0, 0]


def test_numbers_of_the_shortest_history_begin_at_1() -> None:
    node, _ = failing(reopen, 0)
    process = max(node.history.processes)
    history = node.history.of(
        [
            Operation("allocate", process, makes=70, nbytes=64),
            Operation("write", process, on=70, stamp=99),
            Operation("open", 1, on=70, makes=80),
        ]
    )
    assert renumber(history).operations == (
        Operation("allocate", 1, makes=1, nbytes=64),
        Operation("write", 1, on=1, stamp=1),
        Operation("open", 2, on=1, makes=2),
    )
