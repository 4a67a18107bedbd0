"""Every operation at every size, with each element compared on each rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import cycle
from typing import NamedTuple

from gpuipc_doctor.api import Buffer, Collectives, Communicator, GpuStream, Json, Worker
from gpuipc_doctor.api.reduction_data import (
    FILL,
    FP8,
    GUARD,
    KINDS,
    Contents,
    Kind,
    Segment,
    contents_of,
    fill,
    write_segments,
    wrong_segments,
)

_CALLS = {
    "all-reduce": "allreduce",
    "all-gather": "allgather",
    "reduce-scatter": "reduce-scatter",
    "broadcast": "bcast",
    "reduce": "reduce",
    "ring": "ring",
    "all-to-all": "alltoall",
}
"""Operation → its name in `api.reduction_data.contents_of`."""

OPERATIONS = tuple(_CALLS)

SPLIT, TWO_STREAMS = "a split communicator", "two streams"
UNEVEN, TWO_MESSAGES = "uneven all-to-all", "ring of two messages"
_CALLS |= {UNEVEN: "alltoall", TWO_MESSAGES: "ring"}

SIZES = (0, 4, 100, 4092, 16_388, 65_532, 131_080, 524_284, (1 << 20) + 4, (4 << 20) + 12, (16 << 20) + 12)
"""Bytes of one rank's largest buffer: around the sizes at which NCCL changes from protocol LL to LL128 and to
Simple on its usual topologies, most of them odd."""

LARGEST = 64 << 20
"""Bytes of one all-reduce."""

BOTH_PLACES = 65_532
"""Up to this size an operation runs both in place and between two buffers; larger ones take turns."""

ON_TWO_STREAMS = (65_532, (1 << 20) + 4)
OF_SPLIT = (4092, (1 << 20) + 4)

SHOWN = 8
"""Maximum wrong results that a rank records."""

MOST_RANKS_FOR_SHORT_FLOATS = 8

_EXACT = {"bfloat16": 256, "float16": 2048, FP8.name: 16}
"""Type → the largest integer up to which all are exact; 2²⁴ for the others."""

_IN_PLACE = {"all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce"}
_REDUCING = {"all-reduce", "reduce-scatter", "reduce"}


class Case(NamedTuple):
    """One operation with this many elements of each rank. ``number`` makes its data unlike that of others."""

    number: int
    operation: str
    elements: int
    kind: Kind
    in_place: bool
    root: int
    on: str = ""
    """Where it runs, if not in the first communicator alone: ``two streams``."""
    reduction: str = "sum"
    shift: int = 0
    """Elements between the beginning of an allocation and the buffer in it."""

    @property
    def nbytes(self) -> int:
        return self.elements * self.kind.nbytes

    @property
    def place(self) -> str:
        """Where its buffers begin, in words; nothing if at the beginning of an allocation."""
        inside = "inside an allocation" if self.shift else ""
        return "at an unaligned address" if self.shift * self.kind.nbytes % 16 else inside

    def __str__(self) -> str:
        words = [f"{self.operation} of {self.nbytes} B", self.kind.name]
        words += [self.reduction] * (self.reduction != "sum") + [self.place] * bool(self.shift)
        return ", ".join([*words, *["in place"] * self.in_place, *[self.on] * bool(self.on)])


def cases(ranks: int, room: int) -> Iterator[Case]:
    """All cases of the first communicator. ``room``: maximum bytes of a buffer."""
    kinds = _kinds(ranks)
    number = 0
    for operation in OPERATIONS:
        sizes = [size for size in SIZES if size <= room]
        if operation == "all-reduce" and room >= LARGEST:
            sizes.append(LARGEST)
        for turn, size in enumerate(sizes):
            kind = next(kinds)
            places = [False]
            if operation in _IN_PLACE:
                places = [False, True] if size <= BOTH_PLACES else [turn % 2 == 0]
            for in_place in places:
                number += 1
                yield Case(
                    number, operation, count(operation, size, kind, ranks), kind, in_place, number % ranks
                )


def parts(todo: Iterable[Case]) -> tuple[list[Case], list[Case]]:
    """The small all-reduces, to verify before they are measured, and all other cases."""
    found: tuple[list[Case], list[Case]] = [], []
    for case in todo:
        found[not (case.operation == "all-reduce" and case.nbytes <= BOTH_PLACES)].append(case)
    return found


def first_case(ranks: int) -> Case:
    """The first case that moves data."""
    return next(case for case in cases(ranks, 4) if case.elements)


def cases_of_split(ranks: int, room: int) -> Iterator[Case]:
    kinds = _kinds(ranks)
    sizes = [size for size in OF_SPLIT if size <= room]
    for number, (operation, size) in enumerate((o, s) for o in OPERATIONS for s in sizes):
        kind = next(kinds)
        elements = count(operation, size, kind, ranks)
        yield Case(1000 + number, operation, elements, kind, False, number % ranks, SPLIT)


def cases_on_streams(ranks: int, room: int) -> Iterator[tuple[Case, Case]]:
    """Pairs of cases that are queued in two streams."""
    kinds = _kinds(ranks)
    for number, (one, other) in enumerate((o, p) for o in OPERATIONS[:3] for p in OPERATIONS[1:4] if o != p):
        size = ON_TWO_STREAMS[number % 2]
        if size <= room:
            pair = []
            for place, operation in enumerate((one, other)):
                kind = next(kinds)
                elements = count(operation, size, kind, ranks)
                pair.append(Case(2000 + 2 * number + place, operation, elements, kind, False, 0, TWO_STREAMS))
            yield pair[0], pair[1]


def _kinds(ranks: int) -> Iterator[Kind]:
    short = ranks > MOST_RANKS_FOR_SHORT_FLOATS
    return cycle([kind for kind in KINDS.values() if not (short and "16" in kind.name)])


def count(operation: str, size: int, kind: Kind, ranks: int) -> int:
    """Elements of each rank, so that the largest buffer has about this size."""
    elements = -(-size // kind.nbytes)
    parts = ("all-gather", "reduce-scatter", "all-to-all", UNEVEN)
    return -(-elements // ranks) if operation in parts else elements


def contents(case: Case, rank: int, ranks: int) -> Contents:
    """The contents of this rank's buffers."""
    found = contents_of(_CALLS[case.operation], f"{case.number}/{{}}", rank, ranks, case.root)
    if case.operation not in _REDUCING:
        return found
    weights = [weight(case, each, ranks) for each in range(ranks)]
    total = sum(weights)
    factor = {"sum": total, "maximum": ranks, "average": total / ranks, "doubled": 2 * total}[case.reduction]
    return Contents(
        [Segment(each.key, weights[rank]) for each in found.source],
        [Segment(each.key, factor) for each in found.target],
    )


