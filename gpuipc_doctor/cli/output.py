"""Output files, tested before the first probe."""

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
    """A file for a report or a picture, written completely or not at all.

    Creating the object tests that the file can be written, with a temporary file that is removed at once.
    ``write`` writes a temporary file and renames it; a terminal or pipe is written directly. ``mode`` is the
    file's mode; by default, the umask decides. Call ``write`` or ``close`` once.

    If root runs this tool, the path must be one that no other user can change. Every file is created in an
    open directory, under an unguessable name, and changed through its descriptor. Raises `OSError`.
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
        """Write the file; text is encoded as UTF-8."""
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
        """Leave the file unchanged."""
        for fd in (self._special, self._directory):
            if fd is not None:
                os.close(fd)
        self._special = self._directory = None

    @contextlib.contextmanager
    def _draft(self) -> Iterator[tuple[str, int]]:
        """Name and descriptor of a new file in the target's directory; removed unless renamed."""
        name = f".{self._path.name[:100]}.{secrets.token_hex(8)}"
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=self._directory)
        try:
            yield name, fd
        finally:
            os.close(fd)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._directory)


def _kind(path: Path) -> int | None:
    """The ``stat`` result of the file behind all links; None if it does not exist."""
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except FileNotFoundError:
        return None


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
