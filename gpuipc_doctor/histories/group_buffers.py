"""The buffers of a call of all ranks, and the rank that makes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

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
    fill,
    write_segments,
    wrong_segments,
)
from gpuipc_doctor.api.worker import Worker
from gpuipc_doctor.histories.group_cases import (
    BY_RANK,
    DERIVED_KINDS,
    IN_PLACE,
    MPI_TYPES,
    NEGATIVE,
    SENDRECV_REPLACE,
    TO_HOST,
    Case,
    base,
    most_segments,
    plan,
)
from gpuipc_doctor.histories.message_layouts import Layout
from gpuipc_doctor.histories.message_memories import Memories

BLOCK = 32
"""Elements of a block of a derived type; as many lie between two blocks."""


class Group:
    """A communicator, by default ``MPI_COMM_WORLD``, as one of its ranks sees it."""

    def __init__(self, w: Worker, memories: Memories | None = None, comm: Any = None) -> None:
        self.worker = w
        self.api: Any = w.mpi.api
        self.world = comm or self.api.COMM_WORLD
        self.rank, self.ranks = self.world.Get_rank(), self.world.Get_size()
        self.after, self.before = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
        """The neighbours of this rank in a ring."""
        self.memories = memories or Memories(w.gpu)
        self.sides = ("", "")
        """What makes the data of this rank's group, and of the group that it receives from, others."""


