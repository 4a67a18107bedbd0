"""How many nodes a bad release of the driver, or of this tool, can drain.

Two bounds, each without a server. ``share`` needs nothing: a node may drain if a number made from its name
and the tool's version falls below it, so another release meets other nodes. ``directory`` is shared by all
nodes: a drain takes one of ``max_drains`` slots for ``within_s`` seconds. ``slot-3-7`` is the seventh use of
the third: a symbolic link, which even NFS makes for one node only, to the name of the node. Its age goes by
the clock of the file system, the server's on NFS, so that a node whose own clock is wrong takes no more than
others. Removing slots closes the breaker at once. What cannot be asked lets no node drain.
"""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from pathlib import Path

from gpuipc_doctor import __version__
from gpuipc_doctor.site.policy import Breaker
from gpuipc_doctor.site.trust import untrusted

_SLOT = re.compile(r"slot-(\d+)-(\d+)")


def refusal(breaker: Breaker, host: str) -> str:
    """Why this node may not drain now, in words; empty if it may, and it has a slot then."""
    if breaker.share < 1 and place(host) >= breaker.share:
        return f"this node is not in the share of {breaker.share:g} that may"
    if not breaker.directory:
        return ""
    directory = Path(breaker.directory)
    try:
        if reason := untrusted(directory):
            return f"{directory} {reason}"
        return _take_slot(directory, breaker, host)
    except OSError as error:
        return f"the breaker's directory {directory} cannot be used: {error.strerror}"


def place(host: str) -> float:
    """Where a node stands between 0 and 1, by its name and the tool's version."""
    return zlib.crc32(f"{host} {__version__}".encode()) / 2**32


def _take_slot(directory: Path, breaker: Breaker, host: str) -> str:
    os.utime(directory)  # its time is now the file system's, as those of the slots are
    since = directory.stat().st_mtime - breaker.within_s
    latest = _latest_uses(directory)
    free = []
    for number in range(1, breaker.max_drains + 1):
        use = latest.get(number, 0)
        holder = _holder(_slot(directory, number, use), since)
        if holder == host:
            return ""  # this node is drained already
        if not holder:
            free.append((number, use))
    for number, use in free:
        with contextlib.suppress(FileExistsError):
            _slot(directory, number, use + 1).symlink_to(host)
            # Not the last one, without which another node that is looking now might see neither.
            with contextlib.suppress(OSError):
                _slot(directory, number, use - 1).unlink()
            return ""
    nodes = "1 node has" if breaker.max_drains == 1 else f"{breaker.max_drains} nodes have"
    return f"{nodes} been drained within {breaker.within_s:g} s"


def _latest_uses(directory: Path) -> dict[int, int]:
    """By the number of the slot; one that was never used is not in it."""
    latest: dict[int, int] = {}
    for found in filter(None, (_SLOT.fullmatch(path.name) for path in directory.iterdir())):
        number, use = map(int, found.groups())
        latest[number] = max(use, latest.get(number, 0))
    return latest


def _slot(directory: Path, number: int, use: int) -> Path:
    return directory / f"slot-{number}-{use}"


def _holder(slot: Path, since: float) -> str:
    """The node that has taken the slot after ``since``; empty if none has."""
    with contextlib.suppress(FileNotFoundError):
        if slot.lstat().st_mtime > since:
            return str(slot.readlink())
    return ""
