"""Text that `drill --check ID --update` writes into a profile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuipc_doctor.model import Status
from gpuipc_doctor.simulator import expectations, profile
from gpuipc_doctor.simulator.profile import Expected

NEW = Expected("ipc-write-back", Status.FAIL, key="lost")

TEXT = """\
# Why.
description: A fault.
extends: healthy-single
faults:
  - {call: ipc-open, do: lose-writes}
expect:
  exit: 0
  findings:
    - {check: ipc-reopen, status: WARN}  # stays
options: {deadline: 2}
"""


def test_finding_is_added_and_the_rest_is_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "faulty.yaml"
    file.write_text(TEXT)
    expectations.add(file, [NEW])
    stays, added = "  # stays\n", "    - {check: ipc-write-back, status: FAIL, key: lost}\n"
    assert file.read_text() == TEXT.replace(stays, stays + added).replace("exit: 0", "exit: 12")
    stated = profile.load(str(file)).expect["cuda"]
    assert (stated.exit_code, stated.findings[1]) == (12, NEW)


def test_warning_does_not_change_the_exit_code(tmp_path: Path) -> None:
    file = tmp_path / "faulty.yaml"
    file.write_text(TEXT)
    expectations.add(file, [Expected("ipc-write-back", Status.WARN, key="odd")])
    assert "exit: 0\n" in file.read_text()


def test_finding_of_one_backend_is_added_with_it(tmp_path: Path) -> None:
    file = tmp_path / "faulty.yaml"
    file.write_text(TEXT.replace("healthy-single", "healthy-both"))
    expectations.add(file, [new := replace(NEW, backend="hip")])
    stated = profile.load(str(file)).expect
    assert stated["hip"].findings[1:] == (new,)
    assert stated["cuda"].findings[1:] == ()


@pytest.mark.parametrize("name", ["healthy-both", "healthy-single", "slow-driver"])
def test_finding_cannot_be_added_to_a_healthy_node(name: str, tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text(text := profile.file_of(name).read_text())
    with pytest.raises(expectations.NoPlace):
        expectations.add(file, [NEW])
    assert file.read_text() == text
