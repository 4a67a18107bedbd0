"""NCCL's RAS: the counts of collectives that each rank of a communicator has launched.

The text is that of ``STATUS`` (NCCL, src/ras/client_support.cc, 2.24 to 2.29), the JSON that of 2.28.7.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpuipc_doctor.collective.call import Call, State

MOST_RANKS = 1 << 17
"""Maximum ranks of a communicator. NCCL 2.28.9 reports invalid ones if a process has ended."""
MOST_COUNTS = 1 << 18
"""Maximum counts of all communicators' ranks together; those without differences go first."""
_LONGEST_NAME = 40
_MOST_LINES = 8
_MOST_COUNT = 1 << 64

TOKENS = (
    b"   RUNNING  ",
    b") MISMATCH",
    b") INCOMPLETE",
    b" operation counts",
    b" launched up to ",
    b"not launched any",
    b" -- GPU ",
)
"""Texts of which each line of an answer that is read has one."""

_ROW = re.compile(r"^\s*(\d{1,9})\s+(\d+)\s+[\d-]+\s+[\d-]+\s+(?:\d+-)?(\d{1,9})\s+\d+\s+[A-Z]+\s+[A-Z, ]+$")
"""A communicator group in the table: number, communicators, ranks of each."""
_HEAD = re.compile(r"^#(\d{1,9})-(\d{1,9}) \(([0-9a-f]+)\) ([A-Z, ]+)$")
_KIND = re.compile(r"Communicator ranks have different (.{1,40}?) ?operation counts$")
_SOME = re.compile(
    r"(\d{1,9}) ranks? (?:has|have) (?:launched up to operation (\d{1,19})|not launched any operations)$"
)
_RANK = re.compile(
    r"Rank (\d{1,9}) (?:has (launched up to operation (\d{1,19})|not launched any operations) )?-- (.*)$"
)
_PROCESS = re.compile(r"process (\d{1,9}) on node")
_NODES = re.compile(r"Nodes.*\n.*\n\s*(\d{1,9})\s")


@dataclass(slots=True)
class Communicator:
    """One communicator. Ranks are its own, not the job's."""

    name: str
    size: int
    counts: dict[str, dict[int, int]] = field(default_factory=dict)
    """Operation → rank → calls launched; only operations whose counts differ, if RAS lists no others."""
    missing: set[int] = field(default_factory=set)
    """Ranks of which RAS has no data."""
    pids: dict[int, int] = field(default_factory=dict)
    unnamed: int = 0
    """Number of ranks that differ and that RAS does not name."""
    unlisted: dict[str, dict[int, int]] = field(default_factory=dict)
    """Operation → count → number of ranks, as RAS's lines on several ranks have them."""

    def in_words(self) -> Iterator[str]:
        """The counts of an operation that differ, if RAS names none of the ranks."""
        for operation, by_count in self.unlisted.items():
            if len(by_count) > 1:
                some = ", ".join(f"{ranks} ranks at {count}" for count, ranks in sorted(by_count.items()))
                yield f"{operation}: {some} in {self.name}"

    def calls(self) -> Iterator[Call]:
        """The last call of each rank, as far as the counts show it."""
        ranks = [rank for rank in range(self.size) if rank not in self.missing]
        whole = {
            operation: {rank: counts.get(rank, 0) for rank in ranks}
            for operation, counts in self.counts.items()
        }
        whole = {operation: counts for operation, counts in whole.items() if any(counts.values())}
        differing = {operation: counts for operation, counts in whole.items() if len({*counts.values()}) > 1}
        usual = max(whole, key=lambda operation: max(whole[operation].values(), default=0), default="")
        highest = {operation: max(counts.values()) for operation, counts in differing.items()}
        is_idle = bool(self.counts) and not whole
        for rank in ranks if not self.unnamed and not is_idle else ():
            most = [operation for operation, count in highest.items() if differing[operation][rank] == count]
            number = sum(counts[rank] for counts in differing.values()) or None
            if not differing and len(whole) == 1:
                number = whole[usual][rank]
            operation = most[0] if most else next(iter(differing), usual if len(whole) == 1 else "")
            yield Call(rank=rank, operation=operation or "a collective", group=self.name, number=number)
        for rank in sorted(self.missing):
            yield Call(rank=rank, group=self.name, state=State.NOT_JOINED)


