"""The debuggers that read stacks: where they are, and how they are asked to be safe."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

GDB = ("-nx", "-batch", "-iex", "set auto-load off", "-iex", "set debuginfod enabled off",
       "-iex", "set pagination off")  # fmt: skip
"""gdb options: execute nothing that a process or a user provides."""


def find_program(program: str) -> str | None:
    """The path of a program: next to this Python, or else on PATH; None if not installed."""
    beside = Path(sys.executable).parent / program
    return str(beside) if beside.exists() else shutil.which(program)
