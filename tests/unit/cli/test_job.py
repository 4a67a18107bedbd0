"""The command ``job``, without a job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner

from gpuipc_doctor.cli import job
from gpuipc_doctor.cli.job import command
from gpuipc_doctor.job import here
from gpuipc_doctor.job.document import JobReport
from gpuipc_doctor.job.selection import NoSuchJob, Request, SeveralJobs
from gpuipc_doctor.supervise import tree
from gpuipc_doctor.supervise.tree import PRIORITY
from tests.unit.job.test_job_content import ONE_LATE, STUCK

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


def test_two_jobs_of_a_node_get_a_verdict_each(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = {(11, 12): STUCK, (21, 22): ONE_LATE}

    def report(request: Request, *_: object, **__: object) -> JobReport:
        if not request.pids:
            raise SeveralJobs("2 jobs run on this node; name one with --pid: 11, 21", tuple(reports))
        return reports[request.pids]

    monkeypatch.setattr(here, "report", report)
    ended = CliRunner().invoke(command, [])
    assert (ended.exit_code, ended.output.count("FAIL")) == (12, 2)
    refused = CliRunner().invoke(command, ["--json"])
    assert refused.exit_code == 2
    assert "name one with --pid" in refused.output


def test_watch_renews_the_screen_until_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([ONE_LATE, STUCK])

    def report(*_: object, **__: object) -> JobReport:
        try:
            return next(looks)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(here, "report", report)
    monkeypatch.setattr(job, "WATCH_S", 0.0)
    ended = CliRunner().invoke(command, ["--watch"])
    assert (ended.exit_code, ended.output.count("FAIL")) == (12, 2)
