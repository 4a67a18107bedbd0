"""One SIGKILL of each kind of benchmarks/kills.py, which does hundreds, those of MPI ranks among them."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest

from benchmarks import kills
from gpuipc_doctor.supervise import tree
from tests.e2e.test_prolog_reliability import pytestmark as pytestmark

COMMANDS = kills.commands([])

SLOW = "{call: init, do: delay, ms: 1000}"
"""For workers of a healthy node may come and go while nobody looks."""


@pytest.mark.parametrize(
    ("command", "victim"), [(name, victim) for name, one in COMMANDS.items() for victim in one.victims]
)
def test_whoever_is_killed_nothing_of_the_run_is_left(command: str, victim: str) -> None:
    tried = kills.run(replace(COMMANDS[command], faults=[SLOW]), victim, 0.3, f"{os.getpid()}1")
    assert tried.killed
    assert tried.wrong == []


def test_what_is_left_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody survives who could clear up."""

    def keepers_first(pid: int, _: str) -> list[int]:
        keepers = [process.pid for process in tree.descendants(pid) if process.name == tree.KEEPER]
        for keeper in keepers:
            os.kill(keeper, signal.SIGKILL)
        return [pid] if keepers else []

    monkeypatch.setattr(kills, "those", keepers_first)
    tried = kills.run(COMMANDS["prolog"], kills.THE_TOOL, 0.3, f"{os.getpid()}2")
    assert [line for line in tried.wrong if line.startswith("left: /dev/shm/gpuipc-doctor-")]
