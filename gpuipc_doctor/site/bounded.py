"""Files that somebody names, read whole: regular ones, of no more than so many bytes and so deep."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # importing it takes longer than the prolog has for a remembered answer
    from gpuipc_doctor.model import Json

MAX_DEPTH = 100
"""Deepest nesting of a JSON document: far more than any of ours, and far less than Python's stack holds."""


DIRECTORY = "is a directory, not a file"


class Unreadable(Exception):
    """A file cannot be used; the text says why, after the file's name."""


def read(path: Path, max_bytes: int) -> bytes:
    """All that a file holds. Raises `Unreadable`.

    It is opened without waiting, so that neither a pipe nor a device holds anybody up, and looked at when it
    is open, so that nobody can put another in its place.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            mode = os.fstat(fd).st_mode
            if stat.S_ISDIR(mode):
                raise Unreadable(DIRECTORY)
            if not stat.S_ISREG(mode):
                raise Unreadable("is not a regular file")
            with open(fd, "rb", closefd=False) as file:
                content = file.read(max_bytes + 1)
        finally:
            os.close(fd)
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from None
    except ValueError:  # a NUL byte in the name
        raise Unreadable("is not a file name") from None
    if len(content) > max_bytes:
        raise Unreadable(f"is longer than {max_bytes >> 20} MiB")
    return content


def read_json(path: Path, max_bytes: int) -> Json:
    """The JSON document that a file holds. Raises `Unreadable`."""
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
        inner = [one for one in level if isinstance(one, dict | list)]
        level = [value for one in inner for value in (one.values() if isinstance(one, dict) else one)]
        if not level:
            return False
    return True
