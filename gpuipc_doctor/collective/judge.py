"""Who keeps a communicator waiting: a rank that is missing, behind, or in another operation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from gpuipc_doctor.collective.call import Call, State, plain
from gpuipc_doctor.present.text import ranges

_EQUAL_SIZES = frozenset(
    {"allreduce", "allgatherbase", "allgatherintotensor", "reducescatterbase", "reducescattertensor"}
    | {"broadcast", "reduce"}
)
"""Operations whose sizes must be equal on all ranks. PyTorch allows an ``all_gather`` of unequal tensors."""

_ENDS_TOGETHER = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")
"""Operations that end on no rank before all ranks have called them."""

_SHOWN = 3


class Problem(Enum):
    """What keeps a communicator waiting, worst first."""

    OPERATION = "another operation"
    SIZES = "other sizes"
    ORDER = "another order of communicators"
    MESSAGE = "no partner"
    """Ranks that have not called the send of a receive, or the receive of a send."""
    MISSING = "missing"
    """Ranks that have called nothing in this communicator, or have not joined it."""
    BEHIND = "behind"
    SAME = "the same operation"
    """All ranks are in the same operation: the cause is below it."""


_DIFFERENT = "find the condition in the program by which this rank makes another call than the others"
_LATE = (
    "read this rank's log and look at its process (gpuipc-doctor job): it ended, or is still busy elsewhere"
)
ADVICE: Mapping[Problem, str] = {
    Problem.OPERATION: _DIFFERENT,
    Problem.SIZES: "compare the tensor's shape on this rank with the others': unequal batches, or padding",
    Problem.ORDER: "call the communicators' collectives in the same order on all ranks",
    Problem.MESSAGE: _LATE,
    Problem.MISSING: _LATE,
    Problem.BEHIND: _LATE,
    Problem.SAME: "",
}
"""What to do about a problem that logs or dumps show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The conclusion on one communicator."""

    problem: Problem
    group: str = ""
    culprits: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    operation: str = ""
    """Operation of the waiting ranks, with their sizes if these differ."""
    called: str = ""
    """The culprits' operation if they called another one, or their last operation."""
    number: int | None = None
    where: str = ""
    """The program's frame of the first culprit's call."""
    seconds: float | None = None

    @property
    def sentence(self) -> str:
        """The conclusion as a sentence that starts with the culprits."""
        at = f" (operation {self.number})" if self.number is not None else ""
        of = f" of {self.group}" if self.group else ""
        who, others = in_words(self.culprits), in_words(self.waiting)
        verb = "waits" if len(self.waiting) == 1 else "wait"
        place = f", at {self.where}" if self.where else ""
        if self.problem is Problem.SAME:
            return f"all ranks are in {self.operation}{at}{of}: look below it"
        if self.problem in (Problem.OPERATION, Problem.SIZES):
            return f"{who} called {self.called}{place}, where {others} called {self.operation}{at}{of}"
        if self.problem is Problem.ORDER:
            wait = "waits" if len(self.culprits) == 1 else "wait"
            return (
                f"{others} {verb} in {self.operation}{of} for {who}, which {wait} in {self.called} for them"
            )
        if self.problem is Problem.MESSAGE:
            return f"{who} did not call {self.called}{of}, for which {others} {verb} in {self.operation}"
        last = f"; last seen in {self.called}{place}" if self.called else ""
        return f"{who} did not call {self.operation}{at}{of}, in which {others} {verb}{last}"


Members = Mapping[str, Collection[int]]
"""Communicator → its ranks."""


def judge(
    calls: Iterable[Call], members: Members | None = None, messages: Iterable[Judgement] = ()
) -> tuple[Judgement, ...]:
    """The conclusion on each communicator with a call that is not known to be done, causes first.

    A communicator that waits for ranks which themselves wait in another one, or for a message, is left out,
    unless both wait for each other. ``messages``: conclusions on sends and receives.
    """
    groups: defaultdict[str, list[Call]] = defaultdict(list)
    for call in calls:
        groups[call.group].append(call)
    found = [
        judgement
        for group, own in groups.items()
        for judgement in _of_group(own, frozenset((members or {}).get(group, ())))
    ]
    found += messages
    if order := _crossed(found):
        return (order,)
    waits = {rank for judgement in found if judgement.culprits for rank in judgement.waiting}
    causes = [
        replace(judgement, culprits=tuple(rank for rank in judgement.culprits if rank not in waits))
        if judgement.problem in (Problem.MISSING, Problem.BEHIND)
        else judgement
        for judgement in found
        if not judgement.culprits or {*judgement.culprits} - waits
    ]
    blames = [judgement for judgement in causes if judgement.culprits]
    return tuple(sorted(blames or causes, key=lambda judgement: [*Problem].index(judgement.problem)))


