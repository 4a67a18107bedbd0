"""Whether messages move between the ranks of a node, from changes in the memory that they share.

MPI libraries pass messages within a node through segments mapped by several ranks. While ranks wait for a
message that never comes, nothing changes in the segments; each iteration of a loop of collectives changes
something. The segments are only read. Tried with MPICH 4.3 and 5.0, Open MPI 5.0 and Intel MPI 2021: no page
changed in two seconds of a stuck job; one to 51 pages changed in a loop of MPI_Allreduce.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from typing import IO

from gpuipc_doctor.files import reading
from gpuipc_doctor.files.node_files import quietly
from gpuipc_doctor.job.document import Contents, Process
from gpuipc_doctor.stacks.mappings import mappings
from gpuipc_doctor.stacks.process_list import PROC

MOST_BYTES = 64 << 20
"""Maximum bytes read in each snapshot. Segments are sparse: those of 16 ranks hold some MB."""

_BLOCK = 1 << 16
_IN_MEMORY = ("/dev/shm/", "/SYSV", "/memfd:")  # noqa: S108 - they are only read
"""Prefixes of in-memory files' names. Devices, and files that may be on another node, are not opened."""


def moved(earlier: Contents | None, later: Contents | None) -> bool | None:
    """Whether the contents have changed; None if unknown."""
    if earlier is None or later is None:
        return None
    if earlier.digest != later.digest:
        return True
    return False if earlier.whole and later.whole else None


def contents(ranks: Mapping[int, Process]) -> Contents | None:
    """Contents of the memory that at least two of these ranks map; None if there is none that can be read."""
    users: dict[str, set[int]] = {}
    places: dict[str, list[str]] = {}
    for rank, process in ranks.items():
        for segment, place in _segments(process.pid):
            users.setdefault(segment, set()).add(rank)
            places.setdefault(segment, []).append(place)
    hashed, left, whole = hashlib.blake2b(digest_size=8), MOST_BYTES, True
    found = False
    for segment in sorted(segment for segment, those in users.items() if len(those) > 1):
        if (file := _open(places[segment])) is None:
            whole = False
            continue
        found = True
        with closing(file):
            for block in _data(file.fileno()):
                if left <= 0:
                    whole = False
                    break
                hashed.update(block)
                left -= len(block)
    return Contents(hashed.hexdigest(), whole) if found else None


def _segments(pid: int) -> Iterator[tuple[str, str]]:
    """(device, inode) of each shared writable mapping of an in-memory file → path at which to open it."""
    for each in mappings(quietly(PROC / str(pid) / "maps")):
        if each.rights[1] == "w" and each.rights[3] == "s" and each.file.startswith(_IN_MEMORY):
            yield f"{each.device}:{each.inode}", each.place(pid)
            if each.file.startswith(_IN_MEMORY[0]) and not each.is_removed:
                yield f"{each.device}:{each.inode}", each.file


def _open(places: Iterable[str]) -> IO[bytes] | None:
    for place in places:
        with suppress(OSError, reading.Unreadable):
            return os.fdopen(reading.open_regular(place), "rb", buffering=0)
    return None


def _data(fd: int) -> Iterator[bytes]:
    """The parts of a file that contain data. Holes are skipped, since most of a segment is never used."""
    position = 0
    with suppress(OSError):  # ENXIO after the last part
        while True:
            position = os.lseek(fd, position, os.SEEK_DATA)
            end = os.lseek(fd, position, os.SEEK_HOLE)
            while position < end:
                block = os.pread(fd, min(_BLOCK, end - position), position)
                if not block:
                    return
                yield block
                position += len(block)
