"""Tests of the search for what makes collectives fail: simulated fabrics with one fault and with two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuipc_doctor.fleet.collective_search import Blame, Nodes, most_rounds, search

Fault = Callable[[frozenset[str]], bool]
"""Whether a group of nodes fails."""


def named(number: int) -> Nodes:
    return tuple(f"n{place:04}" for place in range(number))


def tree(nodes: Nodes, below: int) -> dict[str, str]:
    return {node: f"s{place // below}" for place, node in enumerate(nodes)} if below else {}


def bad_node(node: str) -> Fault:
    return lambda group: node in group


def bad_pair(*pair: str) -> Fault:
    return lambda group: group >= {*pair}


def cut(topology: Mapping[str, str], switch: str) -> Fault:
    return lambda group: len({topology.get(node) == switch for node in group}) == 2


def too_many(number: int) -> Fault:
    return lambda group: len(group) >= number


def searched(nodes: Nodes, topology: Mapping[str, str], fails: Fault) -> tuple[Blame, int]:
    """The verdict, and the number of rounds; verifies that no node is in two groups of a round."""
    asking, rounds = search(nodes, topology), 1
    groups = next(asking)
    while True:
        met = [node for group in groups for node in group]
        assert len({*met}) == len(met)
        assert all(len(group) > 1 for group in groups)
        try:
            groups = asking.send([fails(frozenset(group)) for group in groups])
        except StopIteration as ended:
            assert rounds <= most_rounds(len(nodes))
            return ended.value, rounds
        rounds += 1


numbers = st.integers(3, 64) | st.sampled_from([100, 128, 255, 257, 511, 512, 513, 1000, 1023, 1024])
switches = st.sampled_from([0, 2, 3, 4, 8, 32])


@given(numbers, switches, st.data())
@example(1024, 0, None)
def test_one_fault_stands_alone(number: int, below: int, data: st.DataObject | None) -> None:
    nodes = named(number)
    topology = tree(nodes, below)
    if data is None:
        for fault, blamed in (
            (bad_node(nodes[-1]), Blame(nodes=nodes[-1:])),
            (bad_pair(nodes[1], nodes[-2]), Blame(pairs=((nodes[1], nodes[-2]),))),
        ):
            assert searched(nodes, topology, fault) == (blamed, 13)  # of 22
        return
    one, other = sorted(data.draw(st.lists(st.sampled_from(nodes), min_size=2, max_size=2, unique=True)))
    assert searched(nodes, topology, bad_node(one))[0] == Blame(nodes=(one,))
    assert searched(nodes, topology, bad_pair(one, other))[0] == Blame(pairs=((one, other),))
    assert searched(nodes, topology, too_many(number))[0] == Blame(together=(nodes,))
    switch = topology.get(one, "")
    inside = [node for node in nodes if topology.get(node) == switch]
    if 1 < len(inside) < number - 1:
        blamed, _ = searched(nodes, topology, cut(topology, switch)) if switch else (Blame(), 0)
        if len(set(topology.values())) > 2:
            assert blamed == Blame(switches=(switch,))
        elif switch:
            assert blamed == Blame(links=(("s0", "s1"),))


@given(st.integers(3, 20) | st.sampled_from([32, 33, 64]), switches, st.data())
def test_what_is_said_of_two_faults_is_true(number: int, below: int, data: st.DataObject) -> None:
    nodes = named(number)
    topology = tree(nodes, below)
    node = st.sampled_from(nodes)
    one_of = [
        node.map(bad_node),
        st.lists(node, min_size=2, max_size=2, unique=True).map(lambda pair: bad_pair(*pair)),
        st.integers(max(3, number // 2), number).map(too_many),
    ]
    if topology:
        one_of.append(
            st.sampled_from(sorted(set(topology.values()))).map(lambda switch: cut(topology, switch))
        )
    faults = data.draw(st.lists(st.one_of(one_of), min_size=2, max_size=2))

    def fails(group: frozenset[str]) -> bool:
        return any(fault(group) for fault in faults)

    def all_fail(ones: list[str], others: list[str]) -> bool:
        return all(fails(frozenset(pair)) for pair in product(ones, others) if len({*pair}) > 1)

    blamed, _ = searched(nodes, topology, fails)
    of = {switch: [n for n in nodes if topology[n] == switch] for switch in set(topology.values())}
    assert all(all_fail([each], [*nodes]) for each in blamed.nodes)
    assert all(fails(frozenset(pair)) for pair in blamed.pairs)
    assert not any(all_fail([end], [*nodes]) for pair in blamed.pairs for end in pair)
    assert all(all_fail(of[each], [n for n in nodes if n not in of[each]]) for each in blamed.switches)
    assert all(all_fail(of[one], of[other]) for one, other in blamed.links)
    for group in blamed.together:
        assert fails(frozenset(group))
        assert not any(fails(frozenset((a, b))) for a in group for b in group if a != b)
    assert not blamed.unstable
    assert blamed != Blame() or not fails(frozenset(nodes))


def test_of_two_nodes_none_can_be_told() -> None:
    nodes = named(2)
    assert searched(nodes, {}, bad_pair(*nodes)) == (Blame(unclear=(nodes,)), 2)


def test_what_passes_at_once_takes_one_round() -> None:
    assert searched(named(64), {}, lambda _: False) == (Blame(), 1)


@pytest.mark.parametrize("number", [4, 9, 64])
def test_a_failure_that_does_not_return_is_unstable(number: int) -> None:
    nodes, failures = named(number), iter([True])
    blamed, _ = searched(nodes, {}, lambda _: next(failures, False))
    assert blamed == Blame(unstable=(nodes,))


def test_two_bad_nodes_in_both_halves_are_found_at_once() -> None:
    nodes = named(64)
    blamed, rounds = searched(nodes, {}, lambda group: bool(group & {nodes[3], nodes[40]}))
    assert (blamed.nodes, rounds) == ((nodes[3], nodes[40]), 9)
