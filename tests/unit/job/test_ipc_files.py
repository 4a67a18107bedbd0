"""Shared memory of ranks, and files that were left behind."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpuipc_doctor.job import ipc_files, job_content
from gpuipc_doctor.job.document import MemoryFile, Process
from tests.unit.job.test_job_content import ONE_LATE

US = Process(pid=os.getpid(), parent=1, uid=0, program="app")
SEGMENTS = """\
       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      rss   swap
         0      32768  1600               4296704  4712  4713      2     0     0     0     0  2097152      0
         0      32769  1600               4296704  4714  4714      0     0     0     0     0  4194304      0
"""


@pytest.fixture
def file() -> Iterator[Path]:
    path = Path(f"/dev/shm/gpuipc-doctor-test-ipc-{os.getpid()}")
    path.write_bytes(b"x" * 100_000)
    yield path
    path.unlink(missing_ok=True)


def found(name: str, *ranks: int) -> list[MemoryFile]:
    listed = ipc_files.of_node("n1", dict.fromkeys(ranks, US))
    return [each for each in listed if each.name == name]


@pytest.mark.parametrize("removed", [False, True])
def test_file_that_ranks_have_mapped_is_theirs(file: Path, removed: bool) -> None:
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 100_000):
        if removed:
            file.unlink()
        (mapped,) = found(str(file), 0, 3)
    assert mapped.ranks == (0, 3)
    assert mapped.held in (102_400, None), "the size of a mapped file is root's to read"
    assert mapped.held or os.geteuid() != 0


def test_file_of_no_process_was_left_behind(file: Path) -> None:
    (left,) = found(str(file))
    assert (left.ranks, left.held) == (None, 102_400)


def test_file_that_another_job_removes_meanwhile_hides_no_other(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = [file.with_name("a-file-that-is-gone"), file]
    monkeypatch.setattr(ipc_files, "matching", lambda *_: listed)
    (left,) = found(str(file))
    assert left.ranks is None


def test_file_that_is_open_was_not_left_behind(file: Path) -> None:
    with file.open("rb"):
        assert found(str(file)) == []


def test_segment_without_users_was_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ipc_files, "SYSV", tmp_path / "shm")
    assert [each for each in ipc_files.of_node("n1", {}) if "System V" in each.name] == []
    (tmp_path / "shm").write_text(SEGMENTS)
    assert found("System V 32768") == []
    assert found("System V 32769") == [MemoryFile(host="n1", name="System V 32769", held=4 << 20, ranks=None)]


@pytest.mark.parametrize(("mib", "is_said"), [(10, False), (20, True)])
def test_large_leftovers_are_reported(mib: int, is_said: bool) -> None:
    left = tuple(
        MemoryFile(host="n1", name=f"/dev/shm/x{number}", held=mib << 20, ranks=None) for number in range(4)
    )
    screen = job_content.screen(replace(ONE_LATE, memory_files=left), width=110, color=False)
    assert ("no visible process uses 4 shared memory files, 80.0 MiB: /dev/shm/x0 on n1" in screen) == is_said
