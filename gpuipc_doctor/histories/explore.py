"""Perform a random history; where the driver and the model disagree, find the shortest history that does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from gpuipc_doctor.histories import leaks
from gpuipc_doctor.histories.crew import Crew, Failed, Start, perform
from gpuipc_doctor.histories.generator import Generator
from gpuipc_doctor.histories.leaks import repeated
from gpuipc_doctor.histories.model import Expected, Model, legal
from gpuipc_doctor.histories.operations import Disagreement, History, Operation, ProcessPlan
from gpuipc_doctor.histories.shrink import SMALLEST, renumber, shrink

SHRINK_S = 10.0
"""The most time for finding the shortest history, after one failed."""

LOOP = 40
"""Repetitions of the failing epoch, where it does not fail alone: what fails from the 33rd import on."""

SIGN_OF_LIFE = 40
"""Operations of a replay after which it says that it goes on: each takes some ms, more beside load."""

HANG_FRACTION = 0.4
"""Part of the usual limit that a driver call may take in a replay of a history that hung."""

Rests = list[tuple[int, dict[str, int]]]


@dataclass(frozen=True, slots=True)
class Bench:
    """What a history is performed with."""

    start: Start
    clock: Callable[[], float]
    limit_s: float
    """The longest that a driver call may take."""
    step: Callable[[str], AbstractContextManager[None]]
    settle: Callable[[], object] = lambda: None
    """Waits until figures of a device are as they are now."""
    idle: Callable[[], object] = lambda: None
    """Waits for a second."""


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
    dismissed: list[str] = field(default_factory=list)
    """Figures that rose once, and not when the epoch was repeated."""
    first: Disagreement | None = None
    history: History | None = None
    """What failed, in full."""
    shortest: History | None = None
    """None where no replay in fresh processes failed."""
    again: Disagreement | None = None
    """Of the shortest."""
    unusable: str = ""
    """What a new process met on a device after a failure that none showed again, where it cannot use it."""


def replay(
    bench: Bench, history: History, rests: Rests | None = None
) -> tuple[Disagreement | None, Sequence[Operation]]:
    """Perform a history in fresh processes. What is not legal any more, since it was shrunk, is left out.

    Returns the disagreement, if any, and the legal operations, up to the one that disagreed. What processes
    had when they rested is added to ``rests``.
    """
    unrolled = repeated(history) if history.times > 1 else history
    model, performed = Model(unrolled), list[Operation]()

    def expected() -> Iterator[tuple[int, Operation, Expected]]:
        for number, operation in enumerate(unrolled.operations):
            if number % SIGN_OF_LIFE == 0:
                with bench.step(f"replay in fresh processes, from operation {number + 1} on"):
                    pass
            if not model.illegal(operation):
                performed.append(operation)
                yield len(performed) - 1, operation, model.apply(operation)

    crew = Crew(bench.start, unrolled.processes, bench.limit_s, bench.settle, bench.idle)
    disagreement = perform(crew, expected())
    if rests is not None:
        rests += crew.rests
    if disagreement:
        crew.kill()
        return disagreement, performed[: disagreement.at + 1]
    crew.end()
    return None, performed


def replay_leak(bench: Bench, history: History, name: str) -> Disagreement | None:
    """Repeat a history in fresh processes, and see whether a figure grows each time."""
    rests = Rests()
    found, _ = replay(bench, history, rests)
    process, growth = leaks.growth(rests, name, history.times)
    if found or not process:
        return None
    much = f"{growth / 1024:.0f} KiB" if name in leaks.BYTES else f"{growth:.0f}"
    says = f"{leaks.WORDS[name]} of process {process} grow by {much} with each of {history.times} repetitions"
    return Disagreement(len(history.operations) - 1, "leak", "", name, "", says)


def replay_once(bench: Bench, history: History) -> Explored:
    """What becomes of one history in fresh processes; of a repeated one, whether a figure grows, too."""
    explored, began = Explored(history.seed or 0, len(history.operations) * history.times), bench.clock()
    explored.again, performed = replay(bench, history)
    if explored.again is None and history.times >= leaks.TRIED:
        found = (replay_leak(bench, history, name) for name in leaks.NOISE)
        explored.again = next(filter(None, found), None)
    explored.operations, explored.elapsed_s = len(performed), bench.clock() - began
    explored.done = dict(Counter(operation.do for operation in performed))
    if explored.again:
        explored.first, explored.history, explored.shortest = explored.again, history, history
    return explored


def explore(bench: Bench, generator: Generator, operations: int, time_s: float) -> Explored:
    """Perform ``operations`` random operations, or what is possible in ``time_s`` seconds."""
    exploration = _Exploration(bench, generator, Explored(generator.seed, operations))
    exploration.run(time_s)
    return exploration.explored


class _Exploration:
    """A random history, epoch by epoch."""

    def __init__(self, bench: Bench, generator: Generator, explored: Explored) -> None:
        self.explored = explored
        self._bench = bench
        self._generator = generator
        self._crew = Crew(bench.start, generator.plans, bench.limit_s, bench.settle, bench.idle)
        self._performed: list[Operation] = []
        self._epoch_at = 0
        self._watch = leaks.Watch()

    def run(self, time_s: float) -> None:
        began = self._bench.clock()
        explored, crew = self.explored, self._crew
        explored.first = first = perform(crew, self._generate(began + time_s))
        explored.operations, explored.compared = crew.performed, crew.compared
        explored.elapsed_s = self._bench.clock() - began
        explored.done = dict(Counter(operation.do for operation in self._performed[: crew.performed]))
        if first is None:
            crew.end()
        else:
            crew.kill()
            explored.history = self._history(0 if first.what != "leak" else self._epoch_at, first)
            _shorten(self._bench, explored, explored.history, [self._history(self._epoch_at, first)])

    def _generate(self, until: float) -> Iterator[tuple[int, Operation, Expected]]:
        while len(self._performed) < self.explored.wanted and self._bench.clock() < until:
            self._epoch_at = len(self._performed)
            self._crew.rests.clear()
            with self._bench.step(f"operations from {self._epoch_at + 1} on"):
                for operation, expected in self._generator.epoch():
                    self._performed.append(operation)
                    yield len(self._performed) - 1, operation, expected
                self._crew.flush()
            self._look_for_leaks()

    def _look_for_leaks(self) -> None:
        """Repeat the epoch in fresh processes where a figure has risen; each figure once in a run."""
        for name in self._watch.risen(self._crew.rests):
            if name not in self.explored.dismissed:
                epoch = replace(self._history(self._epoch_at), times=leaks.TRIED)
                if found := replay_leak(self._bench, epoch, name):
                    raise Failed(found)
                self.explored.dismissed.append(name)

    def _history(self, begin: int, failed: Disagreement | None = None) -> History:
        """What was performed from there on, up to the operation that failed."""
        generator = self._generator
        plans, end = dict(generator.plans), len(self._performed)
        if failed and failed.what != "leak":
            end = failed.at + 1
        whole = History(generator.backend, plans, seed=generator.seed, peers=generator.peers)
        return whole.of(self._performed[begin:end])


def _shorten(bench: Bench, explored: Explored, whole: History, epochs: Sequence[History]) -> None:
    """See whether it fails again in fresh processes, and what the shortest is that does."""
    first, until = explored.first, bench.clock() + SHRINK_S
    assert first is not None
    if first.what == "hang":
        bench = replace(bench, limit_s=bench.limit_s * HANG_FRACTION)
    if first.what == "leak":
        candidates = [replace(epoch, times=leaks.TRIED) for epoch in epochs]
    else:
        candidates = [*epochs, *(replace(epoch, times=LOOP) for epoch in epochs), whole]
    for candidate in candidates:

        def fails(operations: Sequence[Operation], like: History = candidate) -> Sequence[Operation] | None:
            return _fails(bench, like.of(operations), first)

        if (failing := fails(candidate.operations)) is not None:
            shortest = shrink(failing, fails, lambda: bench.clock() < until)
            history = _on_one_device(bench, renumber(candidate.of(shortest)), first)
            if first.what == "leak":
                history = replace(history, times=leaks.CERTAIN)
                explored.again = replay_leak(bench, history, first.name)
            else:
                explored.again, _ = replay(bench, history)
            explored.shortest = history if explored.again else None
            return
    alone = {1 + place: ProcessPlan(place) for place in {plan.device for plan in whole.processes.values()}}
    allocate = tuple(Operation("allocate", by, makes=by, nbytes=SMALLEST) for by in alone)
    met, _ = replay(bench, replace(whole, processes=alone, operations=allocate, times=1))
    explored.unusable = met.says if met else ""


def _on_one_device(bench: Bench, history: History, first: Disagreement) -> History:
    """The same with all processes on one of its devices, where it fails so, too."""
    devices = dict.fromkeys(plan.device for plan in history.processes.values())
    for device in devices if len(devices) > 1 else ():
        plans = {number: replace(plan, device=device) for number, plan in history.processes.items()}
        on_one = replace(history, processes=plans)
        if _fails(bench, on_one, first) is not None:
            return on_one
    return history


def _fails(bench: Bench, history: History, first: Disagreement) -> Sequence[Operation] | None:
    """The operations that are needed where a replay disagrees as it did first."""
    if not history.operations:
        return None
    if first.what == "leak":
        return legal(history) if replay_leak(bench, history, first.name) else None
    found, performed = replay(bench, history)
    if found is None or found.kind != first.kind:
        return None
    return performed if history.times == 1 else legal(history)
