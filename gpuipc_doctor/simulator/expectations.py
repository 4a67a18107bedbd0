"""Write into a profile's file what a check says on that node, once a person has seen that it is right."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gpuipc_doctor.model import Exit, Status
from gpuipc_doctor.simulator.profile import Expected

_FINDINGS = re.compile(r"^  findings:\n(?:    .*\n)+", re.MULTILINE)
_EXIT_OK = re.compile(rf"^  exit: {Exit.OK:d}$", re.MULTILINE)


class NoPlace(Exception):
    """The profile has no list of findings of its own to add to."""


def add(file: Path, expected: Sequence[Expected]) -> None:
    """Add findings to the ``expect`` of the profile in ``file``, the rest of which stays as it is.

    A node that is found to fail is expected to exit so. Raises `NoPlace`; what a healthy node is said to have
    has no place either.
    """
    text = file.read_text(encoding="utf-8")
    found = _FINDINGS.search(text)
    if not found:
        raise NoPlace(f"{file}: has no 'expect' with a list of 'findings' in lines of their own to add to")
    lines = "".join(
        f"    - {{check: {one.check}, status: {one.status.value}, key: {one.key}"
        f"{one.backend and f', backend: {one.backend}'}}}\n"
        for one in expected
    )
    text = text[: found.end()] + lines + text[found.end() :]
    if any(one.status is Status.FAIL for one in expected):
        text = _EXIT_OK.sub(f"  exit: {Exit.FAIL:d}", text)
    file.write_text(text, encoding="utf-8")
