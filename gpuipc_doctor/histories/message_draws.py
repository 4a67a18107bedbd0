"""What can be drawn next in a history of messages: each operation or sequence of operations is an object."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from gpuipc_doctor.histories.message_draft import Draft
from gpuipc_doctor.histories.message_state import ANY_TAG, WORLD
from gpuipc_doctor.histories.operations import Operation

MIDDLE = (1024, 2048, 4096, 8192, 12000, 16384, 32768, 65536)
"""Message sizes in bytes. The sizes around the library's protocol thresholds are added to them."""

ALONE = 16 << 20
"""Bytes of a huge message, which is sent only while no other message is in transit."""

REPEATS = 24
"""How often a message is repeated: a library may register a buffer, or set up a faster path between ranks,
after some messages."""

RECYCLED = 0.6
"""Probability that a freed buffer is followed by one of the same size, used at once."""

MOST_PERSISTENT = 4
"""Number of persistent requests above which none is added."""


class Draw(ABC):
    """An operation, or a sequence of operations, that can be drawn.

    A seed always gives the same history, so the order of random choices in `draw` is part of the format.
    """

    weight: ClassVar[float]
    """Base weight; an epoch multiplies it by a random factor."""
    always: ClassVar[bool] = False
    """Whether its weight is positive in every epoch."""
    more: ClassVar[float] = 0.0
    """Added to its weight in epochs after the common ones."""

    def is_possible(self, draft: Draft) -> bool:
        """Whether the state of the ranks allows it."""
        return True

    @abstractmethod
    def draw(self, draft: Draft) -> None:
        """Choose the operations' arguments, and add to the draft what is valid."""


class SendFirst(Draw):
    """Send a message that no rank expects yet."""

    weight, always = 10.0, True

    def is_possible(self, draft: Draft) -> bool:
        return bool(draft.free_ranks)

    def draw(self, draft: Draft) -> None:
        by, to = draft.pair()
        if draft.is_full:
            return
        blocks = draft.may_block and to != by and draft.chance(0.4)
        size, tag = draft.size_for(to), draft.tag()
        draft.send(by, to, size, tag, draft.communicator(), blocks=blocks)


class ReceiveFirst(Draw):
    """Post a receive for a message that is not sent yet."""

    weight, always = 10.0, True

    def is_possible(self, draft: Draft) -> bool:
        return bool(draft.free_ranks)

    def draw(self, draft: Draft) -> None:
        by, source = draft.pair()
        if draft.is_full:
            return
        blocks = draft.may_block and source != by and draft.chance(0.3)
        size, tag = draft.size_for(by), draft.tag()
        draft.receive(by, source, size, tag, draft.communicator(), blocks=blocks)


class Answer(Draw):
    """Match a send or receive that has no match yet."""

    weight, always = 16.0, True

    def is_possible(self, draft: Draft) -> bool:
        return bool(draft.model.waiting)

    def draw(self, draft: Draft) -> None:
        draft.match(draft.random.choice(draft.model.waiting))


class Wait(Draw):
    """Wait for one request or for all that can complete, or test one."""

    weight, always = 8.0, True

    def is_possible(self, draft: Draft) -> bool:
        return bool(self._active(draft))

    def _active(self, draft: Draft) -> list[int]:
        free = draft.free_ranks
        return [n for n, request in draft.model.requests.items() if request.parts and request.by in free]

    def draw(self, draft: Draft) -> None:
        number = draft.random.choice(self._active(draft))
        request = draft.model.requests[number]
        is_ready = number in draft.model.ready(request.by)
        if is_ready and draft.chance(0.6):
            draft.add(Operation("wait-all", request.by))
        elif is_ready or (draft.may_block and draft.can_match(request.parts)):
            do = "test" if is_ready and draft.chance(0.2) else "wait"
            draft.add(Operation(do, request.by, on=number))


