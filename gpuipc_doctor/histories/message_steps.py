"""A history of messages as numbered steps, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuipc_doctor.histories.message_model import ANY_SOURCE, ANY_TAG, WORLD, case_of
from gpuipc_doctor.histories.operations import History, Operation

_SENDS = "{nbytes} B (contents {stamp}){kind} from buffer {on} to {peer}, {tag}{within}"
_RECEIVES = "{nbytes} B{kind} into buffer {on} from {source}, {tag}{within}"

SENTENCES: Mapping[str, str] = {
    "allocate": "{by} allocates buffer {makes} ({nbytes} B, {where})",
    "free": "{by} frees buffer {on}",
    "send": f"{{by}} sends {_SENDS}",
    "ssend": f"{{by}} sends {_SENDS}, synchronously",
    "isend": f"{{by}} starts sending {_SENDS}: request {{makes}}",
    "issend": f"{{by}} starts sending {_SENDS}, synchronously: request {{makes}}",
    "recv": f"{{by}} receives {_RECEIVES}",
    "irecv": f"{{by}} starts receiving {_RECEIVES}: request {{makes}}",
    "sendrecv": f"{{by}} sends {_SENDS} and receives as many bytes from the same rank into buffer {{of}}",
    "make-send": "{by} makes persistent request {makes}: {nbytes} B{kind} from buffer {on} to {peer}, "
    "{tag}{within}",
    "make-receive": f"{{by}} makes persistent request {{makes}}: {_RECEIVES}",
    "start": "{by} starts persistent request {on}{contents}",
    "free-request": "{by} frees persistent request {on}",
    "wait": "{by} waits for request {on}",
    "test": "{by} tests request {on} until it has completed",
    "wait-all": "{by} waits for all its requests that can complete",
    "probe": "{by} probes for a message from {source}, {tag}{within}",
    "iprobe": "{by} probes until there is a message from {source}, {tag}{within}",
    "matched-probe": "{by} matches a message from {source}, {tag}{within}: matched message {makes}",
    "receive-matched": "{by} receives matched message {of} ({nbytes} B{kind}) into buffer {on}",
    "barrier": "all ranks meet at a barrier",
    "duplicate": "all ranks duplicate MPI_COMM_WORLD: communicator {makes}",
    "reverse": "all ranks create communicator {makes}, with the ranks of MPI_COMM_WORLD in reverse order",
    "free-communicator": "all ranks free communicator {on}",
    "collective": "all ranks call {case} (contents {stamp})",
    "one-sided": "all ranks make a window and call {case} (contents {stamp})",
}
"""Operation → its sentence. The keys are all operations."""

SIMPLER = {"isend": "send", "issend": "send", "ssend": "send", "irecv": "recv", "test": "wait"}
"""Operation → a simpler one with the same effect."""

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
    return SENTENCES[operation.do].format(
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
    receives = "{source}" in SENTENCES[operation.do]
    return "receive-from-any-source" if receives and operation.peer == ANY_SOURCE else operation.do


def steps(history: History, first: int = 1) -> Sequence[str]:
    """The history's steps in order: ``1. rank 0 allocates …``."""
    numbered = [f"{number}. {step(operation)}" for number, operation in enumerate(history.operations, first)]
    again = f"repeated {history.times} times, each time with new objects"
    return [*numbered, again] if history.times > 1 else numbered
