"""Every fault, on CUDA and HIP: the command says what the profile states, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from gpuipc_doctor import drill
from gpuipc_doctor.model import Report
from gpuipc_doctor.report import document
from gpuipc_doctor.simulator import profile
from gpuipc_doctor.simulator.profile import Profile

SHARED_MEMORY = Path("/dev/shm")


def runs() -> list[object]:
    loaded = [profile.load(name) for name in profile.names()]
    return [
        pytest.param(stated, backend, id=f"{stated.name}-{backend}", marks=getattr(pytest.mark, backend))
        for stated in loaded
        if not stated.needs_mpi  # those are in test_mpi_faults.py
        for backend in stated.expect
    ]


@pytest.mark.parametrize(("stated", "backend"), runs())
def test_the_command_finds_what_the_profile_states_and_leaves_nothing(stated: Profile, backend: str) -> None:
    command = ["--all", "--simulate", stated.name, "--backend", backend]
    if stated.deadline_s:
        command += ["--deadline", str(stated.deadline_s)]
    report, code = check(*command)
    assert report.simulated == stated.name
    verdict = drill.judge(stated.expect[backend], drill.rows(report), code)
    assert verdict.missed == ()
    assert verdict.invented == ()


def check(*arguments: str) -> tuple[Report, int]:
    """Run ``gpuipc-doctor check`` and see that it leaves nothing; its report and exit code."""
    tag = f"GPUIPC_TEST_RUN={uuid.uuid4()}"
    name, _, value = tag.partition("=")
    shared_before = ours_in_shared_memory()
    ended = subprocess.run(
        [sys.executable, "-m", "gpuipc_doctor.cli.main", "check", "--json", *arguments],
        env={**os.environ, name: value},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert processes_with(tag) == []
    assert left_in_shared_memory(shared_before) == set()
    assert ended.stderr == ""
    return document.loads(ended.stdout), ended.returncode


def processes_with(tag: str) -> list[str]:
    """Command lines of the living processes that inherited the environment of this run."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if tag.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:  # ended meanwhile, or somebody else's
            continue
    return found


def ours_in_shared_memory() -> set[Path]:
    return set(SHARED_MEMORY.glob("gpuipc*")) if SHARED_MEMORY.is_dir() else set()


def left_in_shared_memory(before: set[Path]) -> set[Path]:
    """What is new and in nobody's use: other tests run at the same time, but their keepers name theirs."""
    for _ in range(50):
        left = ours_in_shared_memory() - before
        in_use = " ".join(map(_command_line, Path("/proc").glob("[0-9]*")))
        left = {path for path in left if str(path) not in in_use}
        if not left:
            break
        time.sleep(0.2)
    return left


def _command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
