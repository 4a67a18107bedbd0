"""Which operations are valid, and what each receive of a history must get.

Operations are listed in an order in which they can happen. While a rank waits for a later operation of
another rank, none of its own operations are listed, so no order of ranks and no buffering can cause a
deadlock.

Matching follows the standard: receives in the order in which they were posted, messages of one sender in the
order in which they were sent (MPI 4.1, section 3.5). Only receives with MPI_ANY_SOURCE depend on timing, so
they are valid only if one rank alone can have sent the message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from gpuipc_doctor.histories.group_calls import Case
from gpuipc_doctor.histories.message_layouts import LAYOUTS
from gpuipc_doctor.histories.operations import History, Operation

WORLD = 0
"""Number that stands for MPI_COMM_WORLD."""

ANY_SOURCE, ANY_TAG = 0, -1

WHERE = ("device", "host")
"""Kinds of buffers."""

SENDS = frozenset({"send", "ssend", "isend", "issend"})
RECEIVES = frozenset({"recv", "irecv"})
GROUP_CALLS = frozenset({"collective", "one-sided"})
"""Calls of all ranks on buffers of their own (`group_calls.Case`), which depend on no other operation."""

OF_ALL = frozenset({"barrier", "duplicate", "reverse", "free-communicator"}) | GROUP_CALLS
"""Collective operations."""


@dataclass(eq=False, slots=True)
class Message:
    """A sent message. ``at`` is the index of the operation that sends it."""

    at: int
    sent: Operation
    within: int
    receive: Receive | None = None
    taken: bool = False
    """Whether a matched probe has taken the message."""

    @property
    def is_matched(self) -> bool:
        return self.receive is not None


@dataclass(eq=False, slots=True)
class Receive:
    """A posted receive. ``at`` is the index of the operation that posts it."""

    at: int
    posted: Operation
    within: int
    message: Message | None = None
    completed: bool = False

    def accepts(self, message: Message) -> bool:
        wants = self.posted
        return (
            message.within == self.within
            and message.sent.peer == wants.by
            and wants.peer in (ANY_SOURCE, message.sent.by)
            and wants.tag in (ANY_TAG, message.sent.tag)
        )

    @property
    def is_matched(self) -> bool:
        return self.message is not None

    @property
    def truncates(self) -> bool:
        return self.message is not None and self.message.sent.nbytes > self.posted.nbytes


Part = Message | Receive
"""A send or receive that an operation starts and may wait for."""


@dataclass(eq=False, slots=True)
class Request:
    """A request. ``parts``: its active sends and receives. ``again``: the operation that a persistent request
    starts."""

    by: int
    parts: tuple[Part, ...] = ()
    again: Operation | None = None

    @property
    def is_matched(self) -> bool:
        return all(part.is_matched for part in self.parts)


@dataclass(eq=False, slots=True)
class Buffer:
    by: int
    nbytes: int
    where: str


@dataclass(frozen=True, slots=True)
class Expected:
    """Messages that are received or sent when an operation returns. For a probe, ``parts`` has the message
    found."""

    parts: tuple[Part, ...] = ()


class Model:
    """The state after some operations of a history."""

    def __init__(self, history: History) -> None:
        self.ranks = tuple(sorted(history.processes))
        self.at = 0
        self.buffers: dict[int, Buffer] = {}
        self.requests: dict[int, Request] = {}
        self.matched: dict[int, Message] = {}
        """Number of a matched message → the message."""
        self.communicators: dict[int, bool] = {WORLD: False}
        """Communicator → whether its ranks are in reverse order."""
        self.unexpected: list[Message] = []
        self.pending: list[Receive] = []
        self.blocked: dict[int, tuple[Part, ...]] = {}
        """Rank → the parts for which its current operation waits."""
        self._wild: list[Receive] = []
        """Receives from any source, except those that had completed at the last barrier."""

    # -- what is legal ------------------------------------------------------------------------------------

    def illegal(self, operation: Operation) -> str:
        """Why the operation is not valid now; empty if it is valid."""
        rule = RULES.get(operation.do)
        if rule is None:
            return f"unknown operation {operation.do!r}"
        if operation.do in OF_ALL:
            return "another rank is blocked in an operation" if self.blocked else rule.refuse(self, operation)
        if operation.by not in self.ranks:
            return f"no process {operation.by}"
        if operation.by in self.blocked:
            return f"process {operation.by} is blocked in its latest operation"
        return rule.refuse(self, operation)

    @property
    def in_use(self) -> set[int]:
        """Buffers that active operations use."""
        active = (request.parts for request in self.requests.values())
        parts = chain.from_iterable((*active, *self.blocked.values()))
        return {part.sent.on if isinstance(part, Message) else part.posted.on for part in parts}

    def _may_allocate(self, operation: Operation) -> str:
        if operation.kind not in WHERE or operation.nbytes < 1 or not operation.makes:
            return "a buffer needs a size and a kind: device or host"
        return ""

    def _may_free(self, operation: Operation) -> str:
        buffer = self.buffers.get(operation.on)
        if buffer is None or buffer.by != operation.by:
            return f"process {operation.by} has no buffer {operation.on}"
        persistent = (request.again for request in self.requests.values() if request.again)
        kept = any(operation.on == again.on for again in persistent)
        return "the buffer is in use" if kept or operation.on in self.in_use else ""

    def _may_begin(self, operation: Operation, number: int, nbytes: int) -> str:
        """Why a message of this size cannot use this buffer; empty if it can."""
        buffer, layout = self.buffers.get(number), LAYOUTS.get(operation.kind)
        if buffer is None or buffer.by != operation.by:
            return f"process {operation.by} has no buffer {number}"
        if layout is None or not layout.fits(nbytes) or layout.extent(nbytes) > buffer.nbytes:
            return f"a message of {nbytes} bytes does not fit buffer {number}"
        if operation.within not in self.communicators:
            return f"no communicator {operation.within}"
        return "the buffer is in use" if number in self.in_use else ""

    def _may_send(self, operation: Operation) -> str:
        if not operation.stamp:
            return "a message needs a stamp"
        return self._may_offer(operation) or self.may_reach(operation)

    def _may_offer(self, operation: Operation) -> str:
        if operation.peer not in self.ranks or operation.tag < 0:
            return "a message needs a destination and a tag"
        return self._may_begin(operation, operation.on, operation.nbytes)

    def may_reach(self, operation: Operation) -> str:
        """Why a receive from any source may take this message instead of the modelled one; empty if none
        may."""
        message = Message(self.at, operation, operation.within)
        rivals = (
            receive.message.sent.by
            for receive in self._wild
            if receive.message is not None and receive.accepts(message)
        )
        other = any(by != operation.by for by in rivals)
        return "a receive from any source may match this message or another" if other else ""

    def _may_isend(self, operation: Operation) -> str:
        return self._may_send(operation) if operation.makes else "needs a new request"

    def _may_recv(self, operation: Operation) -> str:
        if operation.peer not in (ANY_SOURCE, *self.ranks):
            return f"no process {operation.peer}"
        if why := self._may_begin(operation, operation.on, operation.nbytes):
            return why
        receive = Receive(self.at, operation, operation.within)
        senders = {message.sent.by for message in self._candidates(receive)}
        several = operation.peer == ANY_SOURCE and len(senders) > 1
        return "messages of several ranks may match the receive" if several else ""

    def _may_irecv(self, operation: Operation) -> str:
        return self._may_recv(operation) if operation.makes else "needs a new request"

    def _may_sendrecv(self, operation: Operation) -> str:
        if not operation.stamp or operation.of == operation.on:
            return "needs different buffers to send and to receive"
        return (
            self._may_offer(operation)
            or self.may_reach(operation)
            or self._may_begin(operation, operation.of, operation.nbytes)
        )

    def _may_make_send(self, operation: Operation) -> str:
        return self._may_offer(operation) if operation.makes else "needs a new request"

    def _may_make_receive(self, operation: Operation) -> str:
        if operation.peer not in self.ranks:
            return "the receive has no source"
        return (
            self._may_begin(operation, operation.on, operation.nbytes)
            if operation.makes
            else "needs a new request"
        )

    def _may_start(self, operation: Operation) -> str:
        request = self.requests.get(operation.on)
        if request is None or request.by != operation.by or request.again is None or request.parts:
            return f"process {operation.by} has no inactive persistent request {operation.on}"
        if request.again.do == "make-send":
            return self._may_send(_send_again(operation, request.again))
        return self._may_recv(_receive_again(request.again))

    def _may_free_request(self, operation: Operation) -> str:
        request = self.requests.get(operation.on)
        if request is None or request.by != operation.by or request.again is None or request.parts:
            return f"process {operation.by} has no inactive persistent request {operation.on}"
        return ""

    def _may_wait(self, operation: Operation) -> str:
        request = self.requests.get(operation.on)
        active = request is not None and request.by == operation.by and request.parts
        return "" if active else f"process {operation.by} has no active request {operation.on}"

    def _may_wait_all(self, operation: Operation) -> str:
        parts = self._ready(operation.by)
        if any(isinstance(part, Receive) and part.truncates for part in parts):
            return "a message is longer than its receive buffer"
        return "" if parts else f"process {operation.by} has nothing to wait for"

    def _ready(self, by: int) -> tuple[Part, ...]:
        return tuple(part for number in self.ready(by) for part in self.requests[number].parts)

    def ready(self, by: int) -> list[int]:
        """The requests of a rank that can complete without another operation."""
        return [
            number
            for number, request in self.requests.items()
            if request.by == by and request.parts and request.is_matched
        ]

    def _may_probe(self, operation: Operation) -> str:
        if operation.peer not in self.ranks or operation.within not in self.communicators:
            return "a probe needs a source"
        return "" if self._find_message(operation) else "no such message"

    def _may_matched_probe(self, operation: Operation) -> str:
        return self._may_probe(operation) if operation.makes else "needs a new message"

    def _may_receive_matched(self, operation: Operation) -> str:
        message = self.matched.get(operation.of)
        if message is None or message.sent.peer != operation.by:
            return f"process {operation.by} has no matched message {operation.of}"
        if message.within != operation.within:
            return "the message belongs to another communicator"
        return self._may_begin(operation, operation.on, operation.nbytes)

    def _may_barrier(self, operation: Operation) -> str:
        return ""

    def _may_collective(self, operation: Operation) -> str:
        return (
            "" if operation.stamp and operation.nbytes and case_of(operation) else "needs a call and a stamp"
        )

    def _may_duplicate(self, operation: Operation) -> str:
        return "" if operation.makes and len(self.communicators) < 4 else "needs a new communicator"

    def _may_free_communicator(self, operation: Operation) -> str:
        number = operation.on
        if number == WORLD or number not in self.communicators:
            return f"no communicator {number}"
        active = (part for request in self.requests.values() for part in request.parts)
        used = any(part.within == number for part in (*active, *self.unexpected, *self.matched.values()))
        kept = any(request.again and request.again.within == number for request in self.requests.values())
        return "the communicator is in use" if used or kept else ""

    # -- what happens -------------------------------------------------------------------------------------

    def apply(self, operation: Operation) -> Expected:
        """Update the state for a valid operation; returns its result, which a later match may complete."""
        expected = RULES[operation.do].apply(self, operation) or Expected()
        self.at += 1
        self.blocked = {by: parts for by, parts in self.blocked.items() if not self._unblock(parts)}
        return expected

    def _unblock(self, parts: tuple[Part, ...]) -> bool:
        if not all(part.is_matched for part in parts):
            return False
        self._complete(parts)
        return True

    def _complete(self, parts: Iterable[Part]) -> None:
        for part in parts:
            if isinstance(part, Receive):
                part.completed = True

    def _block(self, by: int, parts: tuple[Part, ...]) -> Expected:
        self.blocked[by] = parts
        return Expected(parts)

    def _allocate(self, operation: Operation) -> None:
        self.buffers[operation.makes] = Buffer(operation.by, operation.nbytes, operation.kind)

    def _free(self, operation: Operation) -> None:
        del self.buffers[operation.on]

    def _offer(self, sent: Operation) -> Message:
        message = Message(self.at, sent, sent.within)
        for receive in self.pending:
            if receive.accepts(message):
                message.receive, receive.message = receive, message
                self.pending.remove(receive)
                return message
        self.unexpected.append(message)
        return message

    def _candidates(self, receive: Receive) -> list[Message]:
        """The messages that a receive could match now: the first one of each sender, in the order of
        ranks."""
        return [message for message in self.unexpected if receive.accepts(message)]

    def _post(self, posted: Operation) -> Receive:
        receive = Receive(self.at, posted, posted.within)
        if posted.peer == ANY_SOURCE:
            self._wild.append(receive)
        for message in self._candidates(receive):
            self._match(message, receive)
            return receive
        self.pending.append(receive)
        return receive

    def _match(self, message: Message, receive: Receive) -> None:
        message.receive, receive.message = receive, message
        if message in self.unexpected:
            self.unexpected.remove(message)

    def _send(self, operation: Operation) -> Expected:
        return self._block(operation.by, (self._offer(operation),))

    def _begin(self, operation: Operation, part: Part) -> Expected:
        self.requests[operation.makes] = Request(operation.by, (part,))
        return Expected((part,))

    def _isend(self, operation: Operation) -> Expected:
        return self._begin(operation, self._offer(operation))

    def _recv(self, operation: Operation) -> Expected:
        return self._block(operation.by, (self._post(operation),))

    def _irecv(self, operation: Operation) -> Expected:
        return self._begin(operation, self._post(operation))

    def _sendrecv(self, operation: Operation) -> Expected:
        receive = self._post(replace(operation, on=operation.of, of=0, stamp=0))
        return self._block(operation.by, (self._offer(operation), receive))

    def _persist(self, operation: Operation) -> None:
        self.requests[operation.makes] = Request(operation.by, again=operation)

    def _start(self, operation: Operation) -> Expected:
        request = self.requests[operation.on]
        assert request.again is not None
        if request.again.do == "make-send":
            request.parts = (self._offer(_send_again(operation, request.again)),)
        else:
            request.parts = (self._post(_receive_again(request.again)),)
        return Expected(request.parts)

    def _free_request(self, operation: Operation) -> None:
        del self.requests[operation.on]

    def _wait(self, operation: Operation) -> Expected:
        return self._block(operation.by, self._end(operation.on))

    def _end(self, number: int) -> tuple[Part, ...]:
        request = self.requests[number]
        parts = request.parts
        if request.again:
            request.parts = ()
        else:
            del self.requests[number]
        return parts

    def _wait_all(self, operation: Operation) -> Expected:
        parts = tuple(part for number in self.ready(operation.by) for part in self._end(number))
        return self._block(operation.by, parts)

    def _find_message(self, operation: Operation) -> Message | None:
        receive = Receive(self.at, operation, operation.within)
        return next(iter(self._candidates(receive)), None)

    def _probe(self, operation: Operation) -> Expected:
        message = self._find_message(operation)
        assert message is not None
        return Expected((message,))

    def _matched_probe(self, operation: Operation) -> Expected:
        message = self._find_message(operation)
        assert message is not None
        message.taken = True
        self.unexpected.remove(message)
        self.matched[operation.makes] = message
        return Expected((message,))

    def _receive_matched(self, operation: Operation) -> Expected:
        receive = Receive(self.at, operation, operation.within)
        self._match(self.matched.pop(operation.of), receive)
        return self._block(operation.by, (receive,))

    def _barrier(self, operation: Operation) -> None:
        self._wild = [receive for receive in self._wild if not receive.completed]

    def _collective(self, operation: Operation) -> None:
        """Its buffers last no longer than the call."""

    def _duplicate(self, operation: Operation) -> None:
        self.communicators[operation.makes] = False

    def _reverse(self, operation: Operation) -> None:
        self.communicators[operation.makes] = True

    def _free_communicator(self, operation: Operation) -> None:
        del self.communicators[operation.on]

    def partner(self, operation: Operation) -> Operation | None:
        """The send or receive that an operation would match without blocking; None if there is none."""
        if operation.do in SENDS:
            message = Message(self.at, operation, operation.within)
            return next((request.posted for request in self.pending if request.accepts(message)), None)
        receive = Receive(self.at, operation, operation.within)
        return next((message.sent for message in self._candidates(receive)), None)

    # -- its end ------------------------------------------------------------------------------------------

    def unmatched(self) -> set[int]:
        """Indices of the sends and receives without a match; a complete history has none."""
        taken = {message.at for message in self.matched.values()}
        return {part.at for part in self.waiting} | taken

    @property
    def waiting(self) -> list[Part]:
        """Sends and receives that have no match yet."""
        return [*self.unexpected, *self.pending]


def case_of(operation: Operation) -> Case | None:
    """The call of a collective or one-sided operation; None if its kind is not ``call|type|memory|form``."""
    words = operation.kind.split("|")
    if len(words) != 4:
        return None
    call, kind, memory, form = words
    return Case(operation.stamp, call, operation.nbytes, kind, memory, form)


def _send_again(start: Operation, again: Operation) -> Operation:
    return replace(again, do="isend", stamp=start.stamp)


def _receive_again(again: Operation) -> Operation:
    return replace(again, do="irecv")


@dataclass(frozen=True, slots=True)
class Rule:
    """An operation's rule: when the operation is valid, and what it does."""

    refuse: Callable[[Model, Operation], str]
    """Why the operation is not valid now; empty if it is valid."""
    apply: Callable[[Model, Operation], Expected | None]
    """Update the state; returns the result, if there is one."""


