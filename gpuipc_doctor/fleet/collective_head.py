"""The head's part in `fleet collectives`: hand out rounds and NCCL's unique ids, and take results."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import accumulate
from queue import Empty, SimpleQueue

import msgspec  # noqa: TID253 - messages are those of `collective_types`

from gpuipc_doctor.fleet.collective_types import (
    NOT_RUN,
    Ending,
    Group,
    GroupResult,
    Joined,
    RankResult,
    Round,
    RoundResult,
)
from gpuipc_doctor.fleet.secret_line import Line, NotOurs, welcome
from gpuipc_doctor.model import Json

TICK_S = 0.2
AFTER_FAILURE_S = 5.0
"""Seconds for the other ranks of a group to end by themselves after one has failed."""
GRACE_S = 20.0
"""Seconds from a round's deadline, at which nodes end their ranks, to the last answer."""
GREETINGS = 32
"""Maximum connections that are being greeted at a time; more are closed."""

WORDS_S = 30.0
"""Seconds from the loss of a node's connection until its launcher has brought its last words, or has
started it again: Slurm ends a step on all nodes if one of them cannot start it."""

LOST = "the node's process has lost its connection to the head"


class Closed(Exception):
    """The run was ended from another thread."""


class Head:
    """Nodes come to its address. One thread calls `gather` and `meet`; another may `close`."""

    def __init__(self, nodes: Sequence[str], secret: bytes, address: str = "") -> None:
        """Listen, on one address or on all of them. Raises `OSError`."""
        self._secret = secret
        self._names = {node.partition(".")[0]: node for node in nodes} | {node: node for node in nodes}
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._server = socket.create_server((address, 0), family=family, backlog=min(len(nodes) + 16, 4096))
        self.port: int = self._server.getsockname()[1]
        self._lines: dict[str, Line] = {}
        self._came: SimpleQueue[tuple[str, Line]] = SimpleQueue()
        self._names_come: set[str] = set()
        self._greeted: set[socket.socket] = set()
        """Connections that have yet to prove themselves."""
        self._guard = threading.Lock()
        self._closed = threading.Event()
        self._number = 0
        self.joined: dict[str, Joined] = {}
        self.lost: dict[str, str] = {}
        """Node that came and is gone → why."""
        self._lost_at: dict[str, float] = {}

    def gather(self, absent: Callable[[], Mapping[str, str]], seconds: float) -> dict[str, Joined]:
        """Wait until each node has joined, or is ``absent`` by its launcher's word, or the time is over; no
        node can come later. Raises `Closed`."""
        until = time.monotonic() + seconds
        all_nodes = set(self._names.values())
        with ThreadPoolExecutor(GREETINGS) as greeters, selectors.DefaultSelector() as ready:
            ready.register(self._server, selectors.EVENT_READ)
            while time.monotonic() < until and all_nodes - set(self.joined) - self._gone - set(absent()):
                self._see_open()
                for key, _ in ready.select(TICK_S):
                    if key.fileobj is self._server:
                        connection, _ = self._server.accept()
                        if len(self._greeted) < GREETINGS:
                            self._greeted.add(connection)
                            greeters.submit(self._greet, connection)
                        else:
                            connection.close()
                    else:
                        node: str = key.data
                        for message in self._hear(node):
                            self._join(node, message)
                        if node in self.lost:
                            ready.unregister(key.fileobj)
                with contextlib.suppress(Empty):
                    while True:
                        node, line = self._came.get_nowait()
                        self.lost.pop(node, None)  # it may have come before
                        self._lines[node] = line
                        ready.register(line, selectors.EVENT_READ, node)
            for connection in list(self._greeted):  # strangers, which would be waited for
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for node in [node for node, why in self.lost.items() if why == LOST]:
            self.lost[node] = absent().get(node, LOST)
        for node in set(self._lines) - set(self.joined) - set(self.lost):
            self._lose(node, f"it came, but did not list its GPUs within {seconds:g} s")
        return self.joined

    @property
    def _gone(self) -> set[str]:
        """Lost nodes of which no more words will come."""
        soon = time.monotonic() - WORDS_S
        return {node for node, why in self.lost.items() if why != LOST or self._lost_at[node] < soon}

    def _greet(self, connection: socket.socket) -> None:
        try:
            self._came.put(welcome(connection, self._secret, self._is_expected))
        except (OSError, NotOurs):
            connection.close()
        finally:
            self._greeted.discard(connection)

    def _is_expected(self, name: str) -> bool:
        node = self._names.get(name)
        with self._guard:
            is_new = node is not None and node not in self._names_come
            self._names_come |= {node} if node else set()
        return is_new

    def _join(self, node: str, message: Json) -> None:
        try:
            told = msgspec.convert(message["joined"], Joined)
        except (msgspec.ValidationError, KeyError, TypeError):
            self._lose(node, "another version of the tool runs there")
            return
        self.joined[node] = replace(told, node=node, clock_s=told.clock_s - time.time())

    def _hear(self, node: str) -> list[Json]:
        try:
            return self._lines[node].receive()
        except NotOurs as error:
            self._lose(node, str(error))
        except (OSError, ValueError):
            self._lose(node, LOST)
        return []

    def _say(self, node: str, message: Json) -> None:
        if node not in self.lost:
            try:
                self._lines[node].send(message)
            except OSError:
                self._lose(node, LOST)

    def _lose(self, node: str, why: str) -> None:
        self.lost[node], self._lost_at[node] = why, time.monotonic()
        if why == LOST:
            self._names_come.discard(node)
        self.joined.pop(node, None)
        self._lines[node].close()

    def _see_open(self) -> None:
        if self._closed.is_set():
            raise Closed

    def meet(self, asked: Round) -> RoundResult:
        """Run a round (`collective_types.Meet`). Raises `Closed`."""
        began = time.monotonic()
        self._number += 1
        running = [_Running(group, dict(self.joined)) for group in asked.groups]
        of_node = {node: each for each in running for node in each.nodes}
        with selectors.DefaultSelector() as ready:
            for each in running:
                if not each.is_possible:
                    continue
                for node in each.nodes:
                    ready.register(self._lines[node], selectors.EVENT_READ, node)
                    self._say(node, {"round": {"number": self._number, **each.asked(asked, node)}})
            until = began + asked.deadline_s + GRACE_S
            while any(each.is_running(self.lost) for each in running) and time.monotonic() < until:
                self._see_open()
                for key, _ in ready.select(TICK_S):
                    node = key.data
                    for message in self._hear(node):
                        self._take(of_node[node], node, message)
                    if node in self.lost:
                        ready.unregister(key.fileobj)
                for each in running:
                    self._stop_others(each)
        for each in running:
            for node in each.waits_for(self.lost):
                self._lose(node, f"no answer {GRACE_S:g} s after the deadline")
        groups = tuple(GroupResult(each.group, tuple(each.results(self.lost))) for each in running)
        return RoundResult(asked, groups, time.monotonic() - began)

    def _take(self, running: _Running, node: str, message: Json) -> None:
        if message.get("number") != self._number:
            return  # of an earlier round
        if "id" in message and node == running.nodes[0]:
            for other in running.nodes[1:]:
                self._say(other, {"id": str(message["id"])})
        elif "ranks" in message:
            try:
                running.take(node, msgspec.convert(message["ranks"], list[RankResult]))
            except (msgspec.ValidationError, ValueError):
                self._lose(node, "another version of the tool runs there")

    def _stop_others(self, running: _Running) -> None:
        """Once a rank has failed, the others of its group wait for it: they get some seconds."""
        now = time.monotonic()
        if not running.failed_at and not self.lost.keys().isdisjoint(running.nodes):
            running.failed_at = now
        if running.failed_at and not running.stopped and now > running.failed_at + AFTER_FAILURE_S:
            running.stopped = True
            for node in running.waits_for(self.lost):
                self._say(node, {"stop": f"ended {AFTER_FAILURE_S:g} s after another rank had failed"})

    def close(self) -> None:
        """End the run: the nodes end their ranks and their processes."""
        self._closed.set()
        self._server.close()

    def dismiss(self) -> None:
        """Say farewell to all nodes, in the thread that calls `meet`, or after it."""
        self.close()
        for node, line in self._lines.items():
            self._say(node, {"end": True})
            line.close()