def _of_group(calls: Sequence[Call], members: frozenset[int]) -> Iterator[Judgement]:
    """The conclusions on the calls of one communicator: one, and one on absent ranks beside another call."""
    by_rank: defaultdict[int, dict[int, Call]] = defaultdict(dict)
    for call in calls:
        if call.state is State.NOT_JOINED:
            members |= {call.rank}
        else:
            by_rank[call.rank][call.number or 0] = call
    if not by_rank:
        return
    for number in sorted({number for own in by_rank.values() for number in own}):
        at = {rank: own[number] for rank, own in by_rank.items() if number in own}
        is_done = all(call.state is State.DONE for call in at.values())
        if not is_done and (different := _different(at)):
            yield different
            if absent := sorted(members - by_rank.keys()):
                waits = [call for call in at.values() if call.rank not in different.culprits]
                yield _judgement(Problem.MISSING, [Call(rank=rank) for rank in absent], waits)
            return
    completed = _completed(calls)
    last = {rank: own[max(own)] for rank, own in by_rank.items() if not _is_older(own, completed)}
    furthest = max((call.number or 0 for call in last.values()), default=0)
    ahead = [call for call in last.values() if (call.number or 0) == furthest]
    behind = [call for call in last.values() if (call.number or 0) < furthest]
    waiting = [call for call in ahead if call.state is not State.DONE]
    if not waiting:
        return  # the dumps are of different moments, or the job ran
    absent = sorted(members - by_rank.keys())
    shared = _judgement(Problem.SAME, (), waiting)
    if behind or absent:
        problem = Problem.BEHIND if behind else Problem.MISSING
        culprits = sorted([*(call.rank for call in behind), *absent])
        first = min(behind, key=lambda call: call.rank, default=None)
        yield replace(
            shared,
            problem=problem,
            culprits=tuple(culprits),
            called=f"{first.operation or 'operation'} {first.number}" if first and first.number else "",
            where=first.where if first else "",
        )
    elif last.keys() == by_rank.keys():
        yield shared


def _completed(calls: Iterable[Call]) -> int:
    """The number up to which all ranks must have called."""
    done = (
        call.number or 0
        for call in calls
        if call.state is State.DONE and _name(call).lstrip("i").startswith(_ENDS_TOGETHER)
    )
    return max(done, default=-1)


def _is_older(own: Mapping[int, Call], completed: int) -> bool:
    """Whether a rank's calls were recorded before those of the others, which have completed more."""
    last = own[max(own)]
    return (last.number or 0) < completed or (
        completed in own and own[completed].state is not State.DONE and last.number == completed
    )


def _different(at: Mapping[int, Call]) -> Judgement | None:
    """The conclusion on calls of one number that differ in operation or size; None if they agree."""
    for problem, key in ((Problem.OPERATION, _name), (Problem.SIZES, _name_and_sizes)):
        kinds: defaultdict[str, list[Call]] = defaultdict(list)
        for call in at.values():
            if call.operation:  # some sources count only
                kinds[key(call)].append(call)
        if len(kinds) > 1:
            usual, *others = sorted(kinds.values(), key=len, reverse=True)
            culprits = [call for some in others for call in some]
            sized = problem is Problem.SIZES
            judgement = _judgement(problem, culprits, usual, sized=sized)
            words = dict.fromkeys(_words(call, sized=sized) for call in culprits)
            return replace(judgement, called=", ".join([*words][:_SHOWN]), where=culprits[0].where)
    return None


def _judgement(
    problem: Problem, culprits: Sequence[Call], waiting: Sequence[Call], *, sized: bool = False
) -> Judgement:
    first = min(waiting, key=lambda call: (not call.operation, call.rank))
    return Judgement(
        problem=problem,
        group=first.group,
        culprits=tuple(sorted(call.rank for call in culprits)),
        waiting=tuple(sorted(call.rank for call in waiting)),
        operation=_words(first, sized=sized) or "a collective",
        number=first.number,
        seconds=max((call.seconds for call in waiting if call.seconds is not None), default=None),
    )


def _crossed(found: Sequence[Judgement]) -> Judgement | None:
    """The conclusion on two communicators whose waiting ranks wait for each other; None if there are none."""
    waiting: defaultdict[int, list[int]] = defaultdict(list)
    for place, judgement in enumerate(found):
        for rank in judgement.waiting:
            waiting[rank].append(place)
    for number, one in enumerate(found):
        for place in sorted({place for rank in one.culprits for place in waiting[rank] if place > number}):
            other = found[place]
            if {*other.culprits} & {*one.waiting}:
                few, many = sorted((one, other), key=lambda judgement: len(judgement.culprits))
                called = f"{many.operation} of {many.group}"
                return replace(few, problem=Problem.ORDER, called=called)
    return None


def _name(call: Call) -> str:
    return plain(call.operation)


def _name_and_sizes(call: Call) -> str:
    return f"{_name(call)} {call.sizes if _name(call) in _EQUAL_SIZES else ''}"


def _words(call: Call, *, sized: bool) -> str:
    return f"{call.operation} of {call.sizes}" if sized and call.operation else call.operation


def in_words(numbers: Sequence[int]) -> str:
    """Ranks as ``rank 3`` or ``ranks 0-2,5``. Ranks that cannot be placed, which have negative
    numbers, are left out."""
    known = [number for number in numbers if number >= 0]
    if not known:
        return "ranks that cannot be placed" if numbers else "the others"
    return f"rank {known[0]}" if len(known) == 1 else f"ranks {ranges(known)}"
