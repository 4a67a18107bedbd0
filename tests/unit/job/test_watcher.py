"""Processes that end, or whose pid is reused, between snapshots."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuipc_doctor.job import watcher as watching
from gpuipc_doctor.job.processes import read_process
from gpuipc_doctor.job.watcher import Watcher
from gpuipc_doctor.stacks.process_list import descendants
from tests.waiting import until


def test_process_that_ends_during_a_snapshot_is_absent() -> None:
    child = subprocess.Popen(["sleep", "60"])

    def end(tid: int, used_s: float) -> float:
        child.kill()
        child.wait()
        return 0.0

    assert read_process(child.pid, end, frozenset()) is None


def test_later_process_with_the_same_pid_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = Watcher((os.getpid(),), tmp_path)
    assert watcher.snapshot().processes
    real = watching.read_process(os.getpid(), lambda tid, used_s: 0.0, frozenset())
    assert real
    later = real.started + 1
    monkeypatch.setattr(watching, "read_process", lambda *_: watching.replace(real, started=later))
    assert not watcher.snapshot().processes


@pytest.mark.parametrize(
    ("perf", "why"),
    [
        ("#!/bin/sh\necho 'No permission to sample' >&2\nexit 255\n", "perf: No permission to sample"),
        ("#!/nowhere/sh\n", "cannot start perf"),
    ],
)
def test_failure_of_perf_loses_no_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, perf: str, why: str
) -> None:
    (tmp_path / "perf").write_text(perf)
    (tmp_path / "perf").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(watching, "BETWEEN_S", 0.0)
    monkeypatch.setattr(watching, "workers", lambda processes: [*processes])
    watcher = Watcher((os.getpid(),), tmp_path)
    assert len(watcher.snapshots(3)) == 3
    assert why in watcher.unable["sampled stacks"]


def test_where_perf_fails_running_ranks_are_sampled_by_the_system_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as Ubuntu's perf without the package for the running kernel."""
    (tmp_path / "perf").write_text("#!/bin/sh\necho 'perf not found for kernel 6.8.0-31' >&2\nexit 2\n")
    (tmp_path / "perf").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(watching, "BETWEEN_S", 0.0)
    monkeypatch.setattr(watching, "workers", lambda processes: [*processes])
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE
    ) as child:
        try:
            assert child.stdout
            child.stdout.readline()
            watcher = Watcher((child.pid,), tmp_path)
            seen = watching.take_snapshots(watcher)
        finally:
            child.kill()
    stacks = [snapshot.processes[0].threads[0].approximate for snapshot in seen]
    assert not stacks[0]
    assert any("python" in frame for stack in stacks[-1] for frame in stack)


def test_child_that_a_rank_starts_after_the_first_snapshot_is_seen(tmp_path: Path) -> None:
    code = "import subprocess; input(); subprocess.run(['sleep', '60'])"
    ranked = {**os.environ, "RANK": "0"}
    with subprocess.Popen([sys.executable, "-c", code], env=ranked, stdin=subprocess.PIPE) as rank:
        watcher = Watcher((rank.pid,), tmp_path)
        try:
            assert [process.pid for process in watcher.snapshot().processes] == [rank.pid]
            assert rank.stdin
            rank.stdin.write(b"\n")
            rank.stdin.flush()
            until("it has a child", lambda: len(descendants(rank.pid)) == 1)
            (child,) = descendants(rank.pid)
            assert {process.pid for process in watcher.snapshot().processes} == {rank.pid, child.pid}
        finally:
            for each in descendants(rank.pid):
                os.kill(each.pid, signal.SIGKILL)
            rank.kill()
