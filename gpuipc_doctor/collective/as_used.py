"""Collectives as training programs call them, and which of a failed one's properties it takes to fail.

What PyTorch's DDP, FSDP, tensor, pipeline and expert parallelism call was recorded (tests/recorder).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import NamedTuple

from gpuipc_doctor.api import Collectives, Communicator, DriverError, GpuStream, Json, Worker
from gpuipc_doctor.api.gpu import StreamKind
from gpuipc_doctor.api.reduction_data import FP8, KINDS, Kind
from gpuipc_doctor.collective.all_ranks import AllRanks
from gpuipc_doctor.collective.data import (
    MOST_RANKS_FOR_SHORT_FLOATS,
    SPLIT,
    TWO_MESSAGES,
    TWO_STREAMS,
    UNEVEN,
    Case,
    Operation,
    Results,
    count,
    run_pair,
)

THREAD, GROUP, DEFAULT, PRIORITY = (
    "another thread",
    "a group of three",
    "the default stream",
    "a priority stream",
)
BESIDE, GRAPH, IDLE = "two communicators", "a graph launched twice", "a stream after idling"

IDLE_S = 4.0
"""Seconds for which ranks idle before an operation, in soak only."""

_MIB = 1 << 20

_INVALID_ARGUMENT = 4
"""``ncclInvalidArgument``: what NCCL before 2.24, and GPUs before Hopper, answer to reductions of fp8."""


class Use(NamedTuple):
    """How a program calls an operation. ``last``: with the last rank as root. ``soak``: in soak only."""

    operation: str
    nbytes: int
    kind: str
    reduction: str = "sum"
    on: str = ""
    in_place: bool = False
    shift: int = 0
    last: bool = False
    soak: bool = False


_INSIDE = 256
"""Elements before a view that begins inside an allocation, at an aligned address."""

USES = (
    Use("all-reduce", 64 * _MIB, "bfloat16", in_place=True),  # a bucket of gradients
    Use("all-reduce", 256 * _MIB, "bfloat16", in_place=True, soak=True),
    Use("all-reduce", 512 * _MIB, "float16", "average", in_place=True, soak=True),
    Use("all-reduce", 16 * _MIB, "bfloat16", "average", THREAD, in_place=True),  # from backward()'s thread
    Use("all-reduce", 16 * _MIB, "bfloat16", "doubled"),
    Use("all-reduce", 4, "float32", "maximum", DEFAULT, in_place=True),  # the norm of gradients
    Use("all-reduce", 8194, "float16", "maximum", DEFAULT, in_place=True),
    Use("all-reduce", 64 << 10, "float8e4m3", "maximum"),
    Use("all-reduce", _MIB, "float32", "average", PRIORITY, in_place=True),
    Use("all-reduce", _MIB + 2, "bfloat16", on=GROUP, in_place=True, shift=1),  # coalesced
    Use("reduce-scatter", 32 * _MIB, "float32", "average", THREAD),  # FSDP's gradients
    Use("reduce-scatter", _MIB, "bfloat16", on=GROUP),
    Use("all-gather", 32 * _MIB, "bfloat16", on=THREAD, in_place=True),  # FSDP's parameters
    Use("all-gather", _MIB, "bfloat16", on=GROUP),
    Use("all-reduce", 4 * _MIB, "bfloat16", in_place=True, shift=_INSIDE),  # a view of a tensor
    Use("all-gather", 4 * _MIB, "bfloat16", on=DEFAULT, shift=_INSIDE),
    Use("reduce-scatter", 4 * _MIB, "float32", on=DEFAULT, shift=_INSIDE),
    Use("broadcast", 4 * _MIB, "bfloat16", in_place=True, shift=_INSIDE),
    Use("broadcast", 16 * _MIB, "bfloat16", on=DEFAULT, in_place=True, last=True),
    Use("reduce", 16 * _MIB, "bfloat16", on=DEFAULT, in_place=True, last=True),
    Use("all-reduce", _MIB, "bfloat16", on=GRAPH),  # inference engines
    Use("all-gather", 64 << 10, "float16", on=GRAPH),
    Use(TWO_MESSAGES, 64 << 10, "bfloat16", on=GRAPH),
    Use("all-reduce", 16 * _MIB, "bfloat16", on=IDLE, in_place=True, soak=True),
    Use(UNEVEN, 16 * _MIB, "bfloat16", on=DEFAULT),  # tokens to experts
    Use(UNEVEN, 4098, "bfloat16", shift=1),
    Use(TWO_MESSAGES, 16 * _MIB, "bfloat16", on=PRIORITY),  # a pipeline's stages
    Use(TWO_MESSAGES, 64 << 10, "bfloat16", on=DEFAULT, shift=1),
)


def cases(ranks: int, room: int, *, soak: bool) -> Iterator[Case]:
    """A case for each use; ``room``: maximum bytes of a buffer, to which larger ones are cut."""
    for number, use in enumerate(USES):
        kind = {**KINDS, FP8.name: FP8}[use.kind]
        inexact = kind.nbytes < 4 and ranks > MOST_RANKS_FOR_SHORT_FLOATS and use.reduction != "maximum"
        if inexact or (use.reduction == "average" and ranks & ranks - 1) or (use.soak and not soak):
            continue
        elements = count(use.operation, min(use.nbytes, room), kind, ranks)
        root = ranks - 1 if use.last else 0
        yield Case(
            3000 + 3 * number,
            use.operation,
            elements,
            kind,
            use.in_place,
            root,
            use.on,
            use.reduction,
            use.shift,
        )


def run(
    w: Worker, library: Collectives, comm: Communicator, room: int, results: Results, *, soak: bool
) -> list[str]:
    """Run a case for each use; returns what the library does not have. Records ``refused``: what the call for
    fp8 returned, if the library or the GPU does not take it."""
    lacks = library.lacks("ncclRedOpCreatePreMulSum")
    for case in cases(comm.size, room, soak=soak):
        if case.reduction == "doubled" and lacks:
            continue
        try:
            perform(w, library, comm, case, results.add)
        except DriverError as error:
            if case.kind != FP8 or error.fault.code != _INVALID_ARGUMENT:
                raise
            w.record(refused=str(error.fault))
    return lacks


def perform(
    w: Worker, library: Collectives, comm: Communicator, case: Case, done: Callable[[Operation], None]
) -> None:
    """Run a case where it says that it runs, and pass the operations of it that have ended."""
    kinds = {DEFAULT: StreamKind.DEFAULT, PRIORITY: StreamKind.PRIORITY}
    stream = w.gpu.create_stream(kinds.get(case.on, StreamKind.OWN))
    of_group = [case]
    if case.on == GROUP:
        of_group += [case._replace(number=case.number + n, elements=case.elements // (n + 1)) for n in (1, 2)]
    with w.step(str(case)), ExitStack() as resources:
        operations = [Operation(w, comm, each, resources) for each in of_group]
        if case.on == IDLE:
            w.wait_until(lambda: False, IDLE_S)
        if case.on == GRAPH:
            with stream.capture(lambda: _queue(library, operations, stream)) as launch:
                launch()
                launch()
                stream.synchronize()
        elif case.on == THREAD:
            with ThreadPoolExecutor(1) as thread:
                thread.submit(_queue, library, operations, stream).result()
        else:
            _queue(library, operations, stream)
        stream.synchronize()
        comm.check()
        for operation in operations:
            done(operation)


def _queue(library: Collectives, operations: list[Operation], stream: GpuStream) -> None:
    with ExitStack() as group:
        if len(operations) > 1:
            group.enter_context(library.group())
        for operation in operations:
            operation.queue(library, stream)


def run_beside(
    w: Worker, library: Collectives, comm: Communicator, part: Communicator, room: int, results: Results
) -> None:
    """Queue an operation in a communicator and one in a split of it, in two streams, before either ends."""
    streams = w.gpu.create_stream(), w.gpu.create_stream()
    kind, size = KINDS["bfloat16" if comm.size <= MOST_RANKS_FOR_SHORT_FLOATS else "int32"], min(_MIB, room)
    pair = (
        (comm, Case(3900, "all-reduce", size // kind.nbytes, kind, True, 0, BESIDE)),
        (part, Case(3901, "all-gather", count("all-gather", size, kind, part.size), kind, False, 0, BESIDE)),
    )
    run_pair(w, library, streams, pair, results)


# ---- what it takes to fail ----

_SMALLEST = 4
"""Bytes at which halving a failed case's size ends."""


