"""What exists after some operations on messages: buffers, requests, and which messages match which receives.

Matching follows the standard: receives in the order in which they were posted, messages of one sender in the
order in which they were sent (MPI 4.1, section 3.5). Only receives with MPI_ANY_SOURCE depend on timing, so
they are valid only if one rank alone can have sent the message.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from gpuipc_doctor.histories.group_cases import Case
from gpuipc_doctor.histories.message_layouts import LAYOUTS
from gpuipc_doctor.histories.operations import History, Operation

WORLD = 0
"""Number that stands for MPI_COMM_WORLD."""

ANY_SOURCE, ANY_TAG = 0, -1

WHERE = ("device", "host")
"""Kinds of buffers."""

SENDS = frozenset({"send", "ssend", "isend", "issend"})


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

    @property
    def message(self) -> Message:
        """The message that a probe found."""
        (message,) = self.parts
        assert isinstance(message, Message)
        return message


class State:
    """Buffers, requests and messages of all ranks; how operations look them up and change them."""

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
        self.wild: list[Receive] = []
        """Receives from any source, except those that had completed at the last barrier."""

    @property
    def in_use(self) -> set[int]:
        """Buffers that active operations use."""
        active = (request.parts for request in self.requests.values())
        parts = chain.from_iterable((*active, *self.blocked.values()))
        return {part.sent.on if isinstance(part, Message) else part.posted.on for part in parts}

    @property
    def waiting(self) -> list[Part]:
        """Sends and receives that have no match yet."""
        return [*self.unexpected, *self.pending]

    def refuse_use(self, op: Operation, number: int, nbytes: int) -> str:
        """Why a message of this size cannot use this buffer; empty if it can."""
        buffer, layout = self.buffers.get(number), LAYOUTS.get(op.kind)
        if buffer is None or buffer.by != op.by:
            return f"process {op.by} has no buffer {number}"
        if layout is None or not layout.fits(nbytes) or layout.extent(nbytes) > buffer.nbytes:
            return f"a message of {nbytes} bytes does not fit buffer {number}"
        if op.within not in self.communicators:
            return f"no communicator {op.within}"
        return "the buffer is in use" if number in self.in_use else ""

    def refuse_offer(self, op: Operation) -> str:
        if op.peer not in self.ranks or op.tag < 0:
            return "a message needs a destination and a tag"
        return self.refuse_use(op, op.on, op.nbytes)

    def refuse_send(self, op: Operation) -> str:
        if not op.stamp:
            return "a message needs a stamp"
        return self.refuse_offer(op) or self.may_reach(op)

    def refuse_receive(self, op: Operation) -> str:
        if op.peer not in (ANY_SOURCE, *self.ranks):
            return f"no process {op.peer}"
        if why := self.refuse_use(op, op.on, op.nbytes):
            return why
        senders = {message.sent.by for message in self.candidates(op)}
        several = op.peer == ANY_SOURCE and len(senders) > 1
        return "messages of several ranks may match the receive" if several else ""

    def may_reach(self, op: Operation) -> str:
        """Why a receive from any source may take this message instead of the modelled one; empty if none
        may."""
        message = Message(self.at, op, op.within)
        rivals = (
            receive.message.sent.by
            for receive in self.wild
            if receive.message is not None and receive.accepts(message)
        )
        other = any(by != op.by for by in rivals)
        return "a receive from any source may match this message or another" if other else ""

    def ready(self, by: int) -> list[int]:
        """The requests of a rank that can complete without another operation."""
        return [
            number
            for number, request in self.requests.items()
            if request.by == by and request.parts and request.is_matched
        ]

    def inactive(self, op: Operation) -> Request | None:
        """The persistent request ``on``, if it is the rank's and not started."""
        request = self.requests.get(op.on)
        is_inactive = request and request.by == op.by and request.again and not request.parts
        return request if is_inactive else None

    def candidates(self, wanted: Operation) -> list[Message]:
        """The messages that a receive could match now: the first one of each sender, in the order of
        ranks."""
        receive = Receive(self.at, wanted, wanted.within)
        return [message for message in self.unexpected if receive.accepts(message)]

    def partner(self, op: Operation) -> Operation | None:
        """The send or receive that an operation would match without blocking; None if there is none."""
        if op.do in SENDS:
            message = Message(self.at, op, op.within)
            return next((request.posted for request in self.pending if request.accepts(message)), None)
        return next((message.sent for message in self.candidates(op)), None)

    # -- what happens -------------------------------------------------------------------------------------

    def offer(self, sent: Operation) -> Message:
        message = Message(self.at, sent, sent.within)
        for receive in self.pending:
            if receive.accepts(message):
                message.receive, receive.message = receive, message
                self.pending.remove(receive)
                return message
        self.unexpected.append(message)
        return message

    def post(self, posted: Operation) -> Receive:
        receive = Receive(self.at, posted, posted.within)
        if posted.peer == ANY_SOURCE:
            self.wild.append(receive)
        for message in self.candidates(posted):
            self.match(message, receive)
            return receive
        self.pending.append(receive)
        return receive

    def match(self, message: Message, receive: Receive) -> None:
        message.receive, receive.message = receive, message
        if message in self.unexpected:
            self.unexpected.remove(message)

    def block(self, by: int, *parts: Part) -> Expected:
        self.blocked[by] = parts
        return Expected(parts)

    def begin(self, op: Operation, part: Part) -> Expected:
        self.requests[op.makes] = Request(op.by, (part,))
        return Expected((part,))

    def end(self, number: int) -> tuple[Part, ...]:
        request = self.requests[number]
        parts = request.parts
        if request.again:
            request.parts = ()
        else:
            del self.requests[number]
        return parts


def case_of(op: Operation) -> Case | None:
    """The call of a collective or one-sided operation; None if its kind is not ``call|type|memory|form``."""
    words = op.kind.split("|")
    if len(words) != 4:
        return None
    call, kind, memory, form = words
    return Case(op.stamp, call, op.nbytes, kind, memory, form)
