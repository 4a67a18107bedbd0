"""Run the command as a user does, in a process of its own, and see what it leaves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def doctor() -> Command:
    """``doctor("check", "--all")`` runs ``gpuipc-doctor check --all`` and returns how it ended."""

    def run(*arguments: str, timeout_s: float = 100.0, **options: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gpuipc_doctor.cli.main", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, **options)  # type: ignore[call-overload, no-any-return]

    return run
