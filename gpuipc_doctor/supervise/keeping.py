"""Have somebody clean up after this process, should it be killed."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from gpuipc_doctor.supervise import keeper


class Keeper:
    """Starts `keeper` for all processes that carry a marker, and for directories, which are to come.

    It has its name when this returns. Whoever kills it before that has killed us before there was anything
    to clean up.
    """

    def __init__(self, marker: str, directories: Iterable[Path]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__, marker, *map(str, directories)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        named: BinaryIO = self._process.stdout  # type: ignore[assignment]  # a pipe, by construction
        with named:
            named.read(1)

    @property
    def pid(self) -> int:
        return self._process.pid

    def dismiss(self) -> None:
        """Nothing is left to clean up."""
        pipe: BinaryIO = self._process.stdin  # type: ignore[assignment]  # a pipe, by construction
        with contextlib.suppress(BrokenPipeError), pipe:  # somebody may have killed it
            pipe.write(b"done\n")
        self._process.wait()
