"""Private directories for a run's files, on a file system with room, removed when the run ends."""

from __future__ import annotations

import os
import secrets
import shutil
import string
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from gpuipc_doctor.files import python
from gpuipc_doctor.files.trust import untrusted
from gpuipc_doctor.stacks.process_list import MARKER
from gpuipc_doctor.supervise import keeper, leftovers

PLACES = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))  # noqa: S108 - private directories are made there

ROOM_BYTES, ROOM_INODES = 64 << 20, 4096
"""Space required for a run's logs and journals: bytes and inodes."""


_NAME_CHARACTERS = string.ascii_lowercase + string.digits + "_"


class NoPlace(Exception):
    """No directory can be created for a run's files; the message is one line with the reason."""


def usual() -> tuple[Path, ...]:
    """The usual places for temporary files, ``TMPDIR`` first."""
    try:
        return (Path(tempfile.gettempdir()), *PLACES)
    except FileNotFoundError:  # no place is writable
        return PLACES


def make(
    places: Iterable[Path], room_bytes: int = ROOM_BYTES, *, announce: Callable[[Path], None] = lambda _: None
) -> Path:
    """Create a private directory with an unguessable name.

    It is in the first of the places that has room and where no other user can replace it; if none has room,
    in the first where it can be created. Raises `NoPlace`.
    """
    wrong, full = [], []
    for place in places:
        if reason := untrusted(place / "directory"):
            wrong.append(f"{place} {reason}")
        elif reason := lacks(place, room_bytes):
            full.append((place, f"{place} {reason}"))
        else:
            try:
                return _make_in(place, announce)
            except OSError as error:
                wrong.append(f"{place}: {error.strerror}")
    for place, reason in full:
        try:
            return _make_in(place, announce)
        except OSError:
            wrong.append(reason)
    raise NoPlace(f"no directory for the run's files: {'; '.join(wrong)}; name one with TMPDIR")


def _make_in(place: Path, announce: Callable[[Path], None]) -> Path:
    for path in map(place.joinpath, _names()):
        if not os.path.lexists(path):
            announce(path)
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
                return path
    raise AssertionError("names do not end")


def _names() -> Iterator[str]:
    """Random directory names in mkdtemp(3)'s form, by which `leftovers` recognises them."""
    while True:
        yield "gpuipc-doctor-" + "".join(secrets.choice(_NAME_CHARACTERS) for _ in range(8))


def lacks(place: Path, room_bytes: int) -> str:
    """Why a place is unsuitable; empty if it is suitable or unknown."""
    try:
        status = os.statvfs(place)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if status.f_bavail * status.f_frsize < room_bytes:
        return "is full"
    is_counted = status.f_files > 0  # some file systems create inodes as needed
    return "has no inodes left" if is_counted and status.f_favail < ROOM_INODES else ""


class Keeper:
    """Have `keeper` clean up if this process is killed: end all processes with a marker, and remove the given
    directories.

    It is ready when the constructor returns; before that there is nothing to clean up.
    """

    is_needed = False
    """Whether a directory is left to remove."""

    def __init__(self, marker: str) -> None:
        self._process = subprocess.Popen(
            python.script(keeper.__file__),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        named: BinaryIO = self._process.stdout  # type: ignore[assignment]  # a pipe, by construction
        with named:
            named.read(1)
        self._tell(f"{MARKER}={marker}/".encode() + b"\0")

    @property
    def pid(self) -> int:
        return self._process.pid

    def remove(self, directory: Path) -> None:
        """Register a directory that must not outlive this process."""
        self._tell(os.fsencode(directory) + b"\0")

    def dismiss(self) -> None:
        """End the keeper, without a clean-up if this process has already cleaned up."""
        if not self.is_needed:
            self._tell(keeper.DONE)
        with suppress(BrokenPipeError):
            self._pipe.close()
        self._process.wait()

    @property
    def _pipe(self) -> BinaryIO:
        pipe: BinaryIO = self._process.stdin  # type: ignore[assignment]  # a pipe, by construction
        return pipe

    def _tell(self, text: bytes) -> None:
        with suppress(BrokenPipeError):  # keeper may have been killed
            self._pipe.write(text)
            self._pipe.flush()


@contextmanager
def directory(places: Iterable[Path], room_bytes: int = ROOM_BYTES) -> Iterator[Path]:
    """A directory that exists until the block ends or this process is gone."""
    cleaner = Keeper(secrets.token_hex(8))
    try:
        made = make(places, room_bytes, announce=cleaner.remove)
        try:
            held = leftovers.hold(made)
            try:
                yield made
            finally:
                os.close(held)
        finally:
            shutil.rmtree(made, ignore_errors=True)
            cleaner.is_needed = os.path.lexists(made)  # without descriptors nothing can be removed
    finally:
        cleaner.dismiss()