def needs(w: Worker, ranks: AllRanks, library: Collectives, comm: Communicator, results: Results) -> Json:
    """What the first wrong case of any rank needs to be wrong; nothing if no case was wrong.

    ``always``: it is wrong again. ``words``: without each of them it is right on every rank. ``least``: the
    bytes of the smallest half, quarter and so on of it that is wrong; 0 if all are.
    """
    said = [Case(*each) for each in ranks.all_say(results.first) if each]
    if not said:
        return None
    first = min(said, key=lambda case: case.number)
    first = first._replace(kind=Kind(*first.kind), root=first.root % comm.size)
    numbers = iter(range(5000, 6000, 3))
    part = comm.split(0, comm.rank, comm.size, comm.rank) if first.on == SPLIT else comm

    def is_right(case: Case) -> bool:
        found: list[str] = []
        of = part if case.on == SPLIT else comm
        perform(w, library, of, case._replace(number=next(numbers)), lambda done: found.append(done.wrong()))
        return not any(ranks.all_say(any(found)))

    if is_right(first):
        beside = first.on in (TWO_STREAMS, BESIDE)  # it is repeated alone
        return {"always": beside, "words": [f"in {first.on}"] * beside, "least": 0}
    words = [word for word, without in variants(first) if is_right(without)]
    least = first
    while least.nbytes > _SMALLEST and not is_right(half := least._replace(elements=least.elements // 2)):
        least = half
    return {"always": True, "words": words, "least": least.nbytes if least.nbytes > _SMALLEST else 0}


def variants(case: Case) -> Iterator[tuple[str, Case]]:
    """Each property of a case in words, and the case without it."""
    if case.in_place:
        yield "in place", case._replace(in_place=False)
    if case.reduction != "sum":
        yield f"as {case.reduction}", case._replace(reduction="sum")
    plain = KINDS["int32" if case.reduction == "sum" else "float32"]
    if case.kind != plain:
        elements = -(-case.nbytes // plain.nbytes)
        yield f"of {case.kind.name}", case._replace(kind=plain, elements=elements)
    if case.on:
        yield f"in {case.on}", case._replace(on="")
    if case.place:
        yield case.place, case._replace(shift=0)
    if case.root:
        yield "with another root than rank 0", case._replace(root=0)
