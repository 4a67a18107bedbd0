"""Directories for a run's files: ours alone, where there is room, and gone when the run is."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from gpuipc_doctor.site.trust import untrusted
from gpuipc_doctor.supervise import keeper

PLACES = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))  # noqa: S108 - private directories are made there

ROOM_BYTES, ROOM_INODES = 64 << 20, 4096
"""What a run's logs and journals may come to."""


class NoPlace(Exception):
    """No directory can be made for a run's files; the text is one line that says why."""


def usual() -> tuple[Path, ...]:
    """Where ``TMPDIR`` says, then where else such directories may be."""
    try:
        return (Path(tempfile.gettempdir()), *PLACES)
    except FileNotFoundError:  # nothing can be written anywhere
        return PLACES


def make(places: Iterable[Path], room_bytes: int = ROOM_BYTES) -> Path:
    """Make a directory that is ours alone, under a name that nobody knew before.

    It is in the first of these places where nobody else could put another in its stead and where there is
    room; where none has, in the first that takes it. Raises `NoPlace`.
    """
    wrong, full = [], []
    for place in places:
        if reason := untrusted(place / "directory"):
            wrong.append(f"{place} {reason}")
        elif reason := _lacks(place, room_bytes):
            full.append((place, f"{place} {reason}"))
        else:
            try:
                return _make_in(place)
            except OSError as error:
                wrong.append(f"{place}: {error.strerror}")
    for place, reason in full:
        try:
            return _make_in(place)
        except OSError:
            wrong.append(reason)
    raise NoPlace(f"there is no place for the run's files: {'; '.join(wrong)}; name one by TMPDIR")


def _make_in(place: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix="gpuipc-doctor-", dir=place))


def _lacks(place: Path, room_bytes: int) -> str:
    """What a place is short of; nothing where it has all, or cannot say."""
    try:
        status = os.statvfs(place)
    except OSError as error:
        return f"cannot be looked at: {error.strerror}"
    if status.f_bavail * status.f_frsize < room_bytes:
        return "is full"
    is_counted = status.f_files > 0  # some file systems make inodes as they need them
    return "has no inodes left" if is_counted and status.f_favail < ROOM_INODES else ""


class Keeper:
    """Has `keeper` clean up after this process, should it be killed: end all processes that carry a marker,
    and remove the directories that it is told of.

    It has its name when this returns. Whoever kills it before that has killed us before there was anything
    to clean up.
    """

    def __init__(self, marker: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        named: BinaryIO = self._process.stdout  # type: ignore[assignment]  # a pipe, by construction
        with named:
            named.read(1)
        self._tell(marker.encode() + b"\0")

    @property
    def pid(self) -> int:
        return self._process.pid

    def remove(self, directory: Path) -> None:
        """A directory that must not outlive us is there now."""
        self._tell(os.fsencode(directory) + b"\0")

    def dismiss(self) -> None:
        """Nothing is left to clean up."""
        self._tell(keeper.DONE)
        with suppress(BrokenPipeError):
            self._pipe.close()
        self._process.wait()

    @property
    def _pipe(self) -> BinaryIO:
        pipe: BinaryIO = self._process.stdin  # type: ignore[assignment]  # a pipe, by construction
        return pipe

    def _tell(self, text: bytes) -> None:
        with suppress(BrokenPipeError):  # somebody may have killed it
            self._pipe.write(text)
            self._pipe.flush()


@contextmanager
def directory(places: Iterable[Path], room_bytes: int = ROOM_BYTES) -> Iterator[Path]:
    """Such a directory, until the block is left or this process is gone."""
    cleaner = Keeper(secrets.token_hex(8))
    try:
        made = make(places, room_bytes)
        cleaner.remove(made)
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)
    finally:
        cleaner.dismiss()
