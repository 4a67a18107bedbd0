"""MPI calls of all ranks together: one `Case` performs a call on its own buffers and compares every element.

A case is performed by all ranks at the same time, with equal arguments. Its data depends on its number, the
rank and the offset, in a type in which sums are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpuipc_doctor.api.data_patterns import difference
from gpuipc_doctor.api.gpu import Memory
from gpuipc_doctor.api.reduction_data import (
    FILL,
    GUARD,
    KINDS,
    Contents,
    Kind,
    Segment,
    block,
    contents_of,
    fill,
    write_segments,
    wrong_segments,
)
from gpuipc_doctor.api.worker import Worker
from gpuipc_doctor.histories.message_layouts import Layout
from gpuipc_doctor.histories.message_memories import DEVICE, Memories

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

BLOCK = 32
"""Elements of a block of a derived type; as many lie between two blocks."""

TIMES = 3
"""Number of atomic operations of each rank."""

_MPI_TYPES = {
    "float32": "FLOAT",
    "int32": "INT32_T",
    "uint8": "UINT8_T",
    "float64": "DOUBLE",
    "int64": "INT64_T",
}
TYPES = tuple(_MPI_TYPES)

_BLOCKING = {
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

_BY_RANK = ("MPI_Allgather", "MPI_Alltoall", "MPI_Gather", "MPI_Scatter", "MPI_Reduce_scatter_block")
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
    total, next_to_last = ranks * (ranks + 1) // 2, (rank - 1) % ranks

    def part(number: int, factor: int) -> Segment:
        return Segment(f"{case.number}/{number}{case.again}", factor)

    def parts(sender: int, receiver: int) -> list[Segment]:
        """Of calls with an array of counts."""
        counted = range(segments_between(case, sender, receiver))
        return [part(receiver + ranks * n, sender + 1) for n in counted]

    def all_parts(pairs: Iterable[tuple[int, int]]) -> list[Segment]:
        return [segment for pair in pairs for segment in parts(*pair)]

    own, root = [part(0, rank + 1)], case.root
    match call := _BLOCKING.get(case.call, case.call):
        case "MPI_Scan":
            return Contents(own, [part(0, (rank + 1) * (rank + 2) // 2)])
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
        case "MPI_Get":  # the source is the window
            return Contents(own, [part(0, (rank + 1) % ranks + 1)])
        case "MPI_Accumulate":
            return Contents(own, [part(0, 1 + total)])
        case "MPI_Get_accumulate":
            return Contents(own, [part(0, 1 + next_to_last + 1)])
    key = f"{case.number}/{{}}{case.again}"
    return contents_of(_EQUAL.get(call, "ring"), key, rank, ranks, root)


def segments_between(case: Case, sender: int, receiver: int) -> int:
    """Segments that a rank sends to another in calls with an array of counts: one or two, or none to two."""
    return (sender + receiver) % 3 if case.number % 2 else 1 + (sender + receiver) % 2


def most_segments(case: Case, ranks: int) -> int:
    """Number of segments in a rank's largest buffer."""
    plans = [plan(case, rank, ranks) for rank in range(ranks)]
    return max(1, *(len(segments) for each in plans for segments in each))


@dataclass
class Results:
    """What a rank has compared. ``wrong``: the case, and what was wrong in words."""

    cases: int = 0
    compared: int = 0
    wrong: list[tuple[Case, str]] = field(default_factory=list)