@dataclass
class _Running:
    """A group in a round. A group with a node that is gone is not run: its other nodes would wait for it."""

    group: Group
    joined: Mapping[str, Joined]
    told: dict[str, list[RankResult]] = field(default_factory=dict)
    failed_at: float = 0.0
    stopped: bool = False

    def __post_init__(self) -> None:
        self._gone = [node for node in self.group.nodes if node not in self.joined]
        self._gpus = {
            node: tuple(gpu for gpu in self.group.gpus or every if gpu in every)
            for node in self.group.nodes
            if node in self.joined and (every := range(len(self.joined[node].gpus)))
        }
        self._gpus = {node: gpus for node, gpus in self._gpus.items() if gpus}
        self.nodes = [node for node in self.group.nodes if node in self._gpus or node in self._gone]
        """Those with a rank, or that are gone."""
        counts = [len(self._gpus.get(node, ())) for node in self.nodes]
        self._first = dict(zip(self.nodes, accumulate(counts, initial=0), strict=False))
        self._ranks = sum(counts)
        self._room = min((self.joined[node].room for node in self._gpus), default=0)

    @property
    def is_possible(self) -> bool:
        return not self._gone

    def asked(self, asked: Round, node: str) -> dict[str, Json]:
        return {
            "gpus": self._gpus[node],
            "first": self._first[node],
            "ranks": self._ranks,
            "settings": {**asked.settings, **self.group.settings},
            "operations": asked.operations,
            "sizes": [size for size in asked.sizes if size <= self._room],
            "kinds": asked.kinds,
            "speeds": asked.speeds,
            "deadline_s": asked.deadline_s,
        }

    def take(self, node: str, ranks: list[RankResult]) -> None:
        if len(ranks) != len(self._gpus[node]):
            raise ValueError(f"{len(ranks)} ranks instead of {len(self._gpus[node])}")
        self.told[node] = [replace(rank, node=node) for rank in ranks]
        if any(rank.ending is not Ending.DONE for rank in ranks):
            self.failed_at = self.failed_at or time.monotonic()

    def waits_for(self, lost: Mapping[str, str]) -> list[str]:
        return [
            node for node in self.nodes if self.is_possible and node not in self.told and node not in lost
        ]

    def is_running(self, lost: Mapping[str, str]) -> bool:
        return bool(self.waits_for(lost))

    def results(self, lost: Mapping[str, str]) -> Iterator[RankResult]:
        for node in self.nodes:
            if node in self.told:
                yield from self.told[node]
                continue
            why = lost.get(node, "")
            if not why:
                why = f"{NOT_RUN}: {', '.join(self._gone)} is gone" if self._gone else "no answer"
            for place, gpu in enumerate(self._gpus.get(node, (0,))):
                yield RankResult(node, self._first[node] + place, gpu, Ending.SILENT, failure=why)


def addresses(nodes: Sequence[str], named: str) -> list[str]:
    """The addresses at which nodes may reach this host: the named one, else those by which this host reaches
    the first and the last node, and the one of its default route."""
    if named:
        return [named]
    found: dict[str, None] = {}
    for target in (nodes[0], nodes[-1], socket.gethostname(), "192.0.2.1"):  # the last: a reserved address
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))  # sends nothing
            found[probe.getsockname()[0]] = None
    return list(found) or ["127.0.0.1"]