RULES: Mapping[str, Rule] = {
    "allocate": Rule(Model._may_allocate, Model._allocate),
    "free": Rule(Model._may_free, Model._free),
    "send": Rule(Model._may_send, Model._send),
    "ssend": Rule(Model._may_send, Model._send),
    "isend": Rule(Model._may_isend, Model._isend),
    "issend": Rule(Model._may_isend, Model._isend),
    "recv": Rule(Model._may_recv, Model._recv),
    "irecv": Rule(Model._may_irecv, Model._irecv),
    "sendrecv": Rule(Model._may_sendrecv, Model._sendrecv),
    "make-send": Rule(Model._may_make_send, Model._persist),
    "make-receive": Rule(Model._may_make_receive, Model._persist),
    "start": Rule(Model._may_start, Model._start),
    "free-request": Rule(Model._may_free_request, Model._free_request),
    "wait": Rule(Model._may_wait, Model._wait),
    "test": Rule(Model._may_wait, Model._wait),
    "wait-all": Rule(Model._may_wait_all, Model._wait_all),
    "probe": Rule(Model._may_probe, Model._probe),
    "iprobe": Rule(Model._may_probe, Model._probe),
    "matched-probe": Rule(Model._may_matched_probe, Model._matched_probe),
    "receive-matched": Rule(Model._may_receive_matched, Model._receive_matched),
    "barrier": Rule(Model._may_barrier, Model._barrier),
    "duplicate": Rule(Model._may_duplicate, Model._duplicate),
    "reverse": Rule(Model._may_duplicate, Model._reverse),
    "free-communicator": Rule(Model._may_free_communicator, Model._free_communicator),
    "collective": Rule(Model._may_collective, Model._collective),
    "one-sided": Rule(Model._may_collective, Model._collective),
}
"""Operation → its rule."""


def legal(history: History) -> list[Operation]:
    """The operations that remain valid after invalid and unmatched ones are omitted."""
    operations = list(history.operations)
    while True:
        model, kept = Model(history), list[Operation]()
        for operation in operations:
            if not model.illegal(operation):
                model.apply(operation)
                kept.append(operation)
        unmatched = model.unmatched()
        if not unmatched:
            return kept
        operations = [operation for place, operation in enumerate(kept) if place not in unmatched]
