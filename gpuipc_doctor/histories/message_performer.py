"""One rank of a history: performs its operations and compares received data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from gpuipc_doctor.api.gpu import DriverError, Memory
from gpuipc_doctor.api.worker import Worker
from gpuipc_doctor.histories.contents import contents, first_difference, stamp_at
from gpuipc_doctor.histories.group_calls import GroupCalls
from gpuipc_doctor.histories.message_layouts import BLANK, LAYOUTS
from gpuipc_doctor.histories.message_model import (
    ANY_SOURCE,
    ANY_TAG,
    OF_ALL,
    WHERE,
    WORLD,
    Expected,
    Message,
    Part,
    Receive,
    case_of,
)
from gpuipc_doctor.histories.operations import Operation

MARGIN = 64
"""Bytes after each buffer that no message may change: at least this many, and up to the end of their page."""

PAGE = 4096

TEST_S = 60.0
"""Seconds for which a request is tested repeatedly, unless the deadline is sooner."""

END = "end"
"""Recorded in place of an operation by a rank that has performed all of its part."""

Steps = Sequence[tuple[Operation, Expected]]


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
        self._mpi = self.worker.mpi
        self._api = self._mpi.api
        self._me = self._mpi.rank + 1
        self._buffers: dict[int, _Buffer] = {}
        self._requests: dict[int, Any] = {}
        self._messages: dict[int, Any] = {}
        self._communicators = {WORLD: self._api.COMM_WORLD}
        self._reversed: dict[int, bool] = {WORLD: False}
        self._types: dict[tuple[str, int], Any] = {}
        self._parts: dict[int, tuple[Part, ...]] = {}
        """Request → its active sends and receives."""
        self._at, self._do = 0, ""
        self._call = ""
        self._group: GroupCalls | None = None

    def perform(self, steps: Steps, first: int = 0) -> None:
        """Perform this rank's part of ``steps``, which start at index ``first`` of its history."""
        for at, (operation, expected) in enumerate(steps, first):
            if operation.by == self._me or operation.do in OF_ALL:
                self._at, self._do = at, operation.do
                self.worker.reach(self.trying, at, operation.do)
                ACTS[operation.do](self, operation, expected)
        self._at = first + len(steps) - 1
        self.worker.reach(self.trying, self._at, END)

    def end(self) -> None:
        """Complete pending requests and release all objects.

        Before each wait, the operation that began the request is recorded, to attribute a hang or wrong data
        to this operation.
        """
        ended_at = self._at
        for number, parts in list(self._parts.items()):
            request, self._at = self._requests[number], parts[0].at
            self.worker.reach(self.trying, ended_at, END, self._at)
            self._complete("MPI_Wait", request.Wait, number, parts)
            self._forget(number, request)
        for request in self._requests.values():
            self._mpi.call("MPI_Request_free", request.Free)
        self._mpi.barrier()
        for buffer in self._buffers.values():
            buffer.free()
        for number, communicator in self._communicators.items():
            if number != WORLD:
                self._mpi.call("MPI_Comm_free", communicator.Free)
        for datatype in self._types.values():
            datatype.Free()
        self._requests, self._buffers, self._types = {}, {}, {}
        self._communicators = {WORLD: self._api.COMM_WORLD}
        self._reversed = {WORLD: False}

    # -- memory -------------------------------------------------------------------------------------------

    def _allocate(self, operation: Operation, expected: Expected) -> None:
        nbytes = operation.nbytes + MARGIN
        nbytes += -nbytes % PAGE
        if operation.kind == WHERE[0]:
            buffer = self.worker.gpu.alloc(nbytes)
            self._buffers[operation.makes] = _Buffer(buffer, buffer.free)
        else:
            self._buffers[operation.makes] = _Buffer(self.worker.host_memory(nbytes), lambda: None)

    def _free(self, operation: Operation, expected: Expected) -> None:
        self._buffers.pop(operation.on).free()

    def _describe(self, number: int, kind: str, nbytes: int) -> list[Any]:
        memory, layout = self._buffers[number].memory, LAYOUTS[kind]
        api = self._api
        at = api.memory.fromaddress(memory.address + layout.begin, memory.nbytes - layout.begin)
        if not layout.is_derived:
            return [at, nbytes, api.BYTE]
        if (kind, nbytes) not in self._types:
            if layout.block:
                made = api.BYTE.Create_vector(nbytes // layout.block, layout.block, layout.stride)
            else:
                third = nbytes // 3
                made = api.BYTE.Create_indexed([third, nbytes - third], [0, third + layout.split])
            self._types[kind, nbytes] = made.Commit()
        return [at, 1, self._types[kind, nbytes]]

    def _bytes_to_compare(self, number: int, kind: str, nbytes: int) -> int:
        """Bytes of a buffer that are written before a message and compared after it, up to a page's end.
        Comparing whole buffers would triple the bytes."""
        behind = LAYOUTS[kind].extent(nbytes) + MARGIN
        return min(behind + -behind % PAGE + PAGE, self._buffers[number].memory.nbytes)

    def _image(self, kind: str, nbytes: int, stamp: int, number: int, came: int) -> bytes:
        total = self._bytes_to_compare(number, kind, nbytes)
        if kind == "":
            data = contents(stamp, came)
            return data + _blank(total - came)
        return LAYOUTS[kind].spread(contents(stamp, came), nbytes, total)

    def _fill(self, number: int, kind: str, nbytes: int, stamp: int) -> None:
        self._buffers[number].memory.write(self._image(kind, nbytes, stamp, number, nbytes))

    def _clear(self, number: int, kind: str, nbytes: int) -> None:
        self._buffers[number].memory.write(_blank(self._bytes_to_compare(number, kind, nbytes)))

    def _compare(self, number: int, kind: str, nbytes: int, stamp: int, came: int, what: str) -> None:
        expected = self._image(kind, nbytes, stamp, number, came)
        found = self._buffers[number].memory.read(len(expected))
        self.figures.compared += len(expected)
        if found != expected:
            self._wrong(f"{what} {_difference(found, expected, kind, stamp)}")

    def _wrong(self, says: str) -> None:
        if self.figures.wrong is None:
            self.figures.wrong = Wrong(self._at, self._do, self._call, says)

    # -- what has come ------------------------------------------------------------------------------------

    def _complete(self, call: str, wait: Callable[[Any], Any], number: int, parts: Iterable[Part]) -> None:
        status = self._api.Status()
        self._call = call
        truncated = any(isinstance(part, Receive) and part.truncates for part in parts)
        self._call_expecting(call, wait, status, truncated=truncated)
        self._parts.pop(number, None)
        for part in parts:
            self._look(part, status)

    def _call_expecting(
        self, call: str, function: Callable[..., Any], *arguments: Any, truncated: bool
    ) -> None:
        """Call MPI, which must return an error if truncation is expected and none otherwise."""
        self._call = call
        try:
            self._mpi.call(call, function, *arguments)
        except DriverError as error:
            if not (truncated and self._mpi.is_truncation(error)):
                raise
        else:
            if truncated:
                self._wrong("a message longer than its receive buffer caused no error")

    def _look(self, part: Part, status: Any = None) -> None:
        if isinstance(part, Message):
            sent = part.sent
            self._compare(sent.on, sent.kind, sent.nbytes, sent.stamp, sent.nbytes, "the send buffer")
            return
        assert part.message is not None
        posted, sent = part.posted, part.message.sent
        self.figures.messages += 1
        if part.truncates:
            return
        self._compare(posted.on, posted.kind, posted.nbytes, sent.stamp, sent.nbytes, "the message")
        if status is not None:
            self._look_at_status(part.message, status)

    def _look_at_status(self, message: Message, status: Any) -> None:
        sent = message.sent
        found = (status.Get_source(), status.Get_tag(), status.Get_count(self._api.BYTE))
        wanted = (self._number(sent.by, message.within), sent.tag, sent.nbytes)
        for name, is_, should in zip(("source", "tag", "count"), found, wanted, strict=True):
            if is_ != should:
                self._wrong(f"the status has {name} {is_}, expected {should}")

    # -- messages -----------------------------------------------------------------------------------------

    def _number(self, process: int, within: int) -> int:
        return self._mpi.size - process if self._reversed[within] else process - 1

    def _source(self, operation: Operation) -> tuple[int, int]:
        source = (
            self._api.ANY_SOURCE
            if operation.peer == ANY_SOURCE
            else self._number(operation.peer, operation.within)
        )
        return source, self._api.ANY_TAG if operation.tag == ANY_TAG else operation.tag

    def _prepare_send(self, operation: Operation, number: int, stamp: int) -> tuple[list[Any], int, int]:
        self._fill(number, operation.kind, operation.nbytes, stamp)
        buffer = self._describe(number, operation.kind, operation.nbytes)
        return buffer, self._number(operation.peer, operation.within), operation.tag

    def _prepare_receive(self, operation: Operation, number: int) -> list[Any]:
        self._clear(number, operation.kind, operation.nbytes)
        return self._describe(number, operation.kind, operation.nbytes)

    def _call_send(self, operation: Operation) -> Any:
        method = operation.do.capitalize()
        arguments = self._prepare_send(operation, operation.on, operation.stamp)
        self._call = f"MPI_{method}"
        send = getattr(self._communicators[operation.within], method)
        return self._mpi.call(self._call, send, *arguments)

    def _send(self, operation: Operation, expected: Expected) -> None:
        self._call_send(operation)
        self._look(expected.parts[0])

    def _isend(self, operation: Operation, expected: Expected) -> None:
        self._begin(operation.makes, self._call_send(operation), expected)

    def _begin(self, number: int, request: Any, expected: Expected) -> None:
        self._requests[number] = request
        self._parts[number] = expected.parts

    def _recv(self, operation: Operation, expected: Expected) -> None:
        buffer, status = self._prepare_receive(operation, operation.on), self._api.Status()
        receive = self._communicators[operation.within].Recv
        self._receive("MPI_Recv", receive, [buffer, *self._source(operation), status], expected, status)

    def _receive(
        self, call: str, function: Callable[..., Any], arguments: list[Any], expected: Expected, status: Any
    ) -> None:
        (part,) = expected.parts
        assert isinstance(part, Receive)
        self._call_expecting(call, function, *arguments, truncated=part.truncates)
        self._look(part, status)

    def _irecv(self, operation: Operation, expected: Expected) -> None:
        buffer = self._prepare_receive(operation, operation.on)
        self._call = "MPI_Irecv"
        receive = self._communicators[operation.within].Irecv
        request = self._mpi.call("MPI_Irecv", receive, buffer, *self._source(operation))
        self._begin(operation.makes, request, expected)

    def _sendrecv(self, operation: Operation, expected: Expected) -> None:
        buffer, peer, tag = self._prepare_send(operation, operation.on, operation.stamp)
        into, status = self._prepare_receive(operation, operation.of), self._api.Status()
        self._call = "MPI_Sendrecv"
        exchange = self._communicators[operation.within].Sendrecv
        truncated = any(isinstance(part, Receive) and part.truncates for part in expected.parts)
        self._call_expecting(
            "MPI_Sendrecv", exchange, buffer, peer, tag, into, peer, tag, status, truncated=truncated
        )
        for part in expected.parts:
            self._look(part, status)

    # -- requests -----------------------------------------------------------------------------------------

    def _wait(self, operation: Operation, expected: Expected) -> None:
        request = self._requests[operation.on]
        self._complete("MPI_Wait", request.Wait, operation.on, expected.parts)
        self._forget(operation.on, request)

    def _forget(self, number: int, request: Any) -> None:
        if request == self._api.REQUEST_NULL:
            del self._requests[number]

    def _test(self, operation: Operation, expected: Expected) -> None:
        request = self._requests[operation.on]

        def test(status: Any) -> None:
            until = self.worker.clock() + TEST_S
            while not request.Test(status) and self.worker.clock() < until:
                pass

        self._complete("MPI_Test", test, operation.on, expected.parts)
        self._forget(operation.on, request)

    def _wait_all(self, operation: Operation, expected: Expected) -> None:
        numbers = [
            number for number, parts in self._parts.items() if any(part in expected.parts for part in parts)
        ]
        requests = [self._requests[number] for number in numbers]
        statuses = [self._api.Status() for _ in requests]
        self._call = "MPI_Waitall"
        self._mpi.call("MPI_Waitall", self._api.Request.Waitall, requests, statuses)
        for number, request, status in zip(numbers, requests, statuses, strict=True):
            for part in self._parts.pop(number):
                self._look(part, status)
            self._requests[number] = request
            self._forget(number, request)

    def _make_send(self, operation: Operation, expected: Expected) -> None:
        buffer, peer, tag = self._prepare_send(operation, operation.on, operation.makes)
        make = self._communicators[operation.within].Send_init
        self._requests[operation.makes] = self._mpi.call("MPI_Send_init", make, buffer, peer, tag)

    def _make_receive(self, operation: Operation, expected: Expected) -> None:
        buffer = self._prepare_receive(operation, operation.on)
        make = self._communicators[operation.within].Recv_init
        source = self._source(operation)
        self._requests[operation.makes] = self._mpi.call("MPI_Recv_init", make, buffer, *source)

    def _start(self, operation: Operation, expected: Expected) -> None:
        (part,) = expected.parts
        if isinstance(part, Message):
            sent = part.sent
            self._fill(sent.on, sent.kind, sent.nbytes, sent.stamp)
        else:
            self._clear(part.posted.on, part.posted.kind, part.posted.nbytes)
        self._call = "MPI_Start"
        self._mpi.call("MPI_Start", self._requests[operation.on].Start)
        self._parts[operation.on] = expected.parts

    def _free_request(self, operation: Operation, expected: Expected) -> None:
        self._mpi.call("MPI_Request_free", self._requests.pop(operation.on).Free)

    # -- probes -------------------------------------------------------------------------------------------

    def _probe(self, operation: Operation, expected: Expected) -> None:
        status = self._api.Status()
        probe = self._communicators[operation.within].Probe
        self._call = "MPI_Probe"
        self._mpi.call("MPI_Probe", probe, *self._source(operation), status)
        self._check_found(expected, status)

    def _iprobe(self, operation: Operation, expected: Expected) -> None:
        status, source = self._api.Status(), self._source(operation)
        communicator = self._communicators[operation.within]

        def probe() -> None:
            until = self.worker.clock() + TEST_S
            while not communicator.Iprobe(*source, status) and self.worker.clock() < until:
                pass

        self._call = "MPI_Iprobe"
        self._mpi.call("MPI_Iprobe", probe)
        self._check_found(expected, status)

    def _check_found(self, expected: Expected, status: Any) -> None:
        (message,) = expected.parts
        assert isinstance(message, Message)
        self._look_at_status(message, status)

    def _matched_probe(self, operation: Operation, expected: Expected) -> None:
        status = self._api.Status()
        probe = self._communicators[operation.within].Mprobe
        self._call = "MPI_Mprobe"
        message = self._mpi.call("MPI_Mprobe", probe, *self._source(operation), status)
        self._messages[operation.makes] = message
        self._check_found(expected, status)

    def _receive_matched(self, operation: Operation, expected: Expected) -> None:
        buffer, status = self._prepare_receive(operation, operation.on), self._api.Status()
        receive = self._messages.pop(operation.of).Recv
        self._receive("MPI_Mrecv", receive, [buffer, status], expected, status)

    # -- all ranks ----------------------------------------------------------------------------------------

    def _barrier(self, operation: Operation, expected: Expected) -> None:
        self._mpi.barrier()

    def _duplicate(self, operation: Operation, expected: Expected) -> None:
        made = self._mpi.call("MPI_Comm_dup", self._communicators[WORLD].Dup)
        self._communicators[operation.makes], self._reversed[operation.makes] = made, False

    def _reverse(self, operation: Operation, expected: Expected) -> None:
        split = self._communicators[WORLD].Split
        made = self._mpi.call("MPI_Comm_split", split, 0, self._mpi.size - self._me)
        self._communicators[operation.makes], self._reversed[operation.makes] = made, True

    def _collective(self, operation: Operation, expected: Expected) -> None:
        case = case_of(operation)
        assert case is not None
        self._group = self._group or GroupCalls(self.worker)
        results, compared = self._group.results, self._group.results.compared
        self._group.perform(case._replace(root=case.number % self._mpi.size))
        self.figures.messages += 1
        self.figures.compared += results.compared - compared
        if results.wrong:
            self._call = case.call
            self._wrong(f"on rank {self._mpi.rank}, {results.wrong.pop()[1]}")

    def _free_communicator(self, operation: Operation, expected: Expected) -> None:
        self._mpi.call("MPI_Comm_free", self._communicators.pop(operation.on).Free)


ACTS: Mapping[str, Callable[[Rank, Operation, Expected], None]] = {
    "allocate": Rank._allocate,
    "free": Rank._free,
    "send": Rank._send,
    "ssend": Rank._send,
    "isend": Rank._isend,
    "issend": Rank._isend,
    "recv": Rank._recv,
    "irecv": Rank._irecv,
    "sendrecv": Rank._sendrecv,
    "make-send": Rank._make_send,
    "make-receive": Rank._make_receive,
    "start": Rank._start,
    "free-request": Rank._free_request,
    "wait": Rank._wait,
    "test": Rank._test,
    "wait-all": Rank._wait_all,
    "probe": Rank._probe,
    "iprobe": Rank._iprobe,
    "matched-probe": Rank._matched_probe,
    "receive-matched": Rank._receive_matched,
    "barrier": Rank._barrier,
    "duplicate": Rank._duplicate,
    "reverse": Rank._reverse,
    "free-communicator": Rank._free_communicator,
    "collective": Rank._collective,
    "one-sided": Rank._collective,
}
"""Operation → how a rank performs it."""


def _difference(found: bytes, expected: bytes, kind: str, stamp: int) -> str:
    at = first_difference(found, expected)
    layout = LAYOUTS[kind]
    shown, wanted = (
        stamp_at(data, at - layout.begin, 0) if not layout.is_derived else 0
        for data in (found[layout.begin :], expected[layout.begin :])
    )
    other = f": contents {shown} instead of {wanted}" if shown and wanted == stamp != shown else ""
    return f"is wrong from byte {at} on{other}"
