"""Number and bandwidth of each AMD GPU's xGMI links, from the kernel driver's topology."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuipc_doctor.api.equal_gpus import odd_gpus
from gpuipc_doctor.files.node_files import Tree
from gpuipc_doctor.model import Status
from gpuipc_doctor.worker.backends.hip import xgmi_links
from tests.checks.judging import gpu

EVERY = frozenset(f"cuda:{number}" for number in range(8))


def write_node(
    root: Path, number: int, location: int, links: list[tuple[int, int]], kind: str = "io_links"
) -> None:
    """``links``: (type, MB/s)."""
    node = root / f"sys/class/kfd/kfd/topology/nodes/{number}"
    node.mkdir(parents=True)
    (node / "properties").write_text(f"simd_count 1216\nlocation_id {location}\ndomain 0\n")
    for place, (of_type, speed) in enumerate(links):
        (node / kind / str(place)).mkdir(parents=True)
        text = f"type {of_type}\nnode_from {number}\nmin_bandwidth 64000\nmax_bandwidth {speed}\n"
        (node / kind / str(place) / "properties").write_text(text)


def address(number: int) -> tuple[int, str]:
    return (number + 1) << 8, f"0000:{number + 1:02x}:00.0"


PCIE, XGMI = (2, 64000), (11, 64000)


@pytest.mark.parametrize("odd", [[PCIE, *[XGMI] * 6], [PCIE, *[XGMI] * 6, (11, 32000)], [PCIE, *[XGMI] * 7]])
def test_links_of_each_gpu_are_counted(odd: list[tuple[int, int]], tmp_path: Path) -> None:
    write_node(tmp_path, 0, 0, [XGMI])  # a processor
    for number in range(8):
        links = odd if number == 3 else [PCIE, *[XGMI] * 7]
        write_node(tmp_path, number + 1, address(number)[0], links)
    found = xgmi_links(Tree(tmp_path))
    speeds = [speed for kind, speed in odd if kind == 11]
    assert found.pop(address(3)[1]) == f"{len(speeds)} with {sum(speeds) // 1000} GB/s"
    assert set(found.values()) == {"7 with 448 GB/s"}
    assert len(found) == 7


@pytest.mark.parametrize(("odd", "named"), [({3}, ["cuda:3"]), ({3, 7}, []), ({0, 1, 2, 3}, [])])
def test_links_that_differ_by_design_show_no_odd_gpu(odd: set[int], named: list[str]) -> None:
    """One GPU is odd; two of eight, or the GPUs of one socket, are not."""
    traits = {
        f"cuda:{number}": {"xGMI links": "6 with 384 GB/s" if number in odd else "7 with 448 GB/s"}
        for number in range(8)
    }
    found = list(odd_gpus([replace(gpu(number), peers=EVERY) for number in range(8)], traits))
    assert [finding.values["device"] for finding in found] == named
    assert all(finding.status is Status.WARN for finding in found)


def test_partitions_of_a_gpu_and_garbage_are_left_out(tmp_path: Path) -> None:
    for number in range(3):
        write_node(tmp_path, number, address(7)[0], [XGMI])
    write_node(tmp_path, 3, address(0)[0], [PCIE])
    (tmp_path / "sys/class/kfd/kfd/topology/nodes/3/io_links/0/properties").write_bytes(b"type\n\xff\0 max")
    write_node(tmp_path, 4, address(1)[0], [])
    assert not any(xgmi_links(Tree(tmp_path)).values())
