"""Shared memory of ranks, and leftovers of ended processes: files in /dev/shm, System V segments."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gpuipc_doctor.files.node_files import matching, quietly
from gpuipc_doctor.job.document import MemoryFile, Process
from gpuipc_doctor.stacks import open_files
from gpuipc_doctor.stacks.mappings import mappings
from gpuipc_doctor.stacks.process_list import PROC

SHM = Path("/dev/shm")  # noqa: S108 - it is only looked at
SYSV = PROC / "sysvipc/shm"
SYSV_NAME = "/SYSV"
"""Name of System V segments in ``maps``; the inode is the segment's id."""


@dataclass(slots=True)
class _Mapped:
    name: str
    place: str
    """Path at which the file can be opened even if it was removed."""
    ranks: set[int] = field(default_factory=set)


def of_node(host: str, ranks: Mapping[int, Process]) -> Iterator[MemoryFile]:
    """Files mapped by the ranks, then files that no process uses. The latter are only this user's, unless the
    user is root."""
    segments = _sysv()
    for (name, inode), mapped in sorted(_of_ranks(ranks).items()):
        held = segments.get(inode, (None, 1))[0] if name.startswith(SYSV_NAME) else _held(mapped.place)
        shown = f"System V {inode}" if name.startswith(SYSV_NAME) else name
        yield MemoryFile(host=host, name=shown, held=held, ranks=tuple(sorted(mapped.ranks)))
    yield from _left_behind(host, segments)


def _of_ranks(ranks: Mapping[int, Process]) -> dict[tuple[str, int], _Mapped]:
    found: dict[tuple[str, int], _Mapped] = {}
    for rank, process in ranks.items():
        for name, inode, place in _shared(process.pid, quietly(PROC / str(process.pid) / "maps")):
            found.setdefault((name, inode), _Mapped(name, place)).ranks.add(rank)
    return found


def _shared(pid: int, maps: str) -> Iterator[tuple[str, int, str]]:
    """(name, inode, path) of each in-memory file that a process has mapped."""
    for each in mappings(maps):
        if each.file.startswith((f"{SHM}/", SYSV_NAME)):
            yield each.file, each.inode, each.place(pid)


def _left_behind(host: str, segments: Mapping[int, tuple[int, int]]) -> Iterator[MemoryFile]:
    ours = list(_of_this_user())
    used = open_files.look(PROC, str(SHM)).inodes if ours and open_files.shows_own(PROC) else None
    for file, status in ours:
        if used is not None and status.st_ino not in used:
            yield MemoryFile(host=host, name=str(file), held=status.st_blocks * 512, ranks=None)
    for number, (held, users) in segments.items():
        if users == 0:
            yield MemoryFile(host=host, name=f"System V {number}", held=held, ranks=None)


def _of_this_user() -> Iterator[tuple[Path, os.stat_result]]:
    for file in matching(SHM, "*"):
        with suppress(FileNotFoundError):  # other jobs remove theirs meanwhile
            status = file.lstat()
            if os.geteuid() in (0, status.st_uid) and stat.S_ISREG(status.st_mode):
                yield file, status


def _held(place: str) -> int | None:
    """Bytes of memory in a file; None if it cannot be opened."""
    with suppress(OSError):
        return Path(place).stat().st_blocks * 512
    return None


def _sysv() -> dict[int, tuple[int, int]]:
    """Segment id → (bytes of memory, number of users) (sysvipc(7), proc(5)); empty if unreadable."""
    with suppress(OSError, ValueError, KeyError):
        titles, *rows = map(str.split, quietly(SYSV).splitlines())
        of_title = [dict(zip(titles, row, strict=True)) for row in rows]
        return {int(row["shmid"]): (int(row["rss"]), int(row["nattch"])) for row in of_title}
    return {}
