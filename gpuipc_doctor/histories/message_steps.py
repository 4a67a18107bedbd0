"""A history of messages as numbered steps, for people."""

from __future__ import annotations

from collections.abc import Sequence

from gpuipc_doctor.histories.message_operations import TYPES
from gpuipc_doctor.histories.message_state import ANY_SOURCE, ANY_TAG, WORLD, case_of
from gpuipc_doctor.histories.operations import History, Operation

_KINDS = {
    "": "",
    "shifted": " at an odd address",
    "blocks-of-8": " in blocks of 8 B (MPI_Type_vector)",
    "blocks-of-256": " in blocks of 256 B (MPI_Type_vector)",
    "two-blocks": " in two blocks (MPI_Type_indexed)",
}


def step(operation: Operation) -> str:
    """One operation in words. Ranks are numbered from 0, as in MPI."""
    source = "any source" if operation.peer == ANY_SOURCE else f"rank {operation.peer - 1}"
    return TYPES[operation.do].says.format(
        by=f"rank {operation.by - 1}",
        on=operation.on,
        of=operation.of,
        makes=operation.makes,
        nbytes=operation.nbytes,
        stamp=operation.stamp,
        peer=f"rank {operation.peer - 1}",
        source=source,
        tag="any tag" if operation.tag == ANY_TAG else f"tag {operation.tag}",
        within="" if operation.within == WORLD else f" in communicator {operation.within}",
        kind=_KINDS.get(operation.kind, ""),
        where=f"{operation.kind} memory",
        case=case_of(operation) or "",
        contents=f": contents {operation.stamp}" if operation.stamp else "",
    )


def short_name(operation: Operation) -> str:
    """The name of an operation as in the field ``history`` of known issues."""
    receives = "{source}" in TYPES[operation.do].says
    return "receive-from-any-source" if receives and operation.peer == ANY_SOURCE else operation.do


def steps(history: History, first: int = 1) -> Sequence[str]:
    """The history's steps in order: ``1. rank 0 allocates …``."""
    return history.numbered(map(step, history.operations), first)
