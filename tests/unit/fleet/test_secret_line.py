"""The line between head and nodes: who does not know the run's secret gets nothing."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpuipc_doctor.fleet.secret_line import MOST_BYTES, MOST_GREETING, Line, NotOurs, greet, welcome

SECRET, OTHER = b"s" * 32, b"t" * 32


Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """The head's end of a connection, and a node's."""
    here, there = socket.socketpair()
    with here, there:
        yield here, there


def met(
    ends: Ends, name: str = "n1", theirs: bytes = SECRET, expected: Callable[[str], bool] = bool
) -> tuple[Line, Line]:
    here, there = ends
    with ThreadPoolExecutor(1) as thread:
        node = thread.submit(greet, there, theirs, name)
        try:
            told, line = welcome(here, SECRET, expected)
        except NotOurs:
            here.close()
            raise
        assert told == name
        return line, node.result()


def test_messages_arrive_in_order_in_both_directions(ends: Ends) -> None:
    head, node = met(ends)
    head.send({"round": 1})
    head.send({"round": 2})
    node.send(["x" * 5000])
    told = node.receive()
    assert (told if len(told) == 2 else told + node.receive()) == [{"round": 1}, {"round": 2}]
    assert head.receive() == [["x" * 5000]]
    node.close()
    with pytest.raises(OSError, match="closed"):
        head.receive()


def test_node_with_another_secret_is_refused(ends: Ends) -> None:
    with pytest.raises(NotOurs, match="secret"):
        met(ends, theirs=OTHER)


def test_head_that_does_not_know_the_secret_is_refused(ends: Ends) -> None:
    here, there = ends
    with ThreadPoolExecutor(1) as thread:
        node = thread.submit(greet, there, SECRET, "n1")
        here.sendall(b"0" * 32 + b"\n")
        here.recv(4096)
        here.sendall(b"0" * 64 + b"\n")
        with pytest.raises(NotOurs, match="secret"):
            node.result()


def test_unexpected_node_is_refused(ends: Ends) -> None:
    with pytest.raises(NotOurs, match="no node of this run"):
        met(ends, "stranger", expected=lambda name: name == "n1")


@pytest.mark.parametrize("sent", [b"x" * (MOST_GREETING + 1), b"GET / HTTP/1.1\r\n\r\n", b"\xff\xfe\n"])
def test_what_is_no_greeting_is_refused(ends: Ends, sent: bytes) -> None:
    here, there = ends
    there.sendall(sent)
    with pytest.raises(NotOurs):
        welcome(here, SECRET, bool)


def test_altered_repeated_and_endless_messages_are_refused(ends: Ends) -> None:
    head, node = met(ends)
    head.send({"n": 1})
    sent = node.socket.recv(1 << 16)
    for wrong in (sent.replace(b"1}", b"2}"), sent + sent, b"y" * (MOST_BYTES + 1)):
        here, there = socket.socketpair()
        with here, there, ThreadPoolExecutor(1) as thread:
            thread.submit(here.sendall, wrong)
            with pytest.raises(NotOurs):
                _read_on(Line(there, node._key, "node"))


def _read_on(line: Line) -> None:
    while True:
        line.receive()
