"""What can be drawn next in a history of messages: an operation, or a sequence of operations.

Each function chooses the arguments and adds what is valid, or nothing if the state of the ranks does not
allow it. A seed always gives the same history, so the order of random choices is part of the format.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from gpuipc_doctor.histories.message_draft import ALONE, Draft
from gpuipc_doctor.histories.message_state import ANY_TAG, WORLD
from gpuipc_doctor.histories.operations import Operation

REPEATS = 24
"""How often a message is repeated: a library may register a buffer, or set up a faster path between ranks,
after some messages."""

RECYCLED = 0.6
"""Probability that a freed buffer is followed by one of the same size, used at once."""

MOST_PERSISTENT = 4
"""Number of persistent requests above which none is added."""


def send_first(draft: Draft) -> None:
    """Send a message that no rank expects yet."""
    if draft.free_ranks:
        by, to = draft.pair()
        if not draft.is_full:
            blocks = draft.may_block and to != by and draft.chance(0.4)
            size, tag = draft.size_for(to), draft.tag()
            draft.send(by, to, size, tag, draft.communicator(), blocks=blocks)


def receive_first(draft: Draft) -> None:
    """Post a receive for a message that is not sent yet."""
    if draft.free_ranks:
        by, source = draft.pair()
        if not draft.is_full:
            blocks = draft.may_block and source != by and draft.chance(0.3)
            size, tag = draft.size_for(by), draft.tag()
            draft.receive(by, source, size, tag, draft.communicator(), blocks=blocks)


def answer(draft: Draft) -> None:
    """Match a send or receive that has no match yet."""
    if waiting := draft.model.waiting:
        draft.match(draft.random.choice(waiting))


def wait(draft: Draft) -> None:
    """Wait for one request or for all that can complete, or test one."""
    free, requests = draft.free_ranks, draft.model.requests
    if active := [number for number, each in requests.items() if each.parts and each.by in free]:
        number = draft.random.choice(active)
        request = requests[number]
        is_ready = number in draft.model.ready(request.by)
        if is_ready and draft.chance(0.6):
            draft.add(Operation("wait-all", request.by))
        elif is_ready or (draft.may_block and draft.can_match(request.parts)):
            do = "test" if is_ready and draft.chance(0.2) else "wait"
            draft.add(Operation(do, request.by, on=number))


def exchange(draft: Draft) -> None:
    """Have two ranks send to each other at the same time."""
    if len(draft.free_ranks) < 2 or not draft.may_block or draft.is_full:
        return
    first, second = draft.random.sample(draft.free_ranks, 2)
    size, tag, within = draft.size(), draft.tag(), draft.communicator()
    ways = (first, second), (second, first)
    if any(draft.meets_earlier(by, to, tag, within) for by, to in ways):
        return
    for by, to in ways:
        kind = draft.kind(size)
        on = draft.buffer(by, kind, size)
        of = draft.buffer(by, kind, size, other=on)
        sent = Operation("sendrecv", by, on, nbytes=size, stamp=draft.number(), peer=to, tag=tag, kind=kind)
        if not draft.add(replace(sent, of=of, within=within)):
            return


def repeat(draft: Draft) -> None:
    """Send the same message many times, between the same buffers; or a very large message once."""
    if not draft.may_block or draft.is_full:
        return
    to, size = draft.next_repeated()
    by = draft.random.choice([rank for rank in draft.ranks if rank != to])
    tag, within = draft.tag(), draft.communicator()
    if draft.meets_earlier(by, to, tag, within):
        draft.repeated.insert(0, (to, size))
        return
    on, into = draft.buffer(by, "", size), draft.buffer(to, "", size)
    posted = Operation("recv", to, on=into, nbytes=size, peer=by, tag=tag, within=within)
    for _ in range(REPEATS if size < ALONE else 1):
        if draft.can_be_sent(posted) and draft.add(posted):
            draft.add(replace(posted, do="send", by=by, on=on, stamp=draft.number(), peer=to))


def probe(draft: Draft) -> None:
    """Probe for a message that has arrived, and perhaps receive what was matched."""
    if not (arrived := draft.arrived()):
        return
    message = draft.random.choice(arrived)
    sent = message.sent
    tag = ANY_TAG if draft.chance(draft.phase.any_tag) else sent.tag
    do = draft.random.choice(("probe", "iprobe", "matched-probe"))
    probed = Operation(do, sent.peer, peer=sent.by, tag=tag, within=message.within)
    if do != "matched-probe":
        draft.add(probed)
        return
    number = draft.number()
    if draft.add(replace(probed, makes=number)) and draft.chance(0.8):
        draft.receive_matched(number)


def persist(draft: Draft) -> None:
    """Make a persistent request."""
    if not draft.free_ranks:
        return
    by, peer = draft.pair()
    if sum(request.again is not None for request in draft.model.requests.values()) > MOST_PERSISTENT:
        return
    size = draft.size()
    kind = draft.kind(size)
    on = draft.buffer(by, kind, size)
    do, makes = draft.random.choice(("make-send", "make-receive")), draft.number()
    tag, within = draft.tag(), draft.communicator()
    draft.add(Operation(do, by, on, makes, nbytes=size, peer=peer, tag=tag, within=within, kind=kind))


def start(draft: Draft) -> None:
    """Start a persistent request."""
    requests = draft.model.requests.items()
    inactive = [(number, each.again) for number, each in requests if each.again and not each.parts]
    if not inactive or draft.is_full:
        return
    number, again = draft.random.choice(inactive)
    sends = again.do == "make-send"
    if partner := draft.model.partner(replace(again, do="send" if sends else "recv")):
        sent, posted = (again, partner) if sends else (partner, again)
        if sent.nbytes > posted.nbytes:
            return
    draft.add(Operation("start", again.by, on=number, stamp=draft.number() if sends else 0))


def free(draft: Draft) -> None:
    """Free a buffer."""
    if buffers := draft.model.buffers:
        number = draft.random.choice(list(buffers))
        draft.add(Operation("free", buffers[number].by, on=number))


def recycle(draft: Draft) -> None:
    """Free a buffer, allocate another of the same size (likely at the same address) and use it."""
    if not (buffers := draft.model.buffers):
        return
    number = draft.random.choice(list(buffers))
    buffer = buffers[number]
    if not draft.add(Operation("free", buffer.by, on=number)):
        return
    fresh, nbytes = draft.number(), buffer.nbytes
    draft.add(Operation("allocate", buffer.by, makes=fresh, nbytes=nbytes, kind=buffer.where))
    to, tag = draft.random.choice([rank for rank in draft.ranks if rank != buffer.by]), draft.tag()
    makes, stamp = draft.number(), draft.number()
    again = Operation("isend", buffer.by, fresh, makes, nbytes=nbytes, stamp=stamp, peer=to, tag=tag)
    if draft.chance(RECYCLED) and not draft.is_full and not draft.model.partner(again):
        draft.add(again)


def barrier(draft: Draft) -> None:
    """Have all ranks meet."""
    draft.add(Operation("barrier", 1))


def communicator(draft: Draft) -> None:
    """Create a communicator, or free one."""
    if draft.chance(0.5):
        do = draft.random.choice(("duplicate", "reverse"))
        draft.add(Operation(do, 1, makes=draft.number()))
    elif others := [number for number in draft.model.communicators if number != WORLD]:
        draft.add(Operation("free-communicator", 1, on=draft.random.choice(others)))


def truncate(draft: Draft) -> None:
    """Receive a message into a buffer that is too small for it."""
    if long := [message for message in draft.arrived() if message.sent.nbytes > 1]:
        message = draft.random.choice(long)
        sent = message.sent
        room = draft.random.choice((sent.nbytes - 1, sent.nbytes // 2))
        by, on = sent.peer, draft.buffer(sent.peer, "", room)
        within = message.within
        draft.add(Operation("recv", by, on, nbytes=room, peer=sent.by, tag=sent.tag, within=within))


class Draw(NamedTuple):
    """What can be drawn, with its base weight, which a phase multiplies by a random factor."""

    draw: Callable[[Draft], None]
    weight: float
    always: bool = False
    """Whether its weight is positive in every phase."""
    more: float = 0.0
    """Added to its weight in phases after the common ones."""


DRAWS = (
    Draw(send_first, 10.0, always=True),
    Draw(receive_first, 10.0, always=True),
    Draw(answer, 16.0, always=True),
    Draw(wait, 8.0, always=True),
    Draw(exchange, 2.0),
    Draw(repeat, 0.4),
    Draw(probe, 3.0),
    Draw(persist, 1.5),
    Draw(start, 4.0),
    Draw(free, 0.7),
    Draw(recycle, 1.5),
    Draw(barrier, 0.4),
    Draw(communicator, 0.3),
    Draw(truncate, 0.2, more=2.0),
)
"""All that can be drawn, in an order on which the histories of seeds depend."""
