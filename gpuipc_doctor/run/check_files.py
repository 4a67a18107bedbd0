"""Import a site's check files first in a separate process, which may hang, crash or exit."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from gpuipc_doctor.api import loader
from gpuipc_doctor.api.loader import BrokenCheck, LoadedCheck
from gpuipc_doctor.files import python

DEADLINE_S = 10.0
"""Seconds for one file: on a cold network file system an import can take seconds."""

_IMPORT = """
import os, sys
from pathlib import Path
from gpuipc_doctor.api import loader
told = os.dup(1)
os.dup2(2, 1)
for file in sys.argv[1:]:
    os.write(told, b".")
    loader.load_file(Path(file))
os.write(told, b".")
"""
"""Program that writes a byte before it imports each file, and one at the end."""


def load(directories: Sequence[Path] = ()) -> list[LoadedCheck | BrokenCheck]:
    """`loader.load`, except that a file whose import hangs or ends its process becomes a `BrokenCheck`."""
    files = [file for directory in directories for file in loader.files(directory)]
    return loader.load(directories, unfit=dict(_not_loadable(files)))


def _not_loadable(files: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """File that cannot be imported → reason. After each such file, a new process imports the rest."""
    while files:
        begun, reason = _import(files)
        if begun > len(files):
            return
        yield files[begun - 1], reason
        files = files[begun:]


def _import(files: Sequence[Path]) -> tuple[int, str]:
    """(position, from 1, of the file that could not be imported; reason).

    If all files could be imported, the position is one after the last.
    """
    process = subprocess.Popen(
        python.program(_IMPORT, *map(str, files)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    told: IO[bytes] = process.stdout  # type: ignore[assignment]  # a pipe, by construction
    begun, reason = 0, f"did not import within {DEADLINE_S:g} s"
    try:
        while select.select([told], [], [], DEADLINE_S)[0]:
            if not (dots := os.read(told.fileno(), len(files) + 1)):
                reason = "ended the process that imported the file"
                break
            begun += len(dots)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        told.close()
        process.wait()
    return max(begun, 1), reason
