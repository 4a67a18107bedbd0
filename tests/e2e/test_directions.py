"""A run's parts execute in a fixed order: each runs once, and none changes data that an earlier one used."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.test_prolog import AMPLE, FRESH, Site

IN_OPEN, IN_CLOSE = 0x20, 0x18
"""<sys/inotify.h>; close events separate two open events, which inotify would otherwise merge."""


def openings(file: Path, run: Callable[[], object]) -> int:
    """Number of times that any process opens the file while ``run`` runs."""
    libc, event = ctypes.CDLL(None), struct.Struct("iIII")
    fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        assert libc.inotify_add_watch(fd, bytes(file), IN_OPEN | IN_CLOSE) >= 0
        run()
        masks = [mask for _, mask, _, _ in event.iter_unpack(os.read(fd, 1 << 16))]
    finally:
        os.close(fd)
    return sum(bool(mask & IN_OPEN) for mask in masks)


@pytest.mark.cuda
def test_site_file_is_opened_once_for_a_prolog(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write("healthy-cuda", FRESH)
    assert openings(site.config, lambda: site.prolog(*AMPLE, gpus="0")) == 1
    assert openings(site.config, lambda: site.prolog(gpus="0")) == 1  # answered from the state file
