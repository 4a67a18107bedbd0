"""Reasons why a process cannot be read, each with its remedy."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuipc_doctor.job.processes import read_process
from gpuipc_doctor.stacks import rights


@pytest.fixture
def pid() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"]) as child:
        yield child.pid
        child.kill()


def test_process_of_another_user_names_the_user(pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    assert rights.reason(pid).startswith("the process belongs to ")


def test_process_that_is_not_dumpable_is_reported_as_such(pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    monkeypatch.setattr(rights, "_real_uid", lambda pid: 54321)  # /proc/PID may belong to root or to us
    assert "not dumpable" in rights.reason(pid)


@pytest.mark.parametrize(
    ("uid", "scope", "words"),
    [
        (54321, 1, "ptrace_scope is 1"),
        (54321, 0, "run this as root"),
        (0, 1, "CAP_SYS_PTRACE"),
        (0, 3, "ptrace_scope is 3"),
    ],
)
def test_yama_is_named_if_it_forbids_reading(
    pid: int, monkeypatch: pytest.MonkeyPatch, uid: int, scope: int, words: str
) -> None:
    owner = Path(f"/proc/{pid}").stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(rights, "yama", lambda: scope)
    monkeypatch.setattr(rights, "_real_uid", lambda pid: None if uid and uid != owner else owner)
    assert words in rights.reason(pid)


def test_process_in_a_container_is_reported_as_such(pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rights, "namespace", lambda pid, kind: f"user:[{pid}]")
    assert "container" in rights.reason(pid)


def test_refusal_of_each_file_is_kept_with_the_process(pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rights, "reason", lambda pid: "a reason")
    real = os.listdir

    def refuse(path: object) -> list[str]:
        if str(path).endswith("/fd"):
            raise PermissionError(13, "Permission denied")
        return real(path)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(os, "listdir", refuse)
    process = read_process(pid, lambda tid, used_s: 0.0, frozenset())
    assert process
    assert process.refused == {"fd": "a reason"}
    assert process.descriptors is None
