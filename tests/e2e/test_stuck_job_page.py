"""docs/stuck-job.md, executed line by line on a real job that hangs; GPUIPC_UPDATE_GOLDEN=1 redraws it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.test_job import job

PAGE = Path(__file__).parents[2] / "docs/stuck-job.md"

BLOCK = re.compile(r"```console\n\$ (gpuipc-doctor .*)\n((?:.*\n)*?)```")

PASSING = (
    (re.compile(r" on \S+ ·"), " on n1 ·"),
    (re.compile(r"rank (\d+): \S+, pid \d+"), r"rank \1: n1, pid 4715"),
    (re.compile(r"\d+ snapshots in \d+\.\d s"), "4 snapshots in 5.0 s"),
    (re.compile(r"since \S+ \S+"), "since 2026-11-20 12:00:00+00:00"),
    (re.compile(r"\(python[\d.]*\)"), "(python)"),
)
"""Text that differs between runs, and its replacement."""

TREE = re.compile(r"^where the ranks are in every snapshot\n(?:.+\n)+\n?", re.MULTILINE)
"""The depth of the shared frames depends on where in MPI a rank was sampled."""


def lasting(screen: str) -> str:
    for pattern, replacement in PASSING:
        screen = pattern.sub(replacement, screen)
    return TREE.sub("", screen).strip()


@pytest.mark.full
@pytest.mark.mpi
def test_page_equals_the_output(tmp_path: Path) -> None:
    text = page = PAGE.read_text()
    commands = BLOCK.findall(page)
    assert len(commands) >= 4
    with job("mpich50", "one-late", 3, tmp_path / "log") as launcher:
        for command, shown in commands:
            words = shlex.split(command.replace("4711", str(launcher)))[1:]
            ended = subprocess.run(
                [sys.executable, "-m", "gpuipc_doctor.cli.main", *words],
                env={**os.environ, "COLUMNS": "80"}, cwd=tmp_path, text=True, capture_output=True,
            )  # fmt: skip
            assert (ended.returncode, ended.stderr) == (12, ""), ended
            if os.environ.get("GPUIPC_UPDATE_GOLDEN") == "1":
                tree = TREE.search(shown)
                kept = TREE.sub(tree[0] if tree else "", ended.stdout)
                text = text.replace(shown, "".join(_redrawn(kept)))
            elif lasting(ended.stdout) != lasting(shown):
                pytest.fail(f"{command}\n{lasting(ended.stdout)}\n--- the page has:\n{lasting(shown)}")
    if text != page:
        PAGE.write_text(text)
        pytest.fail("docs/stuck-job.md was updated; look at it with git diff", pytrace=False)


def _redrawn(screen: str) -> str:
    for pattern, replacement in PASSING:
        screen = pattern.sub(replacement, screen)
    return screen
