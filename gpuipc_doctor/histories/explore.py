"""Perform a random history and, if the driver disagrees with the model, shrink it."""

from __future__ import annotations

from collections import Counter, abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial

from gpuipc_doctor.api.driver_errors import NOT_PERMITTED, NotAlone
from gpuipc_doctor.histories import leaks
from gpuipc_doctor.histories.case_processes import Failed, Processes, Start, perform
from gpuipc_doctor.histories.generator import Generator
from gpuipc_doctor.histories.leaks import repeated
from gpuipc_doctor.histories.memory_model import Model, legal
from gpuipc_doctor.histories.memory_operations import SIMPLER, TYPES
from gpuipc_doctor.histories.memory_state import GRANULE, Expected
from gpuipc_doctor.histories.operations import Disagreement, History, Operation, ProcessPlan
from gpuipc_doctor.histories.shrink import SMALLEST, renumber, shrink

SHRINK_S = 40.0
"""Time limit for shrinking a failed history. On a busy node, 10 s left 25 steps of what needs 3."""

LOOP = 40
"""Repetitions of the failing phase if it does not fail alone: some faults appear only at the 33rd import."""

LATEST = 10_000
"""Operations from the end of the history that fresh processes repeat if the last phase alone does not fail:
25 s on an H200."""

RACE_TRIES = 4
"""Replays of a history in which processes act at the same time: their order differs from run to run."""

SIGN_OF_LIFE = 40
"""Progress is reported after this many operations. Each takes some ms, more under load."""

IDLE_S = 4.0
"""Seconds of an idle time, in soak: memory must keep its contents."""

HANG_FRACTION = 0.4
"""Fraction of the usual time limit for a driver call in a replay of a history that hung."""

Rests = list[tuple[int, dict[str, int]]]


@dataclass(frozen=True, slots=True)
class Bench:
    """How and where histories are performed."""

    start: Start
    clock: Callable[[], float]
    limit_s: float
    """Maximum seconds for a driver call."""
    step: Callable[[str], AbstractContextManager[None]]
    wait: Callable[[float], object] = lambda seconds: None
    """Function that waits for so many seconds."""
    alone: bool = True
    """Whether no other probe runs on the devices."""
    lag_s: float = 0.0
    """Seconds after which the device's memory figures are stable."""

    def started(self, plans: dict[int, ProcessPlan]) -> Processes:
        """Processes that will start as planned."""
        settle, idle = partial(self.wait, self.lag_s), partial(self.wait, IDLE_S)
        return Processes(self.start, plans, self.limit_s, settle, idle)


@dataclass
class Explored:
    """The result of a random history."""

    seed: int
    wanted: int
    """Number of operations requested."""
    operations: int = 0
    compared: int = 0
    """Bytes read and compared."""
    elapsed_s: float = 0.0
    done: dict[str, int] = field(default_factory=dict)
    """Operation → number of times performed."""
    dismissed: list[str] = field(default_factory=list)
    """Figures that rose, but not with each repetition in fresh processes, or also without operations."""
    first: Disagreement | None = None
    history: History | None = None
    """The failing history in full."""
    shortest: History | None = None
    """The shortest failing history; None if no replay in fresh processes failed."""
    again: Disagreement | None = None
    """The disagreement of the shortest history."""
    unusable: str = ""
    """Error that a new process got from a device after a failure that could not be reproduced."""


