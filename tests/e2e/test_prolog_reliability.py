"""One run on each of the hostile nodes of benchmarks/reliability.py, which does hundreds."""

from __future__ import annotations

import os
import subprocess

import pytest

from benchmarks import reliability

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0,
        reason="needs root, and mount namespaces",
    ),
]


@pytest.mark.parametrize("name", reliability.KINDS)
def test_the_prolog_ends_in_time_with_the_right_answer_and_leaves_nothing(name: str) -> None:
    _, wrong = reliability.run(reliability.KINDS[name], seed=1)
    assert wrong == []
