"""Add a check's findings to a profile's file, for review by a person."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gpuipc_doctor.files import reading, writing
from gpuipc_doctor.model import Exit, Status
from gpuipc_doctor.simulator.profile import Expected

_FINDINGS = re.compile(r"^  findings:\n(?:    .*\n)+", re.MULTILINE)
_EXIT_OK = re.compile(rf"^  exit: {Exit.OK:d}$", re.MULTILINE)


MAX_BYTES = 1 << 20


class NoPlace(Exception):
    """The profile has no list of findings to add to."""


def add(file: Path, expected: Sequence[Expected]) -> None:
    """Add findings to the ``expect`` of the profile in ``file``; the rest of the file is kept.

    If a finding is a FAIL, the profile's expected exit code is also set. Raises `NoPlace` if the profile
    lists no findings yet.
    """
    try:
        text = reading.read(file, MAX_BYTES).decode()
    except (reading.Unreadable, ValueError) as reason:
        raise NoPlace(f"{file}: {reason}") from None
    found = _FINDINGS.search(text)
    if not found:
        raise NoPlace(f"{file}: cannot add findings: first give 'expect' a list 'findings', one per line")
    lines = "".join(
        f"    - {{check: {finding.check}, status: {finding.status.value}, key: {finding.key}"
        f"{finding.backend and f', backend: {finding.backend}'}}}\n"
        for finding in expected
    )
    text = text[: found.end()] + lines + text[found.end() :]
    if any(finding.status is Status.FAIL for finding in expected):
        text = _EXIT_OK.sub(f"  exit: {Exit.FAIL:d}", text)
    writing.write(file, text)
