"""MPI calls of all ranks: one `Case` is a call on its own buffers; what these hold before and after it.

A case is performed by all ranks at the same time, with equal arguments. Its data depends on its number, the
rank and the offset, in a type in which sums are exact.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from gpuipc_doctor.api.reduction_data import Contents, Segment, contents_of
from gpuipc_doctor.histories.message_memories import DEVICE

IN_PLACE, DERIVED = "in place", "derived type"
SPLIT, TO_HOST = "in a communicator of every second rank", "into host memory"
DYNAMIC = "dynamic window"
FENCE, LOCK, FLUSH = "MPI_Win_fence", "MPI_Win_lock", "MPI_Win_flush"
FLUSH_LOCAL = "MPI_Win_flush_local"
START = "MPI_Win_start"
AGAIN, NEGATIVE = "other data in the same buffers", "derived type of negative lower bound"
MAXIMUM, MINIMUM = "maximum", "minimum"
MANY, LARGEST_TAG, PACK = "40 at once", "the largest tags", "packed"
DERIVED_KINDS = (DERIVED, NEGATIVE, "subarray", "struct", "indexed type", "resized type", PACK)
"""Forms in which one element of a derived type is sent."""

COLLECTIVES = (
    "MPI_Allreduce", "MPI_Reduce", "MPI_Scan", "MPI_Exscan", "MPI_Bcast", "MPI_Allgather", "MPI_Allgatherv",
    "MPI_Gather", "MPI_Gatherv", "MPI_Scatter", "MPI_Scatterv", "MPI_Alltoall", "MPI_Alltoallv",
    "MPI_Alltoallw", "MPI_Reduce_scatter", "MPI_Reduce_scatter_block",
)  # fmt: skip
NONBLOCKING = ("MPI_Iallreduce", "MPI_Ireduce", "MPI_Ibcast", "MPI_Iallgather", "MPI_Ialltoall")
NEIGHBOURS = tuple(f"MPI_Neighbor_{name}" for name in ("allgather", "alltoall", "alltoallv", "alltoallw"))
ONE_SIDED = ("MPI_Put", "MPI_Get", "MPI_Accumulate", "MPI_Get_accumulate")
ATOMIC = ("MPI_Fetch_and_op", "MPI_Compare_and_swap")
SENDRECV, SENDRECV_REPLACE = "MPI_Sendrecv", "MPI_Sendrecv_replace"

CAN_BE_IN_PLACE = (
    "MPI_Allreduce", "MPI_Reduce", "MPI_Scan", "MPI_Allgather", "MPI_Gather", "MPI_Alltoall",
    "MPI_Reduce_scatter_block", "MPI_Iallreduce",
)  # fmt: skip
CAN_BE_SPLIT = (*COLLECTIVES, *NONBLOCKING)
CAN_BE_TO_HOST = (SENDRECV, "MPI_Allreduce", "MPI_Allgather")
CAN_BE_AGAIN = (
    SENDRECV, "MPI_Allreduce", "MPI_Reduce", "MPI_Scan", "MPI_Bcast", "MPI_Allgather", "MPI_Gather",
    "MPI_Scatter", "MPI_Alltoall", "MPI_Reduce_scatter_block", *NONBLOCKING,
)  # fmt: skip
CAN_BE_FLUSHED_LOCALLY = ("MPI_Put", "MPI_Get", "MPI_Accumulate", "MPI_Get_accumulate", *ATOMIC)
CAN_BE_DERIVED = (SENDRECV, "MPI_Bcast", "MPI_Ibcast", "MPI_Put", "MPI_Get")

MPI_TYPES = {
    "float32": "FLOAT",
    "int32": "INT32_T",
    "uint8": "UINT8_T",
    "float64": "DOUBLE",
    "int64": "INT64_T",
}
"""Type of elements → MPI's name."""

_EQUAL = {
    "MPI_Allreduce": "allreduce",
    "MPI_Reduce": "reduce",
    "MPI_Bcast": "bcast",
    "MPI_Allgather": "allgather",
    "MPI_Alltoall": "alltoall",
    "MPI_Reduce_scatter_block": "reduce-scatter",
}
"""Call → its name in `api.reduction_data.contents_of`. MPI_Sendrecv and MPI_Put go to the next rank."""

BY_RANK = (
    "MPI_Allgather", "MPI_Alltoall", "MPI_Gather", "MPI_Scatter", "MPI_Reduce_scatter_block",
    "MPI_Neighbor_allgather", "MPI_Neighbor_alltoall",
)  # fmt: skip
"""Calls with a count of elements for each rank."""


def base(call: str) -> str:
    """The blocking call with the same arguments: of MPI_Ibcast and MPI_Bcast_init it is MPI_Bcast."""
    name = re.sub(r"^(?:I|R(?=put|get|accumulate))(?=[a-z])", "", call[4:].removesuffix("_init"))
    return "MPI_" + name[0].upper() + name[1:]


