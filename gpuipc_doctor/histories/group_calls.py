"""Performs MPI calls of all ranks together, and compares every element that comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from gpuipc_doctor.api.driver_errors import DriverError
from gpuipc_doctor.api.gpu import Memory
from gpuipc_doctor.api.reduction_data import GUARD, Segment, fill
from gpuipc_doctor.api.worker import Worker
from gpuipc_doctor.histories.group_buffers import Buffers, Group
from gpuipc_doctor.histories.group_cases import (
    AGAIN,
    ATOMIC,
    DERIVED_KINDS,
    DYNAMIC,
    FENCE,
    FLUSH,
    FLUSH_LOCAL,
    LARGEST_TAG,
    LOCK,
    MANY,
    MAXIMUM,
    MINIMUM,
    ONE_SIDED,
    PACK,
    SENDRECV,
    START,
    Case,
    base,
    neighbours_segments,
    segments_between,
)
from gpuipc_doctor.histories.message_memories import Memories
from gpuipc_doctor.histories.used_calls import BETWEEN, COMMUNICATORS, SESSION, WAYS

TIMES = 3
"""Number of atomic operations of each rank."""

FIRST = 1 << 40
"""A number in the window before the first atomic operation, beyond 32 bits."""


def _int64(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)


@dataclass
class Results:
    """What a rank has compared. ``wrong``: the case, and what was wrong in words."""

    cases: int = 0
    compared: int = 0
    wrong: list[tuple[Case, str]] = field(default_factory=list)


Act = Callable[["GroupCalls", Case], str]
"""Performs a case in its own way; returns what was wrong in words."""


class GroupCalls(Group):
    """Performs cases as one rank of a communicator, by default ``MPI_COMM_WORLD``."""

    def __init__(self, w: Worker, memories: Memories | None = None, comm: Any = None) -> None:
        super().__init__(w, memories, comm)
        self._mpi = w.mpi
        self.results = Results()
        self._parts: dict[str, GroupCalls | None] = {}

    def _part(self, form: str, resources: ExitStack) -> GroupCalls | None:
        """These calls in another communicator; None if this rank is not in it. It is kept until the end, but
        for a session's, which has to end before MPI."""
        if form in self._parts:
            return self._parts[form]
        try:
            comm, part = COMMUNICATORS[form](self, resources), None
        except DriverError as error:  # Open MPI over UCX has no communicators of sessions
            if self._mpi.is_unsupported(error):
                raise NotImplementedError from error
            raise
        if comm is not None:
            part = GroupCalls(self.worker, self.memories, comm)
            part.results = self.results
        if part and form == BETWEEN:
            sides = ("first", "second")
            part.sides = sides if self.rank < self.ranks // 2 else sides[::-1]
        if form != SESSION:
            self._parts[form] = part
        return part

    def perform(self, case: Case, act: Act | None = None) -> bool:
        """Perform this rank's part of a case, and compare what it has received. Returns whether the library
        has the functions."""
        with self.worker.step(str(case)), ExitStack() as resources:
            try:
                wrong = act(self, case) if act else self._perform(case, resources)
            except NotImplementedError:  # mpi4py: the library lacks the function
                return False
        self.results.cases += 1
        if wrong:
            self.results.wrong.append((case, wrong))
        return True

    def _perform(self, case: Case, resources: ExitStack) -> str:
        group = self._part(case.form, resources) if case.form in COMMUNICATORS else self
        if group is None:
            return ""
        case = case._replace(root=case.root % group.ranks)
        if case.call in ATOMIC:
            return group._atomic(case, resources)
        if base(case.call) in ONE_SIDED:
            return group._one_sided(case, resources)
        if case.call in WAYS:
            return group._messages(case, resources)
        return group._packed(case, resources) if case.form == PACK else group._two_sided(case, resources)

    # -- messages -----------------------------------------------------------------------------------------

    def _messages(self, case: Case, resources: ExitStack) -> str:
        """Send to the next rank and receive from the one before, as `WAYS` says."""
        way, call, world = WAYS[case.call], self._mpi.call, self.world
        count = 40 if case.form == MANY else way.messages
        tag = world.Get_attr(self.api.TAG_UB) - count + 1 if case.form == LARGEST_TAG else 0
        buffers = Buffers(self, case, resources)
        into, out = (
            [buffers.in_parts(memory, count, n) for n in range(count)]
            for memory in (buffers.target, buffers.source)
        )
        pending = []
        if way.send in ("Bsend", "Ibsend"):
            room = bytearray(case.nbytes + count * self.api.BSEND_OVERHEAD)
            call("MPI_Buffer_attach", self.api.Attach_buffer, room)
            resources.callback(lambda: call("MPI_Buffer_detach", self.api.Detach_buffer))
        if way.receive == "Irecv":
            pending = [call("MPI_Irecv", world.Irecv, into[n], self.before, tag + n) for n in range(count)]
        if way.send in ("Rsend", "Irsend"):
            self._mpi.barrier()
        for n in reversed(range(count)):
            back = (into[n], self.before, tag + n) if way.send == "Isendrecv" else ()
            name, function = f"MPI_{way.send}", getattr(world, way.send)
            pending.append(call(name, function, out[n], self.after, tag + n, *back))
        for n in range(count if way.receive in ("Recv", "Mrecv", "Imrecv") else 0):
            if way.receive == "Recv":
                call("MPI_Recv", world.Recv, into[n], self.before, tag + n)
                continue
            message = call("MPI_Mprobe", world.Mprobe, self.before, tag + n)
            receive = message.Recv if way.receive == "Mrecv" else message.Irecv
            pending.append(call(f"MPI_{way.receive}", receive, into[n]))
        self._complete(
            way.complete, [request for request in pending if isinstance(request, self.api.Request)]
        )
        return self._compared(buffers)

    def _complete(self, name: str, requests: list[Any]) -> None:
        """Call one of MPI_Wait… and MPI_Test… until all requests are complete."""
        function = getattr(self.api.Request, name)

        def finish() -> None:
            left = len(requests)
            while left > 0:
                found = function(requests)
                if isinstance(found, bool):  # Waitall, Testall
                    left = 0 if found else left
                elif isinstance(found, tuple):  # Testany
                    left -= found[1]
                else:  # Waitany; Waitsome, Testsome
                    left -= 1 if isinstance(found, int) else len(found or ())

        self._mpi.call(f"MPI_{name}", finish)

    def _packed(self, case: Case, resources: ExitStack) -> str:
        buffers, call = Buffers(self, case, resources), self._mpi.call
        there, back = (self.memories.alloc(case.memory, 2 * case.nbytes, resources) for _ in range(2))
        sent = buffers.pack(call, self.world, there)
        came = [self.api.memory.fromaddress(back.address, back.nbytes), *sent[1:]]
        call(SENDRECV, self.world.Sendrecv, sent, self.after, 0, came, self.before, 0)
        buffers.unpack(call, self.world, back)
        return self._compared(buffers)

    # -- collectives --------------------------------------------------------------------------------------

    def _two_sided(self, case: Case, resources: ExitStack) -> str:
        """Collectives, and MPI_Sendrecv in a ring."""
        buffers = Buffers(self, case, resources)
        call, function = self._mpi.call, getattr(self.world, case.call.removeprefix("MPI_"))
        persistent, wrong = None, ""
        if case.call.endswith("_init"):
            persistent = call(case.call, function, *self._arguments(case, buffers))
            resources.callback(lambda: call("MPI_Request_free", persistent.Free))
        for again in ("", AGAIN) if case.form == AGAIN or persistent else ("",):
            if again:
                buffers.renew(again)
            done = persistent
            if persistent:
                call("MPI_Start", persistent.Start)
            else:
                done = call(case.call, function, *self._arguments(case, buffers))
            if done:
                call("MPI_Wait", done.Wait)
            if (found := self._compared(buffers)) and not wrong:
                wrong = f"in the second call, {found}" if again else found
        return wrong

    def _compared(self, buffers: Buffers) -> str:
        self.results.compared += buffers.compared
        return buffers.wrong()

    def _arguments(self, case: Case, buffers: Buffers) -> Sequence[Any]:
        """The arguments of a collective in mpi4py."""
        operations = {MAXIMUM: self.api.MAX, MINIMUM: self.api.MIN}
        ranks, root, total = self.ranks, case.root, operations.get(case.form, self.api.SUM)
        is_root = self.rank == root

        def uneven(sender: int, receiver: int) -> int:
            return segments_between(case, sender, receiver)

        source = self.api.IN_PLACE if buffers.in_place else buffers.sent()
        call = base(case.call)
        back, on = neighbours_segments(call, ranks)
        match call:
            case "MPI_Allreduce" | "MPI_Scan" | "MPI_Reduce_scatter_block":
                return source, buffers.received(), total
            case "MPI_Reduce":
                return source, buffers.received() if is_root else None, total, root
            case "MPI_Exscan":  # rank 0 receives nothing, in a buffer of the same count
                return source, buffers.argument(buffers.target, len(buffers.plan.source)), total
            case "MPI_Allgatherv":
                return buffers.sent(), buffers.received([uneven(other, 0) for other in range(ranks)])
            case "MPI_Scatterv":
                counts = [uneven(root, to) for to in range(ranks)]
                return buffers.sent(counts) if is_root else None, buffers.received(), root
            case "MPI_Sendrecv_replace":
                return buffers.sent(), self.after, 0, self.before, 0
            case "MPI_Reduce_scatter":
                counts = [buffers.elements * uneven(0, to) for to in range(ranks)]
                return buffers.sent(), buffers.received(), counts, total
            case "MPI_Bcast":
                return buffers.sent() if is_root else buffers.received(), root
            case "MPI_Neighbor_allgather" | "MPI_Neighbor_alltoall":
                return buffers.sent(), buffers.received()
            case "MPI_Neighbor_alltoallv" | "MPI_Neighbor_alltoallw":
                both = buffers.sent([back, on]), buffers.received([on, back])
                return tuple(map(buffers.typed, both)) if call.endswith("w") else both
            case "MPI_Allgather" | "MPI_Alltoall":
                return source, buffers.received()
            case "MPI_Gather":
                return source, buffers.received() if is_root else None, root
            case "MPI_Gatherv":
                counts = [uneven(other, root) for other in range(ranks)]
                return buffers.sent(), buffers.received(counts) if is_root else None, root
            case "MPI_Scatter":
                return buffers.sent() if is_root else None, buffers.received(), root
            case "MPI_Alltoallv" | "MPI_Alltoallw":
                to = [uneven(self.rank, other) for other in range(ranks)]
                came = [uneven(other, self.rank) for other in range(ranks)]
                both = buffers.sent(to), buffers.received(came)
                return tuple(map(buffers.typed, both)) if call == "MPI_Alltoallw" else both
        return buffers.sent(), self.after, 0, buffers.received(), self.before, 0

    # -- windows ------------------------------------------------------------------------------------------

    @contextmanager
    def _window(self, memory: Memory, form: str) -> Iterator[Any]:
        base = self.api.memory.fromaddress(memory.address, memory.nbytes)
        call, none = self._mpi.call, self.api.INFO_NULL
        if form == DYNAMIC:
            window = call("MPI_Win_create_dynamic", self.api.Win.Create_dynamic, none, self.world)
            call("MPI_Win_attach", window.Attach, base)
        else:
            window = call("MPI_Win_create", self.api.Win.Create, base, 1, none, self.world)
        yield window
        if form == DYNAMIC:
            self._mpi.barrier()
            call("MPI_Win_detach", window.Detach, base)
        call("MPI_Win_free", window.Free)

    @contextmanager
    def _epoch(self, window: Any, form: str, targets: Sequence[int]) -> Iterator[Callable[[], None]]:
        """An access epoch; the function that it yields completes what was begun in it."""
        call = self._mpi.call
        name, complete = (FLUSH_LOCAL, window.Flush_local) if form == FLUSH_LOCAL else (FLUSH, window.Flush)

        def flush() -> None:
            for target in targets:
                call(name, complete, target)

        if form == START:
            near = [self.world.Get_group().Incl([rank]) for rank in (self.before, self.after)]
            call("MPI_Win_post", window.Post, near[0])
            call(START, window.Start, near[1])
            yield lambda: None
            call("MPI_Win_complete", window.Complete)
            call("MPI_Win_wait", window.Wait)
        elif form == FENCE:
            call(FENCE, window.Fence, 0)
            yield lambda: call(FENCE, window.Fence, 0)
            call(FENCE, window.Fence, 0)
        elif form == LOCK:
            for target in targets:  # one after the other: each lock is shared
                call(LOCK, window.Lock, target, self.api.LOCK_SHARED)
            yield flush
            for target in targets:
                call("MPI_Win_unlock", window.Unlock, target)
        else:
            call("MPI_Win_lock_all", window.Lock_all)
            yield flush
            call("MPI_Win_unlock_all", window.Unlock_all)

    @contextmanager
    def _own(self, window: Any) -> Iterator[None]:
        """An epoch in which this rank reads its own window, after all others have completed theirs."""
        self._mpi.barrier()
        self._mpi.call(LOCK, window.Lock, self.rank, self.api.LOCK_EXCLUSIVE)
        yield
        self._mpi.call("MPI_Win_unlock", window.Unlock, self.rank)

    def _address_after(self, memory: Memory) -> int:
        """The address of the next rank's memory in its dynamic window.

        It goes from each rank to the one before: no collective brings it, for these are what is tested.
        """
        here, there = bytearray(_int64(memory.address)), bytearray(8)
        send, byte = self.world.Sendrecv, self.api.BYTE
        self._mpi.call(SENDRECV, send, [here, byte], self.before, 0, [there, byte], self.after, 0)
        return int.from_bytes(there, "little", signed=True)

    def _one_sided(self, case: Case, resources: ExitStack) -> str:
        form = FENCE if case.form in (*DERIVED_KINDS, DYNAMIC) else case.form
        after, call = self.after, base(case.call)
        targets = list(range(self.ranks)) if call == "MPI_Accumulate" else [after]
        buffers = Buffers(self, case, resources)
        window_of = buffers.source if call == "MPI_Get" else buffers.target
        fetched = None
        if call in ("MPI_Accumulate", "MPI_Get_accumulate"):
            buffers.write(buffers.target, [Segment(f"{case.number}/0", 1)])
        with self._window(window_of, case.form) as window:
            if case.form == DYNAMIC:
                buffers.target_at = self._address_after(window_of)
            with self._epoch(window, form, targets) as complete:
                for target in targets:
                    into = buffers.received() if call == "MPI_Get" else buffers.sent()
                    arguments = [into, target, buffers.at_target()]
                    if call == "MPI_Get_accumulate":
                        fetched = Buffers(self, case, resources, sends=False)
                        arguments.insert(1, fetched.received())
                    if "ccumulate" in call:
                        arguments.append(self.api.SUM)
                    function = getattr(window, case.call.removeprefix("MPI_"))
                    if request := self._mpi.call(case.call, function, *arguments):
                        self._mpi.call("MPI_Wait", request.Wait)
                wrong = self._flushed(case, buffers, fetched, window, after, complete, resources)
            if not wrong and fetched:
                wrong = fetched.wrong_fetched()
            if call == "MPI_Get":
                return wrong or self._compared(buffers)
            with self._own(window):
                return wrong or self._compared(buffers)

    def _flushed(
        self,
        case: Case,
        buffers: Buffers,
        fetched: Buffers | None,
        window: Any,
        target: int,
        complete: Callable[[], None],
        resources: ExitStack,
    ) -> str:
        """What is wrong after a flush, although the epoch goes on.

        A get must have its data, and another one returns what was put. After a local flush, what was put or
        accumulated no longer depends on the rank's own buffer.
        """
        if case.form not in (FLUSH, FLUSH_LOCAL):
            return ""
        complete()
        call = base(case.call)
        wrong = fetched.wrong_fetched() if fetched else ""
        if call == "MPI_Get":
            wrong = buffers.wrong()
        if case.form == FLUSH_LOCAL and call != "MPI_Get":
            fill(buffers.source, buffers.source.nbytes)
        if wrong or case.form == FLUSH_LOCAL or call != "MPI_Put":
            return wrong and f"after {case.form}, {wrong}"
        back = Buffers(self, case, resources, sends=False)
        self._mpi.call("MPI_Get", window.Get, back.received(), target, back.at_target())
        complete()
        wrong = back.unlike(buffers.plan.source)
        return wrong and f"read back by MPI_Get after MPI_Win_flush, {wrong}"

    def _atomic(self, case: Case, resources: ExitStack) -> str:
        """Each rank changes one number of the next rank's window, and must get each of its values in turn."""
        number = self.api.INT64_T
        window_of, local = (
            self.memories.alloc(case.memory, size + GUARD, resources) for size in (max(case.nbytes, 8), 24)
        )
        last = max(case.nbytes, 8) // 8 * 8 - 8
        after, before = self.after, self.before
        window_of.write(_int64(FIRST + self.rank), last)
        found = []

        def at(place: int) -> list[Any]:
            return [self.api.memory.fromaddress(local.address + place, 8), 1, number]

        with self._window(window_of, case.form) as window:
            for n in range(TIMES):
                value = FIRST + after + n * (self.rank + 1)
                local.write(_int64(self.rank + 1) + _int64(value) + _int64(-1))
                with self._epoch(window, case.form, [after]) as complete:
                    if case.call == "MPI_Fetch_and_op":
                        arguments = at(0), at(16), after, last, self.api.SUM
                        self._mpi.call(case.call, window.Fetch_and_op, *arguments)
                    else:
                        local.write(_int64(value + self.rank + 1))
                        swap = window.Compare_and_swap
                        self._mpi.call(case.call, swap, at(0), at(8), at(16), after, last)
                    complete()
                    got = int.from_bytes(local.read(8, 16), "little", signed=True)
                self.results.compared += 8
                if got != value:
                    found.append(f"operation {n + 1} of {TIMES} returned {got} instead of {value}")
            with self._own(window):
                got = int.from_bytes(window_of.read(8, last), "little", signed=True)
        should = FIRST + self.rank + TIMES * (before + 1)
        if got != should:
            found.append(f"the window has {got} instead of {should}")
        return found[0] if found else ""
