"""The command ``job``, without a job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner

from gpuipc_doctor.cli.job import command
from gpuipc_doctor.job import here
from gpuipc_doctor.job.selection import NoSuchJob
from gpuipc_doctor.supervise import tree
from gpuipc_doctor.supervise.tree import PRIORITY

GROUP = Path("/proc/self/autogroup")


def priorities() -> tuple[int, int]:
    """Niceness of this process, and of its session if the kernel schedules that as a group."""
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    group = GROUP.read_text().split() if GROUP.exists() else []
    return niceness, int(group[-1]) if group else niceness


def run(monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Priorities while the command examines a job."""
    seen = list[tuple[int, int]]()

    def report(*_: object, **__: object) -> NoReturn:
        seen.append(priorities())
        raise NoSuchJob("no such job")

    monkeypatch.setattr(here, "report", report)
    ended = CliRunner().invoke(command, ["--user", "root"])
    assert ended.exit_code == 3, ended
    return seen[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_ranks_that_take_every_processor_do_not_starve_root(monkeypatch: pytest.MonkeyPatch) -> None:
    before = priorities()
    assert run(monkeypatch) == (PRIORITY, PRIORITY)
    assert priorities() == before


@pytest.mark.parametrize("text", ["", "\n", "/autogroup-7", None])
def test_kernel_without_session_groups_is_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None
) -> None:
    """In CI the file is empty, because no process there was ever in its own session."""
    monkeypatch.setattr(tree, "PROC", tmp_path)
    (tmp_path / "self").mkdir()
    if text is not None:
        (tmp_path / "self" / "autogroup").write_text(text)
    before = priorities()
    run(monkeypatch)
    assert priorities() == before


def test_user_without_permission_keeps_the_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> NoReturn:
        raise PermissionError

    before = priorities()
    monkeypatch.setattr(os, "setpriority", refuse)
    assert run(monkeypatch) == priorities() == before
