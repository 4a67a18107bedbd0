"""Files for reports and pictures: complete or absent, and never redirected by another user."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpuipc_doctor.cli import output
from gpuipc_doctor.cli.output import OutputFile

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root is held to it")


def test_file_is_complete_and_no_other_is_left(tmp_path: Path) -> None:
    file = OutputFile(tmp_path / "r.json")
    assert list(tmp_path.iterdir()) == []
    file.write("é")
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]
    assert (tmp_path / "r.json").read_bytes() == "é".encode()
    assert stat.S_IMODE((tmp_path / "r.json").stat().st_mode) == 0o666 & ~output._umask()


def test_requested_mode_applies_to_new_and_existing_files(tmp_path: Path) -> None:
    (tmp_path / "hook").write_text("before")
    OutputFile(tmp_path / "hook", 0o755).write("after")
    assert stat.S_IMODE((tmp_path / "hook").stat().st_mode) == 0o755


def test_link_is_replaced_and_its_target_unchanged(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("before")
    victim.chmod(0o600)
    (tmp_path / "r.json").symlink_to(victim)
    OutputFile(tmp_path / "r.json").write("after")
    assert (victim.read_text(), stat.S_IMODE(victim.stat().st_mode)) == ("before", 0o600)


def test_replaced_draft_is_neither_written_nor_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user with write access to the directory replaces the just written draft by a link."""
    victim = tmp_path / "victim"
    victim.write_text("before")
    victim.chmod(0o600)
    directory = tmp_path / "there"
    directory.mkdir()
    as_it_was = os.fchmod

    def swapping(fd: int, mode: int) -> None:
        (draft,) = directory.iterdir()
        draft.unlink()
        draft.symlink_to(victim)
        as_it_was(fd, mode)

    file = OutputFile(directory / "r.json", 0o755)
    monkeypatch.setattr(os, "fchmod", swapping)
    file.write("after")
    assert (victim.read_text(), stat.S_IMODE(victim.stat().st_mode)) == ("before", 0o600)


def test_replaced_directory_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "elsewhere").mkdir()
    file = OutputFile(tmp_path / "there" / "r.json")
    (tmp_path / "there").rename(tmp_path / "moved")
    (tmp_path / "there").symlink_to(tmp_path / "elsewhere")
    file.write("report")
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert (tmp_path / "moved" / "r.json").read_text() == "report"


def test_nothing_stays_open(tmp_path: Path) -> None:
    """A report has two files per picture."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        OutputFile(tmp_path / "r.json").write("x")
        OutputFile(tmp_path / "r.json").close()
        OutputFile(Path("/dev/null")).write("x")
        with pytest.raises(OSError, match="No space left"):
            OutputFile(Path("/dev/full")).write("x")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@as_root
@pytest.mark.parametrize("name", ["r.json", "link", "pipe"])
def test_root_writes_nothing_below_another_users_directory(tmp_path: Path, name: str) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "link").symlink_to("/etc/passwd")
    os.mkfifo(theirs / "pipe")
    os.chown(theirs, 4711, 4711)
    with pytest.raises(PermissionError, match="belongs to user 4711"):
        OutputFile(theirs / name)
    assert {path.name for path in theirs.iterdir()} == {"link", "pipe"}


@as_root
def test_refusal_is_one_line(tmp_path: Path) -> None:
    os.chown(tmp_path, 4711, 4711)
    for option in (
        ["--output", tmp_path / "r.json"],
        ["--plots", tmp_path],
        ["--keep-logs", tmp_path / "logs"],
    ):
        command = [sys.executable, "-m", "gpuipc_doctor", "check", "--all", *map(str, option)]
        ended = subprocess.run(command, capture_output=True, text=True)
        assert ended.returncode == 2
        assert f"is not trusted: {tmp_path} belongs to user 4711" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_device_and_pipe_are_written_in_place() -> None:
    OutputFile(Path("/dev/null")).write("x")
    command = "import sys; from pathlib import Path; from gpuipc_doctor.cli.output import OutputFile; "
    command += "OutputFile(Path('/dev/stdout')).write('x')"
    assert subprocess.run([sys.executable, "-c", command], capture_output=True, text=True).stdout == "x"
