"""MPI calls of all ranks: one `Case` is a call on its own buffers; what these hold before and after it.

A case is performed by all ranks at the same time, with equal arguments. Its data depends on its number, the
rank and the offset, in a type in which sums are exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gpuipc_doctor.api.reduction_data import Contents, Segment, contents_of
from gpuipc_doctor.histories.message_memories import DEVICE

IN_PLACE, DERIVED = "in place", "derived type"
SPLIT, TO_HOST = "in a communicator of every second rank", "into host memory"
DYNAMIC = "dynamic window"
FENCE, LOCK, FLUSH = "MPI_Win_fence", "MPI_Win_lock", "MPI_Win_flush"
FLUSH_LOCAL = "MPI_Win_flush_local"
AGAIN, NEGATIVE = "other data in the same buffers", "derived type of negative lower bound"

COLLECTIVES = (
    "MPI_Allreduce", "MPI_Reduce", "MPI_Scan", "MPI_Exscan", "MPI_Bcast", "MPI_Allgather", "MPI_Allgatherv",
    "MPI_Gather", "MPI_Gatherv", "MPI_Scatter", "MPI_Scatterv", "MPI_Alltoall", "MPI_Alltoallv",
    "MPI_Alltoallw", "MPI_Reduce_scatter", "MPI_Reduce_scatter_block",
)  # fmt: skip
NONBLOCKING = ("MPI_Iallreduce", "MPI_Ireduce", "MPI_Ibcast", "MPI_Iallgather", "MPI_Ialltoall")
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

BLOCKING = {
    "MPI_Iallreduce": "MPI_Allreduce",
    "MPI_Ireduce": "MPI_Reduce",
    "MPI_Ibcast": "MPI_Bcast",
    "MPI_Iallgather": "MPI_Allgather",
    "MPI_Ialltoall": "MPI_Alltoall",
}

_EQUAL = {
    "MPI_Allreduce": "allreduce",
    "MPI_Allreduce_init": "allreduce",
    "MPI_Reduce": "reduce",
    "MPI_Bcast": "bcast",
    "MPI_Allgather": "allgather",
    "MPI_Alltoall": "alltoall",
    "MPI_Reduce_scatter_block": "reduce-scatter",
}
"""Call → its name in `api.reduction_data.contents_of`. MPI_Sendrecv and MPI_Put go to the next rank."""

BY_RANK = ("MPI_Allgather", "MPI_Alltoall", "MPI_Gather", "MPI_Scatter", "MPI_Reduce_scatter_block")
"""Calls with a count of elements for each rank."""


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

    own, root, call = [part(0, rank + 1)], case.root, BLOCKING.get(case.call, case.call)
    factors = {
        "MPI_Scan": (rank + 1) * (rank + 2) // 2,
        "MPI_Get": (rank + 1) % ranks + 1,  # the source is the window
        "MPI_Accumulate": 1 + total,
        "MPI_Get_accumulate": 1 + (rank - 1) % ranks + 1,
    }
    if call in factors:
        return Contents(own, [part(0, factors[call])])
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
    key = f"{case.number}/{{}}{case.again}"
    return contents_of(_EQUAL.get(call, "ring"), key, rank, ranks, root)


def segments_between(case: Case, sender: int, receiver: int) -> int:
    """Segments that a rank sends to another in calls with an array of counts: one or two, or none to two."""
    return (sender + receiver) % 3 if case.number % 2 else 1 + (sender + receiver) % 2


def most_segments(case: Case, ranks: int) -> int:
    """Number of segments in a rank's largest buffer."""
    plans = [plan(case, rank, ranks) for rank in range(ranks)]
    return max(1, *(len(segments) for each in plans for segments in each))