class Case(NamedTuple):
    """One call with buffers of about ``nbytes`` bytes in each rank.

    ``form``: ``in place``, ``derived type`` or another of the words above, or the function that completes a
    one-sided operation.
    """

    number: int
    call: str
    nbytes: int
    type: str
    memory: str = DEVICE
    form: str = ""
    root: int = 0
    again: str = ""
    """Of the second call with the same buffers: a word that makes their data others."""

    def __str__(self) -> str:
        form = f" with {self.form}" if self.form.startswith("MPI_") else f", {self.form}" if self.form else ""
        return f"{self.call} of {self.nbytes} B, {self.type}{form}, {self.memory}"


def plan(case: Case, rank: int, ranks: int) -> Contents:
    """The contents of this rank's buffers."""
    every = range(ranks)
    total = ranks * (ranks + 1) // 2

    def part(number: int, factor: int) -> Segment:
        return Segment(f"{case.number}/{number}{case.again}", factor)

    def parts(sender: int, receiver: int) -> list[Segment]:
        """Of calls with an array of counts."""
        counted = range(segments_between(case, sender, receiver))
        return [part(receiver + ranks * n, sender + 1) for n in counted]

    def all_parts(pairs: Iterable[tuple[int, int]]) -> list[Segment]:
        return [segment for pair in pairs for segment in parts(*pair)]

    own, root, call = [part(0, rank + 1)], case.root, base(case.call)
    factors = {
        "MPI_Scan": (rank + 1) * (rank + 2) // 2,
        "MPI_Get": (rank + 1) % ranks + 1,  # the source is the window
        "MPI_Accumulate": 1 + total,
        "MPI_Get_accumulate": 1 + (rank - 1) % ranks + 1,
    }
    if call in factors:
        return Contents(own, [part(0, factors[call])])
    if case.form in (MAXIMUM, MINIMUM):  # no element is negative
        found = [part(0, ranks if case.form == MAXIMUM else 1)]
        return Contents(own, found if call == "MPI_Allreduce" or rank == root else [])
    match call:
        case "MPI_Exscan":
            return Contents(own, [part(0, rank * (rank + 1) // 2)] if rank else [])
        case "MPI_Allgatherv":
            return Contents(parts(rank, 0), all_parts((other, 0) for other in every))
        case "MPI_Scatterv":
            return Contents(all_parts((root, to) for to in every), parts(root, rank))
        case "MPI_Gather":
            gathered = [part(0, other + 1) for other in every]
            return Contents(own, gathered if rank == root else [])
        case "MPI_Gatherv":
            came = all_parts((other, root) for other in every)
            return Contents(parts(rank, root), came if rank == root else [])
        case "MPI_Scatter":
            return Contents([part(other, rank + 1) for other in every], [part(rank, root + 1)])
        case "MPI_Alltoallv" | "MPI_Alltoallw":
            sent = all_parts((rank, to) for to in every)
            return Contents(sent, all_parts((other, rank) for other in every))
        case "MPI_Reduce_scatter":
            shares = [range(segments_between(case, 0, to)) for to in every]
            scaled = [part(to + ranks * n, rank + 1) for to in every for n in shares[to]]
            return Contents(scaled, [part(rank + ranks * n, total) for n in shares[rank]])
    if call.startswith("MPI_Neighbor_"):
        return _between_neighbours(call, rank, ranks, part)
    key = f"{case.number}/{{}}{case.again}"
    return contents_of(_EQUAL.get(call, "ring"), key, rank, ranks, root)


def neighbours_segments(call: str, ranks: int) -> tuple[int, int]:
    """Segments that a rank sends to the one before it and to the one after it in a ring."""
    return (1, 2) if call in ("MPI_Neighbor_alltoallv", "MPI_Neighbor_alltoallw") and ranks > 2 else (1, 1)


def _between_neighbours(call: str, rank: int, ranks: int, part: Callable[[int, int], Segment]) -> Contents:
    before, after = (rank - 1) % ranks, (rank + 1) % ranks
    if "allgather" in call:
        return Contents([part(0, rank + 1)], [part(0, before + 1), part(0, after + 1)])
    back, on = neighbours_segments(call, ranks)
    one_neighbour = ranks < 3  # which of its two messages comes first, libraries disagree
    numbers = range(back), range(0 if one_neighbour else back, on if one_neighbour else back + on)
    sent = [part(number, rank + 1) for numbers_to in numbers for number in numbers_to]
    came = [(number, other) for other, to in ((before, 1), (after, 0)) for number in numbers[to]]
    return Contents(sent, [part(number, other + 1) for number, other in came])


def segments_between(case: Case, sender: int, receiver: int) -> int:
    """Segments that a rank sends to another in calls with an array of counts: one or two, or none to two."""
    return (sender + receiver) % 3 if case.number % 2 else 1 + (sender + receiver) % 2


def most_segments(case: Case, ranks: int) -> int:
    """Number of segments in a rank's largest buffer."""
    plans = [plan(case, rank, ranks) for rank in range(ranks)]
    return max(1, *(len(segments) for each in plans for segments in each))