@dataclass(frozen=True, slots=True)
class Answer:
    """What RAS said at one time."""

    communicators: tuple[Communicator, ...]
    nodes: int = 1
    remarks: tuple[str, ...] = ()
    """What was ignored, and why."""
    errors: tuple[str, ...] = ()
    """Lines on ranks with an error."""

    def calls(self, rank_of: Mapping[int, int], size: int | None) -> Iterator[Call]:
        """Each rank's last call, with the job's rank numbers.

        ``rank_of``: pid → rank, on this node. ``size``: ranks of the job. A rank that cannot be placed gets a
        negative number.
        """
        for communicator in self.communicators:
            for call in communicator.calls():
                pid = communicator.pids.get(call.rank) if self.nodes == 1 else None
                if pid is not None and pid in rank_of:
                    own = rank_of[pid]
                else:
                    own = call.rank if communicator.size == size else -1 - call.rank
                yield replace(call, rank=own)


def unchanged(first: Answer, second: Answer) -> tuple[Answer, bool]:
    """The second answer without communicators whose counts have changed, and whether any have.

    In a healthy loop the counts of two ranks differ by one at most times.
    """
    before = {communicator.name: communicator for communicator in first.communicators}
    same = tuple(
        communicator
        for communicator in second.communicators
        if communicator.name in before and before[communicator.name].counts == communicator.counts
    )
    return replace(second, communicators=same), len(same) < len(second.communicators)


def of_text(text: str) -> Answer:
    """The answer to ``STATUS`` or ``VERBOSE STATUS``. Damaged communicators are left out and remarked on."""
    nodes = _NODES.search(text)
    sizes = _sizes_of_blocks(text)
    found: dict[str, Communicator] = {}
    damaged: Counter[str] = Counter()
    now: Communicator | None = None
    kind = ""
    block: tuple[int, int] | None = None
    listed: tuple[int, int] | None = None
    # (ranks, count) of the line above: the count is that of the ranks listed under it, if there are any.
    whole = text[: text.rfind("\n") + 1] if text.count("\n") > 1 else text  # an answer may be cut
    for line in map(str.strip, whole.splitlines()):
        if row := _ROW.match(line):
            sizes[int(row[1])] = int(row[3])
            if row[2] == "1" and int(row[3]):
                name = f"communicator {row[1]}"
                found[name] = Communicator(name, int(row[3]))
        elif head := _HEAD.match(line):
            group, number = int(head[1]), int(head[2])
            name = (
                f"communicator {group}"
                if number == 0 and f"communicator {group}" in found
                else f"communicator {group}-{number}"
            )
            _count_unnamed(now, kind, block)
            now, kind, block = found.get(name) or Communicator(name, sizes.get(group, 0)), "", None
            if now.size:
                found[name] = now
        elif now is not None and (of := _KIND.search(line)):
            _count_unnamed(now, kind, block)
            kind, block, listed = of[1], None, None
        elif now is not None and (some := _SOME.match(line)) and kind:
            _count_unnamed(now, kind, block)
            block, listed = (int(some[1]), int(some[2] or 0)), None
            now.unlisted.setdefault(kind, {})[block[1]] = block[0]
        elif now is not None and (one := _RANK.match(line)):
            rank = int(one[1])
            process = _PROCESS.search(one[4])
            if rank >= now.size or process is None:
                damaged[now.name] += 1
                continue
            now.pids[rank] = int(process[1])
            if not kind:
                now.missing.add(rank)
            elif one[2]:
                now.counts.setdefault(kind, {})[rank] = int(one[3] or 0)
            elif of_block := block or listed:
                now.counts.setdefault(kind, {})[rank] = of_block[1]
                block, listed = None, of_block
    _count_unnamed(now, kind, block)
    remarks = [f"{lines} lines on invalid ranks of {name} ignored" for name, lines in damaged.items()]
    return _answer(found.values(), int(nodes[1]) if nodes else 1, remarks, ())


def key(text: str) -> str:
    """What an answer has once: a group's row of the table, or a communicator's heading; else empty."""
    if row := _ROW.match(text):
        return row[1]
    return text.strip() if _HEAD.match(text.strip()) else ""


def is_mismatch(text: str) -> bool:
    return _KIND.search(text.strip()) is not None


