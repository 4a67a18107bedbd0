"""Files for reports and pictures: complete or absent, and never redirected by another user."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuipc_doctor.files import writing
from gpuipc_doctor.files.writing import OutputFile
from tests.other_user import NOBODY, as_user

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root is held to it")


def test_file_is_complete_and_no_other_is_left(tmp_path: Path) -> None:
    file = OutputFile(tmp_path / "r.json")
    assert list(tmp_path.iterdir()) == []
    file.write("é")
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]
    assert (tmp_path / "r.json").read_bytes() == "é".encode()
    assert stat.S_IMODE((tmp_path / "r.json").stat().st_mode) == 0o666 & ~writing._umask()


def test_requested_mode_applies_to_new_and_existing_files(tmp_path: Path) -> None:
    (tmp_path / "hook").write_text("before")
    OutputFile(tmp_path / "hook", 0o755).write("after")
    assert stat.S_IMODE((tmp_path / "hook").stat().st_mode) == 0o755


def test_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "target").write_text("before")
    (tmp_path / "r.json").symlink_to("middle")
    (tmp_path / "middle").symlink_to("there/target")
    OutputFile(tmp_path / "r.json").write("after")
    assert (tmp_path / "r.json").readlink() == Path("middle")
    assert (tmp_path / "there" / "target").read_text() == "after"
    (tmp_path / "dangling").symlink_to("there/new")
    writing.write(tmp_path / "dangling", "new")
    assert (tmp_path / "there" / "new").read_text() == "new"


def test_endless_links_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="Too many levels"):
        OutputFile(tmp_path / "a")


def append(path: Path, text: str) -> None:
    fd = writing.open_to_append(path)
    os.write(fd, text.encode())
    os.close(fd)


@as_root
@pytest.mark.parametrize("write", [writing.write, append])
def test_link_of_another_user_is_not_followed(tmp_path: Path, write: Callable[[Path, str], None]) -> None:
    """For an ordinary user, in a directory such as /tmp."""
    shared, victim = tmp_path / "shared", tmp_path / "victim"
    shared.mkdir()
    shared.chmod(0o1777)
    victim.touch()
    os.chown(victim, NOBODY, NOBODY)
    (shared / "r.json").symlink_to(victim)
    os.chown(shared / "r.json", 4711, 4711, follow_symlinks=False)
    ours = [each for each in tmp_path.parents if each.name.startswith(("pytest-", "popen-"))]
    for directory in (tmp_path, *ours):
        directory.chmod(0o755)
    said = as_user(NOBODY, lambda: write(shared / "r.json", "hostile"))
    assert "is a symbolic link of user 4711" in said
    assert victim.read_text() == ""


@as_root
@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "link"])
@pytest.mark.parametrize("behind", ["file", "pipe"])
def test_descriptor_is_written_in_place(tmp_path: Path, name: str, behind: str) -> None:
    """In a /dev of its own, since the node's /dev/stdout would be replaced if this failed."""
    (tmp_path / "link").symlink_to("/dev/stdout")
    program = (
        "import os, sys; from pathlib import Path; from gpuipc_doctor.files import writing; "
        "look = lambda: {name: os.lstat(f'/dev/{name}').st_ino for name in os.listdir('/dev')}; "
        "before = look(); print('first', flush=True); writing.write(Path(sys.argv[1]), 'report\\n'); "
        "print('last', flush=True); sys.exit(before != look())"
    )
    shell = (
        "mount -t tmpfs none /dev && ln -s /proc/self/fd /dev/fd && ln -s /proc/self/fd/1 /dev/stdout "
        '&& cd "$1" && exec "$2" -c "$3" "$4"'
    )
    command = ["unshare", "-m", "sh", "-c", shell, "sh", str(tmp_path), sys.executable, program, name]
    with (tmp_path / "out").open("w+b") as out:
        out.write(b"before\n")
        out.flush()
        ended = subprocess.run(command, stdout=out if behind == "file" else subprocess.PIPE)
        out.seek(0)
        written = out.read() if behind == "file" else b"before\n" + ended.stdout
    assert (ended.returncode, written) == (0, b"before\nfirst\nreport\nlast\n")


@pytest.mark.parametrize("name", ["/dev/gpuipc-none", "/proc/gpuipc-none", "/sys/gpuipc-none"])
@pytest.mark.parametrize("write", [writing.write, append])
def test_nothing_is_created_in_the_kernels_directories(name: str, write: Callable[[Path, str], None]) -> None:
    with pytest.raises(PermissionError, match=r"files are not created in /dev, /proc and /sys"):
        write(Path(name), "x")
    assert not Path(name).exists()


def test_file_in_memory_is_written_in_place() -> None:
    """/dev/shm is for users' files, and yet in /dev."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(b"longer than what follows")
        file.flush()
        writing.write(Path(file.name), "short")
        assert Path(file.name).read_bytes() == b"short"
        assert os.fstat(file.fileno()).st_nlink == 1


@as_root
@pytest.mark.parametrize("write", [writing.write, append])
def test_block_device_is_refused(tmp_path: Path, write: Callable[[Path, str], None]) -> None:
    os.mknod(tmp_path / "disk", stat.S_IFBLK | 0o600, os.makedev(7, 200))
    with pytest.raises(PermissionError, match="is a block device"):
        write(tmp_path / "disk", "x")


@as_root
def test_foreign_directory_is_written_without_its_owners_links(tmp_path: Path) -> None:
    """As that of node_exporter, which is below a directory of prometheus's."""
    theirs, victim = tmp_path / "prometheus", tmp_path / "etc"
    (theirs / "node-exporter").mkdir(parents=True)
    victim.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    file = theirs / "node-exporter" / "x.prom"
    OutputFile(file, 0o644, is_foreign=True).write("metrics")
    assert file.read_text() == "metrics"
    pinned = OutputFile(file, 0o644, is_foreign=True)
    (theirs / "node-exporter").rename(theirs / "moved")
    (theirs / "node-exporter").symlink_to(victim)
    os.chown(theirs / "node-exporter", NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(PermissionError, match=f"is a symbolic link of user {NOBODY}"):
        OutputFile(file, 0o644, is_foreign=True)
    pinned.write("later")
    assert (list(victim.iterdir()), (theirs / "moved" / "x.prom").read_text()) == ([], "later")


@pytest.mark.parametrize("name", ["link", "hard", "pipe"])
def test_lock_is_no_link_and_has_one_name(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("before")
    (tmp_path / "link").symlink_to(victim)
    (tmp_path / "hard").hardlink_to(victim)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"Too many levels|is not a regular file with one name"):
        writing.open_lock(tmp_path / name)
    assert victim.read_text() == "before"


def test_drafts_cannot_be_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drafts = set[str]()
    monkeypatch.setattr(os, "replace", lambda draft, *_, **__: drafts.add(draft))
    for _ in range(20):
        writing.write(tmp_path / "r.json", "x")
    assert len(drafts) == 20


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
    command = "import sys; from pathlib import Path; from gpuipc_doctor.files.writing import OutputFile; "
    command += "OutputFile(Path('/dev/stdout')).write('x')"
    assert subprocess.run([sys.executable, "-c", command], capture_output=True, text=True).stdout == "x"