class Buffers:
    """The buffers of a case in one rank; results are filled with `FILL` before the call.

    ``sends``: whether there is a source beside the target."""

    def __init__(self, group: Group, case: Case, resources: ExitStack, *, sends: bool = True) -> None:
        self.case, self._api = case, group.api
        rank, ranks = group.rank, group.ranks
        self._rank, self._ranks = rank, ranks
        self.kind: Kind = KINDS[case.type]
        self._sides = group.sides
        self.plan = self._planned(case)
        self.elements = max(case.nbytes // self.kind.nbytes // most_segments(case, ranks), bool(case.nbytes))
        self._derived: Any = None
        self._begin = 0
        """Bytes from the memory's begin to the address that MPI gets."""
        if case.form in DERIVED_KINDS:
            self.elements += -self.elements % BLOCK
            blocks, step = self.elements // BLOCK, 2 * BLOCK
            if case.form == NEGATIVE:  # the last block is the first that is sent
                self._begin = max(blocks - 1, 0) * step * self.kind.nbytes
                step = -step
            self._derived = self._blocks(case.form, blocks, step).Commit()
            resources.callback(self._derived.Free)
        is_root = rank == case.root
        self.in_place = case.form == IN_PLACE and (is_root or case.call not in ("MPI_Reduce", "MPI_Gather"))
        self.in_place |= case.call == SENDRECV_REPLACE
        self.target_at = 0
        """Displacement of the target in another rank's window: its address, in a dynamic window."""
        most = max(len(self.plan.target), len(self.plan.source) if self.in_place else 1)
        alloc = group.memories.alloc
        self._end = self._bytes(most)
        if case.form == TO_HOST:
            self.target = group.worker.host_memory(self._end + GUARD)
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
        self.write(self.source, self.plan.source, self._source_at)

    @property
    def _mpi_type(self) -> Any:
        return getattr(self._api, MPI_TYPES[self.kind.name])

    @property
    def _layout(self) -> Layout:
        return Layout(block=BLOCK * self.kind.nbytes, stride=2 * BLOCK * self.kind.nbytes)

    def _blocks(self, form: str, blocks: int, step: int) -> Any:
        """The derived type, which each constructor makes of the same elements."""
        of, api, nbytes = self._mpi_type, self._api, self.kind.nbytes
        places = [step * block for block in range(blocks)]
        match form:
            case "subarray":
                return of.Create_subarray([blocks, step], [blocks, BLOCK], [0, 0])
            case "struct":
                return api.Datatype.Create_struct(
                    [BLOCK] * blocks, [at * nbytes for at in places], [of] * blocks
                )
            case "indexed type":
                return of.Create_indexed([BLOCK] * blocks, places)
            case "resized type":
                one = of.Create_contiguous(BLOCK)
                return one.Create_resized(0, step * nbytes).Create_contiguous(blocks)
        return of.Create_vector(blocks, BLOCK, step)

    def _planned(self, case: Case) -> Contents:
        own, theirs = (
            plan(case._replace(again=case.again + side), self._rank, self._ranks) for side in self._sides
        )
        return Contents(own.source, theirs.target)

    def _bytes(self, segments: int) -> int:
        """Bytes of so many segments in memory."""
        nbytes = segments * self.elements * self.kind.nbytes
        return self._layout.extent(nbytes) if self._derived and nbytes else nbytes

    def write(self, memory: Memory, segments: Sequence[Segment], offset: int = 0) -> None:
        """Give the source or the target its content before the call."""
        if self._derived:
            memory.write(self._image(segments))
        else:
            write_segments(memory, self.kind, segments, self.elements, offset)

    def renew(self, again: str) -> None:
        """Give the source other data and the target its first content."""
        self.plan = self._planned(self.case._replace(again=again))
        fill(self.target, self._end)
        self.write(self.source, self.plan.source, self._source_at)

    def wrong_fetched(self) -> str:
        """How fetched data differ from what the windows of MPI_Get_accumulate held before."""
        wrong = self.unlike([Segment(f"{self.case.number}/0", 1)])
        return wrong and f"of the fetched data, {wrong}"

    def _image(self, segments: Sequence[Segment]) -> bytes:
        (segment,) = segments
        nbytes = self.elements * self.kind.nbytes
        data = (block(self.kind, segment) * (self.elements // 1000 + 1))[:nbytes]
        return self._layout.spread(data, nbytes, self._bytes(1))

    def argument(self, memory: Memory, segments: int, counts: Sequence[int] | None = None) -> list[Any]:
        """The argument for so many segments in memory; ``counts``: segments for or from each rank."""
        at = self._api.memory.fromaddress(memory.address + self._begin, memory.nbytes - self._begin)
        if self._derived:
            return [at, 1, self._derived]
        if counts is None:
            of_each_rank = base(self.case.call) in BY_RANK
            return [at, self.elements if of_each_rank else segments * self.elements, self._mpi_type]
        each = [count * self.elements for count in counts]
        return [at, (each, [sum(each[:place]) for place in range(len(each))]), self._mpi_type]

    def sent(self, counts: Sequence[int] | None = None) -> list[Any]:
        """The argument for what this rank sends; ``counts``: segments for each rank."""
        return self.argument(self.source, len(self.plan.source), counts)

    def received(self, counts: Sequence[int] | None = None) -> list[Any]:
        """The argument for what this rank receives; ``counts``: segments from each rank."""
        return self.argument(self.target, len(self.plan.target), counts)

    def typed(self, spec: Sequence[Any]) -> list[Any]:
        """An argument with counts as MPI_Alltoallw takes it: places in bytes, and a type for each rank."""
        at, (counts, places), kind = spec
        return [at, (counts, [place * self.kind.nbytes for place in places]), [kind] * len(counts)]

    def in_parts(self, memory: Memory, parts: int, number: int = 0) -> list[Any]:
        """The argument for memory that is sent or received in equal parts, from one of them on."""
        if self._derived:
            return self.argument(memory, 1)
        each = self.elements // parts
        begin = number * each * self.kind.nbytes
        return [
            self._api.memory.fromaddress(memory.address + begin, memory.nbytes - begin),
            each,
            self._mpi_type,
        ]

    def pack(self, call: Callable[..., Any], comm: Any, packed: Memory) -> list[Any]:
        """Pack the source into other memory, and return the argument for it."""
        room = self._api.memory.fromaddress(packed.address, packed.nbytes)
        whole = self._api.memory.fromaddress(self.source.address, self._bytes(1))
        return [room, call("MPI_Pack", self._derived.Pack, whole, room, 0, comm), self._api.PACKED]

    def unpack(self, call: Callable[..., Any], comm: Any, packed: Memory) -> None:
        """Unpack other memory into the target."""
        room = self._api.memory.fromaddress(packed.address, packed.nbytes)
        whole = self._api.memory.fromaddress(self.target.address, self._bytes(1))
        call("MPI_Unpack", self._derived.Unpack, room, 0, whole, comm)

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
        if base(case.call) == "MPI_Bcast" and self.plan.source == self.plan.target:
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
