"""The order of Slurm's topology, in which neighbours are paired; errors of its programs are one line."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gpuipc_doctor.cli.main import cli
from gpuipc_doctor.fleet import partners, slurm

TREE = """\
SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1,4]
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[2-3,7]
SwitchName=s2 Level=0 LinkSpeed=1 Nodes=n[5-6]
SwitchName=s3 Level=1 LinkSpeed=1 Nodes=n[1,4-6] Switches=s[0,2]
SwitchName=s4 Level=1 LinkSpeed=1 Nodes=n[2-3,7] Switches=s1
SwitchName=s5 Level=2 LinkSpeed=1 Nodes=n[1-7] Switches=s[3-4]
"""
"""Output of Slurm 22.05."""

BLOCKS = """\
BlockName=b0 BlockIndex=0 Nodes=n[1-4] BlockSize=4
BlockName=b1 BlockIndex=1 Nodes=n[5-8] BlockSize=4
"""


@pytest.mark.parametrize(
    ("topology", "order"),
    [
        (TREE, ["n1", "n4", "n5", "n6", "n2", "n3", "n7", "n8"]),
        (BLOCKS, ["n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8"]),
        ("", ["n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8"]),
        ("SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[7-\nSwitchName=s1 Level=0 Nodes=(null)\n\x00", None),
    ],
)
def test_neighbours_are_below_one_switch(topology: str, order: list[str] | None) -> None:
    nodes = [f"n{number}" for number in range(1, 9)]
    assert slurm.ordered(nodes, topology) == (order or nodes)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60))
def test_only_leftover_nodes_cross_switches(switch_of: list[int]) -> None:
    nodes = [f"n{number}" for number in range(len(switch_of))]
    lines = [
        f"SwitchName=s{switch} Level=0 LinkSpeed=1 Nodes={','.join(those)}"
        for switch in range(6)
        if (those := [node for node, of in zip(nodes, switch_of, strict=True) if of == switch])
    ]
    order = slurm.ordered(nodes, "\n".join(lines))
    assert sorted(order) == sorted(nodes)
    of = dict(zip(nodes, switch_of, strict=True))
    crossing = [pair for pair in partners.next_round(order, []) if of[pair[0]] != of[pair[1]]]
    assert len(crossing) <= 3  # each of the six switches has at most one node left over
    assert all(one != other for one, other in pairwise(order))


def test_refusal_of_slurm_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "slurm_load_partitions: Unable to contact slurm controller (connect failure)"
    for name in ("sinfo", "scontrol"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{said}' >&2\necho again >&2\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    command = ["fleet", "check", "--partition", "gpu", "--into", str(tmp_path / "out")]
    ended = CliRunner().invoke(cli, command)
    assert (ended.exit_code, f"Error: sinfo: {said} again; or name the nodes with -w\n" in ended.output) == (
        2,
        True,
    ), ended.output
    assert slurm.topology() == ""
    monkeypatch.setenv("PATH", "")
    ended = CliRunner().invoke(cli, command)
    assert (ended.exit_code, "sinfo: No such file" in ended.output) == (2, True), ended.output


TREE = """\
SwitchName=leaf0 Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[3-4]
SwitchName=top Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=leaf[0-1]
"""
BLOCK = "BlockName=b0 BlockIndex=0 Nodes=n[1-2]\nBlockName=b1 BlockIndex=1 Nodes=n[3-4]\n"


@pytest.mark.parametrize(("topology", "names"), [(TREE, ("leaf0", "leaf1")), (BLOCK, ("b0", "b1")), ("", ())])
def test_node_is_below_its_lowest_switch(topology: str, names: tuple[str, ...]) -> None:
    found = slurm.leaves(["n1", "n4", "n9"], topology)
    assert found == dict(zip(("n1", "n4"), names, strict=False))


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [("1-02:03:04", 93784.0), ("00:05:00", 300.0), ("UNLIMITED", float("inf")), ("", float("inf"))],
)
def test_time_limit_is_parsed(limit: str, seconds: float) -> None:
    assert slurm._seconds(limit) == seconds
