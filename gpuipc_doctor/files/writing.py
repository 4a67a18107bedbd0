"""Write files: completely or not at all, and never where another user leads.

- A new file has an unguessable name (``O_EXCL``) until it is complete, and is then renamed.
- An output that is a link replaces what the link points to, if the link and the target's directory can be
  trusted.
- A descriptor of this process (``/dev/stdout``, ``/dev/fd/N``, ``/proc/self/fd/N``), a terminal and a pipe
  are written in place. Nothing in ``/dev``, ``/proc`` and ``/sys`` is ever replaced.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from gpuipc_doctor.files.trust import untrusted, way

_DESCRIPTOR = re.compile(r"/proc/(?:self|thread-self|(\d+))(?:/task/\d+)?/fd/(\d+)")
_KERNEL = tuple(map(Path, ("/dev", "/proc", "/sys")))
_MEMORY = Path("/dev/shm")  # noqa: S108 - users' files; nothing in it is replaced either
_MOST_LINKS = 40
"""Maximum links on the way to a file, as in path_resolution(7)."""


class OutputFile:
    """A file for a report or a picture.

    Creating the object tests that the file can be written, with a temporary file that is removed at once;
    without ``is_tested``, only that its directory can be opened. ``mode`` is the file's mode; by default, the
    umask decides. Call ``write`` or ``close`` once.

    If root runs this tool, no other user may be able to change the path; with ``is_foreign``, a directory on
    the way may be another user's, but a link of theirs is not followed. Raises `OSError`.
    """

    def __init__(
        self, path: Path, mode: int | None = None, *, is_foreign: bool = False, is_tested: bool = True
    ) -> None:
        self._mode = 0o666 & ~_umask() if mode is None else mode
        self._place = _target(path)
        self._in_place: int | None = None
        self._is_cut = False
        self._directory: int | None = None
        if (own := _own_descriptor(self._place)) is not None:
            self._in_place = own
            return
        kind = _kind(self._place)
        is_kernels = any(map(self._place.is_relative_to, _KERNEL))
        is_replaced = kind in (None, stat.S_IFREG) and not (kind and is_kernels)
        if kind is None and is_kernels and not self._place.is_relative_to(_MEMORY):
            raise _refused(errno.EPERM, "files are not created in /dev, /proc and /sys", path)
        if is_foreign:
            _refuse_links_of_others(path)
        elif reason := _mistrust(path, self._place):
            raise _refused(errno.EPERM, reason, path)
        if not is_replaced:
            self._in_place = _existing(self._place, path)
            self._is_cut = kind == stat.S_IFREG and self._place.is_relative_to(_MEMORY)
            return
        if kind is not None:
            os.close(_existing(self._place, path))
        self._directory = _directory(self._place.parent, follow=not is_foreign)
        if not is_tested:
            return
        try:
            with _draft(self._directory, self._place.name):
                pass
        except OSError:
            self.close()
            raise

    def write(self, content: str | bytes) -> None:
        """Write the file; text is encoded as UTF-8."""
        data = content.encode() if isinstance(content, str) else content
        try:
            if self._in_place is not None:
                if self._is_cut:
                    os.ftruncate(self._in_place, 0)
                with os.fdopen(os.dup(self._in_place), "wb") as file:
                    file.write(data)
                return
            assert self._directory is not None
            replace_within(self._directory, self._place.name, data, self._mode)
        finally:
            self.close()

    def close(self) -> None:
        """Leave the file unchanged."""
        for fd in (self._in_place, self._directory):
            if fd is not None:
                os.close(fd)
        self._in_place = self._directory = None


def replace_within(directory: int, name: str, data: bytes, mode: int) -> None:
    """Write a file of an open directory completely, or not at all. Raises `OSError`."""
    with _draft(directory, name) as (draft, fd):
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(data)
        os.fchmod(fd, mode)
        os.replace(draft, name, src_dir_fd=directory, dst_dir_fd=directory)


@contextlib.contextmanager
def _draft(directory: int, name: str) -> Iterator[tuple[str, int]]:
    """Name and descriptor of a new file in a directory, for the file ``name``; removed unless renamed."""
    draft = f".{name[:100]}.{os.urandom(8).hex()}"
    fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
    try:
        yield draft, fd
    finally:
        os.close(fd)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=directory)


def write(path: Path, content: str | bytes, mode: int | None = None) -> None:
    """Write a file completely or not at all. Raises `OSError`; the file is then unchanged."""
    OutputFile(path, mode, is_tested=False).write(content)


def write_new(path: Path, text: str) -> None:
    """Write a new file that only this user can read, also into a directory such as /tmp. Raises `OSError`."""
    if reason := untrusted(path):
        raise _refused(errno.EPERM, reason, path)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(text.encode(errors="replace"))


def open_to_append(path: Path) -> int:
    """A descriptor for appending to a file, created if needed; the caller closes it. Raises `OSError`."""
    place = _target(path)
    if (own := _own_descriptor(place)) is not None:
        return own
    if reason := _mistrust(path, place):
        raise _refused(errno.EPERM, reason, path)
    if _kind(place) is None:
        if any(map(place.is_relative_to, _KERNEL)) and not place.is_relative_to(_MEMORY):
            raise _refused(errno.EPERM, "files are not created in /dev, /proc and /sys", path)
        with contextlib.suppress(FileExistsError):  # created meanwhile: looked at below
            return os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    return _existing(place, path, os.O_APPEND)


def open_lock(path: Path) -> int:
    """A descriptor for a lock and its holder's pid; the caller closes it. Raises `OSError`."""
    if reason := untrusted(path):
        raise _refused(errno.EPERM, reason, path)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(fd)
        raise _refused(errno.EPERM, "is not a regular file with one name", path)
    return fd


