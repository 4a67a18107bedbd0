"""Which files the processes of a node have open or mapped, from ``/proc``, as far as permissions allow."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from gpuipc_doctor.files.node_files import matching, quietly
from gpuipc_doctor.stacks.mappings import mappings

_NONE = re.compile(r"(?!)")


@dataclass(slots=True)
class OpenFiles:
    """``inodes``: of files of the directory. ``devices``: pid → the device files that it has open.

    ``unread``: number of processes that may not be read.
    """

    inodes: set[int] = field(default_factory=set)
    devices: dict[int, tuple[str, ...]] = field(default_factory=dict)
    unread: int = 0


def shows_own(proc: Path) -> bool:
    """Whether the kernel shows at least this process's files; else nothing follows from what it shows."""
    own = proc / str(os.getpid())
    with suppress(OSError):
        return any(mappings(quietly(own / "maps"))) and next((own / "fd").iterdir(), None) is not None
    return False


def look(
    proc: Path,
    directory: str,
    devices: re.Pattern[str] = _NONE,
    arm: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> OpenFiles:
    """Read all processes below ``proc``, which may end meanwhile.

    ``arm`` is entered around each read: mappings can hang while a process allocates memory.
    """
    found = OpenFiles()
    for process in matching(proc, "[0-9]*"):
        if not process.name.isdecimal():
            continue
        try:
            with arm(f"list {process}/fd"):
                opened = _opened(process, directory, devices, found)
            if opened:
                found.devices[int(process.name)] = opened
            with arm(f"read {process}/maps"):
                mapped = [
                    each
                    for each in mappings(quietly(process / "maps"))
                    if each.file.startswith(f"{directory}/")
                ]
            found.inodes |= {each.inode for each in mapped}
        except PermissionError:
            found.unread += 1
        except OSError:  # it has ended
            continue
    return found


def _opened(process: Path, directory: str, devices: re.Pattern[str], found: OpenFiles) -> tuple[str, ...]:
    names = set[str]()
    for link in (process / "fd").iterdir():
        with suppress(OSError):  # it was closed, or leads where this user may not look
            name = str(link.readlink())
            if devices.fullmatch(name):
                names.add(name)
            elif name.startswith(f"{directory}/"):
                found.inodes.add(link.stat().st_ino)
    return tuple(sorted(names))
