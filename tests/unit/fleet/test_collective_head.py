"""The head of `fleet collectives`, with nodes that are threads of the test."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec
import pytest

from gpuipc_doctor.fleet import collective_head, secret_line
from gpuipc_doctor.fleet.collective_head import Head, addresses
from gpuipc_doctor.fleet.collective_types import Ending, Group, Joined, RankResult, Round
from gpuipc_doctor.fleet.secret_line import Line, greet
from gpuipc_doctor.model import Json

SECRET = b"s" * 32
ALL = Round("all together", (Group(("a", "b")),), deadline_s=1.0)

Act = Callable[[Line, Json], None]


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[Head]:
    monkeypatch.setattr(collective_head, "GRACE_S", 0.5)
    monkeypatch.setattr(collective_head, "AFTER_FAILURE_S", 0.2)
    made = Head(["a", "b"], SECRET, "127.0.0.1")
    yield made
    made.dismiss()


def come(head: Head, name: str, act: Act, joined: Json = None, secret: bytes = SECRET) -> None:
    """A node that joins with two GPUs, and does this in each round."""

    at = ("127.0.0.1", head.port)

    def live() -> None:
        told = joined or msgspec.to_builtins(Joined(name, ("H200", "H200"), room=4096))
        with suppress(OSError, secret_line.NotOurs), socket.create_connection(at) as connection:
            line = greet(connection, secret, name)
            line.send({"joined": told})
            line.socket.settimeout(10)
            while True:
                for message in line.receive():
                    if "end" in message:
                        return
                    act(line, message)

    threading.Thread(target=live, daemon=True).start()


def passes(line: Line, message: Json) -> None:
    """Send the unique id if the first rank is here, and results."""
    if asked := message.get("round"):
        if asked["first"] == 0:
            line.send({"number": asked["number"], "id": "ab"})
        ranks = [RankResult("x", asked["first"] + n, gpu, Ending.DONE) for n, gpu in enumerate(asked["gpus"])]
        line.send({"number": asked["number"], "ranks": msgspec.to_builtins(ranks)})


def gather(head: Head, seconds: float = 5.0) -> dict[str, Joined]:
    return head.gather(dict, seconds)


def test_nodes_meet_by_the_first_ranks_id_and_results_come_in_order(head: Head) -> None:
    heard: list[tuple[str, Json]] = []

    def act(name: str) -> Act:
        return lambda line, message: (heard.append((name, message)), passes(line, message))[1]

    come(head, "b", act("b"))
    come(head, "a", act("a"))
    assert sorted(gather(head)) == ["a", "b"]
    (group,) = head.meet(ALL).groups
    assert group.passed
    assert [(rank.node, rank.rank) for rank in group.ranks] == [("a", 0), ("a", 1), ("b", 2), ("b", 3)]
    deadline = time.monotonic() + 5
    while ("b", {"id": "ab"}) not in heard and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ("b", {"id": "ab"}) in heard
    assert ("a", {"id": "ab"}) not in heard
    (asked,) = [message["round"] for name, message in heard if name == "a" and "round" in message]
    assert asked["sizes"] == [8]  # what fits into the room of each


def test_rail_has_the_same_gpu_of_each_node_that_has_it(head: Head) -> None:
    come(head, "a", passes)
    come(head, "b", passes, msgspec.to_builtins(Joined("b", ("H200",))))
    gather(head)
    rails = [head.meet(Round("rail", (Group(("a", "b"), (gpu,)),), deadline_s=2.0)) for gpu in (0, 1)]
    found = [[(rank.node, rank.rank, rank.gpu) for rank in rail.groups[0].ranks] for rail in rails]
    assert found == [[("a", 0, 0), ("b", 1, 0)], [("a", 0, 1)]]


def test_strangers_and_second_comers_are_closed_out(head: Head) -> None:
    with socket.create_connection(("127.0.0.1", head.port)) as silent:
        come(head, "a", passes, secret=b"t" * 32)
        come(head, "stranger", passes)
        come(head, "a", passes)
        come(head, "b", passes)
        assert sorted(gather(head)) == ["a", "b"]
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", head.port))
        silent.close()
    assert head.meet(ALL).groups[0].passed


def test_node_of_another_version_is_left_out(head: Head) -> None:
    come(head, "a", passes)
    come(head, "b", passes, {"node": 7})
    assert list(gather(head)) == ["a"]
    assert head.lost == {"b": "another version of the tool runs there"}


def test_node_that_ends_before_it_joins_is_told_by_its_last_words(head: Head) -> None:
    """Its launcher brings them a moment after its connection is gone."""
    came = threading.Event()
    come(head, "a", passes)

    def goes() -> None:
        with socket.create_connection(("127.0.0.1", head.port)) as connection:
            greet(connection, SECRET, "b")
        came.set()

    threading.Thread(target=goes).start()
    ends = time.monotonic() + 1
    words = {"b": "no such simulator profile"}
    assert list(head.gather(lambda: words if time.monotonic() > ends else {}, 20)) == ["a"]
    assert head.lost == words
    assert came.is_set()


def test_node_that_is_started_again_comes_again(head: Head) -> None:
    """Slurm ends a step on all nodes if one of them cannot start it; then a further step is run."""
    came = threading.Event()

    def comes_twice() -> None:
        with socket.create_connection(("127.0.0.1", head.port)) as connection:
            line = greet(connection, SECRET, "a")
            line.send({"joined": msgspec.to_builtins(Joined("a", ("H200",)))})
            time.sleep(0.5)
        came.set()

    threading.Thread(target=comes_twice).start()
    threading.Timer(1.5, come, (head, "a", passes)).start()
    threading.Timer(2.5, come, (head, "b", passes)).start()
    assert sorted(gather(head, 20)) == ["a", "b"]
    assert came.is_set()
    assert head.lost == {}
    assert head.meet(ALL).groups[0].passed


def test_node_that_goes_in_a_round_is_silent_and_the_others_are_ended(head: Head) -> None:
    stops: list[Json] = []

    def waits(line: Line, message: Json) -> None:
        if "stop" in message:
            stops.append(message["stop"])
            ranks = [RankResult("a", n, n, Ending.HUNG, "start", message["stop"]) for n in (0, 1)]
            line.send({"number": 1, "ranks": msgspec.to_builtins(ranks)})

    come(head, "a", waits)
    come(head, "b", lambda line, message: line.close())
    gather(head)
    done = head.meet(Round("all together", (Group(("a", "b")),), deadline_s=60.0))
    assert [rank.ending for rank in done.groups[0].ranks] == [Ending.HUNG] * 2 + [Ending.SILENT] * 2
    assert done.seconds < 10
    assert stops == ["ended 0.2 s after another rank had failed"]
    again = head.meet(ALL).groups[0]
    assert [rank.failure for rank in again.ranks] == ["not run: b is gone"] * 2 + [collective_head.LOST]


def test_node_that_says_nothing_costs_a_deadline_and_its_word(head: Head) -> None:
    come(head, "a", passes)
    come(head, "b", lambda line, message: None)
    gather(head)
    done = head.meet(ALL)
    assert 1.5 <= done.seconds < 8
    assert [rank.ending for rank in done.groups[0].ranks] == [Ending.DONE] * 2 + [Ending.SILENT] * 2
    assert head.lost == {"b": "no answer 0.5 s after the deadline"}


@pytest.mark.parametrize("ranks", [[], [{"node": "b"}], "x"])
def test_nonsense_instead_of_results_loses_the_node(head: Head, ranks: Json) -> None:
    come(head, "a", passes)
    come(head, "b", lambda line, message: line.send({"number": 1, "ranks": ranks}))
    gather(head)
    assert [rank.ending for rank in head.meet(ALL).groups[0].ranks][2:] == [Ending.SILENT] * 2


def test_interruption_ends_a_round(head: Head) -> None:
    come(head, "a", lambda line, message: None)
    come(head, "b", lambda line, message: None)
    gather(head)
    threading.Timer(0.3, head.close).start()
    with pytest.raises(collective_head.Closed):
        head.meet(Round("all together", (Group(("a", "b")),), deadline_s=60.0))


def test_addresses() -> None:
    assert addresses(["a"], "10.0.0.1") == ["10.0.0.1"]
    assert all(one.count(".") == 3 for one in addresses(["localhost", "no.such.host.example"], ""))
