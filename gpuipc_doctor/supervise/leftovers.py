"""Shared memory that ranks leave behind when they crash or are killed, before their library unlinks it.

Uses the standard library alone: `keeper` loads it by its path, where a supervisor was killed with its ranks.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at, and files removed that were made by ranks of ours

TICK_S = 0.02
"""By so much a file may seem older than it is: its time is that of the kernel's last tick."""

NAMES = (
    *("mpich_shm_*", "sm_segment.*", "vader_segment.*", "Intel_MPI_*", "psm*_shm*", "ucx_shm_*"),
    "[0-9]*:[0-9]*:[0-9]*",
)
"""What MPICH, Open MPI 5 and 4, Intel MPI, PSM, UCX and libfabric's shm provider call their segments."""


def remove(since: float) -> None:
    """Remove what is `abandoned`."""
    for path in abandoned(since):
        with contextlib.suppress(OSError):
            path.unlink()


def abandoned(since: float) -> set[Path]:
    """Such files of this user, made at or after ``since`` (`time.time()`), that no process maps."""
    candidates = set(_made(since))
    return candidates - set(_mapped()) if candidates else set()


def _made(since: float) -> Iterator[Path]:
    for name in NAMES:
        for path in SHARED_MEMORY.glob(name):
            with contextlib.suppress(OSError):
                status = path.stat()
                if status.st_uid == os.geteuid() and status.st_ctime >= since - TICK_S:
                    yield path


def _mapped() -> Iterator[Path]:
    """Every file in shared memory that some process maps, as far as we may look."""
    for process in PROC.iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                for line in (process / "maps").read_text(errors="replace").splitlines():
                    if f" {SHARED_MEMORY}/" in line:
                        yield Path(line[line.index(f" {SHARED_MEMORY}/") + 1 :].removesuffix(" (deleted)"))
