"""Read regular files named by a user, limited in size and nesting depth."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # importing it takes longer than a prolog with a stored result may
    from gpuipc_doctor.model import Json

MAX_DEPTH = 100
"""Maximum nesting of a JSON document: far more than this tool writes, far less than Python's stack allows."""


DIRECTORY = "is a directory, not a file"


class Unreadable(Exception):
    """A file cannot be used; the message says why, without the file's name."""


@contextmanager
def opened(path: str | Path, flags: int = os.O_RDONLY, *, within: int | None = None) -> Iterator[int]:
    """A descriptor of a file. Opening it does not wait for a pipe or a device, and makes no terminal the
    controlling one.

    ``within``: descriptor of the directory that ``path`` is relative to. Raises `OSError`.
    """
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=within)
    try:
        yield fd
    finally:
        os.close(fd)


def read(path: Path, max_bytes: int) -> bytes:
    """Contents of a file. Raises `Unreadable`.

    The file is opened without waiting, so that a pipe or device cannot block, and is checked after opening,
    so that no other user can replace it.
    """
    try:
        with opened(path) as fd:
            mode = os.fstat(fd).st_mode
            if stat.S_ISDIR(mode):
                raise Unreadable(DIRECTORY)
            if not stat.S_ISREG(mode):
                raise Unreadable("is not a regular file")
            with open(fd, "rb", closefd=False) as file:
                content = file.read(max_bytes + 1)
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from None
    except ValueError:  # a NUL byte in the name
        raise Unreadable("is not a file name") from None
    if len(content) > max_bytes:
        raise Unreadable(f"is longer than {max_bytes >> 20} MiB")
    return content


def read_json(path: Path, max_bytes: int) -> Json:
    """The JSON document in a file. Raises `Unreadable`."""
    import json

    try:
        document = json.loads(read(path, max_bytes))
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"is not JSON: {error}") from None
    if is_deeper_than(document, MAX_DEPTH):
        raise Unreadable(f"is nested deeper than {MAX_DEPTH} levels")
    return document


def is_deeper_than(document: Json, depth: int) -> bool:
    level = [document]
    for _ in range(depth + 1):
        inner = [child for child in level if isinstance(child, dict | list)]
        level = [value for child in inner for value in (child.values() if isinstance(child, dict) else child)]
        if not level:
            return False
    return True
