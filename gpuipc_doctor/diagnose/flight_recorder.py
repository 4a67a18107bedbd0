"""PyTorch's Flight Recorder: the collectives in each rank's dump, and differences between ranks.

The fields are those of torch/csrc/distributed/c10d/FlightRecorder.hpp, versions 2.0 to 2.10 of the dump.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from gpuipc_doctor.collective.call import Call, State
from gpuipc_doctor.collective.judge import ADVICE, Judgement, Problem, judge
from gpuipc_doctor.diagnose.diagnosis import Difference

MOST_ENTRIES = 20_000
"""Maximum number of collectives examined per dump: the latest. PyTorch keeps 2,000 by default."""
_LONGEST = 80
"""Maximum characters of a name."""
_MOST_TEXTS = 8
_MOST_GROUPS = 256
_LONGEST_LIST = 1 << 16
"""Maximum characters of a list of ranks."""
_DEEPEST = 200
_SHOWN = 3
"""Maximum number of the program's frames shown."""
_LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib/python3[\d.]*/|/torch/|\(C\)|\.(?:cpp|cc|h|hpp|so)\b|^\?*$"
)

MOMENTS = "give the dumps of ten minutes: in a job that runs, ranks differ for as long as one of them works"
STUCK_S = 600
"""Seconds for which nothing changes in a job that is stuck: PyTorch's time-out of NCCL's collectives."""

_TORCHCOMMS = re.compile(r" \((?:gloo|xccl|[nr]cclx?)\)$")
"""TorchComms describes a communicator by its backend."""
_OF_TWO = ("send", "recv", "batch_op_issue")
_FULL = (
    "TorchComms' recorder was full, and counts all communicators, sends and receives together: it is not "
    "compared; raise max_entries of FlightRecorderHook"
)

_PENDING = {"scheduled": "was not started by the GPU", "started": "started but did not end"}


class Operation(NamedTuple):
    """A collective as recorded by one rank."""

    group: str
    number: int
    """Number of the collective in the order of its group."""
    name: str
    sizes: str
    state: str
    """``scheduled``, ``started`` or ``completed``."""
    where: str
    """Frames of the program, innermost first."""

    @property
    def words(self) -> str:
        return f"{self.name} of {self.sizes}" if self.sizes else self.name

    def call(self, rank: int) -> Call:
        return Call(
            rank=rank,
            operation=self.name,
            group=self.group,
            number=self.number,
            sizes=self.sizes,
            state=State.QUEUED if self.state in _PENDING else State.DONE,
            where=self.where,
        )


class Message(NamedTuple):
    """A send or a receive that a rank has not completed. Ranks are the job's."""

    group: str
    operation: str
    """``send`` or ``recv``."""
    peer: int
    where: str


class Dump(NamedTuple):
    log: str
    rank: str
    """Rank number; the log's name if unknown."""
    operations: tuple[Operation, ...]
    members: Mapping[str, frozenset[int]] = {}
    """Group → its ranks, by the dump's configuration."""
    messages: tuple[Message, ...] = ()
    calls: str = ""
    """The collective in which the main thread's stack is."""
    place: str = ""
    """Frames of the program in that stack, innermost first."""
    unread: str = ""
    """Why the operations are left out."""
    moment: str = ""
    """When it was written, if dumps of one rank are written at several times."""


def dump(value: Any, log: str, rank: str) -> Dump | None:
    """The dump in a JSON document or a pickle; None if it is something else."""
    if not isinstance(value, dict) or not {"pg_config", "version"} & value.keys():
        return None
    entries = value.get("entries")
    if not isinstance(entries, list | tuple):
        return None
    if isinstance(value.get("rank"), int):
        rank = str(value["rank"])
    latest = [entry for entry in entries[-MOST_ENTRIES:] if isinstance(entry, dict)]
    if not any(entry.get("state") == "completed" for entry in latest):  # gloo's recorder, and TorchComms'
        ended = _ended(value.get("pg_status"))
        latest = [{**entry, "state": "completed"} if _has_ended(entry, ended) else entry for entry in latest]
    made = [(entry, found) for entry in latest if (found := _operation(entry)) is not None]
    members = _members(value.get("pg_config"))
    if unnamed := members.get(_group("")):  # gloo's configuration lacks the groups' names
        members = {operation.group: unnamed for _, operation in made} | members
    messages = (_message(operation, members) for entry, operation in made if entry.get("is_p2p") is True)
    operations = [operation for entry, operation in made if entry.get("is_p2p") is not True]
    if not operations or not all(_TORCHCOMMS.search(operation.group) for operation in operations):
        return Dump(log, rank or log, tuple(operations), members, tuple(filter(None, messages)))
    own = [operation for operation in operations if operation.name not in _OF_TWO]
    is_whole = operations[0].number == 0
    if not is_whole and len({operation.group for operation in operations}) + len(operations) - len(own) > 1:
        return Dump(log, rank or log, (), members, unread=_FULL)
    return Dump(log, rank or log, _in_own_order(own) if is_whole else tuple(own), members)


