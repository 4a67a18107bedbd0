"""Have somebody clean up after this process, should it be killed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

from gpuipc_doctor.supervise import keeper


class Keeper:
    """Starts `keeper` for all processes that carry a marker, and for directories that it is told of.

    It has its name when this returns. Whoever kills it before that has killed us before there was anything
    to clean up.
    """

    def __init__(self, marker: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        named: BinaryIO = self._process.stdout  # type: ignore[assignment]  # a pipe, by construction
        with named:
            named.read(1)
        self._tell(marker.encode() + b"\0")

    @property
    def pid(self) -> int:
        return self._process.pid

    def remove(self, directory: Path) -> None:
        """A directory that must not outlive us is there now."""
        self._tell(os.fsencode(directory) + b"\0")

    def dismiss(self) -> None:
        """Nothing is left to clean up."""
        self._tell(keeper.DONE)
        with contextlib.suppress(BrokenPipeError):
            self._pipe.close()
        self._process.wait()

    @property
    def _pipe(self) -> BinaryIO:
        pipe: BinaryIO = self._process.stdin  # type: ignore[assignment]  # a pipe, by construction
        return pipe

    def _tell(self, text: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # somebody may have killed it
            self._pipe.write(text)
            self._pipe.flush()