def weight(case: Case, rank: int, ranks: int) -> int:
    """By what a rank's elements are multiplied, so that their sum is exact in every order: its number plus 1;
    of more ranks 1; of still more, 1 for as many as are exact, others in each case, and 0 for the rest."""
    exact = _EXACT.get(case.kind.name, 1 << 24) // case.kind.most
    if case.reduction in ("maximum", "average") or ranks * (ranks + 1) // 2 <= exact:
        return rank + 1
    return int((rank - case.number * exact) % ranks < exact)


class Operation:
    """A case with its buffers on this rank."""

    def __init__(self, w: Worker, comm: Communicator, case: Case, resources: ExitStack) -> None:
        self.case, self.comm = case, comm
        self.contents = contents(case, comm.rank, comm.size)
        nbytes, kind = case.nbytes, case.kind
        parts = max(1, len(self.contents.target), len(self.contents.source) if case.in_place else 1)
        lead = case.shift * kind.nbytes
        self._end = lead + parts * nbytes
        self.target: Buffer = resources.enter_context(w.gpu.alloc(self._end + GUARD))
        fill(self.target, self._end + GUARD)
        self.source_at = self.target_at = lead
        if case.in_place:
            self.source = self.target
            own = comm.rank * nbytes
            self.source_at += own if case.operation == "all-gather" else 0
            self.target_at += own if case.operation == "reduce-scatter" else 0
        else:
            self.source = resources.enter_context(
                w.gpu.alloc(lead + len(self.contents.source) * nbytes + GUARD)
            )
        write_segments(self.source, kind, self.contents.source, case.elements, self.source_at)

    def queue(self, library: Collectives, stream: GpuStream) -> None:
        case, comm = self.case, self.comm
        source, target = self.source.address + self.source_at, self.target.address + self.target_at
        count, kind, root = case.elements, case.kind.name, case.root
        match case.operation:
            case "all-reduce":
                comm.all_reduce(source, target, count, kind, stream, case.reduction)
            case "reduce":
                comm.reduce(source, target, count, kind, root, stream, case.reduction)
            case "broadcast":
                comm.broadcast(source, target, count, kind, root, stream)
            case "all-gather":
                comm.all_gather(source, target, count, kind, stream)
            case "reduce-scatter":
                comm.reduce_scatter(source, target, count, kind, stream, case.reduction)
            case "ring" | "ring of two messages":
                first = count if case.operation == "ring" else count // 2
                with library.group():
                    for at, part in ((0, first), (first, count - first)):
                        skip = at * case.kind.nbytes
                        if part or not at:
                            comm.send(source + skip, part, kind, (comm.rank + 1) % comm.size, stream)
                            comm.recv(target + skip, part, kind, (comm.rank - 1) % comm.size, stream)
            case _:
                with library.group():
                    for other in range(comm.size):
                        skip = other * case.nbytes
                        comm.send(source + skip, self._part(comm.rank, other), kind, other, stream)
                        comm.recv(target + skip, self._part(other, comm.rank), kind, other, stream)

    def _part(self, sender: int, receiver: int) -> int:
        """Elements that one rank sends to another in an all-to-all."""
        less = (sender + 2 * receiver) % 3 if self.case.operation == UNEVEN else 0
        return self.case.elements - less * (self.case.elements // 4)

    def wrong(self) -> str:
        """How the result differs from the expected one; empty if it is correct."""
        case = self.case
        found = ""
        if case.operation == UNEVEN:
            for sender, segment in enumerate(self.contents.target):
                at, count = self.target_at + sender * case.nbytes, self._part(sender, self.comm.rank)
                found = found or wrong_segments(self.target, case.kind, [segment], count, at)
        else:
            found = wrong_segments(
                self.target, case.kind, self.contents.target, case.elements, self.target_at
            )
        if not found and self.target.read(GUARD, self._end) != FILL * GUARD:
            found = f"bytes behind the result of {self._end} B were overwritten"
        if not found and not self.contents.target and not case.in_place:
            read = min(case.nbytes, 1 << 20)
            if self.target.read(read, self.target_at) != FILL * read:
                found = "a rank that is not the root got a result"
        return found

    @property
    def compared(self) -> int:
        return len(self.contents.target) * self.case.nbytes + GUARD


class Results:
    """What a rank has compared so far."""

    def __init__(self) -> None:
        self.cases = self.compared = 0
        self.failed: list[Json] = []
        self.failures = 0
        self.first: Case | None = None
        """The first wrong one."""

    def add(self, operation: Operation) -> None:
        self.cases += 1
        self.compared += operation.compared
        if says := operation.wrong():
            self.failures += 1
            self.first = self.first or operation.case
            if len(self.failed) < SHOWN:
                case = operation.case
                self.failed.append({"case": str(case), "says": says, "operation": case.operation})

    @property
    def record(self) -> dict[str, Json]:
        return {
            "cases": self.cases,
            "compared": self.compared,
            "failed": self.failed,
            "failures": self.failures,
        }


def run(w: Worker, library: Collectives, comm: Communicator, todo: Iterable[Case], results: Results) -> None:
    """Run cases one after the other, each with buffers of its own."""
    stream = w.gpu.create_stream()
    for case in todo:
        with w.step(str(case)), ExitStack() as resources:
            operation = Operation(w, comm, case, resources)
            operation.queue(library, stream)
            stream.synchronize()
            comm.check()
            results.add(operation)


def run_on_two_streams(
    w: Worker, library: Collectives, comm: Communicator, room: int, results: Results
) -> None:
    """Queue two operations in two streams before either is waited for."""
    streams = w.gpu.create_stream(), w.gpu.create_stream()
    for one, other in cases_on_streams(comm.size, room):
        run_pair(w, library, streams, ((comm, one), (comm, other)), results)


def run_pair(
    w: Worker,
    library: Collectives,
    streams: tuple[GpuStream, GpuStream],
    pair: tuple[tuple[Communicator, Case], tuple[Communicator, Case]],
    results: Results,
) -> None:
    """Queue an operation in each stream before either is waited for."""
    with w.step(f"{pair[0][1]} beside {pair[1][1].operation}"), ExitStack() as resources:
        operations = [Operation(w, comm, case, resources) for comm, case in pair]
        for operation, stream in zip(operations, streams, strict=True):
            operation.queue(library, stream)
        for stream in streams:
            stream.synchronize()
        for operation in operations:
            operation.comm.check()
        for operation in operations:
            results.add(operation)
