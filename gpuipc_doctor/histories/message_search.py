"""Shrink a history in which ranks disagree with the model, over several launches.

A launch tries one history after the other and ends at the first that fails. The `Search` lives in the parent
process, which asks it after each launch for the next.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise

from gpuipc_doctor.histories.leaks import CERTAIN, repeated
from gpuipc_doctor.histories.message_generator import Generator
from gpuipc_doctor.histories.message_hangs import is_last_wait, lost
from gpuipc_doctor.histories.message_model import Model, legal
from gpuipc_doctor.histories.message_operations import GROUP_CALLS, OF_ALL, SIMPLER
from gpuipc_doctor.histories.message_performer import Steps
from gpuipc_doctor.histories.message_state import Message, Receive
from gpuipc_doctor.histories.operations import Disagreement, History, Operation
from gpuipc_doctor.histories.shrink import Shrinker, renumber
from gpuipc_doctor.log_lines import signal_named
from gpuipc_doctor.model import Json
from gpuipc_doctor.probe_types import Ending, ProbeOutcome

SEARCH_S = 40.0
"""Seconds after which only the shortest failing history is retried."""

MOST_LAUNCHES = 30
"""Maximum launches of a search; the engine allows 40 follow-up probes."""

LOOP = 20
"""Repetitions of the failing phase if it does not fail alone."""

LATEST_PHASES = 20
"""Number of last phases that are replayed together."""

_WHAT = {
    Ending.HUNG: "hang",
    Ending.UNKILLABLE: "hang",
    Ending.CRASHED: "crash",
    Ending.DRIVER_ERROR: "error",
}


def steps_of(history: History) -> Steps:
    """The valid operations of a history, each with its expected result."""
    whole = repeated(history) if history.times > 1 else history
    model = Model(whole)
    return [(operation, model.apply(operation)) for operation in legal(whole)]


# -- how a probe ended ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Met:
    """A disagreement in a launch. ``trying`` is the index of the failed history in the launch."""

    trying: int
    disagreement: Disagreement
    role: str = ""
    """The rank that did not return from the call; empty if the call returned."""


def met(ended: ProbeOutcome, steps: Callable[[int], Steps]) -> Met | None:
    """The first disagreement of ranks and model; None if there was none, or if none can be told.

    ``steps(index)`` returns the operations of one of the launch's histories.
    """
    if ended.completed:
        found = [rank["wrong"] for rank in ended.records.values() if rank.get("wrong")]
        if not found:
            return None
        first = min(found, key=lambda wrong: (wrong["trying"], wrong["at"]))
        return Met(
            first["trying"],
            Disagreement(first["at"], "data", first["do"], "", first["call"], first["says"]),
        )
    role = ended.roles.get(ended.blamed or "")
    what = _WHAT.get(role.ending) if role else None
    if role is None or what is None or not role.operation or role.reached is None:
        return None
    if what == "hang":
        role = lost(ended, steps)
    reached = role.reached
    assert reached is not None
    if role.fault:
        name = role.fault.name.partition(", error stack")[0].partition("\n")[0]  # MPICH appends addresses
        says = f"{role.operation} returned {name}"
    elif what == "hang":
        name, says = "", f"{role.operation} hung"
    else:
        name = role.signal or signal_named(role.log_tail)
        if not name and role.exit_code is not None:
            name = f"exit {role.exit_code}"
        says = f"{role.operation} ended the process{': ' * bool(name)}{name}"
    at = reached.at
    if is_last_wait(role):
        assert reached.waits_for is not None
        at = reached.waits_for
    says = f"{role.role}: {says}"
    printed = tuple(filter(str.strip, role.log_tail))
    disagreement = Disagreement(at, what, reached.do, name, role.operation, says, printed=printed)
    return Met(reached.trying, disagreement, role.role)


def _began(ended: ProbeOutcome) -> bool:
    """Whether a rank has performed an operation of a history."""
    return ended.completed or any(role.reached for role in ended.roles.values())


def _alike(one: Disagreement, other: Disagreement) -> bool:
    """Whether two disagreements are of one kind. Some launchers do not report the signal that ended a
    rank."""
    is_unknown = one.what == "crash" and not (one.name and other.name)
    return one.what == other.what and (is_unknown or one.name == other.name)


# -- the search ---------------------------------------------------------------------------------------------


Course = abc.Generator[tuple[History, ...], Met | None, None]
"""Yields the histories of the next launch, and takes its disagreement, if that is like the first."""


class Search:
    """A search in the parent process, over several launches: `tries` has the histories of the next one."""

    def __init__(self, first: Disagreement | None, explored: Json, candidates: tuple[History, ...]) -> None:
        """``first``: the disagreement in the random run, for which fresh ranks try the ``candidates``, the
        likeliest first; None to perform the only candidate once. ``explored``: figures of the run in which
        the history was found."""
        self.first, self.explored, self.candidates = first, explored, candidates
        self.base: History | None = None
        """The candidate that failed in fresh ranks, up to the failing operation."""
        self.shortest: History | None = None if first else candidates[0]
        """The shortest failing history, when no shorter one is looked for."""
        self.launches, self.spent_s = 0, 0.0
        self._course = self._find() if first else iter_once((candidates[0],))
        self.tries = next(self._course)
        """The histories to try in the next launch."""

    def goes_on(self, ended: ProbeOutcome) -> bool:
        """Whether there is another launch after this one, of the `tries`."""
        self.launches, self.spent_s = self.launches + 1, self.spent_s + ended.elapsed_s
        if not _began(ended) and self.first and self._has_time:
            return True  # on a busy node, the start of ranks may take longer than a call may in a replay
        found = self.met(ended)
        failed = found if found and self.first and _alike(found.disagreement, self.first) else None
        try:
            self.tries = self._course.send(failed)
        except StopIteration:
            return False
        return True

    def met(self, ended: ProbeOutcome) -> Met | None:
        """The first disagreement in a launch of `tries`."""
        return met(ended, lambda trying: steps_of(self.tries[trying]))

    @property
    def _has_time(self) -> bool:
        return self.launches < MOST_LAUNCHES and self.spent_s < SEARCH_S

    def _find(self) -> Course:
        """Which candidate fails again; then the shortest history like it, which is tried once more."""
        for history in self.candidates:
            if failed := (yield (history,)):
                break
        else:
            return
        operations: Sequence[Operation] = legal(replace(history, times=1))
        at = failed.disagreement.at
        if history.times == 1:
            operations = _up_to(history, operations, at)
            at = min(at, len(operations) - 1)
        self.base = history.of(operations)
        best = yield from self._shrink(self.base, at)
        self.shortest = renumber(best, processes=False)
        yield (self.shortest,)

    def _shrink(self, base: History, at: int) -> abc.Generator[tuple[History, ...], Met | None, History]:
        shrinker = Shrinker(base.operations, SIMPLER, keep_last=False)
        slices = [[*part] for part in _slices(base, at)] if base.times == 1 else []
        rounds, answer = shrinker.rounds(slices), None
        known = {tuple(base.operations)}
        while self._has_time:
            try:
                tried = rounds.send(answer)
            except StopIteration:
                break
            valid = [tuple(legal(base.of(operations))) for operations in tried]
            fresh = [
                each for number, each in enumerate(valid) if each and each not in (*known, *valid[:number])
            ]
            known.update(fresh)
            answer = None
            if fresh and (failed := (yield tuple(map(base.of, fresh)))):
                kept = fresh[failed.trying]
                shorter = kept if base.times > 1 else _up_to(base, kept, failed.disagreement.at)
                answer = valid.index(kept), [*shorter]
        return base.of(shrinker.shortest)


def iter_once(tries: tuple[History, ...]) -> Course:
    """One launch of these histories."""
    yield tries


def _up_to(history: History, performed: Sequence[Operation], at: int) -> Sequence[Operation]:
    """The operations up to the failing one; all performed operations if the failing one is not valid
    alone."""
    cut = legal(history.of(performed[: at + 1]))
    return cut if cut and cut[-1] == performed[at] else performed


def _slices(history: History, at: int) -> Iterator[Sequence[Operation]]:
    """Candidates around the failing operation: its messages alone, then all messages between its ranks."""
    steps = steps_of(history)
    operations = [operation for operation, _ in steps]
    if operations[at].do in GROUP_CALLS:
        yield [operations[at]]
    messages = [part for part in steps[at][1].parts if isinstance(part, Message)]
    messages += [part.message for part in steps[at][1].parts if isinstance(part, Receive) and part.message]
    if not messages:
        return
    places = {at, *(message.at for message in messages)}
    places |= {message.receive.at for message in messages if message.receive}
    yield [operations[place] for place in sorted(_with_needs(operations, places))]
    ranks = {rank for message in messages for rank in (message.sent.by, message.sent.peer)}
    yield [
        operation
        for operation in operations
        if operation.do in OF_ALL or {operation.by, operation.peer or operation.by} <= ranks
    ]


def _with_needs(operations: Sequence[Operation], places: set[int]) -> set[int]:
    """Indices of these operations, and of the operations that created their objects."""
    made = {operation.makes: place for place, operation in enumerate(operations) if operation.makes}
    while True:
        used = {number for place in places for number in _used(operations[place])}
        needed = {made[number] for number in used if number in made}
        if needed <= places:
            return places
        places = places | needed


def _used(operation: Operation) -> tuple[int, ...]:
    return (operation.on, operation.of, operation.within)


@dataclass(frozen=True, slots=True)
class RandomRun:
    """The phases of a random run, drawn again from its seed as far as they are needed."""

    generator: Generator
    drawn: list[Steps] = field(default_factory=list)

    def phases(self, number: int) -> list[Steps]:
        """The first ``number`` phases."""
        self.drawn.extend(self.generator.phase() for _ in range(number - len(self.drawn)))
        return self.drawn[:number]

    def phases_until(self, at: int) -> list[Steps]:
        """The phases up to the one that contains the operation with this index."""
        number = performed = 0
        while performed <= at:
            number += 1
            performed += len(self.phases(number)[-1])
        return self.phases(number)

    def operations_until(self, at: int) -> Steps:
        """The operations of these phases."""
        return list(chain.from_iterable(self.phases_until(at)))

    def history_of_last(self, phases: Sequence[Steps], last: int) -> History:
        """The last of these phases, and the earlier operations that made objects used in it."""
        made = [operation for operation, _ in chain.from_iterable(phases)]
        begin = sum(map(len, phases[:-last]))
        places = _with_needs(made, set(range(begin, len(made))))
        return self.generator.history.of([made[place] for place in sorted(places)])


def begin(run: RandomRun, found: Met, explored: Json, operations: int) -> Search:
    """Start a search after a random run of this many operations failed."""
    phases = run.phases_until(min(found.disagreement.at, operations - 1))
    phase, latest = run.history_of_last(phases, 1), run.history_of_last(phases, LATEST_PHASES)
    candidates = (phase, replace(phase, times=LOOP), *([latest] if latest != phase else []))
    return Search(found.disagreement, explored, candidates)


# -- what is left ------------------------------------------------------------------------------------------


FEWEST_RISES = 3
"""A figure is suspicious if, in the last third of the phases, it never falls and rises at least this
often."""


def losing_phase(usages: Collection[Mapping[str, Sequence[int]]]) -> int | None:
    """Index of the phase in which a rank's usage rose most; None if no usage keeps rising.

    ``usages``: for each rank, name → the figures after each phase.
    """
    for name in dict.fromkeys(name for usage in usages for name in usage):
        of_ranks = [usage[name] for usage in usages if name in usage]
        if any(map(_keeps_rising, of_ranks)):
            rises = [
                (later - earlier, at)
                for figures in of_ranks
                for at, (earlier, later) in enumerate(pairwise(figures), 1)
                if at >= len(figures) // 3
            ]
            return max(rises)[1]
    return None


def _keeps_rising(figures: Sequence[int]) -> bool:
    third = len(figures) // 3
    if third <= FEWEST_RISES:
        return False
    last, before = figures[-third:], figures[third:-third]
    rises = [later - earlier for earlier, later in pairwise(last)]
    never_falls = min(rises) >= 0 and sum(rise > 0 for rise in rises) >= FEWEST_RISES
    return min(last) > max(before) or never_falls


def repeat(run: RandomRun, phase: int, explored: Json) -> Search:
    """Start a search that only repeats one phase, `CERTAIN` times; ``phase`` is its index."""
    history = renumber(run.history_of_last(run.phases(phase + 1), 1), processes=False)
    return Search(None, explored, (replace(history, times=CERTAIN),))