class GroupCalls:
    """Performs cases as one rank of a communicator, by default ``MPI_COMM_WORLD``."""

    def __init__(self, w: Worker, memories: Memories | None = None, comm: Any = None) -> None:
        self.worker, self._mpi = w, w.mpi
        self.api: Any = w.mpi.api
        self.world = comm or self.api.COMM_WORLD
        self.rank, self.ranks = self.world.Get_rank(), self.world.Get_size()
        self.after, self.before = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
        """The neighbours of this rank in a ring."""
        self.memories = memories or Memories(w.gpu)
        self.results = Results()
        self._half: GroupCalls | None = None

    @property
    def half(self) -> GroupCalls:
        """These calls in a communicator of every second rank."""
        if self._half is None:
            comm = self._mpi.call("MPI_Comm_split", self.world.Split, self.rank % 2, self.rank)
            self._half = GroupCalls(self.worker, self.memories, comm)
            self._half.results = self.results
        return self._half

    def perform(self, case: Case) -> None:
        """Perform this rank's part of a case, and compare what it has received."""
        with self.worker.step(str(case)), ExitStack() as resources:
            act = self._one_sided if case.call in ONE_SIDED else self._atomic
            act = act if case.call in (*ONE_SIDED, *ATOMIC) else self._two_sided
            if case.form == SPLIT:
                half = self.half
                act, case = half._two_sided, case._replace(root=case.root % half.ranks)
            wrong = act(case, resources)
        self.results.cases += 1
        if wrong:
            self.results.wrong.append((case, wrong))

    # -- collectives --------------------------------------------------------------------------------------

    def _two_sided(self, case: Case, resources: ExitStack) -> str:
        """Collectives, and MPI_Sendrecv in a ring."""
        buffers = Buffers(self, case, resources)
        call = case.call.removeprefix("MPI_")
        function = getattr(self.world, call)
        wrong = ""
        for again in ("", AGAIN) if case.form == AGAIN else ("",):
            if again:
                buffers.renew(again)
            done = self._mpi.call(case.call, function, *self._arguments(case, buffers))
            if case.call in NONBLOCKING:
                self._mpi.call("MPI_Wait", done.Wait)
            if (found := self._compared(buffers)) and not wrong:
                wrong = f"in the second call, {found}" if again else found
        return wrong

    def _compared(self, buffers: Buffers) -> str:
        self.results.compared += buffers.compared
        return buffers.wrong()

    def _arguments(self, case: Case, buffers: Buffers) -> Sequence[Any]:
        """The arguments of a collective in mpi4py."""
        ranks, root, total = self.ranks, case.root, self.api.SUM
        is_root = self.rank == root

        def uneven(sender: int, receiver: int) -> int:
            return segments_between(case, sender, receiver)

        source = self.api.IN_PLACE if buffers.in_place else buffers.sent()
        call = _BLOCKING.get(case.call, case.call)
        match call:
            case "MPI_Allreduce" | "MPI_Scan" | "MPI_Reduce_scatter_block":
                return source, buffers.received(), total
            case "MPI_Reduce":
                return source, buffers.received() if is_root else None, total, root
            case "MPI_Exscan":  # rank 0 receives nothing, in a buffer of the same count
                return source, buffers.received_as_sent(), total
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
        after, before = (self.rank + 1) % ranks, (self.rank - 1) % ranks
        return buffers.sent(), after, 0, buffers.received(), before, 0

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

        if form == FENCE:
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
        form = FENCE if case.form in (DERIVED, NEGATIVE, DYNAMIC) else case.form
        after = self.after
        targets = list(range(self.ranks)) if case.call == "MPI_Accumulate" else [after]
        buffers = Buffers(self, case, resources)
        window_of = buffers.source if case.call == "MPI_Get" else buffers.target
        fetched = None
        if case.call in ("MPI_Accumulate", "MPI_Get_accumulate"):
            buffers.write_target(Segment(f"{case.number}/0", 1))
        with self._window(window_of, case.form) as window:
            if case.form == DYNAMIC:
                buffers.target_at = self._address_after(window_of)
            with self._epoch(window, form, targets) as complete:
                for target in targets:
                    if case.call == "MPI_Put":
                        self._mpi.call(case.call, window.Put, buffers.sent(), target, buffers.at_target())
                    elif case.call == "MPI_Get":
                        self._mpi.call(case.call, window.Get, buffers.received(), target, buffers.at_target())
                    elif case.call == "MPI_Accumulate":
                        arguments = buffers.sent(), target, buffers.at_target(), self.api.SUM
                        self._mpi.call(case.call, window.Accumulate, *arguments)
                    else:
                        fetched = Buffers(self, case, resources, sends=False)
                        into, at, add = fetched.received(), buffers.at_target(), self.api.SUM
                        fetch = window.Get_accumulate
                        self._mpi.call(case.call, fetch, buffers.sent(), into, target, at, add)
                wrong = self._flushed(case, buffers, fetched, window, after, complete, resources)
            if not wrong and fetched:
                wrong = fetched.wrong_fetched()
            if case.call == "MPI_Get":
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
        wrong = fetched.wrong_fetched() if fetched else ""
        if case.call == "MPI_Get":
            wrong = buffers.wrong()
        if case.form == FLUSH_LOCAL and case.call != "MPI_Get":
            fill(buffers.source, buffers.source.nbytes)
        if wrong or case.form == FLUSH_LOCAL or case.call != "MPI_Put":
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
        window_of.write(_int64(_FIRST + self.rank), last)
        found = []

        def at(place: int) -> list[Any]:
            return [self.api.memory.fromaddress(local.address + place, 8), 1, number]

        with self._window(window_of, case.form) as window:
            for n in range(TIMES):
                value = _FIRST + after + n * (self.rank + 1)
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
        should = _FIRST + self.rank + TIMES * (before + 1)
        if got != should:
            found.append(f"the window has {got} instead of {should}")
        return found[0] if found else ""


