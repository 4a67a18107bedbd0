"""Calls of all ranks that take time: restarted requests, two threads at once, a call after idling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from threading import Event, Thread
from typing import Any

from gpuipc_doctor.api.reduction_data import Segment, fill
from gpuipc_doctor.histories.group_buffers import Buffers
from gpuipc_doctor.histories.group_calls import Act, GroupCalls
from gpuipc_doctor.histories.group_cases import SENDRECV, Case

STARTS = 60
"""Starts of a persistent request. A library may change its path between ranks after some messages."""

PARTS = 4
"""Parts of a partitioned message."""

IDLE_S = 2.5

NBYTES = 65_536

Requests = Callable[[Buffers], tuple[Any, ...]]
"""Makes the requests that are started together, and takes buffers."""


def _restarted(group: GroupCalls, case: Case, make: Requests, factor: int, parts: int = 0) -> str:
    """Start requests `STARTS` times, each time with other data. ``factor``: of the received data."""
    call = group.worker.mpi.call
    with ExitStack() as resources:
        buffers = Buffers(group, case, resources)
        requests = make(buffers)
        for n in range(STARTS):
            buffers.write(buffers.source, [Segment(f"start {n}", group.rank + 1)])
            fill(buffers.target, case.nbytes)
            for request in requests:
                call("MPI_Start", request.Start)
            for part in range(parts):
                call("MPI_Pready", requests[-1].Pready, part)
            for request in requests:
                call("MPI_Wait", request.Wait)
            group.results.compared += case.nbytes
            if wrong := buffers.unlike([Segment(f"start {n}", factor)]):
                return f"start {n + 1}: {wrong}"
        for request in requests:
            call("MPI_Request_free", request.Free)
    return ""


def _persistent(group: GroupCalls, case: Case) -> str:
    def make(buffers: Buffers) -> tuple[Any, ...]:
        call, world = group.worker.mpi.call, group.world
        receive = call("MPI_Recv_init", world.Recv_init, buffers.received(), group.before, 0)
        return receive, call("MPI_Send_init", world.Send_init, buffers.sent(), group.after, 0)

    return _restarted(group, case, make, group.before + 1)


def _persistent_collective(group: GroupCalls, case: Case) -> str:
    def make(buffers: Buffers) -> tuple[Any, ...]:
        arguments = buffers.sent(), buffers.received(), group.api.SUM
        return (group.worker.mpi.call("MPI_Allreduce_init", group.world.Allreduce_init, *arguments),)

    return _restarted(group, case, make, group.ranks * (group.ranks + 1) // 2)


def _partitioned(group: GroupCalls, case: Case) -> str:
    def make(buffers: Buffers) -> tuple[Any, ...]:
        call, world = group.worker.mpi.call, group.world
        receive = call(
            "MPI_Precv_init",
            world.Precv_init,
            buffers.in_parts(buffers.target, PARTS),
            PARTS,
            group.before,
            0,
        )
        return receive, call(
            "MPI_Psend_init", world.Psend_init, buffers.in_parts(buffers.source, PARTS), PARTS, group.after, 0
        )

    return _restarted(group, case, make, group.before + 1, PARTS)


def _two_threads(group: GroupCalls, case: Case) -> str:
    """Each thread of a rank exchanges data with those of its neighbours, in its own communicator."""
    w, api = group.worker, group.api
    if api.Query_thread() < api.THREAD_MULTIPLE:
        raise NotImplementedError
    with ExitStack() as resources:
        both = [Buffers(group, case._replace(number=case.number - n), resources) for n in range(2)]
        comms = [w.mpi.call("MPI_Comm_dup", group.world.Dup) for _ in both]
        failed: list[BaseException] = []
        has_context = Event()

        def exchange(place: int) -> None:
            buffers, comm = both[place], comms[place]
            for _ in range(STARTS):
                comm.Sendrecv(buffers.sent(), group.after, 0, buffers.received(), group.before, 0)

        def beside() -> None:
            try:
                w.gpu.primary_context()
                has_context.set()
                exchange(1)
            except BaseException as error:
                failed.append(error)
                has_context.set()

        thread = Thread(target=beside, daemon=True)
        thread.start()
        has_context.wait()  # the end of its own call would disarm the exchange
        with w.armed(SENDRECV):
            exchange(0)
            thread.join()
        if failed:
            raise failed[0]
        for comm in comms:
            w.mpi.call("MPI_Comm_free", comm.Free)
        wrong = [buffers.wrong() for buffers in both]
    return next(filter(None, wrong), "")


def _after_idling(group: GroupCalls, case: Case) -> str:
    with ExitStack() as resources:
        buffers = Buffers(group, case, resources)
        group.worker.wait_until(lambda: False, IDLE_S)
        arguments = buffers.sent(), buffers.received(), group.api.SUM
        group.worker.mpi.call("MPI_Allreduce", group.world.Allreduce, *arguments)
        return buffers.wrong()


SOAK: Sequence[tuple[Case, Act]] = (
    (Case(-1, "MPI_Start", NBYTES, "int32", form="persistent requests"), _persistent),
    (Case(-2, "MPI_Allreduce_init", NBYTES, "float64", form="persistent requests"), _persistent_collective),
    (Case(-3, "MPI_Precv_init", NBYTES, "int32", form="partitioned"), _partitioned),
    (Case(-4, SENDRECV, NBYTES, "int64", form="in two threads"), _two_threads),
    (Case(-6, "MPI_Allreduce", NBYTES, "int32", form="after idling"), _after_idling),
)
