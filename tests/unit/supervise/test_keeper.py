"""Tests of the process that ends the processes of a killed run: it ends no others."""

from __future__ import annotations

import io
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from threading import Thread

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
    monkeypatch.setattr(keeper, "remove_abandoned", lambda since, ended: None)
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


DEAD, LIVING = 4_000_001, os.getpid()
"""Pids; the first is larger than any that Linux gives."""

USER = os.geteuid()
OLD_S = 60.0

FILES: dict[str, tuple[str, float, bool]] = {
    # what it is: (name, seconds before its process started that the file was made, whether it is removed)
    "of our dead worker": (f"cuda.shm.{USER}.{DEAD:x}.1", 0, True),
    "its second file": (f"cuda.shm.{USER}.{DEAD:x}.27", 0, True),
    "older than our worker": (f"cuda.shm.{USER}.{DEAD:x}.1", OLD_S, False),
    "of a pid that lives": (f"cuda.shm.{USER}.{LIVING:x}.1", 0, False),
    "of another dead process": (f"cuda.shm.{USER}.{DEAD + 1:x}.1", 0, False),
    "of another user": (f"cuda.shm.{USER + 1}.{DEAD:x}.1", 0, False),
    "pid in decimal": (f"cuda.shm.{USER}.{DEAD}.1", 0, False),
    "without number": (f"cuda.shm.{USER}.{DEAD:x}", 0, False),
    "with more behind": (f"cuda.shm.{USER}.{DEAD:x}.1.bak", 0, False),
    "of another library": (f"cuda.ipc.{USER}.{DEAD:x}.1", 0, False),
    "of NCCL, ours by its time": ("nccl-a1B2c3", 0, True),
    "of NCCL, older": ("nccl-a1B2c3", OLD_S, False),
}


@pytest.mark.parametrize("what", FILES)
@pytest.mark.parametrize("mapped", [False, True])
def test_only_files_of_our_own_dead_workers_are_removed(
    what: str, mapped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, older_s, removed = FILES[what]
    monkeypatch.setattr(keeper, "SHARED_MEMORY", str(tmp_path))
    file = tmp_path / name
    began = time.time() + older_s
    file.write_bytes(b"x" * 4096)
    with file.open("rb") if mapped else nullcontext() as opened:
        kept = mmap.mmap(opened.fileno(), 4096, prot=mmap.PROT_READ) if opened else None
        keeper.remove_abandoned(began if "NCCL" in what else 0.0, {DEAD: began, LIVING: began})
        del kept
    assert file.exists() is (mapped or not removed)


def test_keeper_removes_what_cuda_left_of_the_workers_that_it_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "SHARED_MEMORY", str(tmp_path))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(keeper, "take_name", lambda: None)
    monkeypatch.setattr(keeper, "GRACE_S", 0.0)
    began, foreign = time.time(), tmp_path / f"cuda.shm.{USER}.{os.getpid():x}.1"
    foreign.touch()
    env = {**os.environ, MARKER: f"{RUN}/ipc-reopen"}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=env) as process:
        Thread(target=process.wait).start()  # as init does, else the killed process stays
        left = tmp_path / f"cuda.shm.{USER}.{process.pid:x}.1"
        left.touch()
        end(monkeypatch, f"{MARKER}={RUN}/\0".encode())
    assert time.time() - began < keeper.ROUNDS * keeper.PAUSE_S
    assert not left.exists()
    assert foreign.exists()
