"""Tests of the head's procedure, on simulated nodes: the fault table of docs/fleet-collectives.md."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import pytest

from gpuipc_doctor.fleet import collective_report
from gpuipc_doctor.fleet.collective_types import Round, RoundResult
from gpuipc_doctor.fleet.collectives import Rounds, examine
from gpuipc_doctor.model import Finding, Measurement, Status
from gpuipc_doctor.report import sentences
from tests.unit.fleet import simulated_nodes as sim
from tests.unit.fleet.simulated_nodes import Fabric

NODES = tuple(f"n{number}" for number in range(8))
TREE = {node: f"leaf{number // 2}" for number, node in enumerate(NODES)}
BASE = Round("", ())


def examined(fabric: Fabric, **given: str) -> list[Finding]:
    nodes = [*fabric.nodes, *given]
    return list(examine(Rounds(fabric.meet, fabric.joined, BASE), nodes, given, TREE))


def told(findings: Sequence[Finding]) -> list[str]:
    """Key, sentence and evidence of what did not pass."""
    return [
        line
        for found in findings
        if found.status is not Status.PASS
        for line in (
            f"{found.status.value} {found.key}: {sentences.summary(found)}",
            *sentences.evidence(found),
        )
    ]


def test_healthy_nodes_pass_with_their_figures() -> None:
    fabric = Fabric(NODES, adapters=4)
    found = examined(fabric)
    assert told(found) == []
    assert [one.key for one in found] == ["passed", "carried"]
    assert sentences.summary(found[0]) == (
        "50 operations on 16 ranks of 8 nodes, every element compared: 40 GB/s bus bandwidth"
    )
    assert sentences.summary(found[1]) == "carried by IB: mlx5_0:1/RoCE (NET/IB/0/GDRDMA)"
    assert [asked.name for asked in fabric.rounds] == [
        "each node alone",
        "all together",
        "pairs for their speed: neighbours",
        "pairs for their speed: across",
        *(f"rail mlx5_{number}" for number in range(4)),
    ]


FAULTS = {
    "a node hangs": ([sim.hangs("n5")], "node", "n5"),
    "a pair": ([sim.hangs("n1", "n6")], "pair", "n1 - n6"),
    "a switch": ([sim.cut("n2", "n3")], "switch", "leaf1 (n[2-3])"),
    "one wrong element above 1 MiB": ([sim.wrong("n0")], "node", "n0"),
    "only all together": ([sim.only_all(8)], "only-together", "n[0-7]"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(name: str) -> None:
    faults, key, who = FAULTS[name]
    fabric = Fabric(NODES, faults)
    found = [one for one in examined(fabric) if one.status is not Status.PASS]
    assert [(one.status, one.key, one.values["who"]) for one in found] == [(Status.FAIL, key, who)]
    searching = [
        asked for asked in fabric.rounds if "control" not in asked.name and "alone" not in asked.name
    ]
    assert len(searching) <= 8  # 2 + 2 * log2(8)


def test_a_bad_node_is_told_with_what_failed_and_what_passes_without() -> None:
    fabric = Fabric(NODES, [sim.hangs("n5", unless="NCCL_NET=Socket")], adapters=2)
    (found,) = examined(fabric)
    assert sentences.summary(found) == "n5: collectives fail with each node that it met"
    assert list(sentences.evidence(found)) == [
        "n[4-5]: rank 0 on n4: hung in first all-reduce, and 3 more ranks",
        "without: 7 other nodes pass together, 40 GB/s bus bandwidth",
        "fails also without GPUDirect (NCCL_NET_GDR_LEVEL=LOC)",
        "passes by sockets (NCCL_NET=Socket): 40 GB/s instead of 40 GB/s",
        "fails also by one adapter (NCCL_IB_HCA==mlx5_0)",
        "fails also without CUMEM (NCCL_CUMEM_ENABLE=0)",
    ]
    assert found.remedy == (
        "keep jobs off it (--exclude=n5); there: gpuipc-doctor check --all; "
        "until it is repaired: NCCL_NET=Socket (40 GB/s instead of 40 GB/s)"
    )


def test_a_failed_connection_is_told_with_both_ends() -> None:
    lines = told(examined(Fabric(NODES, [sim.cut("n2", "n3")])))
    assert "no connection from 10.0.0.1 to 10.0.0.9:45123" in lines


def test_a_node_that_is_lost_is_named_and_left_out() -> None:
    fabric = Fabric(NODES, gone={"n3": 2})
    found = examined(fabric)
    assert told(found) == ["ERROR lost: n3 was lost in a round and left out: the node's process was lost"]
    assert sentences.summary(found[0]).startswith("50 operations on 14 ranks of 7 nodes")


def test_nodes_that_take_no_part_are_named() -> None:
    fabric = Fabric(NODES)
    fabric.joined["n1"] = replace(fabric.joined["n1"], lacks="no NCCL found", library="")
    fabric.joined["n2"] = replace(fabric.joined["n2"], busy=("cuda:1: used by process 7",), gpus=("H200",))
    lines = told(examined(fabric, n9="ssh: connect to host n9 port 22: No route to host"))
    assert lines == [
        "WARN differs: GPUs: 1 × H200 on n2, 2 × H200 on n[0,3-7]",
        "ERROR no-part: n9 takes no part: ssh: connect to host n9 port 22: No route to host",
        "ERROR no-part: n1 takes no part: no NCCL found",
        "WARN busy: cuda:1: used by process 7 of n2 takes no part",
    ]


def test_nodes_that_all_fail_alone_are_not_tried_together() -> None:
    bad = [lambda group, _, rank: replace(rank, wrong_cases=1) if rank.node != "n2" else rank]
    fabric = Fabric(("n0", "n1", "n2"), bad)
    assert [found.key for found in examined(fabric)] == ["node-alone", "node-alone"]
    assert [asked.name for asked in fabric.rounds] == ["each node alone"]


def test_one_node_alone_is_too_few() -> None:
    lines = told(examined(Fabric(NODES[:1]), n9="no answer"))
    assert lines[-1] == "ERROR too-few: 1 of 2 nodes can take part: a collective needs two"


def test_facts_that_differ_are_told_before_and_beside_the_failure() -> None:
    fabric = Fabric(NODES, [sim.hangs("n4")])
    facts = {**fabric.joined["n4"].facts, "interfaces": "enp7s0 lo", "memlock": "64 KiB"}
    for node in NODES:
        own = facts if node == "n4" else fabric.joined[node].facts
        fabric.joined[node] = replace(
            fabric.joined[node], facts={**own, "NCCL_SOCKET_IFNAME": "eno"}, clock_s=90.0 * (node == "n7")
        )
    lines = told(examined(fabric))
    assert lines[:3] == [
        "WARN name-not-there: NCCL_SOCKET_IFNAME names eno, which n4 lacks",
        "WARN differs: the limit of locked memory: 64 KiB on n4, unlimited on n[0-3,5-7]",
        "WARN clocks-apart: clocks of n7 differ from this node's, by 90 s on n7",
    ]
    assert "differs: NCCL_SOCKET_IFNAME names eno, which n4 lacks" in lines
    assert "differs: the limit of locked memory: 64 KiB on n4, unlimited on n[0-3,5-7]" in lines


def test_a_slow_node_is_a_warning_with_both_speeds() -> None:
    fabric = Fabric(NODES, [sim.slow("n6", 2)])
    assert told(examined(fabric)) == [
        "WARN slow-node: n6: 20 GB/s bus bandwidth, 20 GB/s bus bandwidth with n7, n2; "
        "the median of such pairs: 40 GB/s"
    ]
    assert len(fabric.rounds) == 4


def test_a_slow_pair_is_measured_twice() -> None:
    both = sim.when(
        lambda group: {*group.nodes} == {"n1", "n5"},
        lambda rank: replace(
            rank, speeds=tuple(replace(one, seconds=one.seconds * 2) for one in rank.speeds)
        ),
    )
    assert told(examined(Fabric(NODES, [both]))) == [
        "WARN slow-pair: n1 and n5: 20 GB/s bus bandwidth, measured twice; the median of such pairs: 40 GB/s"
    ]


def test_many_nodes_are_slower_than_few_by_nature() -> None:
    shared = sim.when(
        lambda group: len(group.nodes) > 4,
        lambda rank: replace(
            rank, speeds=tuple(replace(one, seconds=one.seconds * 3) for one in rank.speeds)
        ),
    )
    assert told(examined(Fabric(NODES, [shared]))) == []


def test_a_fabric_that_is_slow_everywhere_is_not_called_slow() -> None:
    assert told(examined(Fabric(NODES, rates={"": 1e9}))) == []


def test_a_slow_adapter_is_named_with_its_node() -> None:
    lines = told(examined(Fabric(NODES, [sim.slow("n2", 2, "mlx5_1")], adapters=4)))
    assert lines == [
        "WARN slow-rail: adapter mlx5_1: 20 GB/s bus bandwidth, measured twice; "
        "the median of 4 adapters: 40 GB/s",
        "n2: collectives are slow with each node that it met",
    ]


def test_sockets_beside_adapters_are_a_warning_with_both_speeds() -> None:
    lines = told(examined(Fabric(NODES, adapters=8, rates={"": 2e9, "IB": 40e9})))
    assert lines == [
        "WARN by-sockets: carried by Socket: eno1:10.0.0.1, although 8 adapters are active: "
        "2 GB/s bus bandwidth; with NCCL_NET=IB: 40 GB/s bus bandwidth"
    ]


def test_a_resumed_run_repeats_no_round() -> None:
    saved: list[RoundResult] = []
    first = Fabric(NODES, [sim.hangs("n5")])
    whole = list(examine(Rounds(first.meet, first.joined, BASE, save=saved.append), NODES, {}, TREE))
    again = Fabric(NODES, [sim.hangs("n5")])
    assert (
        list(examine(Rounds(again.meet, again.joined, BASE, saved=iter(saved[:4])), NODES, {}, TREE)) == whole
    )
    assert again.rounds == first.rounds[4:]


def test_the_time_limit_ends_the_search() -> None:
    fabric = Fabric(NODES)
    until = time.monotonic() + BASE.deadline_s - 1  # a round could last longer
    found = list(examine(Rounds(fabric.meet, fabric.joined, BASE, until), NODES, {}, TREE))
    assert told(found) == ["ERROR time-limit: the time limit ended the search after 0 rounds"]


def test_figures_of_the_screen_have_three_digits_and_no_exponent() -> None:
    figures = [Measurement("start", 0.09321, "s"), Measurement("latency", 1184.0, "us")]
    report = collective_report.report(
        ["n1"], {}, [Finding.ok("passed", "x", measured=figures)], [], datetime.now().astimezone()
    )
    assert "start 0.0932 s · latency 1180 us" in collective_report.screen(report, 0)
