"""One run on some hostile nodes; `full`: on all. benchmarks/reliability.py does hundreds."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.hostile_nodes import KINDS, run

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0,
        reason="needs root, and mount namespaces",
    ),
]


ELSEWHERE = frozenset(
    {
        "cuInit hangs",
        "a context hangs on one GPU",
        "an IPC open hangs, TERM ignored",
        "an IPC open crashes",
        "an IPC close aborts",
        "a process is left in a session of its own",
        "a driver that floods stderr",
        "fork bomb of 200",
        "healthy (control)",
        "torn state files",
        "SIGKILL of the prolog and its child",
        "SIGKILL of any process below it",
    }
)
"""Nodes that test_prolog.py, test_prolog_hostile.py and test_kills.py also have."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(kind, marks=[pytest.mark.full] if kind in ELSEWHERE else []) for kind in KINDS],
)
def test_prolog_ends_in_time_with_the_right_answer_and_leaves_nothing(name: str) -> None:
    _, wrong = run(KINDS[name], seed=1)
    assert wrong == []
