"""Random valid messages between ranks, in epochs with different weights; none outlasts its epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from gpuipc_doctor.histories.generator import SWARM
from gpuipc_doctor.histories.group_calls import (
    ATOMIC,
    CAN_BE_DERIVED,
    CAN_BE_IN_PLACE,
    FENCE,
    FLUSH,
    IN_PLACE,
    LOCK,
    ONE_SIDED,
    TYPES,
)
from gpuipc_doctor.histories.group_calls import DERIVED as OF_DERIVED_TYPE
from gpuipc_doctor.histories.message_layouts import LAYOUTS
from gpuipc_doctor.histories.message_memories import DEVICE
from gpuipc_doctor.histories.message_model import (
    ANY_SOURCE,
    ANY_TAG,
    WHERE,
    WORLD,
    Expected,
    Message,
    Model,
    Part,
    Receive,
)
from gpuipc_doctor.histories.mpi_library_limits import DERIVED, SELF
from gpuipc_doctor.histories.operations import MPI, History, Operation, ProcessPlan

SMALL = (1, 2, 4, 8, 16, 32, 63, 64, 128, 256, 512, 1000, 1024)
MIDDLE = (1024, 2048, 4096, 8192, 12000, 16384, 32768, 65536)
LARGE = (256 << 10, 1 << 20, (1 << 20) + 40)
HUGE = (4 << 20,)
"""Message sizes in bytes. The sizes around the library's protocol thresholds are added to them."""

ALONE = 16 << 20
"""Bytes of a huge message, which is sent only while no other message is in transit."""

REPEATS = 24
"""How often a message is repeated: a library may register a buffer, or set up a faster path between ranks,
after some messages."""

EPOCH_OPERATIONS = (60, 160)

COMMON_EPOCHS = 18
"""Number of first epochs that are the same for every library, given the same seed and number of ranks."""

MORE_TRUNCATED = 2.0
"""Added to the weight of receives that are too small, in epochs after the common ones."""

WEIGHTS = {
    "send-first": 10.0,
    "receive-first": 10.0,
    "answer": 16.0,
    "wait": 8.0,
    "exchange": 2.0,
    "repeat": 0.4,
    "probe": 3.0,
    "persist": 1.5,
    "start": 4.0,
    "free": 0.7,
    "recycle": 1.5,
    "barrier": 0.4,
    "communicator": 0.3,
    "truncate": 0.2,
}
"""Base weight of each operation; an epoch multiplies it by a random factor."""

ALWAYS = ("send-first", "receive-first", "answer", "wait")
"""Operations whose weight is positive in every epoch."""

OUTSTANDING = 10
"""Maximum sends and receives without a match."""

ROOM = 48 << 20
"""Bytes of all ranks' buffers together."""

MOST_BUFFERS = 40
"""Number of buffers above which unused ones are freed; more buffers can be in use."""

RECYCLED = 0.6
"""Probability that a freed buffer is followed by one of the same size, used at once."""

MOST_ROUNDS = 1000
"""Maximum rounds of matching pending operations at an epoch's end; a few are enough."""

GROUP_CALL = 0.05
"""Probability that a call of all ranks follows an operation."""

GROUP_SIZES = (8, 1000, 4096, 16_384, 65_544)
"""Bytes of the largest buffer in these calls."""

KINDS = tuple(kind for kind in LAYOUTS if kind)

