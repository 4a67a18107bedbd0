"""Stuck and healthy PyTorch jobs over gloo, examined by `gpuipc-doctor job`: a rehearsal without a GPU."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import torch_jobs
from tests.torch_jobs import Answer, Job

PYTHONS = ("/usr/bin/python3", sys.executable)
"""Debian's Python, for which CI installs PyTorch, and this one."""

MODES = (
    "late",
    "operation",
    "healthy-fast",
    "absent",
    "dataloader",
    "send",
    "exception",
    "stopped",
    "checkpoint",
    "pipeline",
    "order",
    "group",
    "healthy-slow",
    "spawn",
)
"""Marked ``full``: each takes half a minute on a busy machine."""


@pytest.fixture(scope="module")
def python() -> str:
    """A Python with PyTorch and gloo."""
    test = "import torch.distributed as d; raise SystemExit(not (d.is_available() and d.is_gloo_available()))"
    for program in PYTHONS:
        if (
            Path(program).exists()
            and not subprocess.run([program, "-c", test], capture_output=True).returncode
        ):
            return program
    pytest.skip(f"no PyTorch with gloo in {' or '.join(PYTHONS)} (Debian: python3-torch)")


@pytest.mark.full
@pytest.mark.parametrize("mode", MODES)
def test_planted_job_is_told(mode: str, python: str, tmp_path: Path) -> None:
    with torch_jobs.running(mode, "gloo", python, tmp_path / "job") as started:
        found = answer(started.pids, tmp_path / "report.json")
    job: Job = started.job
    assert job.is_right(found.code, found.blamed, found.screen, ras=False), found.screen
    assert len(found.screen.splitlines()) <= 25


def answer(pids: list[int], saved: Path) -> Answer:
    time.sleep(1)  # the last rank has reached the fault; its peers enter their wait
    began = time.monotonic()
    command = torch_jobs.command([sys.executable, "-m", "gpuipc_doctor"], pids, saved)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return torch_jobs.answer(done, saved, time.monotonic() - began)
