"""Open files that another user may own, name or replace: regular files only, limited in size and depth.

A file is looked at before it is opened, through a descriptor that gives no access (``O_PATH``), so that no
device is touched, no pipe is waited for, and nothing can be replaced in between.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

MAX_DEPTH = 100
"""Maximum nesting of a JSON document: far more than this tool writes, far less than Python's stack allows."""

DIRECTORY = "is a directory, not a file"
LINK = "is a link"


class Unreadable(Exception):
    """A file cannot be used; the message says why, without the file's name."""


@contextmanager
def found(path: str | Path, *, within: int | None = None, follow: bool = True) -> Iterator[int]:
    """A descriptor that names a file and gives no access to its contents.

    ``within``: descriptor of the directory that ``path`` is relative to. ``follow``: follow a link at the end
    of the path; otherwise the descriptor is of the link. Raises `OSError`.
    """
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW), dir_fd=within)
    try:
        yield fd
    finally:
        os.close(fd)


def open_regular(path: str | Path, *, within: int | None = None, follow: bool = True) -> int:
    """A descriptor for reading a regular file; the caller closes it. Raises `Unreadable`, `OSError`."""
    with found(path, within=within, follow=follow) as place:
        if reason := _irregular(os.fstat(place).st_mode):
            raise Unreadable(reason)
        return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)


def open_below(directory: str | Path, path: str) -> int:
    """`open_regular` for a relative path below a directory, without following any link below it."""
    *directories, name = Path(path).parts
    with ExitStack() as opened:
        within = opened.enter_context(found(directory))
        for part in directories:
            within = opened.enter_context(found(part, within=within, follow=False))
        try:
            return open_regular(name, within=within, follow=False)
        except NotADirectoryError:
            raise Unreadable(LINK) from None


def open_directory(path: str | Path) -> int:
    """A descriptor of a directory, not behind a link; the caller closes it. Raises `OSError`."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


@contextmanager
def opened(path: str | Path, *, within: int | None = None, follow: bool = True) -> Iterator[int]:
    """`open_regular` for a ``with`` block."""
    fd = open_regular(path, within=within, follow=follow)
    try:
        yield fd
    finally:
        os.close(fd)


def _irregular(mode: int) -> str:
    """Why a file of this mode is not read; empty if it is."""
    if stat.S_ISREG(mode):
        return ""
    return DIRECTORY if stat.S_ISDIR(mode) else LINK if stat.S_ISLNK(mode) else "is not a regular file"


def read(path: str | Path, max_bytes: int, *, within: int | None = None, follow: bool = True) -> bytes:
    """Contents of a regular file. Raises `Unreadable`."""
    content = sample(path, max_bytes + 1, within=within, follow=follow)
    if len(content) > max_bytes:
        raise Unreadable(f"is longer than {_size(max_bytes)}")
    return content


def sample(path: str | Path, max_bytes: int, *, within: int | None = None, follow: bool = True) -> bytes:
    """The first bytes of a regular file. Raises `Unreadable`."""
    try:
        with opened(path, within=within, follow=follow) as fd, open(fd, "rb", closefd=False) as file:
            return file.read(max_bytes)
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from None
    except ValueError:  # a NUL byte in the name
        raise Unreadable("is not a file name") from None


def _size(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


def read_json(path: Path, max_bytes: int) -> Any:
    """The JSON document in a file. Raises `Unreadable`."""
    import json

    try:
        if not (content := read(path, max_bytes)).strip():
            raise Unreadable("the file is empty")
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"is not JSON: {error}") from None
    if is_deeper_than(document, MAX_DEPTH):
        raise Unreadable(f"is nested deeper than {MAX_DEPTH} levels")
    return document


def is_deeper_than(document: Any, depth: int) -> bool:
    level = [document]
    for _ in range(depth + 1):
        inner = [child for child in level if isinstance(child, dict | list)]
        level = [value for child in inner for value in (child.values() if isinstance(child, dict) else child)]
        if not level:
            return False
    return True
