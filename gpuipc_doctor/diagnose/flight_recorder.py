"""PyTorch's Flight Recorder: what each rank's dump says of its collectives, and where ranks differ.

The fields are those of torch/csrc/distributed/c10d/FlightRecorder.hpp, versions 2.0 to 2.10 of the dump.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from gpuipc_doctor.diagnose.diagnosis import Difference

MOST_ENTRIES = 20_000
"""Collectives of one dump, the latest, that are looked at; PyTorch keeps 2,000 by default."""
_LONGEST = 80
"""Characters of a name."""
_MOST_TEXTS = 8
_DEEPEST = 200
_SHOWN = 3
"""Frames of the program that are named."""
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/torch/|\(C\)|\.(?:cpp|cc|h|hpp|so)\b|^\?*$")

_PENDING = {"scheduled": "was not begun by the GPU", "started": "was begun and did not end"}


class Operation(NamedTuple):
    """A collective as one rank recorded it."""

    group: str
    number: int
    """Its place among the group's collectives."""
    name: str
    sizes: str
    state: str
    """``scheduled``, ``started`` or ``completed``."""
    where: str
    """The program's frames, innermost first."""

    @property
    def words(self) -> str:
        return f"{self.name} of {self.sizes}" if self.sizes else self.name


class Dump(NamedTuple):
    log: str
    rank: str
    """A figure; the log's name where nothing tells the rank."""
    operations: tuple[Operation, ...]


def dump(value: Any, log: str, rank: str) -> Dump | None:
    """The dump that a JSON document or a pickle is; None where it is none."""
    if not isinstance(value, dict) or not {"pg_config", "version"} & value.keys():
        return None
    entries = value.get("entries")
    if not isinstance(entries, list | tuple):
        return None
    if isinstance(value.get("rank"), int):
        rank = str(value["rank"])
    latest = (one for one in entries[-MOST_ENTRIES:] if isinstance(one, dict))
    return Dump(log, rank or log, tuple(filter(None, map(_operation, latest))))


def _operation(entry: dict[str, Any]) -> Operation | None:
    number = entry.get("collective_seq_id", entry.get("seq_id"))
    if not isinstance(number, int) or entry.get("is_p2p") is True:
        return None
    group = entry.get("process_group")
    named = _texts(group if isinstance(group, list | tuple) else [group])[:2]
    named[1:] = [f"({one})" for one in named[1:] if one not in ("", "undefined")]
    sizes = entry.get("input_sizes")
    shapes = sizes[:4] if isinstance(sizes, list | tuple) else ()
    size = " + ".join("×".join(_texts(shape)) for shape in shapes)
    kinds = ", ".join(dict.fromkeys(_texts(entry.get("input_dtypes"))))
    return Operation(
        " ".join(named) or "default",
        number,
        _text(entry.get("profiling_name")).rpartition(":")[2],
        f"{size} {kinds}".strip(),
        _text(entry.get("state")),
        _where(entry.get("frames")),
    )


def _text(value: Any) -> str:
    """A text or a number; empty for anything else, which may be larger than it looks."""
    return str(value)[:_LONGEST] if isinstance(value, str | int | float) else ""


def _texts(values: Any) -> list[str]:
    return list(map(_text, values[:_MOST_TEXTS])) if isinstance(values, list | tuple) else []


def _where(frames: Any) -> str:
    own = []
    for frame in frames[:_DEEPEST] if isinstance(frames, list | tuple) else ():
        if isinstance(frame, dict) and not _LIBRARY.search(file := _text(frame.get("filename"))):
            line = _text(frame.get("line"))
            own.append(f"{_text(frame.get('name'))} ({file.rpartition('/')[2]}:{line})")
    return " < ".join(own[:_SHOWN])


def differences(dumps: Iterable[Dump]) -> Iterator[Difference]:
    """Where the ranks of a group are not at the same collective, or not in the same one; worst first.

    Of a single dump: the collectives that it says are not completed.
    """
    latest = {one.rank: one for one in dumps}
    groups: defaultdict[str, dict[str, dict[int, Operation]]] = defaultdict(lambda: defaultdict(dict))
    for one in latest.values():
        for operation in one.operations:
            groups[operation.group][one.rank][operation.number] = operation
    for group, ranks in groups.items():
        for says, some in _of_group(group, ranks):
            names = tuple(sorted(some, key=lambda rank: (len(rank), rank)))
            yield Difference(says, names, latest[names[0]].log)


def _of_group(group: str, ranks: dict[str, dict[int, Operation]]) -> Iterator[tuple[str, list[str]]]:
    numbers = sorted({number for operations in ranks.values() for number in operations})
    for number in numbers:
        at = {rank: operations[number] for rank, operations in ranks.items() if number in operations}
        kinds: defaultdict[str, list[str]] = defaultdict(list)
        for rank, operation in at.items():
            kinds[operation.words].append(rank)
        if len({operation.name for operation in at.values()}) > 1:
            usual, *others = sorted(kinds.items(), key=lambda one: -len(one[1]))
            for words, some in others:
                where = at[some[0]].where
                place = f", at {where}" if where else ""
                yield (
                    f"collective {number} of {group} is {words}, where the others do {usual[0]}{place}",
                    some,
                )
            return  # what follows is not the same on both sides either
    last = {rank: max(operations) for rank, operations in ranks.items()}
    furthest = max(last.values())
    if behind := [rank for rank, number in last.items() if number < furthest]:
        least = min(last[rank] for rank in behind)
        ahead = next(operations[furthest] for operations in ranks.values() if furthest in operations)
        where = next((o.where for o in (ranks[r][last[r]] for r in behind) if o.where), "")
        place = f"; the last one was called at {where}" if where else ""
        upto = (
            f"collective {least}"
            if least == max(last[r] for r in behind)
            else f"collectives {least} to {furthest - 1}"
        )
        says = f"stopped after {upto} of {group}, where the others go on to {furthest} ({ahead.words}){place}"
        yield says, behind
    waiting: defaultdict[tuple[int, str], dict[str, Operation]] = defaultdict(dict)
    for rank, operations in ranks.items():
        for number, operation in sorted(operations.items()):
            if operation.state in _PENDING:
                waiting[number, operation.state][rank] = operation
                break
    for (number, state), by_rank in sorted(waiting.items()):
        operation = next(iter(by_rank.values()))
        place = f", at {operation.where}" if operation.where else ""
        says = f"collective {number} of {group} ({operation.words}) {_PENDING[state]}{place}"
        yield says, list(by_rank)
