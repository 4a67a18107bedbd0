"""Dumps and pages of PyTorch's debug server (``torch.distributed.debug``): ranks' collectives and stacks.

The texts are those of PyTorch 2.14.1 (torch/distributed/debug/_debug_handlers.py): sections of ranks with a
traceback, py-spy's output or JSON, and the tables of the Flight Recorder's analysis.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from gpuipc_doctor.collective.judge import in_words
from gpuipc_doctor.diagnose.diagnosis import Difference
from gpuipc_doctor.diagnose.flight_recorder import MOMENTS, STUCK_S, Dump, Operation, dump, unchanged_s, where

_BEGIN = re.compile(rb"PARTIAL DATA: |=== (?:Rank \d+: http|(?:TorchComms )?FR Trace)|\s*<!doctype html>")
_SECTION = re.compile(r"^=== Rank (\d{1,9}): \S* ===\n(.*?)(?=^=== |\Z)", re.MULTILINE | re.DOTALL)
_PAGE = re.compile(r"<h2>Rank (\d{1,9}): [^<]*</h2>\s*<pre>(.*?)</pre>", re.DOTALL)
_THREAD = re.compile(r"^(?=(?:Current thread|Thread) )", re.MULTILINE)
_FRAME = re.compile(r'^ +(?:File "([^"\n]+)", line (\d+) in (\S+)|(\S+) \(([^()\n]+):(\d+)\))$', re.MULTILINE)
"""A frame as of faulthandler, or of py-spy."""
_ROW = re.compile(
    r"^ *\d+  +(\S+)  +(?:True|False)  +(\d{1,18})  +\d+  +\d+  +(\S+)  +(?:\w+:)?(\w+)  +(\[.*?\])"
    r"  +\[.*?\]  +\{([\d, ]*)\}  +(\w+)  +\[.*?\](?:  +(.*))?$",
    re.MULTILINE,
)
"""A row of collectives: group, number, description, name, sizes, ranks, state, and what ranks differ."""
_RANKS = re.compile(r"\{(\d+(?:, \d+)*)\}")
_OTHER = re.compile(r"(\d+): Collective\(.*?collective_name='(?:\w+:)?(\w+)'.*?input_sizes=(\[.*?\]), output")
_MOMENT = re.compile(r"_(\d{8}_\d{6})\b")
_MOST_RANKS = 1 << 16

_LATE = "find out why this rank is there: it keeps the others waiting"


def is_dump(sample: bytes) -> bool:
    """Whether a text begins as such a dump, or as a page of the server."""
    found = _BEGIN.match(sample)
    return found is not None and (b"doctype" not in found[0] or b"Torch Distributed Debug" in sample)


def dumps(text: str, log: str) -> list[Dump]:
    """The dumps of all ranks."""
    found = _MOMENT.search(log)
    moment = found[1] if found else "of a page"
    made: dict[str, Dump] = {}
    for rank, body in [*_SECTION.findall(text), *_PAGE.findall(text)][:_MOST_RANKS]:
        made[rank] = _recorded(body, log, rank) or _stack(body, log, rank)
    own: dict[int, list[Operation]] = {}
    for row in _ROW.finditer(text):
        for rank, operation in _operations(row):
            own.setdefault(rank, []).append(operation)
    for number, operations in own.items():
        rank = str(number)
        made[rank] = made.get(rank, Dump(log, rank, ()))._replace(operations=tuple(dict.fromkeys(operations)))
    return [each._replace(moment=moment) for each in made.values()]


def _recorded(body: str, log: str, rank: str) -> Dump | None:
    try:
        value: Any = json.loads(body) if body.lstrip().startswith("{") else None
    except ValueError:
        return None
    return dump(value, log, rank)


def _stack(body: str, log: str, rank: str) -> Dump:
    """The collective and the place of the main thread, which faulthandler prints last."""
    threads = _THREAD.split(body)
    main = next((thread for thread in threads if '"MainThread"' in thread.partition("\n")[0]), threads[-1])
    frames = [
        {"filename": found[1] or found[5], "line": found[2] or found[6], "name": found[3] or found[4]}
        for found in _FRAME.finditer(main)
    ]
    calls = [frame["name"] for frame in frames if frame["filename"].endswith("distributed_c10d.py")]
    return Dump(log, rank, (), calls=calls[-1] if calls else "", place=where(frames))


def _operations(row: re.Match[str]) -> Iterator[tuple[int, Operation]]:
    """Each rank's operation: PyTorch lists ranks that lack one, and those with another one."""
    group, number, description, name, sizes, ranks, state, differ = row.groups()
    before, _, others = (differ or "").partition("Collective(")
    missing = {rank for found in _RANKS.findall(before) for rank in found.split(", ")}
    other = {found[1]: found for found in _OTHER.finditer(differ)} if others else {}
    label = description.partition(":")[2]
    for rank in set(ranks.split(", ")) - missing - {""}:
        called, size = (other[rank][2], other[rank][3]) if rank in other else (name, sizes)
        size = size.strip("[]").replace(", ", "×")
        yield (
            int(rank),
            Operation(f"{group} ({label})" if label else group, int(number), called, size, state, ""),
        )


def late_by_stacks(found: Iterable[Dump]) -> Iterator[Difference]:
    """Ranks that are elsewhere while others wait in a collective, by the latest stacks; sure if all have been
    there for `STUCK_S`."""
    moments: dict[str, dict[int, Dump]] = {}
    for each in found:
        if (each.calls or each.place) and each.rank.isdecimal():
            moments.setdefault(each.moment, {})[int(each.rank)] = each
    now = moments[max(moments)] if moments else {}
    at = {
        moment: {rank: (each.calls, each.place) for rank, each in ranks.items()}
        for moment, ranks in moments.items()
    }
    is_sure = bool(at) and unchanged_s(at) >= STUCK_S
    waiting = sorted(rank for rank, each in now.items() if each.calls)
    places: dict[str, list[int]] = {}
    for rank, each in sorted(now.items()):
        if waiting and not each.calls:
            places.setdefault(each.place, []).append(rank)
    for place, ranks in places.items():
        log, calls = now[ranks[0]].log, now[waiting[0]].calls
        verb, wait = ("is" if len(ranks) == 1 else "are"), ("waits" if len(waiting) == 1 else "wait")
        says = f"{in_words(ranks)} {verb} in {place}, where {in_words(waiting)} {wait} in {calls}"
        quote = f"{log}: rank {ranks[0]}: {place}"
        yield Difference(says, tuple(map(str, ranks)), log, quote, _LATE if is_sure else MOMENTS, is_sure)