def _sizes_of_blocks(text: str) -> dict[int, int]:
    """Communicator group → ranks, by the lines on their counts: part of an answer may lack the table."""
    sizes: dict[int, int] = {}
    group, total = 0, 0
    for line in map(str.strip, text.splitlines()):
        if head := _HEAD.match(line):
            group, total = int(head[1]), 0
        elif _KIND.search(line):
            total = 0
        elif some := _SOME.match(line):
            total += int(some[1])
        elif (one := _RANK.match(line)) and one[2]:
            total += 1
        sizes[group] = max(sizes.get(group, 0), total)
    return sizes


def _answer(
    found: Iterable[Communicator], nodes: int, remarks: Sequence[str], errors: Sequence[str]
) -> Answer:
    """The answer without communicators of impossible size."""
    left = MOST_COUNTS
    kept = []
    for communicator in sorted(found, key=lambda each: not (each.counts or each.missing)):
        cost = communicator.size * max(1, len(communicator.counts))
        if communicator.size <= MOST_RANKS and cost <= left:
            left -= cost
            _settle(communicator)
            kept.append(communicator)
    if ignored := len([*found]) - len(kept):
        says = f"{ignored} communicators ignored: over {MOST_RANKS} ranks, or {MOST_COUNTS} counts in all"
        remarks = [says, *remarks]
    return Answer(tuple(kept), nodes, tuple(remarks[:_MOST_LINES]), tuple(errors[:_MOST_LINES]))


_UNNAMED = -1
"""Key of the counts of ranks that RAS does not name."""


def _count_unnamed(communicator: Communicator | None, kind: str, block: tuple[int, int] | None) -> None:
    """Note the count of a block without a list of its ranks."""
    if communicator is None or block is None:
        return
    ranks, count = block
    counts = communicator.counts.setdefault(kind, {})
    if _UNNAMED in counts:  # two large groups, of which RAS names no rank
        communicator.unnamed += ranks
    counts[_UNNAMED] = count


def _settle(communicator: Communicator) -> None:
    """Give the count of the unnamed ranks to all ranks that are not named."""
    for counts in communicator.counts.values():
        others = counts.pop(_UNNAMED, None)
        for rank in range(communicator.size):
            if others is not None and rank not in communicator.missing:
                counts.setdefault(rank, others)


def of_json(text: str) -> Answer:
    """The answer in JSON. Raises `ValueError` if it is something else."""
    try:
        document = json.loads(text)
        communicators, errors = [], []
        for number, value in enumerate(document["communicators"]):
            communicators.append(one := _of_json(f"communicator {number}", value))
            errors += [f"{one.name}: {line}" for line in _errors(value)]
        nodes = len({rank["host"] for value in document["communicators"] for rank in value["ranks"]})
        return _answer(communicators, nodes or 1, (), errors)
    except (LookupError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"not RAS's JSON: {error!r}"[:200]) from None


def _of_json(name: str, value: Mapping[str, Any]) -> Communicator:
    ranks: Sequence[Mapping[str, Any]] = value["ranks"]
    missing: Iterable[Mapping[str, Any]] = value.get("missing_ranks", ())
    numbers = [int(rank["rank"]) for rank in (*ranks, *missing)]
    valid = [number for number in numbers if 0 <= number < MOST_RANKS]
    found = Communicator(name, len({*valid}))
    for rank in ranks:
        number = int(rank["rank"])
        found.pids[number] = int(rank["pid"])
        for operation, count in rank["collective_counts"].items():
            if not 0 <= int(count) < _MOST_COUNT:
                raise ValueError(f"rank {number} has an impossible count")
            found.counts.setdefault(operation[:_LONGEST_NAME], {})[number] = int(count)
    found.missing = {int(rank["rank"]) for rank in missing} & {*valid}
    found.pids |= {int(rank["rank"]): int(rank["pid"]) for rank in missing}
    found.size = max(valid, default=-1) + 1
    return found


def _errors(value: Mapping[str, Any]) -> Iterator[str]:
    for rank in value["ranks"]:
        if error := rank["status"].get("async_error"):
            yield f"rank {int(rank['rank'])} has asynchronous error {int(error)}"
    for rank in value.get("missing_ranks", ()):
        how = "is considered dead" if rank["status"]["considered_dead"] else "does not respond"
        yield f"rank {int(rank['rank'])} on {rank['host']}, pid {int(rank['pid'])} {how}"
