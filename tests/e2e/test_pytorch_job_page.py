"""docs/pytorch-job.md, executed on a PyTorch job over gloo that hangs; GPUIPC_UPDATE_GOLDEN=1 redraws it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuipc_doctor import knownissues
from tests import torch_jobs
from tests.e2e.test_stuck_job_page import BLOCK, PASSING
from tests.e2e.test_torch_jobs import python
from tests.waiting import until

__all__ = ["python"]

PAGE = Path(__file__).parents[2] / "docs/pytorch-job.md"

ALSO_PASSING = (
    (re.compile(r"\(torch_jobs\.py:\d+\)"), "(train.py:21)"),
    (re.compile(r"^where the ranks are in every snapshot\n(?:.+\n)+\n?", re.MULTILINE), ""),
)
"""The frames below PyTorch depend on its version."""


def lasting(screen: str) -> str:
    for pattern, replacement in (*PASSING, *ALSO_PASSING):
        screen = pattern.sub(replacement, screen)
    return screen.rstrip("\n") + "\n"


@pytest.mark.full
def test_screens_of_the_page_equal_the_output(python: str, tmp_path: Path) -> None:
    page = text = PAGE.read_text()
    commands = BLOCK.findall(page)
    assert len(commands) == 2
    with torch_jobs.running("late", "gloo", python, tmp_path / "job") as started:
        time.sleep(1)  # the peers of the last rank enter their wait
        pids = [word for pid in started.pids for word in ("--pid", str(pid))]
        for command, shown in commands:
            words = shlex.split(command)[1:]
            at = words.index("--pid")
            ended = subprocess.run(
                [sys.executable, "-m", "gpuipc_doctor", *words[:at], *pids, *words[at + 2 :]],
                env={**os.environ, "COLUMNS": "80"}, cwd=tmp_path, text=True, capture_output=True,
            )  # fmt: skip
            assert (ended.returncode, ended.stderr) == (12, ""), ended
            now = lasting(ended.stdout)
            text = text.replace(f"$ {command}\n{shown}```", f"$ {command}\n{now}```")
    if text != page and os.environ.get("GPUIPC_UPDATE_GOLDEN") == "1":
        PAGE.write_text(text)
        pytest.fail("docs/pytorch-job.md was updated; look at it with git diff", pytrace=False)
    assert text == page


def test_issue_that_the_page_names_for_the_versions_exists() -> None:
    """Pages and help state no version: the issue is the one place that does."""
    (named,) = re.findall(r"known-issues show ([\w-]+)", PAGE.read_text())
    assert named in {issue.id for issue in knownissues.load()}
    for page in PAGE.parent.glob("*job.md"):
        assert not re.search(r"NCCL 2\.\d\d", page.read_text()), page


@pytest.mark.full
def test_watch_renews_the_screen_of_a_real_job_until_ctrl_c(python: str, tmp_path: Path) -> None:
    out = tmp_path / "screens"
    with torch_jobs.running("late", "gloo", python, tmp_path / "job") as started, out.open("wb") as screens:
        pids = [word for pid in started.pids for word in ("--pid", str(pid))]
        watching = subprocess.Popen(
            [sys.executable, "-m", "gpuipc_doctor", "job", *pids, "--watch"], stdout=screens
        )
        try:
            until("the screen is renewed", lambda: out.read_text().count("FAIL") >= 2)
            watching.send_signal(signal.SIGINT)
            assert watching.wait(60) == 12
        finally:
            watching.kill()
            watching.wait()
    assert "build_index" in out.read_text()
