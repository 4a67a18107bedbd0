"""Run a program of the node whose output is read."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence


def ask(
    command: Sequence[str], environment: Mapping[str, str], limit_s: float
) -> subprocess.CompletedProcess[str]:
    """A program's output, without input, in this environment. Raises `OSError` and
    `subprocess.TimeoutExpired`."""
    return subprocess.run(
        command,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=limit_s,
        check=False,
    )
