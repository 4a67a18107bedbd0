"""MPI as applications call it: a table of calls. What they call was recorded (tests/recorder).

A row is a call, and what is about it: its communicator, its derived type, its tags, its number of messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

from gpuipc_doctor.histories.group_buffers import Group
from gpuipc_doctor.histories.group_cases import (
    LARGEST_TAG,
    MANY,
    MAXIMUM,
    MINIMUM,
    PACK,
    SENDRECV,
    SPLIT,
    START,
    TO_HOST,
    Case,
)
from gpuipc_doctor.histories.message_memories import DEVICE

# ---- messages: how a rank sends to the next one, receives from the one before, and waits ----


class Way(NamedTuple):
    """``receive``: posted before the send, if it is MPI_Irecv; else called after it."""

    receive: str
    send: str
    complete: str = "Waitall"
    messages: int = 1


WAYS: Mapping[str, Way] = {
    "MPI_Send": Way("Irecv", "Send"),
    "MPI_Isend": Way("Irecv", "Isend"),
    "MPI_Recv": Way("Recv", "Isend"),
    "MPI_Irecv": Way("Irecv", "Isend"),
    "MPI_Bsend": Way("Irecv", "Bsend"),
    "MPI_Ibsend": Way("Irecv", "Ibsend"),
    "MPI_Ssend": Way("Irecv", "Ssend"),
    "MPI_Issend": Way("Irecv", "Issend"),
    "MPI_Rsend": Way("Irecv", "Rsend"),
    "MPI_Irsend": Way("Irecv", "Irsend"),
    "MPI_Mrecv": Way("Mrecv", "Isend"),
    "MPI_Imrecv": Way("Imrecv", "Isend"),
    "MPI_Isendrecv": Way("", "Isendrecv"),
    "MPI_Waitany": Way("Irecv", "Isend", "Waitany", 4),
    "MPI_Waitsome": Way("Irecv", "Isend", "Waitsome", 4),
    "MPI_Testany": Way("Irecv", "Isend", "Testany", 4),
    "MPI_Testsome": Way("Irecv", "Isend", "Testsome", 4),
    "MPI_Testall": Way("Irecv", "Isend", "Testall", 4),
}
"""Call that is tested → how messages are sent with it."""

# ---- communicators ----

DUPLICATE, SPLIT_TWICE = "in a duplicate", "in a split of a split"
NODE, RING, GRAPH = "in a node's communicator", "in a Cartesian ring", "in a graph of neighbours"
SESSION, BETWEEN = "in a session's communicator", "between two groups"
PLAIN_GRAPH, ALONE = "in a graph", "with itself alone"


def _split(group: Group, comm: Any, colour: int) -> Any:
    return group.worker.mpi.call("MPI_Comm_split", comm.Split, colour, group.rank)


def _between(group: Group, _: ExitStack) -> Any:
    """An intercommunicator of two groups of equal size; None in an odd rank."""
    half, api, call = group.ranks // 2, group.api, group.worker.mpi.call
    side = group.rank // half if half else 2
    own = call("MPI_Comm_split", group.world.Split, side if side < 2 else api.UNDEFINED, group.rank)
    if own == api.COMM_NULL:
        return None
    return call("MPI_Intercomm_create", own.Create_intercomm, 0, group.world, (1 - side) * half, 7)


def _of_session(group: Group, resources: ExitStack) -> Any:
    call, api = group.worker.mpi.call, group.api
    session = call("MPI_Session_init", api.Session.Init)
    resources.callback(lambda: call("MPI_Session_finalize", session.Finalize))
    members = call("MPI_Group_from_session_pset", session.Create_group, "mpi://WORLD")
    resources.callback(members.Free)
    comm = call("MPI_Comm_create_from_group", api.Intracomm.Create_from_group, members, "gpuipc-doctor")
    resources.callback(lambda: call("MPI_Comm_free", comm.Free))
    return comm


def _neighbours(group: Group, _: ExitStack) -> Any:
    both = [group.before, group.after]
    make = group.world.Create_dist_graph_adjacent
    return group.worker.mpi.call("MPI_Dist_graph_create_adjacent", make, both, both)


def _graph(group: Group, _: ExitStack) -> Any:
    """A ring as MPI_Graph_create wants it."""
    ranks = group.ranks
    edges = [(rank + step) % ranks for rank in range(ranks) for step in (-1, 1)]
    ends = [2 * rank + 2 for rank in range(ranks)]
    return group.worker.mpi.call("MPI_Graph_create", group.world.Create_graph, ends, edges)


COMMUNICATORS: Mapping[str, Callable[[Group, ExitStack], Any]] = {
    SPLIT: lambda group, _: _split(group, group.world, group.rank % 2),
    SPLIT_TWICE: lambda group, _: _split(group, _split(group, group.world, group.rank % 2), group.rank % 4),
    DUPLICATE: lambda group, _: group.worker.mpi.call("MPI_Comm_dup", group.world.Dup),
    NODE: lambda group, _: group.worker.mpi.call(
        "MPI_Comm_split_type", group.world.Split_type, group.api.COMM_TYPE_SHARED, group.rank
    ),
    RING: lambda group, _: group.worker.mpi.call(
        "MPI_Cart_create", group.world.Create_cart, [group.ranks], [True]
    ),
    GRAPH: _neighbours,
    PLAIN_GRAPH: _graph,
    ALONE: lambda group, _: group.api.COMM_SELF,
    BETWEEN: _between,
    SESSION: _of_session,
}
"""Form of a case → makes the communicator in which it is performed."""

MADE_BY = {
    "MPI_Comm_dup": (DUPLICATE,),
    "MPI_Comm_split": (SPLIT, SPLIT_TWICE, BETWEEN),
    "MPI_Comm_split_type": (NODE,),
    "MPI_Cart_create": (RING,),
    "MPI_Dist_graph_create_adjacent": (GRAPH,),
    "MPI_Graph_create": (PLAIN_GRAPH,),
    "MPI_Intercomm_create": (BETWEEN,),
    "MPI_Session_init": (SESSION,),
    "MPI_Group_from_session_pset": (SESSION,),
    "MPI_Comm_create_from_group": (SESSION,),
}
"""Function → the forms that need it."""

# ---- the table ----


class Use(NamedTuple):
    """``soak``: in the soak tier only."""

    call: str
    form: str = ""
    nbytes: int = 4096
    soak: bool = False


_MIB = 1 << 20

USES = (
    *(Use(call, nbytes=65_544) for call in ("MPI_Bsend", "MPI_Ssend", "MPI_Issend", "MPI_Rsend", "MPI_Recv")),
    *(Use(call, nbytes=65_536) for call in WAYS if "any" in call or "some" in call or "all" in call),
    *(Use(call, nbytes=65_544) for call in ("MPI_Mrecv", "MPI_Isendrecv")),
    *(
        Use(call, nbytes=_MIB, soak=True)
        for call in ("MPI_Imrecv", "MPI_Ibsend", "MPI_Irsend", "MPI_Waitany")
    ),
    *(Use("MPI_Irecv", MANY, size, soak) for size, soak in ((40 * 1024, False), (40 * 65_536, True))),
    Use("MPI_Irecv", LARGEST_TAG, 65_544),
    Use("MPI_Pack", PACK),
    *(Use(SENDRECV, form) for form in ("subarray", "struct", "indexed type", "resized type")),
    *(Use("MPI_Bcast", form, 65_536, soak=True) for form in ("subarray", "struct", "indexed type")),
    *(Use(SENDRECV, form, 65_544) for form in (DUPLICATE, SPLIT_TWICE, NODE, SESSION, BETWEEN)),
    *(Use("MPI_Allreduce", form) for form in (DUPLICATE, NODE, RING, SESSION, BETWEEN)),
    *(Use(call, BETWEEN) for call in ("MPI_Allgather", "MPI_Alltoall")),
    *(Use(f"MPI_Neighbor_{call}", RING) for call in ("allgather", "alltoall", "alltoallv")),
    *(Use(f"MPI_Neighbor_{call}", GRAPH) for call in ("allgather", "alltoall", "alltoallw")),
    *(Use(f"MPI_Ineighbor_{call}", RING, _MIB, soak=True) for call in ("allgather", "alltoall", "alltoallv")),
    *(Use(call, form) for call in ("MPI_Allreduce", "MPI_Reduce") for form in (MAXIMUM, MINIMUM)),
    *(Use(f"MPI_I{call}") for call in ("scan", "gather", "scatter", "allgatherv", "gatherv", "scatterv")),
    *(Use(f"MPI_I{call}") for call in ("alltoallv", "reduce_scatter", "reduce_scatter_block")),
    Use("MPI_Iexscan", nbytes=_MIB, soak=True),
    *(Use(f"MPI_{call}_init") for call in ("Allreduce", "Bcast", "Alltoall")),
    *(
        Use(f"MPI_{call}_init", nbytes=65_544, soak=True)
        for call in ("Allgather", "Reduce", "Gather", "Scatter", "Reduce_scatter_block", "Scan")
    ),
    *(Use(f"MPI_R{call}", "MPI_Win_lock") for call in ("put", "get", "accumulate", "get_accumulate")),
    *(Use(f"MPI_R{call}", "MPI_Win_flush", _MIB, soak=True) for call in ("put", "get", "accumulate")),
    *(Use(f"MPI_{call}", START) for call in ("Put", "Get")),
    Use("MPI_Neighbor_allgather", PLAIN_GRAPH),
    Use("MPI_Iallgather", TO_HOST),
    Use("MPI_Ireduce_scatter", DUPLICATE),
    Use("MPI_Alltoallv", ALONE),
    *(Use("MPI_Reduce_init", nbytes=nbytes) for nbytes in (8, 1000, 4096, 65_544)),  # each root of four
    *(Use(call, nbytes=(2 << 30) + 64, soak=True) for call in (SENDRECV, "MPI_Isend", "MPI_Allreduce")),
)
"""The rows; the last are of more than 2 GiB, in elements of 8 B, whose number is an int."""

MEMORIES_OF_MESSAGES = ("MPI_Send", "MPI_Isend")
"""Calls that are made like collectives: with each size and each kind of memory."""


def cases_of(*, soak: bool) -> list[Case]:
    """The cases of the table, with no number yet."""
    return [
        Case(0, use.call, use.nbytes, "float64" if use.nbytes >> 31 else "", DEVICE, use.form)
        for use in USES
        if soak or not use.soak
    ]
