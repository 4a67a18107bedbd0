"""What is written to a file: what can go wrong is found out before the first probe."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


class OutputFile:
    """A file that will hold a report or a picture, whole or not at all.

    Opening it proves that it can be written, with a file beside it that has no name or loses it at once:
    however the run ends, nothing is left behind. ``write`` makes a draft and puts it in its place. What is
    no regular file (a terminal, a pipe) is written in place. Raises `OSError`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._special: int | None = None
        if path.is_dir():
            raise IsADirectoryError(21, "is a directory", str(path))
        if path.exists() and not path.is_file():
            self._special = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            return
        if path.exists():
            os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
        tempfile.TemporaryFile(dir=path.parent).close()

    def write(self, content: str | bytes) -> None:
        """Put it there; text in UTF-8."""
        data = content.encode() if isinstance(content, str) else content
        if self._special is not None:
            with os.fdopen(self._special, "wb") as file:
                file.write(data)
            return
        number, name = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")
        draft = Path(name)
        try:
            with os.fdopen(number, "wb") as file:
                file.write(data)
            umask = os.umask(0)
            os.umask(umask)
            draft.chmod(0o666 & ~umask)
            draft.replace(self._path)
        except BaseException:
            draft.unlink()
            raise
