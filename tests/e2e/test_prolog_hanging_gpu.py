"""One GPU of several hangs: the second job on it drains at the latest. A slow start never drains."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import full
from tests.hanging_gpu_nodes import HangingNode, SlowNode, answers, drawn, jobs, mistakes, slow

ALWAYS = (
    HangingNode(4, "middle", "init", 8.0, 2.0),
    HangingNode(4, "first", "context-create", 8.0, 5.0),
    HangingNode(8, "last", "ipc-open", 20.0, 2.0),
    HangingNode(2, "last", "ipc-close", 8.0, 10.0),
    HangingNode(4, "pair", "ipc-open", 20.0, 2.0),
)
"""The rows of every run: a start and a visit, told by the first job and by the second, and a pair."""

DRAWN = 21


@pytest.mark.cuda
@pytest.mark.parametrize(
    "node", [*ALWAYS, *(full(node) for node in drawn(DRAWN) if node not in ALWAYS)], ids=str
)
def test_hanging_gpu_drains_at_the_second_job_at_the_latest(tmp_path: Path, node: HangingNode) -> None:
    assert mistakes(node, answers(node, tmp_path), is_idle=False) == []


@pytest.mark.full
@pytest.mark.cuda
@pytest.mark.parametrize("node", [node for node in slow() if node.budget_s in (None, 20.0)], ids=str)
def test_healthy_node_with_a_slow_start_never_drains(tmp_path: Path, node: SlowNode) -> None:
    said = list(jobs(node, tmp_path))
    assert [(job.exit_code, job.failed) for job in said] == [(0, frozenset())] * 2
    assert not any("FAIL" in job.line for job in said)
