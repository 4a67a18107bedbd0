"""The next run removes leftovers of killed runs, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuipc_doctor.supervise import leftovers, scratch

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others: needs root")

SENT = (Path(__file__).parents[3] / "ship/header.sh").read_bytes() + b"PK"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with the mode of /tmp."""
    made = tmp_path / "tmp"
    made.mkdir()
    made.chmod(0o1777)
    return made


def age(path: Path, seconds: float = leftovers.AGE_S + 60) -> Path:
    then = time.time() - seconds
    os.utime(path, (then, then), follow_symlinks=False)
    return path


def directory(place: Path, name: str = "gpuipc-doctor-ab_12xyz") -> Path:
    path = place / name
    (path / "gpuipc_doctor/checks").mkdir(parents=True)
    (path / "gpuipc_doctor/checks/x.py").touch()
    path.chmod(0o700)
    return age(path)


def file(place: Path, name: str, content: bytes = SENT) -> Path:
    path = place / name
    path.write_bytes(content)
    return age(path)


def test_directories_and_sent_files_are_removed(place: Path) -> None:
    left = [
        directory(place),
        file(place, "gpuipc-doctor.4711"),
        file(place, "gpuipc-doctor.Ab3dEf"),
        file(place, "gpuipc-doctor.Ab3dEg", SENT[:9]),
        file(place, "gpuipc-doctor.Ab3dEh", b""),
        file(place, "slurm_bcast_17.4294967291_n1"),
    ]
    assert sorted(leftovers.sweep([place, place])) == sorted(left)
    assert list(place.iterdir()) == []


def link(place: Path) -> Path:
    (place.parent / "theirs").mkdir()
    (place.parent / "theirs/precious").touch()
    path = place / "gpuipc-doctor-ab_12xyz"
    path.symlink_to(place.parent / "theirs")
    return age(path)


def link_to_file(place: Path) -> Path:
    path = place / "gpuipc-doctor.Ab3dEf"
    path.symlink_to(file(place.parent, "precious"))
    return age(path)


def fifo(place: Path) -> Path:
    path = place / "gpuipc-doctor.Ab3dEf"
    os.mkfifo(path)
    return age(path)


def young(place: Path) -> Path:
    return age(directory(place), 60)


def young_file(place: Path) -> Path:
    return age(file(place, "gpuipc-doctor.4711"), 60)


def of_another(place: Path) -> Path:
    path = directory(place)
    os.chown(path, 4711, 4711)
    return path


def file_of_another(place: Path) -> Path:
    path = file(place, "gpuipc-doctor.4711")
    os.chown(path, 4711, 4711)
    return path


def in_a_place_of_all(place: Path) -> Path:
    place.chmod(0o777)  # without the sticky bit, other users can replace its files
    return directory(place)


@pytest.mark.parametrize(
    "made",
    [
        link,
        link_to_file,
        fifo,
        young,
        young_file,
        pytest.param(of_another, marks=AS_ROOT),
        pytest.param(file_of_another, marks=AS_ROOT),
        in_a_place_of_all,
        lambda place: directory(place, "gpuipc-doctor-notes"),
        lambda place: directory(place, "gpuipc-doctor.4711"),
        lambda place: file(place, "gpuipc-doctor-ab_12xyz"),
        lambda place: file(place, "slurm_bcast_17.0_n1", b"#!/bin/sh\nexec my-program"),
        lambda place: file(place, "gpuipc-doctor.pyz"),
        lambda place: file(place, "gpuipc-doctor-error-ab12xyz_.txt"),
    ],
)
def test_everything_else_is_kept(place: Path, made: Callable[[Path], Path]) -> None:
    path = made(place)
    before = sorted(place.parent.rglob("*"))
    assert leftovers.sweep([place]) == []
    assert path.is_symlink() or path.exists()
    assert sorted(place.parent.rglob("*")) == before


def test_directory_of_a_running_run_is_kept(place: Path) -> None:
    with scratch.directory([place]) as used:
        age(used)
        assert leftovers.sweep([place]) == []
        assert used.is_dir()
        hold = (
            "from gpuipc_doctor.supervise import leftovers; import pathlib, sys; "
            "leftovers.hold(pathlib.Path(sys.argv[1])); print(flush=True); sys.stdin.read()"
        )
        command = [sys.executable, "-c", hold, str(directory(place))]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
            assert running.stdout
            running.stdout.readline()
            assert leftovers.sweep([place]) == []
            running.kill()
        assert leftovers.sweep([place]) == [place / "gpuipc-doctor-ab_12xyz"]


def test_missing_directory_has_no_leftovers(tmp_path: Path) -> None:
    assert leftovers.sweep([tmp_path / "nowhere"]) == []