_FIRST = 1 << 40
"""A number in the window before the first atomic operation, beyond 32 bits."""


def _int64(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)


class Buffers:
    """The buffers of a case in one rank; results are filled with `FILL` before the call.

    ``sends``: whether there is a source beside the target."""

    def __init__(self, calls: GroupCalls, case: Case, resources: ExitStack, *, sends: bool = True) -> None:
        self.case, self._api = case, calls.api
        rank, ranks = calls.rank, calls.ranks
        self._rank, self._ranks = rank, ranks
        self.kind: Kind = KINDS[case.type]
        self.plan = plan(case, rank, ranks)
        self.elements = max(case.nbytes // self.kind.nbytes // most_segments(case, ranks), bool(case.nbytes))
        self._derived: Any = None
        self._begin = 0
        """Bytes from the memory's begin to the address that MPI gets."""
        if case.form in (DERIVED, NEGATIVE):
            self.elements += -self.elements % BLOCK
            blocks, step = self.elements // BLOCK, 2 * BLOCK
            if case.form == NEGATIVE:  # the last block is the first that is sent
                self._begin = max(blocks - 1, 0) * step * self.kind.nbytes
                step = -step
            made = self._mpi_type.Create_vector(blocks, BLOCK, step)
            self._derived = made.Commit()
            resources.callback(made.Free)
        is_root = rank == case.root
        self.in_place = case.form == IN_PLACE and (is_root or case.call not in ("MPI_Reduce", "MPI_Gather"))
        self.in_place |= case.call == SENDRECV_REPLACE
        self.target_at = 0
        """Displacement of the target in another rank's window: its address, in a dynamic window."""
        most = max(len(self.plan.target), len(self.plan.source) if self.in_place else 1)
        alloc = calls.memories.alloc
        self._end = self._bytes(most)
        if case.form == TO_HOST:
            self.target = calls.worker.host_memory(self._end + GUARD)
        else:
            self.target = alloc(case.memory, self._end + GUARD, resources)
        fill(self.target, self._end + GUARD)
        self._source_at = 0
        if not sends:
            self.source = self.target
            return
        if self.in_place:
            self.source = self.target
            if case.call in ("MPI_Allgather", "MPI_Gather"):
                self._source_at = rank * self.elements * self.kind.nbytes
        else:
            self.source = alloc(case.memory, self._bytes(len(self.plan.source)) + GUARD, resources)
        self._write(self.source, self.plan.source, self._source_at)

    @property
    def _mpi_type(self) -> Any:
        return getattr(self._api, _MPI_TYPES[self.kind.name])

    @property
    def _layout(self) -> Layout:
        return Layout(block=BLOCK * self.kind.nbytes, stride=2 * BLOCK * self.kind.nbytes)

    def _bytes(self, segments: int) -> int:
        """Bytes of so many segments in memory."""
        nbytes = segments * self.elements * self.kind.nbytes
        return self._layout.extent(nbytes) if self._derived and nbytes else nbytes

    def _write(self, memory: Memory, segments: Sequence[Segment], offset: int = 0) -> None:
        if self._derived:
            memory.write(self._image(segments))
        else:
            write_segments(memory, self.kind, segments, self.elements, offset)

    def renew(self, again: str) -> None:
        """Give the source other data and the target its first content."""
        self.plan = plan(self.case._replace(again=again), self._rank, self._ranks)
        fill(self.target, self._end)
        self._write(self.source, self.plan.source, self._source_at)

    def wrong_fetched(self) -> str:
        """How fetched data differ from what the windows of MPI_Get_accumulate held before."""
        wrong = self.unlike([Segment(f"{self.case.number}/0", 1)])
        return wrong and f"of the fetched data, {wrong}"

    def write_source(self, segment: Segment) -> None:
        """Give the source another content."""
        self._write(self.source, [segment])

    def write_target(self, segment: Segment) -> None:
        """Give the target a content before the call."""
        self._write(self.target, [segment])

    def _image(self, segments: Sequence[Segment]) -> bytes:
        (segment,) = segments
        nbytes = self.elements * self.kind.nbytes
        data = (block(self.kind, segment) * (self.elements // 1000 + 1))[:nbytes]
        return self._layout.spread(data, nbytes, self._bytes(1))

    def _spec(self, memory: Memory, segments: int, counts: Sequence[int] | None) -> list[Any]:
        at = self._api.memory.fromaddress(memory.address + self._begin, memory.nbytes - self._begin)
        if self._derived:
            return [at, 1, self._derived]
        if counts is None:
            of_each_rank = _BLOCKING.get(self.case.call, self.case.call) in _BY_RANK
            return [at, self.elements if of_each_rank else segments * self.elements, self._mpi_type]
        each = [count * self.elements for count in counts]
        return [at, (each, [sum(each[:place]) for place in range(len(each))]), self._mpi_type]

    def sent(self, counts: Sequence[int] | None = None) -> list[Any]:
        """The argument for what this rank sends; ``counts``: segments for each rank."""
        return self._spec(self.source, len(self.plan.source), counts)

    def received(self, counts: Sequence[int] | None = None) -> list[Any]:
        """The argument for what this rank receives; ``counts``: segments from each rank."""
        return self._spec(self.target, len(self.plan.target), counts)

    def received_as_sent(self) -> list[Any]:
        """The argument for a result of as many elements as are sent."""
        return self._spec(self.target, len(self.plan.source), None)

    def typed(self, spec: Sequence[Any]) -> list[Any]:
        """An argument with counts as MPI_Alltoallw takes it: places in bytes, and a type for each rank."""
        at, (counts, places), kind = spec
        return [at, (counts, [place * self.kind.nbytes for place in places]), [kind] * len(counts)]

    def sent_in(self, parts: int) -> list[Any]:
        """The argument for what this rank sends in equal parts."""
        return self._in_parts(self.source, parts)

    def received_in(self, parts: int) -> list[Any]:
        return self._in_parts(self.target, parts)

    def _in_parts(self, memory: Memory, parts: int) -> list[Any]:
        at = self._api.memory.fromaddress(memory.address, memory.nbytes)
        return [at, self.elements // parts, self._mpi_type]

    def at_target(self) -> list[Any]:
        """The place of one segment in another rank's window."""
        at = self.target_at + self._begin
        return [at, 1, self._derived] if self._derived else [at, self.elements, self._mpi_type]

    @property
    def compared(self) -> int:
        return len(self.plan.target) * self.elements * self.kind.nbytes + GUARD

    def wrong(self) -> str:
        """How the result differs from the expected one; empty if it is correct."""
        case = self.case
        if not self.plan.target:
            return ""
        target = self.target
        if case.call in ("MPI_Bcast", "MPI_Ibcast") and self.plan.source == self.plan.target:
            target = self.source  # the root's only buffer
        found = self.unlike(self.plan.target, target)
        end = self._end if target is self.target else self._bytes(1)
        if not found and target is self.target and target.read(GUARD, end) != FILL * GUARD:
            found = f"bytes behind the result of {end} B were overwritten"
        return found

    def unlike(self, segments: Sequence[Segment], memory: Memory | None = None) -> str:
        """How memory, by default the target, differs from these segments; empty if it does not."""
        memory = memory or self.target
        if not self._derived:
            return wrong_segments(memory, self.kind, segments, self.elements, 0)
        expected = self._image(segments)
        found = memory.read(len(expected))
        if memory is self.target:  # what lies between the blocks was filled
            step = self._layout.stride
            gaps = bytearray(expected)
            for begin in range(self._layout.block, len(gaps), step):
                end = min(begin + step - self._layout.block, len(gaps))
                gaps[begin:end] = FILL * (end - begin)
            expected = bytes(gaps)
        return difference(found, expected)