def replay(
    bench: Bench, history: History, rests: Rests | None = None
) -> tuple[Disagreement | None, Sequence[Operation]]:
    """Perform a history in fresh processes, without operations that shrinking made invalid.

    Returns the disagreement, if any, and the performed operations. The usage of idle processes is appended to
    ``rests``.
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

    processes = bench.started(unrolled.processes)
    disagreement = perform(processes, expected())
    if rests is not None:
        rests += processes.rests
    if disagreement:
        processes.kill()
        return disagreement, disagreement.end_of(performed)
    processes.end()
    return None, performed


def replay_leak(bench: Bench, history: History, name: str) -> Disagreement | None:
    """Repeat a history in fresh processes and compare usage: a `Disagreement` if it grows with each
    repetition.
    """
    rests = Rests()
    found, _ = replay(bench, history, rests)
    process, growth = leaks.growth(rests, name, history.times)
    if found or not process:
        return None
    much = f"{growth / 1024:.0f} KiB" if name in leaks.BYTES else f"{growth:.0f}"
    grow = "grows" if name in ("device", "host") else "grow"
    says = (
        f"{leaks.WORDS[name]} of process {process} {grow} by {much} with each of {history.times} repetitions"
    )
    return Disagreement(len(history.operations) - 1, "leak", "", name, "", says)


def replay_once(bench: Bench, history: History) -> Explored:
    """Replay a history in fresh processes; a history with repetitions also fails if a usage figure grows."""
    explored, began = Explored(history.seed or 0, len(history.operations) * history.times), bench.clock()
    for _ in range(tries(history)):
        explored.again, performed = replay(bench, history)
        if explored.again:
            break
    if explored.again is None and history.times >= leaks.FEWEST:
        found = (replay_leak(bench, history, name) for name in leaks.NOISE)
        explored.again = next(filter(None, found), None)
    explored.operations, explored.elapsed_s = len(performed), bench.clock() - began
    explored.done = dict(Counter(operation.do for operation in performed))
    if explored.again:
        explored.first, explored.history, explored.shortest = explored.again, history, history
    return explored


def without_permission(bench: Bench, backend: str) -> list[str]:
    """Families of operations that the node refuses. For fabric handles, only an attempt shows that."""
    ask = Operation("create-fabric", 1, makes=1, nbytes=GRANULE)
    found, _ = replay(bench, History(backend, {1: ProcessPlan()}, (ask,)))
    return ["fabric-handles"] if found and found.name in NOT_PERMITTED else []


def explore(bench: Bench, generator: Generator, operations: int, time_s: float) -> Explored:
    """Perform ``operations`` random operations, or fewer if ``time_s`` seconds pass first."""
    exploration = _Exploration(bench, generator, Explored(generator.seed, operations))
    exploration.run(time_s)
    return exploration.explored


class _Exploration:
    def __init__(self, bench: Bench, generator: Generator, explored: Explored) -> None:
        self.explored = explored
        self._bench = bench
        self._generator = generator
        self._processes = bench.started(generator.plans)
        self._performed: list[Operation] = []
        self._first_time = 0
        """Number of operations generated so far, without those of repeated phases."""
        self._phase_at = 0
        self._begins: list[int] = []
        """Index of each phase's first operation."""
        self._watch = leaks.Watch()
        self._dismissed: dict[str, set[str]] = {}
        """Figure → the kinds of operations that do not make it grow with each repetition."""
        self._leaking: History | None = None
        """The repeated phase with which a figure grows."""

    def run(self, time_s: float) -> None:
        began = self._bench.clock()
        explored, processes = self.explored, self._processes
        explored.first = first = perform(processes, self._generate(began + time_s))
        explored.operations, explored.compared = processes.performed, processes.compared
        explored.elapsed_s = self._bench.clock() - began
        explored.dismissed = list(self._dismissed)
        explored.done = dict(Counter(operation.do for operation in self._performed[: processes.performed]))
        if first is None:
            processes.end()
        else:
            processes.kill()
            explored.history = self._leaking or self._history(0, first)
            since = next(begin for begin in self._begins if len(self._performed) - begin <= LATEST)
            latest = self._history(since, first)
            _shorten(self._bench, explored, latest, self._leaking or self._history(self._phase_at, first))

    def _generate(self, until: float) -> Iterator[tuple[int, Operation, Expected]]:
        before: Mapping[str, int] = {}
        while self._first_time < self.explored.wanted and self._bench.clock() < until:
            self._phase_at = len(self._performed)
            self._begins.append(self._phase_at)
            yield from self._phase(self._generator.phase())
            phase = self._history(self._phase_at)
            self._first_time += len(phase.operations)
            rises = self._watch.rises(self._processes.rests)
            suspects = {name: rise for name, rise in rises.items() if name in before or name in leaks.EXACT}
            before = rises
            confirmed = yield from self._confirm(phase, self._suspects(suspects, phase))
            for name in suspects.keys() - confirmed.keys() - {"device"}:
                self._dismiss(name, phase)
            self._look_for_leaks(self._suspects(confirmed, phase), phase)

    def _confirm(
        self, phase: History, rises: dict[str, int]
    ) -> abc.Generator[tuple[int, Operation, Expected], None, dict[str, int]]:
        """Repeat a phase in the same processes. Returns the latest rise of what rose each time."""
        for _ in range(leaks.REPEATED):
            if not rises:
                break
            began = self._bench.clock()
            yield from self._phase(self._generator.repeat(phase.operations))
            took = max(self._bench.clock() - began, leaks.IDLE_S)
            latest = self._watch.rises(self._processes.rests)
            rises = {name: latest[name] for name in rises if name in latest}
        if rise := rises.get("device"):
            yield from self._idle(leaks.IDLE_S)
            if leaks.changed(self._processes.rests) * took / leaks.IDLE_S >= rise / 2:
                self._dismissed["device"] = set(TYPES)
        return rises

    def _phase(
        self, generated: Iterable[tuple[Operation, Expected]]
    ) -> Iterator[tuple[int, Operation, Expected]]:
        """Operations for the processes, all of which they have performed when this ends."""
        self._processes.rests.clear()
        for number, (operation, expected) in enumerate(generated):
            if number % SIGN_OF_LIFE == 0:
                with self._bench.step(f"operations from {len(self._performed) + 1} on"):
                    pass
            self._performed.append(operation)
            yield len(self._performed) - 1, operation, expected
        self._processes.flush()

    def _idle(self, seconds: float) -> Iterator[tuple[int, Operation, Expected]]:
        """Have the processes rest, wait, and have them rest again."""
        latest, repeat = list(self._processes.rests), self._generator.repeat
        with self._bench.step("wait without operations"):
            self._bench.wait(seconds)
        yield from self._phase(repeat(()))
        self._processes.rests[:0] = latest

    def _suspects(self, rises: Mapping[str, int], phase: History) -> dict[str, int]:
        """The figures whose rise may be the fault of an operation for which they were not dismissed."""
        kinds = {operation.do for operation in phase.operations}
        return {name: rise for name, rise in rises.items() if kinds - self._dismissed.get(name, set())}

    def _look_for_leaks(self, suspects: Mapping[str, int], phase: History) -> None:
        """Repeat the phase in fresh processes; raises `Failed` if a suspicious figure grows each time."""
        for name, rise in suspects.items():
            if name == "device" and not self._bench.alone:
                raise NotAlone(f"used memory rose by {rise} B in a phase")
            repeated = replace(phase, times=leaks.repetitions(name, rise))
            if found := replay_leak(self._bench, repeated, name):
                self._leaking = repeated
                raise Failed(found)
            self._dismiss(name, phase)

    def _dismiss(self, name: str, phase: History) -> None:
        self._dismissed.setdefault(name, set()).update(operation.do for operation in phase.operations)

    def _history(self, begin: int, failed: Disagreement | None = None) -> History:
        generator = self._generator
        whole = History(generator.backend, dict(generator.plans), seed=generator.seed, peers=generator.peers)
        operations = failed.end_of(self._performed) if failed else self._performed
        return whole.of(operations[begin:])


