"""What is written to a file: what can go wrong is found out before the first probe."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from gpuipc_doctor.site.trust import untrusted


class OutputFile:
    """A file that will hold a report or a picture, whole or not at all.

    Making one proves that it can be written, with a draft that is removed at once: however the run ends,
    nothing is left behind. ``write`` makes a draft and puts it in its place. What is no regular file (a
    terminal, a pipe) is written in place. ``mode`` is the file's, by default what the umask leaves.

    Root writes only where nobody else can change the way there, and all that is made is made in a directory
    that is open, under a name that nobody knows, and changed by its descriptor. ``write`` is the last that
    one does; one that is not written is to be closed. Raises `OSError`.
    """

    def __init__(self, path: Path, mode: int | None = None) -> None:
        self._path = path
        self._mode = 0o666 & ~_umask() if mode is None else mode
        self._special: int | None = None
        self._directory: int | None = None
        kind = _kind(path)
        if kind == stat.S_IFDIR:
            raise IsADirectoryError(errno.EISDIR, "is a directory", str(path))
        is_special = kind not in (None, stat.S_IFREG)
        if reason := untrusted(path.parent if is_special else path):
            raise PermissionError(errno.EPERM, reason, str(path))
        if is_special:
            self._special = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
            return
        if kind is not None:
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        self._directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with self._draft():
                pass
        except OSError:
            self.close()
            raise

    def write(self, content: str | bytes) -> None:
        """Put it there; text in UTF-8."""
        data = content.encode() if isinstance(content, str) else content
        try:
            if self._special is not None:
                with os.fdopen(os.dup(self._special), "wb") as file:
                    file.write(data)
                return
            with self._draft() as (name, fd):
                with os.fdopen(os.dup(fd), "wb") as file:
                    file.write(data)
                os.fchmod(fd, self._mode)
                os.replace(name, self._path.name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        finally:
            self.close()

    def close(self) -> None:
        """Leave it as it is."""
        for fd in (self._special, self._directory):
            if fd is not None:
                os.close(fd)
        self._special = self._directory = None

    @contextlib.contextmanager
    def _draft(self) -> Iterator[tuple[str, int]]:
        """Name and descriptor of a new file beside the one that is to be; it goes, unless it was renamed."""
        name = f".{self._path.name[:100]}.{secrets.token_hex(8)}"
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=self._directory)
        try:
            yield name, fd
        finally:
            os.close(fd)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._directory)


def _kind(path: Path) -> int | None:
    """What the file at the end of the way is; None where there is none."""
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except FileNotFoundError:
        return None


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
