"""A phase of messages in the making: what its operations share, and the moves that complete each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random

from gpuipc_doctor.histories.message_layouts import LAYOUTS
from gpuipc_doctor.histories.message_model import Model
from gpuipc_doctor.histories.message_state import ANY_SOURCE, ANY_TAG, WHERE, Expected, Message, Part, Receive
from gpuipc_doctor.histories.mpi_library_limits import DERIVED, SELF
from gpuipc_doctor.histories.operations import Operation

OUTSTANDING = 10
"""Maximum sends and receives without a match."""

ROOM = 48 << 20
"""Bytes of all ranks' buffers together."""

MOST_BUFFERS = 40
"""Number of buffers above which unused ones are freed; more buffers can be in use."""

MIDDLE = (1024, 2048, 4096, 8192, 12000, 16384, 32768, 65536)
"""Message sizes in bytes. The sizes around the library's protocol thresholds are added to them."""

ALONE = 16 << 20
"""Bytes of a huge message, which is sent only while no other message is in transit."""

KINDS = tuple(kind for kind in LAYOUTS if kind)

MOST_IN_BLOCKS = 64 << 10
"""Maximum bytes of a message with a derived type."""


@dataclass(frozen=True, slots=True)
class Phase:
    """The weights of one phase, one for each draw. Other fields of type float are probabilities."""

    weights: tuple[float, ...]
    sizes: tuple[int, ...]
    tags: tuple[int, ...]
    operations: int
    on_device: float
    derived: float
    any_source: float
    any_tag: float
    longer: float
    """Probability that a receive buffer is larger than its message."""


