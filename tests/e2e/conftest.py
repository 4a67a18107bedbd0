"""Run the command as a user does, in a process of its own, and see what it leaves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import LIMIT_S

SMALL_SHARE = str(Path(__file__).parents[1] / "fixtures/small-share.yaml")
"""A site config under which checks that move much memory are quick."""

SMALL_MESSAGES = str(Path(__file__).parents[1] / "fixtures/small-messages.yaml")
"""One under which no message takes as long as a short deadline."""

FEW_MESSAGES = str(Path(__file__).parents[1] / "fixtures/few-messages.yaml")
"""One with both, a small share of memory and few sizes of messages."""

Command = Callable[..., subprocess.CompletedProcess[str]]


def evidence(finding: Mapping[str, Any]) -> list[str]:
    """The lines of evidence of a finding in a JSON report."""
    return [item["line"] for item in finding["evidence"]]


@pytest.fixture(scope="session")
def doctor() -> Command:
    """``doctor("check", "--all")`` runs ``gpuipc-doctor check --all`` and returns how it ended."""

    def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gpuipc_doctor.cli.main", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, **options)  # type: ignore[call-overload, no-any-return]

    return run
