"""Remedies fit the node: the vendor of its GPUs, and libraries that an MPI there can use."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Command, full

OF_NVIDIA = re.compile("cuda|cupy for nvidia|nvidia", re.IGNORECASE)

BAD_LIBRARIES = "{libfabric: 1.17.0, mpich: 4.1.1, openmpi: 4.1.4, ucx: 1.14.1, cray-mpich: 8.1.27}"


def node(directory: Path, base: str, versions: str) -> str:
    file = directory / "node.yaml"
    file.write_text(f"description: A node with these libraries.\nextends: {base}\nversions: {versions}\n")
    return str(file)


def advice(report: dict[str, Any]) -> Iterator[str]:
    """The remedies in the report's findings and known issues."""
    for finding in (result["finding"] for result in report["results"]):
        yield finding["remedy"]
    for join in report["joins"]:
        yield join["remedy"]


@pytest.mark.hip
@pytest.mark.parametrize(
    ("base", "checks", "keys"),
    [
        (
            "healthy-hip",
            ("allocator-growth", "mpi-gpu-aware", "known-versions"),
            {"no-allocator", "known-bad"},
        ),
        ("out-of-memory", ("ipc-reopen",), {"no-room"}),
    ],
)
def test_remedies_on_an_amd_node_are_not_about_nvidia(
    doctor: Command, tmp_path: Path, base: str, checks: tuple[str, ...], keys: set[str]
) -> None:
    simulated = node(tmp_path, base, BAD_LIBRARIES)
    ended = doctor("check", *checks, "--simulate", simulated, "--backend", "hip", "--json")
    report = json.loads(ended.stdout)
    assert keys <= {result["finding"]["key"] for result in report["results"]}
    assert [text for text in advice(report) if OF_NVIDIA.search(text)] == []


@pytest.mark.parametrize(
    ("versions", "warns"),
    [
        full("{libfabric: 1.17.0}", False),
        full("{libfabric: 1.17.0, ucx: 1.22.0}", False),
        ("{libfabric: 1.17.0, mpich: 5.1.0}", True),
    ],
)
def test_libfabric_is_a_warning_if_an_mpi_can_load_it(
    doctor: Command, tmp_path: Path, versions: str, warns: bool
) -> None:
    simulated = node(tmp_path, "healthy-single", versions)
    ended = doctor("check", "known-versions", "--simulate", simulated, "--json")
    results = [r["finding"] for r in json.loads(ended.stdout)["results"] if r["check"] == "known-versions"]
    assert any("libfabric 1.17.0 is" in finding["summary"] for finding in results) is warns