def _members(groups: Any) -> dict[str, frozenset[int]]:
    """The groups' ranks, as in ``{"0": {"desc": "default_pg", "ranks": "[0, 1]"}}``."""
    found = {}
    for name, group in [*groups.items()][:_MOST_GROUPS] if isinstance(groups, dict) else ():
        ranks = group.get("ranks") if isinstance(group, dict) else None
        if isinstance(ranks, str) and (numbers := re.findall(r"\d{1,9}", ranks[:_LONGEST_LIST])):
            found[_group([name, group.get("desc")])] = frozenset(map(int, numbers))
    return found


def _group(named: Any) -> str:
    """A group's name as ``0 (default_pg)``."""
    words = _texts(named if isinstance(named, list | tuple) else [named])[:2]
    words[1:] = [f"({word})" for word in words[1:] if word not in ("", "undefined")]
    return " ".join(words) or "default"


def _ended(groups: Any) -> dict[str, int]:
    """Group's id → number of the last collective that has ended; gloo marks no entry as ended."""
    found = {}
    for name, group in [*groups.items()][:_MOST_GROUPS] if isinstance(groups, dict) else ():
        last = _text(group.get("last_completed_collective")) if isinstance(group, dict) else ""
        if re.fullmatch(r"\d{1,18}", last):
            found[str(name)] = int(last)
    return found


def _has_ended(entry: Mapping[str, Any], ended: Mapping[str, int]) -> bool:
    number = entry.get("collective_seq_id")
    until = ended.get(_text(entry.get("pg_id")), -1)
    return entry.get("retired") is True or (isinstance(number, int) and number <= until)