def _shorten(bench: Bench, explored: Explored, whole: History, phase: History) -> None:
    """Replay the failing history and shrink it in fresh processes."""
    first, until = explored.first, bench.clock() + SHRINK_S
    assert first is not None
    if first.what == "hang":
        bench = replace(bench, limit_s=bench.limit_s * HANG_FRACTION)
    others = [] if first.what == "leak" else [replace(phase, times=LOOP), whole]
    for candidate in (phase, *others):

        def fails(operations: Sequence[Operation], like: History = candidate) -> Sequence[Operation] | None:
            return _fails(bench, like.of(operations), first)

        if (failing := fails(candidate.operations)) is not None:
            shortest = shrink(failing, fails, lambda: bench.clock() < until, SIMPLER)
            history = _on_one_device(bench, renumber(candidate.of(shortest)), first)
            if first.what == "leak":
                history = replace(
                    history, times=max(history.times * leaks.CERTAIN // leaks.TRIED, leaks.TRIED)
                )
                explored.again = replay_leak(bench, history, first.name)
            else:
                found = (replay(bench, history)[0] for _ in range(tries(history)))
                explored.again = next(filter(None, found), None)
            explored.shortest = history if explored.again else None
            return
    alone = {1 + place: ProcessPlan(place) for place in {plan.device for plan in whole.processes.values()}}
    allocate = tuple(Operation("allocate", by, makes=by, nbytes=SMALLEST) for by in alone)
    met, _ = replay(bench, replace(whole, processes=alone, operations=allocate, times=1))
    explored.unusable = met.says if met else ""


def _on_one_device(bench: Bench, history: History, first: Disagreement) -> History:
    """The history with all processes on one device, if it still fails."""
    devices = dict.fromkeys(plan.device for plan in history.processes.values())
    for device in devices if len(devices) > 1 else ():
        plans = {number: replace(plan, device=device) for number, plan in history.processes.items()}
        on_one = replace(history, processes=plans)
        if _fails(bench, on_one, first) is not None:
            return on_one
    return history


def _fails(bench: Bench, history: History, first: Disagreement) -> Sequence[Operation] | None:
    """The operations up to the failure if a replay fails in the same way as the first run, else None."""
    if not history.operations:
        return None
    if first.what == "leak":
        return legal(history) if replay_leak(bench, history, first.name) else None
    for _ in range(tries(history)):
        found, performed = replay(bench, history)
        if found is not None and found.kind == first.kind:
            return performed if history.times == 1 else legal(history)
    return None


def tries(history: History) -> int:
    """Number of replays after which a history counts as not failing; long histories are replayed once."""
    is_short = len(history.operations) * history.times <= LATEST // RACE_TRIES
    return RACE_TRIES if is_short and any(operation.beside for operation in history.operations) else 1
