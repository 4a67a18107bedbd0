"""A report's way to a file: what can go wrong is found out before the first probe."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


class OutputFile:
    """A file that will hold the report, whole or not at all.

    Opening it proves that it can be written, by making a draft beside it; ``write`` puts the draft in its
    place. What is no regular file (a terminal, a pipe) is written in place. Raises `OSError`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._draft: Path | None = None
        if path.is_dir():
            raise IsADirectoryError(21, "is a directory", str(path))
        if path.exists() and not path.is_file():
            self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        else:
            if path.exists():
                os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
            self._fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            self._draft = Path(name)

    def write(self, text: str) -> None:
        with os.fdopen(self._fd, "w", encoding="utf-8") as file:
            file.write(text)
        if self._draft:
            umask = os.umask(0)
            os.umask(umask)
            self._draft.chmod(0o666 & ~umask)
            self._draft.replace(self._path)
            self._draft = None

    def discard(self) -> None:
        """Remove the draft, when there is nothing to write."""
        if self._draft:
            with contextlib.suppress(OSError):
                self._draft.unlink()