def _in_own_order(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """The operations with numbers of their groups: TorchComms counts all of a process together."""
    count: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
    return tuple(operation._replace(number=next(count[operation.group])) for operation in operations)


def _message(operation: Operation, members: Mapping[str, frozenset[int]]) -> Message | None:
    """A pending send or receive, whose names are ``send 0->1`` and ``recv 1<-0`` by the group's ranks."""
    found = re.fullmatch(r"(send|recv) \d{1,9}(?:->|<-)(\d{1,9})", operation.name)
    if found is None or operation.state not in _PENDING:
        return None
    ranks, peer = sorted(members.get(operation.group, ())), int(found[2])
    peer = ranks[peer] if peer < len(ranks) else peer
    return Message(operation.group, found[1], peer, operation.where)


def _operation(entry: dict[str, Any]) -> Operation | None:
    number = entry.get("collective_seq_id", entry.get("seq_id"))
    if not isinstance(number, int):
        return None
    sizes = entry.get("input_sizes")
    shapes = sizes[:4] if isinstance(sizes, list | tuple) else ()
    size = " + ".join("×".join(_texts(shape)) for shape in shapes)
    kinds = ", ".join(dict.fromkeys(_texts(entry.get("input_dtypes"))))
    return Operation(
        _group(entry.get("process_group")),
        number,
        _text(entry.get("profiling_name")).rpartition(":")[2],
        f"{size} {kinds}".strip(),
        _text(entry.get("state")),
        where(entry.get("frames")),
    )


def _text(value: Any) -> str:
    """A text or number; empty for other values, which may be unexpectedly large."""
    return str(value)[:_LONGEST] if isinstance(value, str | int | float) else ""


def _texts(values: Any) -> list[str]:
    return list(map(_text, values[:_MOST_TEXTS])) if isinstance(values, list | tuple) else []


def where(frames: Any) -> str:
    """The program's own innermost frames, of dictionaries with ``name``, ``filename`` and ``line``."""
    own = []
    for frame in frames[:_DEEPEST] if isinstance(frames, list | tuple) else ():
        if isinstance(frame, dict) and not _LIBRARY.search(file := _text(frame.get("filename"))):
            line = _text(frame.get("line"))
            own.append(f"{_text(frame.get('name'))} ({file.rpartition('/')[2]}:{line})")
    return " < ".join(own[:_SHOWN])


def differences(dumps: Iterable[Dump]) -> Iterator[Difference]:
    """The ranks at fault in each group, then the collectives that did not end, by rank."""
    moments: defaultdict[str, dict[str, Dump]] = defaultdict(dict)
    for dump in dumps:
        if not (dump.calls or dump.place):
            moments[dump.moment][dump.rank] = dump
    last = max(moments, default="")
    latest = moments[last]
    of_rank = {int(rank): dump for rank, dump in latest.items() if rank.isdecimal()}
    if len(latest) > len(of_rank) and len(latest) > 1:
        unnamed = next(dump for rank, dump in latest.items() if not rank.isdecimal())
        says = "the rank of this dump is unknown, so it is not compared: name the file after the rank"
        yield Difference(says, (unnamed.rank,), unnamed.log)
    if unread := next((dump for dump in latest.values() if dump.unread), None):
        yield Difference(unread.unread, (unread.rank,), unread.log)
    found, absent = _judged(of_rank)
    yield from absent
    for judgement in found:
        difference = _difference(judgement, of_rank)
        if last and judgement.problem not in _AT_ONE_NUMBER:
            states = {
                moment: [_last(dumps, rank) for rank in difference.ranks] for moment, dumps in moments.items()
            }
            if unchanged_s(states) < STUCK_S:
                difference = replace(difference, do=MOMENTS, blames=False)
        yield difference
    differ = {one.group for one in found if one.problem in _AT_ONE_NUMBER}
    yield from _pending(latest, differ)


def unchanged_s(states: Mapping[str, object]) -> float:
    """Seconds for which the latest of the states, each of a moment, has been the same."""
    moments = sorted(states)
    same = itertools.takewhile(lambda moment: states[moment] == states[moments[-1]], reversed(moments))
    try:
        last, *_, first = (datetime.strptime(moment, "%Y%m%d_%H%M%S") for moment in (moments[-1], *same))
    except ValueError:  # pages have no time
        return 0.0
    return (last - first).total_seconds()


def _last(dumps: Mapping[str, Dump], rank: str) -> tuple[Operation, ...]:
    return dumps[rank].operations[-1:] if rank in dumps else ()


_AT_ONE_NUMBER = (Problem.OPERATION, Problem.SIZES)


def _judged(dumps: Mapping[int, Dump]) -> tuple[list[Judgement], list[Difference]]:
    """The judgements that name ranks, and the ranks without a dump if none of them is about these."""
    calls = [operation.call(rank) for rank, dump in dumps.items() for operation in dump.operations]
    members = {group: ranks for dump in dumps.values() for group, ranks in dump.members.items()}
    absent = frozenset[int]().union(*members.values()) - dumps.keys()
    messages = [*_unanswered(dumps)]
    found = [judgement for judgement in judge(calls, messages=messages) if judgement.culprits]
    if not found:
        waits = {call.group for call in calls if call.state is State.QUEUED}
        in_them = {group: ranks for group, ranks in members.items() if group in waits}
        found = [judgement for judgement in judge(calls, in_them) if judgement.culprits]
    if not absent or len(dumps) < 2 or any(absent & {*judgement.culprits} for judgement in found):
        return found, []
    says = "there is no dump of this rank: it has ended, or its dump is elsewhere"
    return found, [Difference(says, tuple(map(str, sorted(absent))), next(iter(dumps.values())).log)]


def _unanswered(dumps: Mapping[int, Dump]) -> Iterator[Judgement]:
    """Receives without a send, and sends without a receive, of ranks whose dumps there are."""
    pending = {(rank, message) for rank, dump in dumps.items() for message in dump.messages}
    waits = {(rank, message.peer, message.group, message.operation) for rank, message in pending}
    for rank, message in sorted(pending):
        other = "send" if message.operation == "recv" else "recv"
        if message.peer in dumps and (message.peer, rank, message.group, other) not in waits:
            yield Judgement(
                problem=Problem.MESSAGE,
                group=message.group,
                culprits=(message.peer,),
                waiting=(rank,),
                operation=message.operation,
                called=other,
                where=message.where,
            )


def _difference(judgement: Judgement, dumps: Mapping[int, Dump]) -> Difference:
    """A judgement with the entry that shows it: of a culprit; if none has one, of a rank that waits."""
    if judgement.problem is Problem.MESSAGE:
        log = dumps[judgement.waiting[0]].log
        place = f", at {judgement.where}" if judgement.where else ""
        ranks, quote = tuple(map(str, judgement.culprits)), f"{log}: {judgement.operation}, pending{place}"
        return Difference(judgement.sentence, ranks, log, quote, ADVICE[judgement.problem], blames=True)
    is_at = judgement.problem in _AT_ONE_NUMBER
    entries = [
        (rank, operation)
        for rank in (*judgement.culprits, *judgement.waiting)
        if rank in dumps
        for operation in reversed(dumps[rank].operations)
        if operation.group == judgement.group and (not is_at or operation.number == judgement.number)
    ]
    rank, entry = entries[0]
    place = f", at {entry.where}" if entry.where else ""
    missing = "" if rank in judgement.culprits else "; there is no dump of it"
    return Difference(
        judgement.sentence + missing,
        tuple(map(str, judgement.culprits)),
        dumps[rank].log,
        f"{dumps[rank].log}: collective {entry.number}: {entry.words}, {entry.state}{place}",
        ADVICE[judgement.problem],
        blames=True,
    )


def _pending(dumps: Mapping[str, Dump], but: Collection[str]) -> Iterator[Difference]:
    """The first collective of each group, ``but`` some, that a rank has not completed."""
    waiting: defaultdict[tuple[str, int, str], dict[str, Operation]] = defaultdict(dict)
    for rank, dump in dumps.items():
        told = set(but)
        for operation in sorted(dump.operations, key=lambda one: one.number):
            if operation.state in _PENDING and operation.group not in told:
                told.add(operation.group)
                waiting[operation.group, operation.number, operation.state][rank] = operation
    for (group, number, state), by_rank in sorted(waiting.items()):
        operation = next(iter(by_rank.values()))
        place = f", at {operation.where}" if operation.where else ""
        says = f"collective {number} of {group} ({operation.words}) {_PENDING[state]}{place}"
        names = tuple(sorted(by_rank, key=lambda rank: (len(rank), rank)))
        yield Difference(says, names, dumps[names[0]].log)
