"""The README's screens are what the commands print; GPUIPC_UPDATE_GOLDEN=1 draws them anew."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gpuipc_doctor.report.exits import Exit

README = Path(__file__).parent.parent.parent / "README.md"

BLOCK = re.compile(r"```console\n\$ gpuipc-doctor (?P<arguments>.*)\n(?P<screen>(?:.*\n)*?)```")

PASSING = (
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "2026-11-20 12:00:00"),
    (re.compile(r"\b\d+\.\d s ·"), "3.2 s ·"),
    (re.compile(r"( {2,})\d+\.\d$", re.MULTILINE), r"\g<1>2.0"),
    (re.compile(r"drills in \d+ s"), "drills in 30 s"),
)
"""What differs from run to run, and what stands for it in the README."""


def screens() -> list[tuple[str, str]]:
    return [(match["arguments"], match["screen"]) for match in BLOCK.finditer(README.read_text())]


def printed(arguments: str) -> str:
    command = [sys.executable, "-m", "gpuipc_doctor.cli.main", *shlex.split(arguments)]
    environment = {**os.environ, "COLUMNS": "80"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    assert ended.stderr == ""
    text = ended.stdout
    for pattern, instead in PASSING:
        text = pattern.sub(instead, text)
    return text if text.endswith("\n") else text + "\n"


@pytest.mark.parametrize("arguments", [arguments for arguments, _ in screens()])
def test_a_screen_of_the_readme_is_what_the_command_prints(arguments: str) -> None:
    shown = dict(screens())[arguments]
    now = printed(arguments)
    if now != shown and os.environ.get("GPUIPC_UPDATE_GOLDEN") == "1":
        text = README.read_text()
        README.write_text(
            text.replace(f"$ gpuipc-doctor {arguments}\n{shown}```", f"$ gpuipc-doctor {arguments}\n{now}```")
        )
        pytest.fail("README.md was updated; look at it with git diff", pytrace=False)
    assert now == shown


def test_the_exit_codes_of_the_readme_are_those_of_the_program() -> None:
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", README.read_text(), flags=re.MULTILINE)
    assert rows == [(str(int(code)), code.meaning) for code in Exit]
