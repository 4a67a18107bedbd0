"""`compare` on reports of real runs: a slow driver is found, an equal one passes, other files are refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.e2e.conftest import Command, full

SLOW_OPEN = """\
description: Every handle takes 50 ms to open, ten times as long as a wait for a processor.
extends: healthy-single
faults:
  - {call: ipc-open, do: delay, ms: 50}
"""

REPORTS = Path(__file__).parents[1] / "fixtures/reports"
"""Reports of single runs at c26e2d9, before all sentences were edited."""

SLOW = {("cuIpcOpenMemHandle", "ipc-handles")}


def report(doctor: Command, directory: Path, name: str, profile: str) -> str:
    """Write a report of eight runs of one quick check; returns its path."""
    file = str(directory / name)
    arguments = ["ipc-handles", "--backend", "cuda", "--simulate", profile, "--output", file]
    ended = doctor("check", *arguments, "--repeat", "8")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return file


def found(doctor: Command, before: str, after: str, pace: str) -> tuple[set[tuple[str, str]], int]:
    """(name, check) of the quantities with this verdict, and the exit code."""
    ended = doctor("compare", before, after, "--json")
    speeds = json.loads(ended.stdout)["speeds"]["all"]
    assert len(speeds) > 10
    quantities = (speed["quantity"] for speed in speeds if speed["pace"] == pace)
    return {(quantity["name"], quantity["check"]) for quantity in quantities}, ended.returncode


@pytest.mark.full
def test_slower_call_is_found_and_an_equal_one_passes(doctor: Command, tmp_path: Path) -> None:
    """Other calls may also be slower if the machine's load varies, so ``SLOW`` need only be a subset."""
    slow_profile = tmp_path / "slow-open.yaml"
    slow_profile.write_text(SLOW_OPEN)
    usual = report(doctor, tmp_path, "usual.json", "healthy-single")
    slow = report(doctor, tmp_path, "slow.json", str(slow_profile))
    assert found(doctor, usual, usual, "slower") == (set(), 0)
    assert found(doctor, usual, usual, "faster") == (set(), 0)
    slower, code = found(doctor, usual, slow, "slower")
    assert (slower >= SLOW, code) == (True, 10)
    faster, _ = found(doctor, slow, usual, "faster")
    assert faster >= SLOW


def test_the_same_file_twice(doctor: Command) -> None:
    file = str(REPORTS / "nvidia-460.32.03.json")  # on a busy machine, a run may have a sample more
    ended = doctor("compare", file, file)
    assert ended.returncode == 0
    assert "one sample each, cannot tell" in ended.stdout
    assert ended.stdout.startswith("SIMULATED")
    *_, last = ended.stdout.splitlines()
    assert last.split() == ["SIMULATED", "(nvidia-460.32.03)", "·", "4", "same", "exit", "0"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the file is empty"),
        (b"\xff\xfe\x00", "this is not a report: it is not text"),
        (b'{"facts": []}', "this is not a report"),
        (
            b'{"schema": "gpuipc-doctor/report/99"}',
            "this report was written by another version of gpuipc-doctor",
        ),
        (b'{"schema": "gpuipc-doctor/report/2", "host": 3}', "$"),
        (b"[" * 100_000, "this is not JSON"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_other_file_is_one_line_and_exit_code_2(
    doctor: Command, tmp_path: Path, content: bytes | None, says: str
) -> None:
    file = tmp_path / "before.json"
    if content is not None:
        file.write_bytes(content)
    ended = doctor("compare", str(file), str(file))
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.startswith(f"gpuipc-doctor: {file}: ")
    assert says in ended.stderr


def test_directory_is_refused(doctor: Command, tmp_path: Path) -> None:
    ended = doctor("compare", str(tmp_path), os.devnull)
    assert ended.returncode == 2
    assert ended.stderr == (
        f"gpuipc-doctor: {tmp_path}: is a directory, not a file; of a fleet: "
        "`gpuipc-doctor fleet report DIR` or `fleet compare`\n"
    )


@pytest.mark.parametrize(
    ("profile", "arguments"),
    [
        full(
            "nvidia-460.32.03", ["ipc-reopen", "driver-pool-release", "known-versions", "--device", "cuda:0"]
        ),
        ("cxi-no-retry-handler", ["fabric-info", "known-versions"]),
    ],
)
def test_reworded_sentences_are_no_change(
    doctor: Command, tmp_path: Path, profile: str, arguments: list[str]
) -> None:
    after = str(tmp_path / "after.json")
    doctor("check", *arguments, "--backend", "cuda", "--simulate", profile, "--output", after)
    before = REPORTS / f"{profile}.json"
    ended = doctor("compare", str(before), after, "--json")
    turns = [verdict["turn"] for verdict in json.loads(ended.stdout)["verdicts"]]
    assert (ended.returncode, set(turns), len(turns) > 1) == (0, {"same"}, True)
