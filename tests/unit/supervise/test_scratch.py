"""A run's own directory: private, on a file system with room, and removed with the run."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuipc_doctor.model import Node
from gpuipc_doctor.supervise import scratch, tree
from gpuipc_doctor.supervise.probe import Limits
from gpuipc_doctor.supervise.session import Session
from tests.waiting import until

ROOM = SimpleNamespace(f_bavail=1 << 40, f_frsize=1, f_files=1 << 20, f_favail=1 << 20)
NO_BYTES = SimpleNamespace(**{**vars(ROOM), "f_bavail": 0})
NO_INODES = SimpleNamespace(**{**vars(ROOM), "f_favail": 3})
COUNTS_NO_INODES = SimpleNamespace(**{**vars(ROOM), "f_files": 0, "f_favail": 0})

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to be careful: needs root")


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    return first, second


@pytest.mark.parametrize(
    ("space", "chosen"), [(ROOM, 0), (NO_BYTES, 1), (NO_INODES, 1), (COUNTS_NO_INODES, 0)]
)
def test_full_file_system_means_another_directory(
    places: tuple[Path, Path], space: object, chosen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda place: space if place == places[0] else ROOM)
    made = scratch.make(places)
    assert made.parent == places[chosen]
    assert made.stat().st_mode & 0o777 == 0o700


def test_first_writable_directory_is_used_if_all_are_full(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: NO_BYTES)
    assert scratch.make(places).parent == places[0]


def test_existing_name_means_another_name(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process's directory is not announced to the keeper, which would remove it."""
    monkeypatch.setattr(scratch, "_names", lambda: iter(["gpuipc-doctor-taken", "gpuipc-doctor-free"]))
    (places[0] / "gpuipc-doctor-taken").mkdir()
    announced: list[Path] = []
    made = scratch.make(places, announce=announced.append)
    assert (made.name, announced) == ("gpuipc-doctor-free", [made])


@AS_ROOT
def test_root_uses_no_directory_that_a_user_could_replace(places: tuple[Path, Path]) -> None:
    os.chown(places[0], 12345, -1)
    assert scratch.make(places).parent == places[1]
    places[1].chmod(0o777)
    with pytest.raises(
        scratch.NoPlace, match=r"no directory for the run's files: .*user 12345.*others can write"
    ):
        scratch.make(places)
    places[1].chmod(0o1777)
    assert scratch.make(places).parent == places[1]


@AS_ROOT
def test_a_session_of_root_does_not_follow_TMPDIR_into_a_user_s_directory(  # noqa: N802
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(places[0], 12345, -1)
    monkeypatch.setattr("tempfile.tempdir", str(places[0]))
    with Session(Node(), Limits()) as session:
        assert session._directory.parent == Path("/tmp")
    assert list(places[0].iterdir()) == []


@AS_ROOT
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare (util-linux)")
def test_no_writable_directory_is_one_line() -> None:
    script = (
        "for place in /tmp /var/tmp /dev/shm; do"
        " mount --bind $place $place && mount -o remount,bind,ro $place || exit 99; done; cd /proc;"
        f"{sys.executable} -m gpuipc_doctor check driver-init"
    )
    ended = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True)
    if ended.returncode == 99 or "unshare failed" in ended.stderr:
        pytest.skip("needs the right to mount")
    assert ended.returncode == 1
    assert "no directory for the run's files: /tmp: Read-only file system" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_no_command_line_has_the_path_of_a_runs_files() -> None:
    with Session(Node(), Limits()) as session:
        session.expect(())
        told = [
            (tree.PROC / str(process.pid) / "cmdline").read_bytes().decode()
            for process in tree.descendants(os.getpid())
        ]
        assert len(told) >= 2
        assert not [line for line in told if session._directory.name in line or session._id in line]


def test_directory_of_a_process_killed_while_creating_it_is_removed(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from gpuipc_doctor.supervise import scratch\n"
        "real, here = Path.mkdir, Path(sys.argv[1])\n"
        "def die(path, *given, **named):\n"
        "    real(path, *given, **named); (here / 'made').touch(); os.kill(os.getpid(), signal.SIGKILL)\n"
        "Path.mkdir = die\n"
        "with scratch.directory([here]): pass"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert (ended.returncode, (tmp_path / "made").exists()) == (-9, True)
    until("its directory is removed", lambda: [path.name for path in tmp_path.iterdir()] == ["made"])


def test_files_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from gpuipc_doctor.supervise import scratch\n"
        "with scratch.directory([Path(sys.argv[1])]) as made:\n"
        "    (made / 'file').write_text('x'); print(made, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout
        made = Path(process.stdout.readline().decode().strip())
        assert (made / "file").exists()
        process.kill()
    until = time.monotonic() + 30
    while made.exists():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize("where", ["hold", "rmtree"])
def test_directory_is_removed_without_descriptors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str
) -> None:
    """With few descriptors (``ulimit -n``), locking or removing the new directory fails."""

    def fail(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    if where == "hold":
        monkeypatch.setattr(scratch.leftovers, "hold", fail)
    else:
        monkeypatch.setattr(scratch.shutil, "rmtree", lambda *_, **__: None)
    with contextlib.suppress(OSError), scratch.directory([tmp_path]):
        pass
    until("the directory is removed", lambda: not any(tmp_path.iterdir()))
