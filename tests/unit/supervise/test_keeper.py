"""Tests of the process that ends the processes of a killed run: it ends no others."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gpuipc_doctor.stacks.process_list import KEEPER, MARKER
from gpuipc_doctor.supervise import keeper

RUN = "0123456789abcdef"


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pids to which signals were sent; none is."""
    pids: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: pids.append(pid))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(keeper, "take_name", lambda: None)
    monkeypatch.setattr(keeper, "remove_abandoned", lambda since: None)
    monkeypatch.setattr(keeper, "ROUNDS", 1)
    return pids


@pytest.fixture
def marked() -> Iterator[int]:
    """A process of the run."""
    env = {**os.environ, MARKER: f"{RUN}/ipc-reopen"}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=env) as process:
        yield process.pid
        process.kill()


def end(monkeypatch: pytest.MonkeyPatch, told: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(told)))
    keeper.main()


@pytest.mark.parametrize(
    "told",
    [
        b"",  # the supervisor was killed before it had told the marker
        f"{MARKER}=".encode(),
        f"{MARKER}={RUN}".encode(),  # cut off
        b"\0",
        b"\0\0",
        b"=\0",
        f"{MARKER}=\0".encode(),
        f"{MARKER}={RUN}/\0".encode() + keeper.DONE,
    ],
)
def test_keeper_kills_nothing_without_a_whole_marker(
    told: bytes, killed: list[int], marked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    end(monkeypatch, told)
    assert killed == []


def test_keeper_kills_the_processes_of_its_run_only(
    killed: list[int], marked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    end(monkeypatch, f"{MARKER}={RUN}/\0".encode())
    assert set(killed) == {marked}


def test_name_of_the_keeper_is_that_by_which_others_know_it() -> None:
    assert keeper.NAME == KEEPER