class Exchange(Draw):
    """Have two ranks send to each other at the same time."""

    weight = 2.0

    def is_possible(self, draft: Draft) -> bool:
        return len(draft.free_ranks) >= 2 and draft.may_block and not draft.is_full

    def draw(self, draft: Draft) -> None:
        first, second = draft.random.sample(draft.free_ranks, 2)
        size, tag, within = draft.size(), draft.tag(), draft.communicator()
        ways = (first, second), (second, first)
        if any(draft.meets_earlier(by, to, tag, within) for by, to in ways):
            return
        for by, to in ways:
            kind = draft.kind(size)
            on = draft.buffer(by, kind, size)
            of = draft.buffer(by, kind, size, other=on)
            stamp = draft.number()
            operation = Operation(
                "sendrecv",
                by,
                on=on,
                of=of,
                nbytes=size,
                stamp=stamp,
                peer=to,
                tag=tag,
                within=within,
                kind=kind,
            )
            if not draft.add(operation):
                return


class Repeat(Draw):
    """Send the same message many times, between the same buffers; or a very large message once."""

    weight = 0.4

    def __init__(self, *, huge: bool) -> None:
        self._sizes = (*MIDDLE, ALONE, ALONE, ALONE) if huge else MIDDLE
        self._left: list[tuple[int, int]] = []
        """(receiver, bytes) of the messages that remain to be repeated."""

    def is_possible(self, draft: Draft) -> bool:
        return draft.may_block and not draft.is_full

    def draw(self, draft: Draft) -> None:
        if not self._left:
            self._left = [(to, size) for to in draft.ranks for size in self._sizes]
            draft.random.shuffle(self._left)
        to, size = self._left.pop()
        by = draft.random.choice([rank for rank in draft.ranks if rank != to])
        tag, within = draft.tag(), draft.communicator()
        if draft.meets_earlier(by, to, tag, within):
            self._left.insert(0, (to, size))
            return
        on, into = draft.buffer(by, "", size), draft.buffer(to, "", size)
        posted = Operation("recv", to, on=into, nbytes=size, peer=by, tag=tag, within=within)
        for _ in range(REPEATS if size < ALONE else 1):
            if draft.can_be_sent(posted) and draft.add(posted):
                draft.add(replace(posted, do="send", by=by, on=on, stamp=draft.number(), peer=to))


class Probe(Draw):
    """Probe for a message that has arrived, and perhaps receive what was matched."""

    weight = 3.0

    def is_possible(self, draft: Draft) -> bool:
        return any(message.sent.peer in draft.free_ranks for message in draft.model.unexpected)

    def draw(self, draft: Draft) -> None:
        free = draft.free_ranks
        message = draft.random.choice([each for each in draft.model.unexpected if each.sent.peer in free])
        sent = message.sent
        tag = ANY_TAG if draft.chance(draft.epoch.any_tag) else sent.tag
        do = draft.random.choice(("probe", "iprobe", "matched-probe"))
        probe = Operation(do, sent.peer, peer=sent.by, tag=tag, within=message.within)
        if do != "matched-probe":
            draft.add(probe)
            return
        number = draft.number()
        if draft.add(replace(probe, makes=number)) and draft.chance(0.8):
            draft.receive_matched(number)


class Persist(Draw):
    """Make a persistent request."""

    weight = 1.5

    def is_possible(self, draft: Draft) -> bool:
        return bool(draft.free_ranks)

    def draw(self, draft: Draft) -> None:
        by, peer = draft.pair()
        persistent = [request for request in draft.model.requests.values() if request.again]
        if len(persistent) > MOST_PERSISTENT:
            return
        size = draft.size()
        kind = draft.kind(size)
        on = draft.buffer(by, kind, size)
        do, makes = draft.random.choice(("make-send", "make-receive")), draft.number()
        tag, within = draft.tag(), draft.communicator()
        draft.add(
            Operation(do, by, on=on, makes=makes, nbytes=size, peer=peer, tag=tag, within=within, kind=kind)
        )


