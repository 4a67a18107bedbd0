"""Healthy jobs that look stuck and stuck ones (benchmarks/planted_host_jobs.yaml), examined by `job`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks import planted_host_jobs as planted
from tests.e2e.conftest import full

JOBS = planted.jobs()
ALWAYS = ("compile-many", "file-lock", "order", "spawned")
"""The others are marked ``full``: each takes a quarter of a minute."""

UNLIKE = ("order-gloo",)
"""Jobs that stacks cannot tell from another: two orders of communicators, or another operation in one."""


@pytest.mark.mpi
@pytest.mark.parametrize(
    "name", [name if name in ALWAYS else full(name) for name in JOBS if name not in UNLIKE]
)
def test_planted_job_is_told(name: str, tmp_path: Path) -> None:
    if JOBS[name].over == "gloo":
        test = [planted.TORCH_PYTHON, "-c", "import torch.distributed as d; assert d.is_gloo_available()"]
        if not Path(test[0]).exists() or subprocess.run(test, capture_output=True).returncode:
            pytest.skip("needs PyTorch with gloo (Debian: python3-torch)")
    with planted.running(JOBS[name], tmp_path) as pids:
        answer = planted.examine(JOBS[name], pids, tmp_path)
    assert answer.is_right(JOBS[name]), answer
    assert len(answer.screen.splitlines()) <= 25