MOST_IN_BLOCKS = 64 << 10
"""Maximum bytes of a message with a derived type."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """The weights of one epoch. Fields of type float are probabilities."""

    weights: dict[str, float]
    sizes: tuple[int, ...]
    tags: tuple[int, ...]
    operations: int
    on_device: float
    derived: float
    any_source: float
    any_tag: float
    longer: float
    """Probability that a receive buffer is larger than its message."""


@dataclass
class Generator:
    """Makes a history, epoch by epoch; equal arguments give equal histories."""

    backend: str
    ranks: int
    seed: int
    edges: Sequence[int] = ()
    """Sizes in bytes at which the library changes its protocol."""
    huge: bool = False
    lacks: tuple[str, ...] = ()
    """Unsupported features to avoid, see `mpi_library_limits.lacks`."""
    group_calls: tuple[str, ...] = ()
    """Calls of all ranks to make, see `group_calls`."""
    memories: tuple[str, ...] = (DEVICE,)
    """Kinds of memory for these calls, see `message_memories`."""
    plans: dict[int, ProcessPlan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self._aside = Random(f"group calls {self.seed}")
        """Draws the calls of all ranks, so that all other operations are the same with and without them."""
        self._dealt_decks: dict[tuple[str, ...], list[str]] = {}
        self._together = 0
        """Number of calls of all ranks in this epoch."""
        self.plans = {number: ProcessPlan() for number in range(1, self.ranks + 1)}
        self.model = Model(History(self.backend, self.plans, check=MPI))
        self._numbers = 0
        self._made: list[tuple[Operation, Expected]] = []
        self._epochs = 0
        self._repeats: list[tuple[int, int]] = []
        """(receiver, bytes) of the messages that remain to be repeated."""
        self._decks: dict[tuple[int, ...], list[int]] = {}
        self._drawn = Counter[tuple[int, int]]()
        """(bytes, receiver) → number of messages so far."""

    @property
    def history(self) -> History:
        """A history of this generator's ranks, still without operations."""
        return History(self.backend, self.plans, seed=self.seed, check=MPI)

    def epoch(self) -> list[tuple[Operation, Expected]]:
        """Generate one epoch: its operations with the expected results."""
        self._made, self._together = [], 0
        epoch = self._plan()
        while len(self._made) - self._together < epoch.operations:
            self._step(epoch)
            self._group_call()
        self._end(epoch)
        return self._made

    def _plan(self) -> Epoch:
        random = self.random
        weights = {do: weight * random.choice(SWARM) for do, weight in WEIGHTS.items()}
        weights |= {do: WEIGHTS[do] * random.choice((0.5, 1, 2)) for do in ALWAYS}
        around = tuple(edge + step for edge in self.edges if edge < LARGE[-1] for step in (-1, 0, 1))
        self._epochs += 1
        kinds = [SMALL, SMALL, SMALL + MIDDLE, MIDDLE, MIDDLE + LARGE]
        if self._epochs > COMMON_EPOCHS:
            kinds += [around] * 3 if around else []
            weights["truncate"] += MORE_TRUNCATED
        if self.huge:
            kinds.append(LARGE + HUGE)
        kind = random.choice(kinds)
        sizes = self._deal(kind, random.randint(2, 6))
        return Epoch(
            weights,
            (*sizes, 0) if random.random() < 0.2 else sizes,
            tuple(range(random.choice((1, 1, 2, 3)))),
            random.randint(*EPOCH_OPERATIONS),
            random.choice((0.3, 0.5, 0.8, 1.0, 1.0)),
            random.choice((0.0, 0.0, 0.2, 0.6)),
            random.choice((0.0, 0.0, 0.2, 0.6)) if self.ranks > 2 else 0.1,
            random.choice((0.0, 0.2, 0.5)),
            random.choice((0.0, 0.2, 0.5)),
        )

    def _deal(self, sizes: tuple[int, ...], number: int) -> tuple[int, ...]:
        """``number`` sizes; no size repeats before all sizes have been used."""
        deck, dealt = self._decks.setdefault(sizes, []), list[int]()
        while len(dealt) < min(number, len(set(sizes))):
            if not deck:
                deck += self.random.sample(sizes, len(sizes))
            if (size := deck.pop()) not in dealt:
                dealt.append(size)
        return tuple(dealt)

    def _size(self, epoch: Epoch, to: int) -> int:
        """The size for which this rank has received the fewest messages."""
        size = min(epoch.sizes, key=lambda size: (self._drawn[size, to], self.random.random()))
        self._drawn[size, to] += 1
        return size

    def _step(self, epoch: Epoch) -> None:
        if self.model.blocked and self.random.random() < 0.5:
            self._resolve(epoch)
            return
        (do,) = self.random.choices(list(epoch.weights), list(epoch.weights.values()))
        getattr(self, f"_{do.replace('-', '_')}")(epoch)

    def _group_call(self) -> None:
        if not self.group_calls or self._aside.random() >= GROUP_CALL:
            return
        aside = self._aside
        call = self._dealt(self.group_calls)
        forms = [""]
        if call in (*ONE_SIDED, *ATOMIC):
            forms = [FENCE, LOCK, FLUSH]
        elif call in CAN_BE_IN_PLACE:
            forms.append(IN_PLACE)
        if call in CAN_BE_DERIVED and DERIVED not in self.lacks:
            forms.append(OF_DERIVED_TYPE)
        memory = self._dealt(self.memories) if aside.random() < 0.5 else DEVICE
        kind = "|".join((call, aside.choice(TYPES), memory, aside.choice(forms)))
        do = "one-sided" if call in (*ONE_SIDED, *ATOMIC) else "collective"
        nbytes, stamp = aside.choice(GROUP_SIZES), aside.randrange(1, 1 << 20)
        self._together += self._try(Operation(do, 1, nbytes=nbytes, stamp=stamp, kind=kind))

    def _dealt(self, words: tuple[str, ...]) -> str:
        """One of these words; none comes twice before all have come."""
        deck = self._dealt_decks.setdefault(words, [])
        if not deck:
            deck += self._aside.sample(words, len(words))
        return deck.pop()

    def _communicator(self, epoch: Epoch) -> None:
        if self._chance(0.5):
            self._try(Operation(self.random.choice(("duplicate", "reverse")), 1, makes=self._number()))
        else:
            self._end_communicator()

    # -- doing --------------------------------------------------------------------------------------------

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _chance(self, how_often: float) -> bool:
        return self.random.random() < how_often

    def _try(self, operation: Operation) -> bool:
        if self.model.illegal(operation):
            return False
        self._made.append((operation, self.model.apply(operation)))
        return True

    @property
    def _free_ranks(self) -> list[int]:
        return [rank for rank in self.plans if rank not in self.model.blocked]

    def _buffer(self, epoch: Epoch, by: int, kind: str, nbytes: int, *, other: int = 0) -> int:
        """An unused buffer of a rank that has room for a message of this kind and size; may allocate it."""
        nbytes = LAYOUTS[kind].extent(nbytes)
        where = WHERE[0] if self._chance(epoch.on_device) else WHERE[1]
        excluded = self.model.in_use | {other}
        idle = [
            number
            for number, buffer in self.model.buffers.items()
            if buffer.by == by
            and buffer.where == where
            and nbytes <= buffer.nbytes
            and number not in excluded
        ]
        if idle and self._chance(0.95):
            return self.random.choice(idle)
        number, size = self._number(), max(nbytes, *epoch.sizes, 8)
        size = size if self._chance(0.7) else max(nbytes, 8)
        self._make_room(size)
        self._try(Operation("allocate", by, makes=number, nbytes=size, kind=where))
        return number

    def _make_room(self, nbytes: int) -> None:
        """Free unused buffers until ``nbytes`` can be allocated, or none is left."""
        buffers = self.model.buffers
        held = sum(buffer.nbytes for buffer in buffers.values())
        for number, buffer in list(buffers.items()):
            if held + nbytes <= ROOM and len(buffers) < MOST_BUFFERS:
                return
            if self._try(Operation("free", buffer.by, on=number)):
                held -= buffer.nbytes

    def _kind(self, epoch: Epoch, nbytes: int) -> str:
        kind = self.random.choice(KINDS) if self._chance(epoch.derived) else ""
        if DERIVED in self.lacks and LAYOUTS[kind].is_derived:
            return ""
        fits = nbytes <= MOST_IN_BLOCKS and nbytes and LAYOUTS[kind].fits(nbytes)
        return kind if fits else ""

    def _within(self) -> int:
        return self.random.choice(list(self.model.communicators))

    def _may_block(self) -> bool:
        """Whether a rank may block now. Only one may at a time, so that another rank can unblock it."""
        return not self.model.blocked

    # -- messages -----------------------------------------------------------------------------------------

    def _send(
        self, epoch: Epoch, by: int, to: int, nbytes: int, tag: int, within: int, *, blocks: bool
    ) -> bool:
        plain = Operation("send", by, nbytes=nbytes, stamp=1, peer=to, tag=tag, within=within)
        if posted := self.model.partner(plain):
            nbytes = min(nbytes, posted.nbytes)
        kind = self._kind(epoch, nbytes)
        on = self._buffer(epoch, by, kind, nbytes)
        synchronous = "s" if self._chance(0.15) else ""
        do = f"{synchronous}send" if blocks else f"i{synchronous}send"
        makes, stamp = 0 if blocks else self._number(), self._number()
        return self._try(Operation(do, by, on, makes, 0, nbytes, stamp, to, tag, within, kind))

    def _receive(
        self, epoch: Epoch, by: int, source: int, nbytes: int, tag: int, within: int, *, blocks: bool
    ) -> bool:
        source = ANY_SOURCE if self._chance(epoch.any_source) else source
        tag = ANY_TAG if self._chance(epoch.any_tag) else tag
        plain = Operation("recv", by, nbytes=nbytes, peer=source, tag=tag, within=within)
        if sent := self.model.partner(plain):
            nbytes = sent.nbytes
        room = nbytes
        if self._chance(epoch.longer):
            room = max(nbytes, self.random.choice(epoch.sizes))
        kind = self._kind(epoch, room)
        on = self._buffer(epoch, by, kind, room)
        do, makes = ("recv", 0) if blocks else ("irecv", self._number())
        operation = Operation(do, by, on, makes, 0, room, 0, source, tag, within, kind)
        if blocks and not self.model.partner(operation) and not self._can_be_sent(operation):
            return False
        return self._try(operation)

    def _can_be_sent(self, posted: Operation) -> bool:
        """Whether some rank can send the message for a receive, whichever messages earlier receives match."""
        if any(
            (other.posted.by, other.posted.peer, other.within) == (posted.by, ANY_SOURCE, posted.within)
            for other in self.model.pending
            if other.posted is not posted
        ):
            return False
        return bool(self._senders(Receive(0, posted, posted.within)))

    def _senders(self, receive: Receive) -> list[int]:
        wants = receive.posted
        sources = [wants.peer] if wants.peer != ANY_SOURCE else list(self.plans)
        tag = max(wants.tag, 0)
        return [
            rank
            for rank in sources
            if rank != wants.by
            and rank not in self.model.blocked
            and not self.model.may_reach(
                Operation("send", rank, peer=wants.by, tag=tag, within=wants.within, stamp=1)
            )
        ]

    def _pair(self) -> tuple[int, int] | None:
        """Choose sender and receiver, rarely the same rank."""
        free = self._free_ranks
        if not free:
            return None
        by = self.random.choice(free)
        others = [rank for rank in self.plans if rank != by]
        return by, self.random.choice(others) if SELF in self.lacks or self._chance(0.95) else by

    def _too_many(self) -> bool:
        return len(self.model.unexpected) + len(self.model.pending) >= OUTSTANDING

    def _send_first(self, epoch: Epoch) -> None:
        pair = self._pair()
        if pair is None or self._too_many():
            return
        by, to = pair
        blocks = self._may_block() and to != by and self._chance(0.4)
        size, tag = self._size(epoch, to), self.random.choice(epoch.tags)
        self._send(epoch, by, to, size, tag, self._within(), blocks=blocks)

    def _receive_first(self, epoch: Epoch) -> None:
        pair = self._pair()
        if pair is None or self._too_many():
            return
        by, source = pair
        blocks = self._may_block() and source != by and self._chance(0.3)
        size, tag = self._size(epoch, by), self.random.choice(epoch.tags)
        self._receive(epoch, by, source, size, tag, self._within(), blocks=blocks)

    def _answer(self, epoch: Epoch) -> None:
        if parts := self.model.waiting:
            self._match(epoch, self.random.choice(parts))

    def _match(self, epoch: Epoch, part: Part) -> bool:
        """Have a rank perform the counterpart of ``part``, or an operation that must come before the
        counterpart."""
        if isinstance(part, Message):
            sent = part.sent
            if sent.peer in self.model.blocked:
                return False
            return self._receive(
                epoch, sent.peer, sent.by, sent.nbytes, sent.tag, part.within, blocks=self._chance(0.5)
            )
        wants = part.posted
        own = [wants.by] if SELF not in self.lacks and wants.peer in (wants.by, ANY_SOURCE) else []
        senders = self._senders(part) or own
        if not senders or (wants.by in self.model.blocked and senders == [wants.by]):
            return False
        tag = wants.tag if wants.tag != ANY_TAG else self.random.choice(epoch.tags)
        nbytes = wants.nbytes
        shorter = [size for size in epoch.sizes if size < nbytes]
        if shorter and self._chance(epoch.longer):
            nbytes = self.random.choice(shorter)
        by = self.random.choice(senders)
        operation = Operation("send", by, peer=wants.by, tag=tag, within=part.within, stamp=1)
        blocks = self._chance(0.5) and self.model.partner(operation) is not None
        return self._send(epoch, by, wants.by, nbytes, tag, part.within, blocks=blocks)

    def _resolve(self, epoch: Epoch) -> None:
        """Have another rank perform what unblocks a blocked rank."""
        for number in list(self.model.matched):
            self._receive_matched(epoch, number)
        for parts in self.model.blocked.values():
            for part in parts:
                if (part.receive if isinstance(part, Message) else part.message) is None:
                    self._match(epoch, part)
                    return

    def _truncate(self, epoch: Epoch) -> None:
        """Receive a message into a buffer that is too small for it."""
        long = [m for m in self.model.unexpected if m.sent.nbytes > 1 and m.sent.peer in self._free_ranks]
        if long:
            message = self.random.choice(long)
            sent = message.sent
            room = self.random.choice((sent.nbytes - 1, sent.nbytes // 2))
            on = self._buffer(epoch, sent.peer, "", room)
            self._try(
                Operation(
                    "recv", sent.peer, on=on, nbytes=room, peer=sent.by, tag=sent.tag, within=message.within
                )
            )

    def _exchange(self, epoch: Epoch) -> None:
        """Have two ranks send to each other at the same time."""
        if len(self._free_ranks) < 2 or not self._may_block() or self._too_many():
            return
        first, second = self.random.sample(self._free_ranks, 2)
        size, tag = self.random.choice(epoch.sizes), self.random.choice(epoch.tags)
        within = self._within()
        if any(self._meets_earlier(*ends, tag, within) for ends in ((first, second), (second, first))):
            return
        for by, to in ((first, second), (second, first)):
            kind = self._kind(epoch, size)
            on = self._buffer(epoch, by, kind, size)
            of = self._buffer(epoch, by, kind, size, other=on)
            operation = Operation(
                "sendrecv", by, on=on, of=of, nbytes=size, stamp=self._number(), peer=to, tag=tag,
                within=within, kind=kind,
            )  # fmt: skip
            if not self._try(operation):
                return

    def _meets_earlier(self, by: int, to: int, tag: int, within: int) -> bool:
        """Whether a message between these ranks, or the receive for it, would match an earlier operation."""
        sent = Operation("send", by, peer=to, tag=tag, within=within, stamp=1)
        posted = Operation("recv", to, peer=by, tag=tag, within=within)
        return bool(self.model.may_reach(sent) or self.model.partner(sent) or self.model.partner(posted))

    def _repeat(self, epoch: Epoch) -> None:
        """Send the same message many times, between the same buffers; or a very large message once."""
        if not self._may_block() or self._too_many():
            return
        if not self._repeats:
            sizes = (*MIDDLE, ALONE, ALONE, ALONE) if self.huge else MIDDLE
            self._repeats = [(to, size) for to in self.plans for size in sizes]
            self.random.shuffle(self._repeats)
        to, size = self._repeats.pop()
        by = self.random.choice([rank for rank in self.plans if rank != to])
        tag, within = self.random.choice(epoch.tags), self._within()
        if self._meets_earlier(by, to, tag, within):
            self._repeats.insert(0, (to, size))
            return
        on, into = self._buffer(epoch, by, "", size), self._buffer(epoch, to, "", size)
        posted = Operation("recv", to, on=into, nbytes=size, peer=by, tag=tag, within=within)
        for _ in range(REPEATS if size < ALONE else 1):
            if self._can_be_sent(posted) and self._try(posted):
                self._try(replace(posted, do="send", by=by, on=on, stamp=self._number(), peer=to))

    def _probe(self, epoch: Epoch) -> None:
        free = self._free_ranks
        seen = [message for message in self.model.unexpected if message.sent.peer in free]
        if not seen:
            return
        message = self.random.choice(seen)
        sent = message.sent
        tag = ANY_TAG if self._chance(epoch.any_tag) else sent.tag
        do = self.random.choice(("probe", "iprobe", "matched-probe"))
        if do != "matched-probe":
            self._try(Operation(do, sent.peer, peer=sent.by, tag=tag, within=message.within))
            return
        number = self._number()
        probe = Operation(do, sent.peer, makes=number, peer=sent.by, tag=tag, within=message.within)
        if self._try(probe) and self._chance(0.8):
            self._receive_matched(epoch, number)

    def _receive_matched(self, epoch: Epoch, number: int) -> None:
        message = self.model.matched[number]
        sent = message.sent
        kind = self._kind(epoch, sent.nbytes)
        on = self._buffer(epoch, sent.peer, kind, sent.nbytes)
        self._try(
            Operation(
                "receive-matched", sent.peer, on=on, of=number, nbytes=sent.nbytes, within=message.within,
                kind=kind,
            )
        )  # fmt: skip

    # -- requests -----------------------------------------------------------------------------------------

    def _wait(self, epoch: Epoch) -> None:
        free = self._free_ranks
        active = [n for n, one in self.model.requests.items() if one.parts and one.by in free]
        if not active:
            return
        number = self.random.choice(active)
        by = self.model.requests[number].by
        is_ready = number in self.model.ready(by)
        if is_ready and self._chance(0.6):
            self._try(Operation("wait-all", by))
        elif is_ready or (self._may_block() and self._can_match(self.model.requests[number].parts)):
            self._try(Operation("test" if is_ready and self._chance(0.2) else "wait", by, on=number))

    def _can_match(self, parts: Sequence[Part]) -> bool:
        """Whether other ranks can immediately perform the operations for which a rank would wait."""
        return all(
            part.sent.peer != part.sent.by if isinstance(part, Message) else self._can_be_sent(part.posted)
            for part in parts
        )

    def _persist(self, epoch: Epoch) -> None:
        pair = self._pair()
        if pair is None or sum(request.again is not None for request in self.model.requests.values()) > 4:
            return
        by, peer = pair
        size = self.random.choice(epoch.sizes)
        kind = self._kind(epoch, size)
        on = self._buffer(epoch, by, kind, size)
        do = self.random.choice(("make-send", "make-receive"))
        self._try(
            Operation(
                do, by, on=on, makes=self._number(), nbytes=size, peer=peer,
                tag=self.random.choice(epoch.tags), within=self._within(), kind=kind,
            )
        )  # fmt: skip

    def _start(self, epoch: Epoch) -> None:
        resting = [(n, one) for n, one in self.model.requests.items() if one.again and not one.parts]
        if not resting or self._too_many():
            return
        number, request = self.random.choice(resting)
        again = request.again
        assert again is not None
        sends = again.do == "make-send"
        partner = self.model.partner(replace(again, do="send" if sends else "recv"))
        if partner and (partner.nbytes < again.nbytes if sends else partner.nbytes > again.nbytes):
            return  # the message would be too long for the receive
        self._try(Operation("start", request.by, on=number, stamp=self._number() if sends else 0))

    # -- buffers and communicators ------------------------------------------------------------------------

    def _free(self, epoch: Epoch) -> None:
        if self.model.buffers:
            number = self.random.choice(list(self.model.buffers))
            self._try(Operation("free", self.model.buffers[number].by, on=number))

    def _recycle(self, epoch: Epoch) -> None:
        """Free a buffer, allocate another of the same size (likely at the same address) and use it."""
        if not self.model.buffers:
            return
        number = self.random.choice(list(self.model.buffers))
        buffer = self.model.buffers[number]
        if self._try(Operation("free", buffer.by, on=number)):
            fresh = self._number()
            self._try(Operation("allocate", buffer.by, makes=fresh, nbytes=buffer.nbytes, kind=buffer.where))
            others = [rank for rank in self.plans if rank != buffer.by]
            to, tag = self.random.choice(others), self.random.choice(epoch.tags)
            again = Operation(
                "isend", buffer.by, on=fresh, makes=self._number(), nbytes=buffer.nbytes,
                stamp=self._number(), peer=to, tag=tag,
            )  # fmt: skip
            if self._chance(RECYCLED) and not self._too_many() and not self.model.partner(again):
                self._try(again)

    def _barrier(self, epoch: Epoch) -> None:
        self._try(Operation("barrier", 1))

    def _end_communicator(self) -> None:
        others = [number for number in self.model.communicators if number != WORLD]
        if others:
            self._try(Operation("free-communicator", 1, on=self.random.choice(others)))

    # -- the end of an epoch ------------------------------------------------------------------------------

    def _end(self, epoch: Epoch) -> None:
        """Match all messages, complete all requests and free most buffers."""
        for _ in range(MOST_ROUNDS):
            if not (self.model.unmatched() or self.model.blocked or self.model.matched):
                break
            for part in self.model.waiting:
                self._match(epoch, part)
            self._resolve(epoch)
            self._wait_for_all()
            self._barrier(epoch)
        else:
            raise RuntimeError("no rank has a valid next operation, but messages are incomplete")
        self._wait_for_all()
        self._barrier(epoch)
        for number, request in list(self.model.requests.items()):
            self._try(Operation("free-request", request.by, on=number))
        for number, buffer in list(self.model.buffers.items()):
            if self._chance(0.3):
                self._try(Operation("free", buffer.by, on=number))
        for number in list(self.model.communicators):
            if number != WORLD and self._chance(0.5):
                self._try(Operation("free-communicator", 1, on=number))

    def _wait_for_all(self) -> None:
        for number, request in list(self.model.requests.items()):
            if request.parts and number in self.model.ready(request.by):
                self._try(Operation("wait", request.by, on=number))
