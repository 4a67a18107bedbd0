"""The number of GPUs of a node in Slurm's configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuipc_doctor.site import hosts


def gpus(root: Path, text: str, host: str = "gpu07") -> int:
    conf = root / "etc/slurm/slurm.conf"
    conf.parent.mkdir(parents=True, exist_ok=True)
    conf.write_text(text)
    return hosts.gpus_by_slurm(host, {}, root)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("", 0),
        ("NodeName=gpu[01-09] CPUs=64 Gres=gpu:a100:4", 4),
        ("nodename=gpu07 gres=GPU:8", 8),
        ("NodeName=gpu07 Gres=gpu", 1),
        ("NodeName=gpu07 Gres=gpu:tesla:2,gpu:kepler:2(S:0-1),shard:32,nvme:1", 4),
        ("NodeName=gpu07 Gres=gpu:a100:no_consume:4 # Gres=gpu:8", 4),
        ("#NodeName=gpu07 Gres=gpu:4", 0),
        ("NodeName=gpu08 Gres=gpu:4", 0),
        ("NodeName=gpu[07 Gres=gpu:4", 0),
        ("NodeName=DEFAULT Gres=gpu:4\nNodeName=gpu[01-06] Gres=gpu:8\nNodeName=gpu07", 4),
        ("NodeName=DEFAULT Gres=gpu:4\nNodeName=DEFAULT CPUs=4\nNodeName=gpu07 Gres=nvme:1", 0),
        ("NodeName=gpu[01-09] CPUs=64 \\\n  Gres=gpu:4", 4),
        ("PartitionName=all Nodes=gpu07\nNodeSet=a Feature=b", 0),
    ],
)
def test_gres_of_a_node(tmp_path: Path, text: str, number: int) -> None:
    assert gpus(tmp_path, text) == number


@pytest.mark.parametrize("name", ["nodes.conf", "/etc/slurm/nodes.conf"])
def test_gres_in_an_included_file(tmp_path: Path, name: str) -> None:
    gpus(tmp_path, f"Include {name}\nInclude none.conf\n")
    (tmp_path / "etc/slurm/nodes.conf").write_text("NodeName=gpu[01-09] Gres=gpu:4\n")
    assert hosts.gpus_by_slurm("gpu07", {}, tmp_path) == 4


@pytest.mark.parametrize(
    "text",
    [
        "n[1-10000000000]",
        "n[1-999999]m[1-999999]",
        f"n[1-{'9' * 5000}]",
        "n[1-262145]",
        "a,n[0-300000]",
        "n[1-1000]m[1-1000],x",
        "n[0000000001-0010000000]",
        "[1-99999999]",
    ],
)
def test_node_set_of_more_nodes_than_there_can_be_is_refused(text: str) -> None:
    """ClusterShell lists all nodes of a text, which may be a program's output."""
    with pytest.raises(hosts.BadNodes, match="names more than 262144 nodes"):
        hosts.expand(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [("n[1-1000],m[1-1000]", 2000), ("x[1-4]y[1-4],z", 17), ("n[01-16,20]", 17), ("n[5-1]", 0), ("a-1", 1)],
)
def test_other_node_sets_are_expanded(text: str, number: int) -> None:
    if number:
        assert len(hosts.expand(text)) == number
    else:
        with pytest.raises(hosts.BadNodes):
            hosts.expand(text)