class Draft:
    """The operations of a phase so far, and the state of all ranks after them."""

    phase: Phase

    def __init__(self, model: Model, random: Random, lacks: tuple[str, ...], *, huge: bool) -> None:
        """``huge``: whether messages may be very large."""
        self.model = model
        self.ranks = list(model.ranks)
        self.random = random
        self.made: list[tuple[Operation, Expected]] = []
        self.has_self = SELF not in lacks
        """Whether a rank may send to itself."""
        self._has_derived = DERIVED not in lacks
        self._numbers = 0
        self._repeated_sizes = (*MIDDLE, ALONE, ALONE, ALONE) if huge else MIDDLE
        self.repeated: list[tuple[int, int]] = []
        """(receiver, bytes) of the messages that remain to be repeated."""
        self._drawn = Counter[tuple[int, int]]()
        """(bytes, receiver) → number of messages so far."""

    # -- choosing -----------------------------------------------------------------------------------------

    def number(self) -> int:
        """A number for a new object or new contents."""
        self._numbers += 1
        return self._numbers

    def chance(self, how_often: float) -> bool:
        return self.random.random() < how_often

    def size_for(self, to: int) -> int:
        """The size for which this rank has received the fewest messages."""
        size = min(self.phase.sizes, key=lambda size: (self._drawn[size, to], self.random.random()))
        self._drawn[size, to] += 1
        return size

    def next_repeated(self) -> tuple[int, int]:
        """Receiver and bytes of the next message to be repeated: none comes twice before all have come."""
        if not self.repeated:
            self.repeated = [(to, size) for to in self.ranks for size in self._repeated_sizes]
            self.random.shuffle(self.repeated)
        return self.repeated.pop()

    def arrived(self) -> list[Message]:
        """The messages without a receive that a rank may receive now."""
        free = self.free_ranks
        return [message for message in self.model.unexpected if message.sent.peer in free]

    def size(self) -> int:
        return self.random.choice(self.phase.sizes)

    def tag(self) -> int:
        return self.random.choice(self.phase.tags)

    def communicator(self) -> int:
        return self.random.choice(list(self.model.communicators))

    def kind(self, nbytes: int) -> str:
        """The layout of a message of this size."""
        kind = self.random.choice(KINDS) if self.chance(self.phase.derived) else ""
        if LAYOUTS[kind].is_derived and not self._has_derived:
            return ""
        fits = nbytes <= MOST_IN_BLOCKS and nbytes and LAYOUTS[kind].fits(nbytes)
        return kind if fits else ""

    def pair(self) -> tuple[int, int]:
        """A rank that is not blocked and another rank; rarely the same rank."""
        by = self.random.choice(self.free_ranks)
        others = [rank for rank in self.ranks if rank != by]
        return by, self.random.choice(others) if not self.has_self or self.chance(0.95) else by

    @property
    def free_ranks(self) -> list[int]:
        return [rank for rank in self.ranks if rank not in self.model.blocked]

    @property
    def may_block(self) -> bool:
        """Whether a rank may block now. Only one may at a time, so that another rank can unblock it."""
        return not self.model.blocked

    @property
    def is_full(self) -> bool:
        """Whether so many sends and receives have no match that no others may be added."""
        return len(self.model.unexpected) + len(self.model.pending) >= OUTSTANDING

    # -- doing --------------------------------------------------------------------------------------------

    def add(self, operation: Operation) -> bool:
        """Add an operation if it is valid now; returns whether it is."""
        if self.model.illegal(operation):
            return False
        self.made.append((operation, self.model.apply(operation)))
        return True

    def buffer(self, by: int, kind: str, nbytes: int, *, other: int = 0) -> int:
        """An unused buffer of a rank that has room for a message of this kind and size; may allocate it."""
        nbytes = LAYOUTS[kind].extent(nbytes)
        where = WHERE[0] if self.chance(self.phase.on_device) else WHERE[1]
        excluded = self.model.in_use | {other}
        idle = [
            number
            for number, buffer in self.model.buffers.items()
            if (buffer.by, buffer.where) == (by, where) and nbytes <= buffer.nbytes and number not in excluded
        ]
        if idle and self.chance(0.95):
            return self.random.choice(idle)
        number, size = self.number(), max(nbytes, *self.phase.sizes, 8)
        size = size if self.chance(0.7) else max(nbytes, 8)
        self._make_room(size)
        self.add(Operation("allocate", by, makes=number, nbytes=size, kind=where))
        return number

    def _make_room(self, nbytes: int) -> None:
        """Free unused buffers until ``nbytes`` can be allocated, or none is left."""
        buffers = self.model.buffers
        held = sum(buffer.nbytes for buffer in buffers.values())
        for number, buffer in list(buffers.items()):
            if held + nbytes <= ROOM and len(buffers) < MOST_BUFFERS:
                return
            if self.add(Operation("free", buffer.by, on=number)):
                held -= buffer.nbytes

    def send(self, by: int, to: int, nbytes: int, tag: int, within: int, *, blocks: bool) -> bool:
        plain = Operation("send", by, nbytes=nbytes, stamp=1, peer=to, tag=tag, within=within)
        if posted := self.model.partner(plain):
            nbytes = min(nbytes, posted.nbytes)
        kind = self.kind(nbytes)
        on = self.buffer(by, kind, nbytes)
        synchronous = "s" if self.chance(0.15) else ""
        do = f"{synchronous}send" if blocks else f"i{synchronous}send"
        makes, stamp = 0 if blocks else self.number(), self.number()
        return self.add(replace(plain, do=do, on=on, makes=makes, nbytes=nbytes, stamp=stamp, kind=kind))

    def receive(self, by: int, source: int, nbytes: int, tag: int, within: int, *, blocks: bool) -> bool:
        source = ANY_SOURCE if self.chance(self.phase.any_source) else source
        tag = ANY_TAG if self.chance(self.phase.any_tag) else tag
        plain = Operation("recv", by, nbytes=nbytes, peer=source, tag=tag, within=within)
        if sent := self.model.partner(plain):
            nbytes = sent.nbytes
        room = nbytes
        if self.chance(self.phase.longer):
            room = max(nbytes, self.size())
        kind = self.kind(room)
        on = self.buffer(by, kind, room)
        do, makes = ("recv", 0) if blocks else ("irecv", self.number())
        operation = replace(plain, do=do, on=on, makes=makes, nbytes=room, kind=kind)
        if blocks and not self.model.partner(operation) and not self.can_be_sent(operation):
            return False
        return self.add(operation)

    def receive_matched(self, number: int) -> None:
        """Receive the message that a probe has matched."""
        message = self.model.matched[number]
        sent = message.sent
        kind = self.kind(sent.nbytes)
        on = self.buffer(sent.peer, kind, sent.nbytes)
        by, nbytes, within = sent.peer, sent.nbytes, message.within
        self.add(Operation("receive-matched", by, on=on, of=number, nbytes=nbytes, within=within, kind=kind))

    # -- what must come next ------------------------------------------------------------------------------

    def can_be_sent(self, posted: Operation) -> bool:
        """Whether some rank can send the message for a receive, whichever messages earlier receives match."""
        for earlier in self.model.pending:
            takes_any = (earlier.posted.by, earlier.posted.peer) == (posted.by, ANY_SOURCE)
            if takes_any and earlier.within == posted.within and earlier.posted is not posted:
                return False
        return bool(self._senders(Receive(0, posted, posted.within)))

    def can_match(self, parts: Iterable[Part]) -> bool:
        """Whether other ranks can immediately perform the operations for which a rank would wait."""
        return all(
            part.sent.peer != part.sent.by if isinstance(part, Message) else self.can_be_sent(part.posted)
            for part in parts
        )

    def meets_earlier(self, by: int, to: int, tag: int, within: int) -> bool:
        """Whether a message between these ranks, or the receive for it, would match an earlier operation."""
        sent = Operation("send", by, peer=to, tag=tag, within=within, stamp=1)
        posted = Operation("recv", to, peer=by, tag=tag, within=within)
        return bool(self.model.may_reach(sent) or self.model.partner(sent) or self.model.partner(posted))

    def _senders(self, receive: Receive) -> list[int]:
        wants = receive.posted
        sources = [wants.peer] if wants.peer != ANY_SOURCE else self.ranks
        found = []
        for rank in sources:
            sent = Operation("send", rank, peer=wants.by, tag=max(wants.tag, 0), within=wants.within, stamp=1)
            if rank != wants.by and rank not in self.model.blocked and not self.model.may_reach(sent):
                found.append(rank)
        return found

    def match(self, part: Part) -> bool:
        """Have a rank perform the counterpart of ``part``, or an operation that must come before the
        counterpart."""
        return self._receive_for(part) if isinstance(part, Message) else self._send_for(part)

    def _receive_for(self, message: Message) -> bool:
        sent = message.sent
        if sent.peer in self.model.blocked:
            return False
        blocks = self.chance(0.5)
        return self.receive(sent.peer, sent.by, sent.nbytes, sent.tag, message.within, blocks=blocks)

    def _send_for(self, receive: Receive) -> bool:
        wants = receive.posted
        own = [wants.by] if self.has_self and wants.peer in (wants.by, ANY_SOURCE) else []
        senders = self._senders(receive) or own
        if not senders or (wants.by in self.model.blocked and senders == [wants.by]):
            return False
        tag = wants.tag if wants.tag != ANY_TAG else self.tag()
        nbytes = wants.nbytes
        shorter = [size for size in self.phase.sizes if size < nbytes]
        if shorter and self.chance(self.phase.longer):
            nbytes = self.random.choice(shorter)
        by = self.random.choice(senders)
        operation = Operation("send", by, peer=wants.by, tag=tag, within=receive.within, stamp=1)
        blocks = self.chance(0.5) and self.model.partner(operation) is not None
        return self.send(by, wants.by, nbytes, tag, receive.within, blocks=blocks)

    def resolve(self) -> None:
        """Have another rank perform what unblocks a blocked rank."""
        for number in list(self.model.matched):
            self.receive_matched(number)
        for parts in self.model.blocked.values():
            for part in parts:
                if not part.is_matched:
                    self.match(part)
                    return

    def wait_for_all(self) -> None:
        """Have all ranks wait for the requests that can complete."""
        for number, request in list(self.model.requests.items()):
            if request.parts and number in self.model.ready(request.by):
                self.add(Operation("wait", request.by, on=number))