def make_directory(path: Path, mode: int = 0o777) -> None:
    """Create a directory and those above it, unless it exists. Raises `OSError`."""
    if reason := untrusted(path):
        raise _refused(errno.EPERM, reason, path)
    path.mkdir(mode=mode, parents=True, exist_ok=True)


def _mistrust(path: Path, place: Path) -> str:
    """Why root must not write to a path that leads to ``place``; empty if it may. A device itself may be
    writable for all."""
    if _kind(place) in (None, stat.S_IFREG):
        return untrusted(path)
    return untrusted(path.parent) or untrusted(place.parent)


def _refuse_links_of_others(path: Path) -> None:
    """Raise `OSError` if another user's link is on the way to a path."""
    for place in way(path):
        with contextlib.suppress(FileNotFoundError):
            status = place.lstat()
            if stat.S_ISLNK(status.st_mode) and status.st_uid not in (0, os.geteuid()):
                raise _refused(errno.EPERM, f"{place} is a symbolic link of user {status.st_uid}", path)


def _target(path: Path) -> Path:
    """The file behind the links at the end of a path; each of them must be root's or this user's own.

    Only such links are followed: in a directory such as /tmp, any user can make one. Raises `OSError`.
    """
    place = path.absolute()
    for _ in range(_MOST_LINKS):
        place = Path(os.path.realpath(place.parent), place.name)
        if _DESCRIPTOR.fullmatch(str(place)):
            return place
        try:
            status = place.lstat()
        except FileNotFoundError:
            return place
        if not stat.S_ISLNK(status.st_mode):
            return place
        if status.st_uid not in (0, os.geteuid()):
            raise _refused(errno.EPERM, f"is a symbolic link of user {status.st_uid}", path)
        place = place.parent / place.readlink()
    raise _refused(errno.ELOOP, os.strerror(errno.ELOOP), path)


def _own_descriptor(place: Path) -> int | None:
    """A duplicate of the descriptor of this process that a path below /proc names; None for other paths.

    The duplicate shares the position in a file, so that what was written before is kept. Raises `OSError`.
    """
    import fcntl

    named = _DESCRIPTOR.fullmatch(str(place))
    if not named or named[1] not in (None, os.readlink("/proc/self")):  # noqa: PTH115 - a name, not a path
        return None
    fd = int(named[2])
    if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise _refused(errno.EBADF, f"descriptor {fd} is not open for writing", place)
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 0)


def _existing(place: Path, path: Path, flags: int = 0) -> int:
    """A descriptor for writing a file that exists. Raises `OSError`."""
    kind = _kind(place)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, "is a directory", str(path))
    if kind == stat.S_IFBLK:
        raise _refused(errno.EPERM, "is a block device", path)
    follow = 0 if _DESCRIPTOR.fullmatch(str(place)) else os.O_NOFOLLOW
    return os.open(place, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC | follow | flags)


def _directory(directory: Path, *, follow: bool) -> int:
    """A descriptor of a directory, as a path without links. ``follow``: follow one made meanwhile."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    if follow:
        return os.open(directory, flags)
    fd = os.open("/", flags)
    for part in directory.parts[1:]:
        above = fd
        try:
            fd = os.open(part, flags | os.O_NOFOLLOW, dir_fd=above)
        finally:
            os.close(above)
    return fd


def _kind(place: Path) -> int | None:
    """The type of a file, of a link itself; None if it does not exist."""
    try:
        return stat.S_IFMT(place.lstat().st_mode)
    except FileNotFoundError:
        return None


def _refused(code: int, reason: str, path: Path) -> OSError:
    return OSError(code, reason, str(path))


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
