"""Rounds of collectives over processes of simulated nodes, as the head asks for them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuipc_doctor.fleet.collective_head import Head
from gpuipc_doctor.fleet.collective_types import Ending, Group, GroupResult, Round

pytestmark = pytest.mark.cuda

SECRET = b"s" * 32
TWO = "collectives-two"
QUICK: dict[str, Any] = {"sizes": (8, 65_536), "kinds": ("float32",), "speeds": False, "deadline_s": 60.0}


@contextmanager
def come(directory: Path, **faults: str) -> Iterator[Head]:
    """A head with a node for each name: with this collective fault, or this profile; empty: a healthy one."""
    with ExitStack() as ending:
        head = Head(list(faults), SECRET, "127.0.0.1")
        for node, fault in faults.items():
            profile = fault or TWO
            if ":" in fault:
                profile = str(directory / f"{node}.yaml")
                text = (
                    f"description: x\nextends: {TWO}\ncollective-faults:\n  - {fault}\nexpect: {{exit: 12}}\n"
                )
                Path(profile).write_text(text)
            words = [sys.executable, "-m", "gpuipc_doctor", "fleet", "take-part", "collective-data"]
            words += ["--head", f"127.0.0.1:{head.port}", "--called", node, "--backend", "cuda"]
            environment = {**os.environ, "NCCL_HOSTID": node}
            process = subprocess.Popen(
                [*words, "--simulate", profile], stdin=subprocess.PIPE, env=environment
            )
            ending.callback(process.wait, 60)

            assert process.stdin
            process.stdin.write(SECRET)
            process.stdin.close()
        ending.callback(head.dismiss)
        assert sorted(head.gather(dict, 400)) == sorted(faults)
        yield head


def meet(head: Head, *groups: tuple[str, ...] | Group, **changed: Any) -> list[GroupResult]:
    asked = tuple(group if isinstance(group, Group) else Group(group) for group in groups)
    return list(head.meet(Round("x", asked, **{**QUICK, **changed})).groups)


def endings(group: GroupResult) -> set[Ending]:
    return {rank.ending for rank in group.ranks}


def via(group: GroupResult) -> set[str]:
    return {name for rank in group.ranks for name in rank.transports}


def test_groups_meet_side_by_side_and_a_bad_one_spoils_no_other_and_no_later_round(tmp_path: Path) -> None:
    hang = "{call: all-reduce, do: hang, rank: 2, min: 1 KiB}"
    with come(tmp_path, a="", b=hang, c="", d="") as head:
        began = head.meet(
            Round("halves", (Group(("a", "b")), Group(("c", "d"))), **{**QUICK, "deadline_s": 8.0})
        )
        bad, good = began.groups
        assert endings(bad) == {Ending.HUNG}
        assert {rank.operation for rank in bad.ranks} == {"all-reduce of 65536 B, float32"}
        assert good.passed
        assert 8 <= began.seconds < 25
        pairs = meet(head, ("a", "c"), ("b", "d"))  # b's ranks are 0 and 1
        assert [group.passed for group in pairs] == [True, True]
        assert [rank.node for rank in pairs[1].ranks] == ["b", "b", "d", "d"]


def test_settings_of_a_round_and_of_a_group_reach_their_ranks_only(tmp_path: Path) -> None:
    with come(tmp_path, a="", b="") as head:
        own = Group(("b",), settings={"NCCL_CUMEM_ENABLE": "0"})
        assert [via(group) for group in meet(head, ("a",), own)] == [{"P2P/CUMEM"}, {"P2P/IPC"}]
        (group,) = meet(head, ("a", "b"), settings={"NCCL_P2P_DISABLE": "1"})
        assert via(group) == {"SHM/direct/direct", "NET/Socket/0"}
        (group,) = meet(head, ("a", "b"))
        assert via(group) == {"P2P/CUMEM", "NET/Socket/0"}


def test_rail_is_one_gpu_of_each_node_and_nodes_may_have_other_numbers(tmp_path: Path) -> None:
    with come(tmp_path, a="", b="collectives-healthy") as head:
        assert [len(head.joined[node].gpus) for node in "ab"] == [2, 4]
        (together,) = meet(head, ("a", "b"))
        assert together.passed
        assert "".join(rank.node for rank in together.ranks) == "aabbbb"
        assert [rank.gpu for rank in together.ranks] == [0, 1, 0, 1, 2, 3]
        (rail,) = meet(head, Group(("a", "b"), (1,)))
        assert [(rank.node, rank.rank, rank.gpu) for rank in rail.ranks] == [("a", 0, 1), ("b", 1, 1)]
        assert via(rail) == {"NET/Socket/0"}


def test_interface_that_a_node_lacks_fails_its_start(tmp_path: Path) -> None:
    with come(tmp_path, a="", b="") as head:
        lacks = Group(("a", "b"), settings={"NCCL_SOCKET_IFNAME": "nowhere0"})
        (group,) = meet(head, lacks)
        assert endings(group) == {Ending.FAILED}
        assert {rank.operation for rank in group.ranks} == {"start"}
        assert "no socket interface found" in group.ranks[0].failure


@pytest.mark.parametrize(
    ("fault", "operation"),
    [
        ("{call: all-gather, do: swap, rank: 2}", "all-gather"),
        pytest.param("{call: reduce-scatter, do: twice, rank: 2}", "reduce-scatter", marks=pytest.mark.full),
        ("{call: recv, do: cut, rank: 2, peer: 0, bytes: 8 B}", "all-to-all"),
        pytest.param(
            "{call: recv, do: corrupt-last, rank: 2, peer: 1, min: 64 KiB}", "ring", marks=pytest.mark.full
        ),
        pytest.param("{call: all-reduce, do: overrun, rank: 2}", "all-reduce", marks=pytest.mark.full),
    ],
)
def test_wrong_data_of_each_operation_is_found(tmp_path: Path, fault: str, operation: str) -> None:
    with come(tmp_path, a="", b=fault) as head:
        (group,) = meet(head, ("a", "b"))
        assert endings(group) == {Ending.DONE}
        wrong = {rank.rank: {one.operation for one in rank.wrong} for rank in group.ranks if rank.wrong}
        assert wrong == {2: {operation}}
