"""Remove leftovers of this user's killed runs from the directories for temporary files.

A run removes its directories when it ends; if only the run is killed, `keeper` removes them. If all processes
of a step are killed at once, as Slurm does, the directories remain; so does a file that was sent to the node
(`fleet check --ship`) but not started.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from gpuipc_doctor.files import reading
from gpuipc_doctor.files.trust import changeable

AGE_S = 3600.0
"""Seconds for which leftovers are kept, since a run that is starting may still need them."""

_DIRECTORY = re.compile(r"gpuipc-doctor-[a-z0-9_]{8}")
"""Names from mkdtemp(3), for a run's files or the unpacked tool."""

_FILE = re.compile(r"gpuipc-doctor\.(?:\d+|\w{6})|slurm_bcast_\d+\.\d+_.+")
"""Names that `sbcast`, mktemp(1) over ssh and `srun --bcast` give to a tool file sent to a node."""

HEADER = b"#!/bin/sh\n# gpuipc-doctor in one file"
"""Beginning of a tool file sent to a node. Slurm gives other programs similar file names."""


def hold(directory: Path) -> int:
    """Lock a directory, so that no process removes it by `sweep`. The returned descriptor holds the lock
    until closed."""
    fd = reading.open_directory(directory)
    with suppress(OSError):  # a file system without locks: only its age protects the directory
        fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


def sweep(places: Iterable[Path]) -> list[Path]:
    """Remove old directories of this user that belong to no running run; returns them.

    Skips symbolic links and places in which another user could replace files.
    """
    removed = []
    for place in dict.fromkeys(places):
        with suppress(OSError):
            if changeable(place / "leftover"):
                continue
            with os.scandir(place) as entries:
                names = [
                    entry.name for entry in entries if entry.name.startswith(("gpuipc-doctor", "slurm_bcast"))
                ]
            for name in names:
                with suppress(OSError, reading.Unreadable):
                    if _remove(place / name):
                        removed.append(place / name)
    return removed


def _remove(path: Path) -> bool:
    """Remove a path if it is a leftover; returns whether it was removed. Raises `OSError`."""
    is_directory = _DIRECTORY.fullmatch(path.name)
    if not is_directory and not _FILE.fullmatch(path.name):
        return False
    with reading.found(path, follow=False) as place:
        status = os.fstat(place)
    if status.st_uid != os.geteuid() or time.time() - status.st_mtime < AGE_S:
        return False
    if is_directory and stat.S_ISDIR(status.st_mode):
        fd = reading.open_directory(path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(fd)
    elif not is_directory and stat.S_ISREG(status.st_mode):
        begins = reading.sample(path, len(HEADER), follow=False)
        if begins == HEADER[: len(begins)]:  # the file may be truncated
            path.unlink()
    return not path.exists()
