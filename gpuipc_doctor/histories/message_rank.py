"""The objects of one rank of a message history, and what its operations have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from gpuipc_doctor.api.driver_errors import DriverError
from gpuipc_doctor.api.gpu import Memory
from gpuipc_doctor.api.worker import Worker
from gpuipc_doctor.histories.contents import contents, first_difference, stamp_at
from gpuipc_doctor.histories.group_calls import GroupCalls
from gpuipc_doctor.histories.group_cases import Case
from gpuipc_doctor.histories.message_layouts import BLANK, LAYOUTS
from gpuipc_doctor.histories.message_state import (
    ANY_SOURCE,
    ANY_TAG,
    WORLD,
    Expected,
    Message,
    Part,
    Receive,
)
from gpuipc_doctor.histories.operations import Operation

MARGIN = 64
"""Bytes after each buffer that no message may change: at least this many, and up to the end of their page."""

PAGE = 4096

TEST_S = 60.0
"""Seconds for which a request is tested repeatedly, unless the deadline is sooner."""


@lru_cache(maxsize=64)
def _blank(nbytes: int) -> bytes:
    return bytes([BLANK]) * nbytes


@dataclass
class Wrong:
    """A rank's first error: index of the operation in the rank's history, and a sentence."""

    at: int
    do: str
    call: str
    says: str


@dataclass
class Figures:
    """Counts of what a rank has done."""

    messages: int = 0
    compared: int = 0
    """Bytes compared."""
    wrong: Wrong | None = None


@dataclass
class _Buffer:
    memory: Memory
    free: Callable[[], object]


@dataclass
class Rank:
    """A rank. It continues after wrong data, because no operation depends on the data."""

    worker: Worker
    trying: int = 0
    """Index of the history in the launch."""
    figures: Figures = field(default_factory=Figures)

    def __post_init__(self) -> None:
        self.mpi = self.worker.mpi
        self.api = self.mpi.api
        self.me = self.mpi.rank + 1
        self.buffers: dict[int, _Buffer] = {}
        self.requests: dict[int, Any] = {}
        self.messages: dict[int, Any] = {}
        self.communicators = {WORLD: self.api.COMM_WORLD}
        self.reversed: dict[int, bool] = {WORLD: False}
        self.parts: dict[int, tuple[Part, ...]] = {}
        """Request → its active sends and receives."""
        self.at, self.do = 0, ""
        self._call = ""
        self._types: dict[tuple[str, int], Any] = {}
        self._group: GroupCalls | None = None

    def call(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call MPI; the call is named if data is then wrong."""
        self._call = name
        return self.mpi.call(name, function, *arguments)

    def status(self) -> Any:
        return self.api.Status()

    def try_until(self, succeeds: Callable[[], bool]) -> None:
        until = self.worker.clock() + TEST_S
        while not succeeds() and self.worker.clock() < until:
            pass

    def release(self) -> None:
        """Release all objects. Every rank calls it."""
        for request in self.requests.values():
            self.mpi.call("MPI_Request_free", request.Free)
        self.mpi.barrier()
        for buffer in self.buffers.values():
            buffer.free()
        for number, communicator in self.communicators.items():
            if number != WORLD:
                self.mpi.call("MPI_Comm_free", communicator.Free)
        for datatype in self._types.values():
            datatype.Free()
        self.requests, self.buffers, self._types = {}, {}, {}
        self.communicators = {WORLD: self.api.COMM_WORLD}
        self.reversed = {WORLD: False}

    # -- memory -------------------------------------------------------------------------------------------

    def allocate(self, number: int, nbytes: int, *, on_device: bool) -> None:
        nbytes += MARGIN
        nbytes += -nbytes % PAGE
        if on_device:
            buffer = self.worker.gpu.alloc(nbytes)
            self.buffers[number] = _Buffer(buffer, buffer.free)
        else:
            self.buffers[number] = _Buffer(self.worker.host_memory(nbytes), lambda: None)

    def free(self, number: int) -> None:
        self.buffers.pop(number).free()

    def _describe(self, op: Operation, number: int) -> list[Any]:
        memory, layout, nbytes = self.buffers[number].memory, LAYOUTS[op.kind], op.nbytes
        at = self.api.memory.fromaddress(memory.address + layout.begin, memory.nbytes - layout.begin)
        if not layout.is_derived:
            return [at, nbytes, self.api.BYTE]
        if (op.kind, nbytes) not in self._types:
            if layout.block:
                made = self.api.BYTE.Create_vector(nbytes // layout.block, layout.block, layout.stride)
            else:
                third = nbytes // 3
                made = self.api.BYTE.Create_indexed([third, nbytes - third], [0, third + layout.split])
            self._types[op.kind, nbytes] = made.Commit()
        return [at, 1, self._types[op.kind, nbytes]]

    def _compared(self, op: Operation, number: int) -> int:
        """Bytes of a buffer that are written before a message and compared after it, up to a page's end.
        Comparing whole buffers would triple the bytes."""
        behind = LAYOUTS[op.kind].extent(op.nbytes) + MARGIN
        return min(behind + -behind % PAGE + PAGE, self.buffers[number].memory.nbytes)

    def _image(self, op: Operation, number: int, stamp: int, came: int) -> bytes:
        """A buffer that got ``came`` bytes of a message."""
        total, data = self._compared(op, number), contents(stamp, came)
        return LAYOUTS[op.kind].spread(data, op.nbytes, total) if op.kind else data + _blank(total - came)

    def fill(self, op: Operation, number: int, stamp: int) -> None:
        self.buffers[number].memory.write(self._image(op, number, stamp, op.nbytes))

    def clear(self, op: Operation, number: int) -> None:
        self.buffers[number].memory.write(_blank(self._compared(op, number)))

    def prepare_send(self, op: Operation, number: int, stamp: int) -> tuple[list[Any], int, int]:
        """Fill a buffer; returns the arguments of a send."""
        self.fill(op, number, stamp)
        return self._describe(op, number), self.number(op.peer, op.within), op.tag

    def prepare_receive(self, op: Operation, number: int) -> list[Any]:
        """Clear a buffer; returns its description."""
        self.clear(op, number)
        return self._describe(op, number)

    # -- messages -----------------------------------------------------------------------------------------

    def number(self, process: int, within: int) -> int:
        """The number of a process in a communicator."""
        return self.mpi.size - process if self.reversed[within] else process - 1

    def source(self, op: Operation) -> tuple[int, int]:
        """The source and the tag of a receive."""
        source = self.api.ANY_SOURCE if op.peer == ANY_SOURCE else self.number(op.peer, op.within)
        return source, self.api.ANY_TAG if op.tag == ANY_TAG else op.tag

    def send(self, op: Operation) -> Any:
        method = op.do.capitalize()
        arguments = self.prepare_send(op, op.on, op.stamp)
        return self.call(f"MPI_{method}", getattr(self.communicators[op.within], method), *arguments)

    def begin(self, number: int, request: Any, expected: Expected) -> None:
        self.requests[number] = request
        self.parts[number] = expected.parts

    def complete_request(
        self, name: str, wait: Callable[[Any], Any], number: int, expected: Expected
    ) -> None:
        self.complete(name, wait, (), expected)
        self.parts.pop(number, None)
        self.forget(number)

    def forget(self, number: int) -> None:
        """Forget a request that has completed, unless it is persistent."""
        if self.requests[number] == self.api.REQUEST_NULL:
            del self.requests[number]

    def complete(
        self, name: str, function: Callable[..., Any], arguments: Sequence[Any], expected: Expected
    ) -> None:
        """Call MPI with these arguments and a status, and compare what has come. If truncation is expected,
        the call must return that error."""
        status = self.status()
        truncated = any(isinstance(part, Receive) and part.truncates for part in expected.parts)
        try:
            self.call(name, function, *arguments, status)
        except DriverError as error:
            if not (truncated and self.mpi.is_truncation(error)):
                raise
        else:
            if truncated:
                self.wrong("a message longer than its receive buffer caused no error")
        for part in expected.parts:
            self.look(part, status)

    def perform_case(self, case: Case) -> None:
        self._group = self._group or GroupCalls(self.worker)
        results, compared = self._group.results, self._group.results.compared
        self._group.perform(case._replace(root=case.number % self.mpi.size))
        self.figures.messages += 1
        self.figures.compared += results.compared - compared
        if results.wrong:
            self._call = case.call
            self.wrong(f"on rank {self.mpi.rank}, {results.wrong.pop()[1]}")

    def probe(self, name: str, function: Callable[..., Any], op: Operation, expected: Expected) -> Any:
        """Probe for a message, and compare what its status says."""
        status = self.status()
        found = self.call(name, function, *self.source(op), status)
        self.look_at_status(expected.message, status)
        return found

    # -- what has come ------------------------------------------------------------------------------------

    def wrong(self, says: str) -> None:
        if self.figures.wrong is None:
            self.figures.wrong = Wrong(self.at, self.do, self._call, says)

    def look(self, part: Part, status: Any = None) -> None:
        """Compare a message, or a send buffer, which must be as before."""
        if isinstance(part, Message):
            self._compare(part.sent, part.sent, "the send buffer")
            return
        assert part.message is not None
        self.figures.messages += 1
        if not part.truncates:
            self._compare(part.posted, part.message.sent, "the message")
            if status is not None:
                self.look_at_status(part.message, status)

    def _compare(self, into: Operation, sent: Operation, what: str) -> None:
        expected = self._image(into, into.on, sent.stamp, sent.nbytes)
        found = self.buffers[into.on].memory.read(len(expected))
        self.figures.compared += len(expected)
        if found != expected:
            self.wrong(f"{what} {_difference(found, expected, into.kind, sent.stamp)}")

    def look_at_status(self, message: Message, status: Any) -> None:
        sent = message.sent
        found = (status.Get_source(), status.Get_tag(), status.Get_count(self.api.BYTE))
        wanted = (self.number(sent.by, message.within), sent.tag, sent.nbytes)
        for name, is_, should in zip(("source", "tag", "count"), found, wanted, strict=True):
            if is_ != should:
                self.wrong(f"the status has {name} {is_}, expected {should}")


def _difference(found: bytes, expected: bytes, kind: str, stamp: int) -> str:
    at = first_difference(found, expected)
    layout = LAYOUTS[kind]
    shown, wanted = (
        stamp_at(data, at - layout.begin, 0) if not layout.is_derived else 0
        for data in (found[layout.begin :], expected[layout.begin :])
    )
    other = f": contents {shown} instead of {wanted}" if shown and wanted == stamp != shown else ""
    return f"is wrong from byte {at} on{other}"
