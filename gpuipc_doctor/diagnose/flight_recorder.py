"""PyTorch's Flight Recorder: the collectives in each rank's dump, and differences between ranks.

The fields are those of torch/csrc/distributed/c10d/FlightRecorder.hpp, versions 2.0 to 2.10 of the dump.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from gpuipc_doctor.diagnose.diagnosis import Difference

MOST_ENTRIES = 20_000
"""Maximum number of collectives examined per dump: the latest. PyTorch keeps 2,000 by default."""
_LONGEST = 80
"""Maximum characters of a name."""
_MOST_TEXTS = 8
_LONGEST_LIST = 1 << 16
"""Maximum characters of a list of ranks."""
_DEEPEST = 200
_SHOWN = 3
"""Maximum number of the program's frames shown."""
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/torch/|\(C\)|\.(?:cpp|cc|h|hpp|so)\b|^\?*$")

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


class Dump(NamedTuple):
    log: str
    rank: str
    """Rank number; the log's name if unknown."""
    operations: tuple[Operation, ...]
    members: frozenset[str] = frozenset()
    """Ranks of the default group, by the dump's configuration; empty if not stated."""


def dump(value: Any, log: str, rank: str) -> Dump | None:
    """The dump in a JSON document or a pickle; None if it is something else."""
    if not isinstance(value, dict) or not {"pg_config", "version"} & value.keys():
        return None
    entries = value.get("entries")
    if not isinstance(entries, list | tuple):
        return None
    if isinstance(value.get("rank"), int):
        rank = str(value["rank"])
    latest = (entry for entry in entries[-MOST_ENTRIES:] if isinstance(entry, dict))
    return Dump(
        log, rank or log, tuple(filter(None, map(_operation, latest))), _members(value.get("pg_config"))
    )


def _members(groups: Any) -> frozenset[str]:
    """The ranks of the default group, as in ``{"0": {"desc": "default_pg", "ranks": "[0, 1]"}}``."""
    for group in [*groups.values()][:_MOST_TEXTS] if isinstance(groups, dict) else ():
        if isinstance(group, dict) and group.get("desc") == "default_pg":
            ranks = group.get("ranks")
            text = ranks[:_LONGEST_LIST] if isinstance(ranks, str) else ""
            return frozenset(re.findall(r"\d+", text))
    return frozenset()


def _operation(entry: dict[str, Any]) -> Operation | None:
    number = entry.get("collective_seq_id", entry.get("seq_id"))
    if not isinstance(number, int) or entry.get("is_p2p") is True:
        return None
    group = entry.get("process_group")
    named = _texts(group if isinstance(group, list | tuple) else [group])[:2]
    named[1:] = [f"({part})" for part in named[1:] if part not in ("", "undefined")]
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
    """A text or number; empty for other values, which may be unexpectedly large."""
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
    """Differences between the ranks of a group in their collectives, worst first.

    For a single dump: the collectives recorded as not completed.
    """
    latest = {dump.rank: dump for dump in dumps}
    groups: defaultdict[str, dict[str, dict[int, Operation]]] = defaultdict(lambda: defaultdict(dict))
    for dump in latest.values():
        for operation in dump.operations:
            groups[operation.group][dump.rank][operation.number] = operation
    members = frozenset[str]().union(*(dump.members for dump in latest.values()))
    absent = sorted(members - latest.keys(), key=lambda rank: (len(rank), rank))
    if absent and len(latest) > 1:
        says = "there is no dump of this rank, and the others wait: it has ended, or its dump is elsewhere"
        yield Difference(says, tuple(absent), next(iter(latest.values())).log)
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
                place = f", called at {where}" if where else ""
                yield (
                    f"collective {number} of {group} is {words}{place}, but {usual[0]} on the other ranks",
                    some,
                )
            return  # later collectives differ too
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
        says = f"stopped after {upto} of {group}; other ranks reached {furthest} ({ahead.words}){place}"
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
