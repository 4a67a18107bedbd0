"""One SIGKILL for each command in benchmarks/kills.py, which does hundreds, also of MPI ranks.

`full`: one of each kind.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest

from benchmarks import kills
from gpuipc_doctor.stacks import process_list
from gpuipc_doctor.supervise import tree
from tests.e2e.test_prolog_reliability import pytestmark as pytestmark

COMMANDS = kills.commands([])

SLOW = "{call: init, do: delay, ms: 1000}"
"""Slows workers down: those of a healthy node may start and end between two looks."""


@pytest.mark.parametrize(
    ("command", "victim"),
    [
        pytest.param(name, victim, marks=[pytest.mark.full] if victim != one.victims[number] else [])
        for number, (name, one) in enumerate(COMMANDS.items())
        for victim in one.victims
    ],
)
def test_kill_of_any_process_leaves_nothing(command: str, victim: str) -> None:
    tried = kills.run(replace(COMMANDS[command], faults=[SLOW]), victim, 0.3, f"{os.getpid()}1")
    assert tried.killed
    assert tried.wrong == []


def test_leftovers_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leftovers are detected if the keeper is killed too and nothing cleans up."""

    def keepers_first(pid: int, _: str) -> list[int]:
        keepers = [process.pid for process in tree.descendants(pid) if process.name == process_list.KEEPER]
        for keeper in keepers:
            os.kill(keeper, signal.SIGKILL)
        return [pid] if keepers else []

    monkeypatch.setattr(kills, "those", keepers_first)
    tried = kills.run(COMMANDS["prolog"], kills.THE_TOOL, 0.3, f"{os.getpid()}2")
    assert [line for line in tried.wrong if line.startswith("left: /dev/shm/gpuipc-doctor-")]
