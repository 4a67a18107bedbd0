"""MPI's message matching in memory, in any order of ranks and arrivals, without buffered sends.

It does not use the model: it only knows each rank's operations, and so shows whether a history ends, and what
each receive gets, in any timing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from gpuipc_doctor.histories.message_operations import OF_ALL
from gpuipc_doctor.histories.message_state import ANY_SOURCE, ANY_TAG
from gpuipc_doctor.histories.operations import Operation


class Deadlock(Exception):
    """No rank can continue, and no message is under way; ``pending``: rank → the operation it is in."""

    def __init__(self, pending: dict[int, Operation]) -> None:
        super().__init__(pending)
        self.pending = pending


@dataclass(eq=False)
class Sent:
    source: int
    to: int
    tag: int
    within: int
    stamp: int
    matched: bool = False


@dataclass(eq=False)
class Posted:
    source: int
    tag: int
    within: int
    got: Sent | None = None

    def accepts(self, sent: Sent) -> bool:
        return (
            self.within == sent.within
            and self.source in (ANY_SOURCE, sent.source)
            and self.tag in (ANY_TAG, sent.tag)
        )

    @property
    def matched(self) -> bool:
        return self.got is not None


@dataclass
class TrivialMpi:
    """Executes a history; ``received``: rank → the stamps that its receives got, in order.

    ``hangs``: an operation that does not return.
    """

    operations: Sequence[Operation]
    ranks: Sequence[int]
    random: Random
    received: dict[int, list[int]] = field(default_factory=dict)
    hangs: Operation | None = None

    def __post_init__(self) -> None:
        self.received = {rank: [] for rank in self.ranks}
        self._programs = {
            rank: deque(
                operation for operation in self.operations if operation.by == rank or operation.do in OF_ALL
            )
            for rank in self.ranks
        }
        self._under_way: dict[tuple[int, int], deque[Sent]] = {}
        self._arrived: dict[int, list[Sent]] = {rank: [] for rank in self.ranks}
        self._posted: dict[int, list[Posted]] = {rank: [] for rank in self.ranks}
        self._waiting: dict[int, list[Sent | Posted]] = {}
        self._requests: dict[int, list[Sent | Posted]] = {}
        self._persistent: dict[int, Operation] = {}
        self._matched: dict[int, Sent] = {}
        self._meeting: set[int] = set()
        self._latest: dict[int, Operation] = {}

    def run(self) -> None:
        while any(self._pending(rank) for rank in self.ranks):
            moves = [("arrive", lane) for lane, sent in self._under_way.items() if sent]
            moves += [("go", (rank, 0)) for rank in self.ranks if self._can_go(rank)]
            if not moves:
                pending = ((rank, self._pending(rank)) for rank in self.ranks)
                raise Deadlock({rank: operation for rank, operation in pending if operation})
            what, (first, second) = self.random.choice(moves)
            if what == "arrive":
                self._arrive(self._under_way[first, second].popleft())
            else:
                self._go(first)

    def _pending(self, rank: int) -> Operation | None:
        """The operation that a rank is in; None if it has performed all of its part."""
        if rank in self._waiting or rank in self._meeting or self._hangs(rank):
            return self._latest[rank]
        return next(iter(self._programs[rank]), None)

    def _hangs(self, rank: int) -> bool:
        return self.hangs is not None and self._latest.get(rank) is self.hangs

    def _can_go(self, rank: int) -> bool:
        if self._hangs(rank):
            return False
        if rank in self._waiting:
            return all(waiting.matched for waiting in self._waiting[rank])
        if not self._programs[rank] or rank in self._meeting:
            return False
        operation = self._programs[rank][0]
        if "probe" in operation.do:
            return self._seen(operation) is not None
        return True

    def _seen(self, operation: Operation) -> Sent | None:
        wants = Posted(operation.peer, operation.tag, operation.within)
        return next((sent for sent in self._arrived[operation.by] if wants.accepts(sent)), None)

    def _arrive(self, sent: Sent) -> None:
        for posted in self._posted[sent.to]:
            if posted.accepts(sent):
                self._match(posted, sent)
                self._posted[sent.to].remove(posted)
                return
        self._arrived[sent.to].append(sent)

    def _match(self, posted: Posted, sent: Sent) -> None:
        posted.got, sent.matched = sent, True

    def _send(self, operation: Operation, stamp: int) -> Sent:
        sent = Sent(operation.by, operation.peer, operation.tag, operation.within, stamp)
        self._under_way.setdefault((sent.source, sent.to), deque()).append(sent)
        return sent

    def _post(self, operation: Operation) -> Posted:
        posted = Posted(operation.peer, operation.tag, operation.within)
        for sent in self._arrived[operation.by]:
            if posted.accepts(sent):
                self._arrived[operation.by].remove(sent)
                self._match(posted, sent)
                return posted
        self._posted[operation.by].append(posted)
        return posted

    def _go(self, rank: int) -> None:
        if rank in self._waiting:
            for waiting in self._waiting.pop(rank):
                if isinstance(waiting, Posted) and waiting.got:
                    self.received[rank].append(waiting.got.stamp)
            return
        operation = self._latest[rank] = self._programs[rank].popleft()
        do = operation.do
        if do in OF_ALL:
            self._meeting.add(rank)
            if len(self._meeting) == len(self.ranks):
                self._meeting.clear()
        elif do in ("send", "ssend"):
            self._waiting[rank] = [self._send(operation, operation.stamp)]
        elif do in ("isend", "issend"):
            self._requests[operation.makes] = [self._send(operation, operation.stamp)]
        elif do == "recv":
            self._waiting[rank] = [self._post(operation)]
        elif do == "irecv":
            self._requests[operation.makes] = [self._post(operation)]
        elif do == "sendrecv":
            self._waiting[rank] = [self._post(operation), self._send(operation, operation.stamp)]
        elif do.startswith("make-"):
            self._persistent[operation.makes] = operation
        elif do == "start":
            again = self._persistent[operation.on]
            starts = self._send(again, operation.stamp) if again.do == "make-send" else self._post(again)
            self._requests[operation.on] = [starts]
        elif do in ("wait", "test"):
            self._waiting[rank] = self._requests.pop(operation.on)
        elif do == "matched-probe":
            seen = self._seen(operation)
            assert seen is not None
            self._arrived[rank].remove(seen)
            self._matched[operation.makes] = seen
        elif do == "receive-matched":
            sent = self._matched.pop(operation.of)
            posted = Posted(sent.source, sent.tag, sent.within)
            self._match(posted, sent)
            self._waiting[rank] = [posted]
