"""The name of this node, from Slurm or from the kernel."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import gpuipc_doctor
from gpuipc_doctor import node_name


@pytest.mark.parametrize(
    ("by_slurm", "by_itself", "full", "short"),
    [
        ("n1.rack2", "host7.lake.example", "n1.rack2", "n1.rack2"),
        ("", "host7.lake.example", "host7.lake.example", "host7"),
        ("", "host7", "host7", "host7"),
    ],
)
def test_slurms_name_comes_first(
    monkeypatch: pytest.MonkeyPatch, by_slurm: str, by_itself: str, full: str, short: str
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", by_slurm)
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename=by_itself))
    assert (node_name.full(), node_name.short()) == (full, short)


def test_name_is_read_in_one_place() -> None:
    """Except in rank.py, which may only import the standard library."""
    root = Path(gpuipc_doctor.__file__).parent
    asking = [file for file in root.rglob("*.py") if re.search(r"uname\(\)\.nodename", file.read_text())]
    assert {str(file.relative_to(root)) for file in asking} == {"node_name.py", "supervise/rank.py"}
