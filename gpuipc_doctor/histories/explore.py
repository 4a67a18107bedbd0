"""Perform a random history; where the driver and the model disagree, find the shortest history that does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from gpuipc_doctor.histories.crew import Crew, Start, perform
from gpuipc_doctor.histories.generator import Generator
from gpuipc_doctor.histories.model import Expected, Model
from gpuipc_doctor.histories.operations import Disagreement, History, Operation
from gpuipc_doctor.histories.shrink import renumber, shrink

SHRINK_S = 20.0
"""The most time for finding the shortest history, after one failed."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What a history is performed with."""

    start: Start
    clock: Callable[[], float]
    limit_s: float
    """The longest that one driver call may take."""
    step: Callable[[str], AbstractContextManager[None]]


@dataclass
class Explored:
    """What became of a random history."""

    seed: int
    wanted: int
    """Operations that were asked for."""
    operations: int = 0
    compared: int = 0
    """Bytes that were read and compared."""
    elapsed_s: float = 0.0
    done: dict[str, int] = field(default_factory=dict)
    """Operation → how often it was performed."""
    first: Disagreement | None = None
    history: History | None = None
    """What failed, in full."""
    shortest: History | None = None
    """None where no replay in fresh processes failed."""
    again: Disagreement | None = None
    """Of the shortest."""


def replay(bench: Bench, history: History) -> tuple[Disagreement | None, Sequence[Operation]]:
    """Perform a history in fresh processes. What is not legal any more, since it was shrunk, is left out.

    Returns the disagreement, if any, and the legal operations, up to the one that disagreed.
    """
    model, performed = Model(history), list[Operation]()

    def legal() -> Iterator[tuple[int, Operation, Expected]]:
        for operation in history.operations:
            if not model.illegal(operation):
                performed.append(operation)
                yield len(performed) - 1, operation, model.apply(operation)

    crew = Crew(bench.start, history.processes, bench.limit_s)
    disagreement = perform(crew, legal())
    if disagreement:
        crew.kill()
        return disagreement, performed[: disagreement.at + 1]
    crew.end()
    return None, performed


def explore(bench: Bench, generator: Generator, operations: int, time_s: float) -> Explored:
    """Perform ``operations`` random operations, or what is possible in ``time_s`` seconds."""
    explored = Explored(generator.seed, operations)
    began = bench.clock()
    performed: list[Operation] = []
    epoch_at = 0

    def generated() -> Iterator[tuple[int, Operation, Expected]]:
        nonlocal epoch_at
        while len(performed) < operations and bench.clock() - began < time_s:
            epoch_at = len(performed)
            with bench.step(f"operations from {epoch_at + 1} on"):
                for operation, expected in generator.epoch():
                    performed.append(operation)
                    yield len(performed) - 1, operation, expected

    crew = Crew(bench.start, generator.plans, bench.limit_s)
    explored.first = perform(crew, generated())
    explored.operations, explored.compared = crew.performed, crew.compared
    explored.elapsed_s = bench.clock() - began
    for operation in performed[: crew.performed]:
        explored.done[operation.do] = explored.done.get(operation.do, 0) + 1
    if explored.first is None:
        crew.end()
        return explored
    crew.kill()
    whole = History(
        generator.backend,
        dict(generator.plans),
        tuple(performed[: explored.first.at + 1]),
        seed=generator.seed,
    )
    explored.history = whole
    _shorten(bench, explored, whole, epoch_at)
    return explored


def _shorten(bench: Bench, explored: Explored, whole: History, epoch_at: int) -> None:
    """See whether it fails again, and what the shortest is that does."""
    assert explored.first is not None
    kind, until = explored.first.kind, bench.clock() + SHRINK_S

    def fails(operations: Sequence[Operation]) -> Sequence[Operation] | None:
        with bench.step("shorten the history that failed"):
            found, performed = replay(bench, whole.of(operations))
        return performed if found and found.kind == kind else None

    for candidate in (whole.operations[epoch_at:], whole.operations):
        if (failing := fails(candidate)) is not None:
            shortest = shrink(failing, fails, lambda: bench.clock() < until)
            explored.shortest = renumber(whole.of(shortest))
            explored.again, _ = replay(bench, explored.shortest)
            if explored.again is None:
                explored.shortest = None
            return
