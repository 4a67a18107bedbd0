"""The cases that a launch of `mpi-collectives` performs: which, in which order, and which are given up."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import cycle

from gpuipc_doctor.api import Json
from gpuipc_doctor.histories import group_cases as calls
from gpuipc_doctor.histories.group_cases import Case
from gpuipc_doctor.histories.message_memories import DEVICE, footprint
from gpuipc_doctor.histories.used_calls import MADE_BY, MEMORIES_OF_MESSAGES, WAYS, cases_of

SIZES = (8, 1000, 4096, 65_544, (1 << 20) + 8, (32 << 20) + 8)
"""Bytes of the largest buffer of a rank: eager messages, the thresholds of rendezvous, pipelined copies."""

IN_PLACE_SIZES, DERIVED_SIZES = SIZES[1::3], SIZES[2::2]
OTHER_MEMORY = 65_544
"""Bytes in memory other than an allocation; `LARGE_CALLS` also send `SIZES[-2]` there."""

LARGE_CALLS = (
    calls.SENDRECV,
    *MEMORIES_OF_MESSAGES,
    "MPI_Allreduce",
    "MPI_Bcast",
    "MPI_Alltoall",
    "MPI_Allgather",
    "MPI_Reduce_scatter_block",
    "MPI_Put",
    "MPI_Get",
)
"""Calls that are also made with the largest size."""

RARER = (
    calls.SENDRECV_REPLACE,
    *("MPI_Exscan", "MPI_Allgatherv", "MPI_Scatterv", "MPI_Alltoallw", "MPI_Ireduce"),
)
"""Calls that are made with the three `RARER_SIZES` only, in an allocation; the last are more than 65,536
elements."""

RARER_SIZES = SIZES[2:5]
WITHOUT_DATA = (
    calls.SENDRECV,
    *(
        "MPI_Allreduce",
        "MPI_Bcast",
        "MPI_Alltoall",
        "MPI_Allgather",
        "MPI_Gather",
        "MPI_Scatter",
        "MPI_Reduce",
    ),
    *("MPI_Reduce_scatter_block", "MPI_Ibcast", "MPI_Put", "MPI_Get"),
)
"""Calls that are also made with zero elements."""

COMPLETIONS = (calls.FENCE, calls.LOCK, calls.FLUSH)
ONE_SIDED = (*calls.ONE_SIDED, *calls.ATOMIC)
TWO_SIDED = (calls.SENDRECV, *MEMORIES_OF_MESSAGES, *calls.COLLECTIVES, *calls.NONBLOCKING)
GROUPS = (calls.NONBLOCKING, (*calls.COLLECTIVES, *calls.NEIGHBOURS), ONE_SIDED, tuple(WAYS))
ENOUGH = 2
"""After this many failed launches of a group of calls, or of calls that the library does not support, the
others are not made: each launch costs seconds, or a deadline."""

WINDOWS = ("MPI_Win_create", "MPI_Win_free")
DYNAMIC_WINDOWS = ("MPI_Win_create_dynamic", "MPI_Win_attach", "MPI_Win_detach")
COMPLETED_BY = {
    "MPI_Win_unlock": (calls.LOCK,),
    "MPI_Win_lock_all": (calls.FLUSH, calls.FLUSH_LOCAL),
    "MPI_Win_unlock_all": (calls.FLUSH, calls.FLUSH_LOCAL),
    **{form: (form,) for form in (*COMPLETIONS, calls.FLUSH_LOCAL)},
    **dict.fromkeys(("MPI_Win_post", calls.START, "MPI_Win_complete", "MPI_Win_wait"), (calls.START,)),
    **MADE_BY,
}
"""Function of windows or communicators → the forms of cases of which it is part."""


def documented_gap(call: str, memory: str, unsupported: Collection[str]) -> str:
    """What the library does not support by documentation, of a case; empty if it supports the case."""
    if memory in unsupported:
        return memory
    return f"{call} on device memory" if call in unsupported else ""


def cases(params: Json, number_of_ranks: int, kinds: Sequence[str], granule: int) -> list[Case]:
    """All cases of a launch, those that the library does not support last. ``granule``: of VMM memory."""
    unsupported = params["unsupported"]
    drawn = [
        case._replace(number=number, type=case.type or kind, root=number % number_of_ranks)
        for (number, case), kind in zip(enumerate(_drawn(params, kinds, granule), 1), cycle(calls.MPI_TYPES))
    ]
    drawn = [case for case in drawn if case.call in params.get("only", (case.call,))]
    ordered = sorted(drawn, key=lambda case: documented_gap(case.call, case.memory, unsupported) != "")
    numbers = [case.number for case in ordered]
    begin = 0
    if "after" in params:  # else it is a case of the soak tier, which comes after all others
        begin = numbers.index(params["after"]) + 1 if params["after"] in numbers else len(numbers)
    gaps = sum(bool(documented_gap(call, memory, unsupported)) for _, call, memory, _ in params["failed"])
    return [
        case
        for case in ordered[begin:]
        if not is_given_up(case, params["failed"])
        and not (gaps >= ENOUGH and documented_gap(case.call, case.memory, unsupported))
    ]


def _drawn(params: Json, kinds: Sequence[str], granule: int) -> Iterator[Case]:
    """The usual cases before the rarer calls and forms: a crash in one of these gives up the call."""
    room = params["room"]
    sizes = [size for size in params["sizes"] if size <= room]

    def case(call: str, nbytes: int, memory: str = DEVICE, form: str = "") -> Case:
        return Case(0, call, nbytes, "", memory, form)

    left_out = (*RARER, *(MEMORIES_OF_MESSAGES if params["untried"] else ()))
    two_sided = [call for call in TWO_SIDED if call not in left_out]
    if not sizes:
        return
    for call in two_sided:
        yield from (case(call, size) for size in sizes if size < SIZES[-1] or call in LARGE_CALLS)
        if call in calls.CAN_BE_IN_PLACE:
            yield from (case(call, size, form=calls.IN_PLACE) for size in sizes if size in IN_PLACE_SIZES)
    for call in calls.ONE_SIDED:
        for turn, size in enumerate(sizes):
            if size < SIZES[-1] or call in LARGE_CALLS:
                forms = COMPLETIONS if size < SIZES[-2] else COMPLETIONS[turn % 2 : turn % 2 + 1]
                yield from (case(call, size, form=form) for form in forms)
    for call in calls.ATOMIC:
        yield from (case(call, size, form=form) for size in sizes[:1] for form in COMPLETIONS)
    few = [size for size in sizes if size in RARER_SIZES] or sizes[-1:]
    for call in RARER:
        yield from (case(call, size) for size in few)
    for memory in kinds:
        if memory == DEVICE:
            continue
        elsewhere = [size for size in (OTHER_MEMORY, SIZES[-2]) if size <= sizes[-1]] or sizes[-1:]
        elsewhere = [size for size in elsewhere if footprint(memory, size, granule) <= room]
        if not elsewhere:
            continue
        for call in two_sided:
            yield from (
                case(call, size, memory) for size in elsewhere if size == elsewhere[0] or call in LARGE_CALLS
            )
        for call in (*calls.ONE_SIDED, *calls.ATOMIC):
            yield case(call, elsewhere[0], memory, calls.FLUSH)
    if params["derived"]:
        for call in calls.CAN_BE_DERIVED:
            yield from (case(call, size, form=calls.DERIVED) for size in sizes if size in DERIVED_SIZES)
            yield case(call, few[0], form=calls.NEGATIVE)
    for call in calls.CAN_BE_SPLIT:
        yield case(call, few[0], form=calls.SPLIT)
    for call in calls.CAN_BE_AGAIN:
        yield case(call, few[0], form=calls.AGAIN)
    for call in calls.CAN_BE_FLUSHED_LOCALLY:
        yield case(call, few[0], form=calls.FLUSH_LOCAL)
    for call in calls.CAN_BE_TO_HOST:
        yield case(call, few[0], form=calls.TO_HOST)
    for call in WITHOUT_DATA:
        yield case(call, 0, form=calls.FENCE if call in calls.ONE_SIDED else "")
    for call in ("MPI_Put", "MPI_Get"):
        yield case(call, few[0], form=calls.DYNAMIC)
    is_derived = calls.DERIVED_KINDS
    for each in () if params["untried"] else cases_of(soak=params["soak"]):
        if each.nbytes <= room and (params["derived"] or each.form not in is_derived):
            yield each


def group_of(call: str) -> Sequence[str]:
    """The calls that are given up together with a call."""
    return next((members for members in GROUPS if call in members or calls.base(call) in members), ())


def is_given_up(case: Case, failed: Sequence[Sequence[str]]) -> bool:
    """Whether to omit a case because its memory, its call, its completion, or `ENOUGH` calls of its group
    failed."""
    group = group_of(case.call)
    in_group = 0
    for operation, call, memory, _ in failed:
        if memory != DEVICE:
            if case.memory == memory:
                return True
            continue
        in_group += bool(group) and group_of(call) is group and operation not in MADE_BY
        if operation in DYNAMIC_WINDOWS:
            if case.form == calls.DYNAMIC:
                return True
            continue
        if operation in COMPLETED_BY:
            if case.form in COMPLETED_BY[operation]:
                return True
        elif call == case.call or (operation in WINDOWS and group == ONE_SIDED):
            return True
    return in_group >= ENOUGH
