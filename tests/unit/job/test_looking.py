"""Processes that end, or whose pid another one gets, while a job is looked at."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gpuipc_doctor.job import looking
from gpuipc_doctor.job.looking import Watcher
from gpuipc_doctor.job.processes import read_process


def test_process_that_ends_during_a_look_is_absent() -> None:
    child = subprocess.Popen(["sleep", "60"])

    def end(tid: int, used_s: float) -> float:
        child.kill()
        child.wait()
        return 0.0

    assert read_process(child.pid, end, frozenset()) is None


def test_later_process_with_the_same_pid_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = Watcher((os.getpid(),), tmp_path)
    assert watcher.look().processes
    real = looking.read_process(os.getpid(), lambda tid, used_s: 0.0, frozenset())
    assert real
    later = real.started + 1
    monkeypatch.setattr(looking, "read_process", lambda *_: looking.replace(real, started=later))
    assert not watcher.look().processes