class Start(Draw):
    """Start a persistent request."""

    weight = 4.0

    def is_possible(self, draft: Draft) -> bool:
        return bool(self._inactive(draft)) and not draft.is_full

    def _inactive(self, draft: Draft) -> list[tuple[int, Operation]]:
        requests = draft.model.requests.items()
        return [(number, each.again) for number, each in requests if each.again and not each.parts]

    def draw(self, draft: Draft) -> None:
        number, again = draft.random.choice(self._inactive(draft))
        sends = again.do == "make-send"
        partner = draft.model.partner(replace(again, do="send" if sends else "recv"))
        if partner:
            sent, posted = (again, partner) if sends else (partner, again)
            if sent.nbytes > posted.nbytes:
                return
        draft.add(Operation("start", again.by, on=number, stamp=draft.number() if sends else 0))


class Free(Draw):
    """Free a buffer."""

    weight = 0.7

    def is_possible(self, draft: Draft) -> bool:
        return bool(draft.model.buffers)

    def draw(self, draft: Draft) -> None:
        number = draft.random.choice(list(draft.model.buffers))
        draft.add(Operation("free", draft.model.buffers[number].by, on=number))


class Recycle(Draw):
    """Free a buffer, allocate another of the same size (likely at the same address) and use it."""

    weight = 1.5

    def is_possible(self, draft: Draft) -> bool:
        return bool(draft.model.buffers)

    def draw(self, draft: Draft) -> None:
        number = draft.random.choice(list(draft.model.buffers))
        buffer = draft.model.buffers[number]
        if not draft.add(Operation("free", buffer.by, on=number)):
            return
        fresh, nbytes = draft.number(), buffer.nbytes
        draft.add(Operation("allocate", buffer.by, makes=fresh, nbytes=nbytes, kind=buffer.where))
        to, tag = draft.random.choice([rank for rank in draft.ranks if rank != buffer.by]), draft.tag()
        makes, stamp = draft.number(), draft.number()
        again = Operation(
            "isend", buffer.by, on=fresh, makes=makes, nbytes=nbytes, stamp=stamp, peer=to, tag=tag
        )
        if draft.chance(RECYCLED) and not draft.is_full and not draft.model.partner(again):
            draft.add(again)


class Barrier(Draw):
    """Have all ranks meet."""

    weight = 0.4

    def draw(self, draft: Draft) -> None:
        draft.add(Operation("barrier", 1))


class Communicator(Draw):
    """Create a communicator, or free one."""

    weight = 0.3

    def draw(self, draft: Draft) -> None:
        if draft.chance(0.5):
            do = draft.random.choice(("duplicate", "reverse"))
            draft.add(Operation(do, 1, makes=draft.number()))
        elif others := [number for number in draft.model.communicators if number != WORLD]:
            draft.add(Operation("free-communicator", 1, on=draft.random.choice(others)))


class Truncate(Draw):
    """Receive a message into a buffer that is too small for it."""

    weight, more = 0.2, 2.0

    def is_possible(self, draft: Draft) -> bool:
        free = draft.free_ranks
        return any(each.sent.nbytes > 1 and each.sent.peer in free for each in draft.model.unexpected)

    def draw(self, draft: Draft) -> None:
        free = draft.free_ranks
        long = [each for each in draft.model.unexpected if each.sent.nbytes > 1 and each.sent.peer in free]
        message = draft.random.choice(long)
        sent = message.sent
        room = draft.random.choice((sent.nbytes - 1, sent.nbytes // 2))
        on = draft.buffer(sent.peer, "", room)
        by, peer, tag, within = sent.peer, sent.by, sent.tag, message.within
        draft.add(Operation("recv", by, on=on, nbytes=room, peer=peer, tag=tag, within=within))


def all_draws(*, huge: bool) -> Sequence[Draw]:
    """All that can be drawn, in an order on which the histories of seeds depend. ``huge``: whether messages
    may be very large."""
    return (
        SendFirst(),
        ReceiveFirst(),
        Answer(),
        Wait(),
        Exchange(),
        Repeat(huge=huge),
        Probe(),
        Persist(),
        Start(),
        Free(),
        Recycle(),
        Barrier(),
        Communicator(),
        Truncate(),
    )
