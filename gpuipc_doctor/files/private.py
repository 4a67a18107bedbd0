"""Private files, opened such that no other user can have replaced them."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuipc_doctor.files.trust import untrusted

LOCK_LIMIT_S, LOCK_PAUSE_S = 0.2, 0.01


class NotOurs(Exception):
    """A file or directory must not be used; the message is one line that says which and why."""


@contextmanager
def directory(path: Path) -> Iterator[int]:
    """Descriptor of a directory that only this user can access, created if needed. Raises `NotOurs`,
    `OSError`.
    """
    if reason := untrusted(path.parent):
        raise NotOurs(f"{path.parent} {reason}")
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    with _opened(path, os.O_RDONLY | os.O_DIRECTORY) as fd:
        _verify(fd, path)
        yield fd


@contextmanager
def file(path: Path, flags: int, *, within: int | None = None) -> Iterator[int]:
    """Descriptor of a private regular file, created if ``flags`` say so.

    ``within``: descriptor of the directory that ``path`` is relative to. Raises `NotOurs`, `OSError`.
    """
    with _opened(path, flags, within) as fd:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise NotOurs(f"{path} is not a regular file")
        if os.fstat(fd).st_nlink > 1:
            raise NotOurs(f"{path} has a second hard link")
        _verify(fd, path)
        yield fd


def read(name: str, max_bytes: int, *, within: int) -> bytes:
    """The first bytes of a private file. Raises `NotOurs`, `OSError`."""
    with file(Path(name), os.O_RDONLY, within=within) as fd:
        return os.read(fd, max_bytes)


def replace(name: str, data: bytes, *, within: int) -> None:
    """Replace a file of a locked directory, completely or not at all. An existing draft, from a killed
    process, is overwritten. Raises `NotOurs`, `OSError`.
    """
    draft = f"{name}.draft"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(draft, dir_fd=within)
    try:
        with file(Path(draft), os.O_WRONLY | os.O_CREAT | os.O_EXCL, within=within) as fd:
            if os.write(fd, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.replace(draft, name, src_dir_fd=within, dst_dir_fd=within)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=within)
        raise


@contextmanager
def _opened(path: Path, flags: int, within: int | None = None) -> Iterator[int]:
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600, dir_fd=within)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise NotOurs(f"{path} is a symbolic link or of the wrong type") from None
        raise
    try:
        yield fd
    finally:
        os.close(fd)


def _verify(fd: int, path: Path) -> None:
    status = os.fstat(fd)
    if status.st_uid != os.geteuid():
        raise NotOurs(f"{path} belongs to user {status.st_uid}")
    if status.st_mode & 0o077:
        raise NotOurs(f"{path} has mode {status.st_mode & 0o777:o}, so other users can access it")


@contextmanager
def locked(fd: int) -> Iterator[bool]:
    """Lock a file for the ``with`` block; yields False if it is not free within `LOCK_LIMIT_S`."""
    import fcntl

    until = time.monotonic() + LOCK_LIMIT_S
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                yield True
            finally:
                fcntl.flock(fd, fcntl.LOCK_UN)
            return
        if time.monotonic() > until:
            yield False
            return
        time.sleep(LOCK_PAUSE_S)
