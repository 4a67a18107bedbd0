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


IN_EVERY_RUN = ("SIGKILL of the prolog", "full disk under state and log")
"""Nodes like the others are in test_prolog.py, test_prolog_hostile.py and test_kills.py."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(kind, marks=[] if kind in IN_EVERY_RUN else [pytest.mark.full]) for kind in KINDS],
)
def test_prolog_ends_in_time_with_the_right_answer_and_leaves_nothing(name: str) -> None:
    _, wrong = run(KINDS[name], seed=1)
    assert wrong == []
