"""A file system that never answers, as a hung NFS, or a FUSE of a hostile user; for tests that root runs."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

AS_ROOT = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/fuse").exists(),
    reason="mounts a file system: needs root and /dev/fuse",
)

_DETACH = 2
"""MNT_DETACH (umount2(2))."""


@contextmanager
def hanging(place: Path) -> Iterator[Path]:
    """A directory on which every access waits, until the block ends: nobody serves its FUSE (fuse(4))."""
    place.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    try:
        options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
        if libc.mount(b"none", bytes(place), b"fuse", 0, options):
            raise OSError(ctypes.get_errno(), "cannot mount FUSE")
        yield place
    finally:
        os.close(server)  # ends all waiting
        libc.umount2(bytes(place), _DETACH)
