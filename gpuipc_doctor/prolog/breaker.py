"""How many nodes a bad release of the driver, or of this tool, can drain.

Two bounds, each without a server. ``share`` needs nothing: a node may drain if a number made from its name
and the tool's version falls below it, so another release meets other nodes. ``directory`` is shared by all
nodes: a drain takes one of ``max_drains`` slots, and each is a symbolic link, which even NFS makes for one
node only, to the name of the node. Slots belong to a stretch of ``within_s`` seconds of wall-clock time;
removing them closes the breaker at once. What cannot be asked lets no node drain.
"""

from __future__ import annotations

import contextlib
import re
import time
import zlib
from collections.abc import Iterable
from pathlib import Path

from gpuipc_doctor import __version__
from gpuipc_doctor.policy import Breaker
from gpuipc_doctor.trust import untrusted

_SLOT = re.compile(r"slot-(\d+)-\d+")


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
    stretch = int(time.time() // breaker.within_s)
    present = {path.name: path for path in directory.iterdir() if _SLOT.fullmatch(path.name)}
    ours = [f"slot-{stretch}-{number}" for number in range(1, breaker.max_drains + 1)]
    for name in set(present) & set(ours):
        if str(present[name].readlink()) == host:
            return ""  # this node is drained already
    for name in ours:
        if name not in present:
            with contextlib.suppress(FileExistsError):
                (directory / name).symlink_to(host)
                _remove_old(present.values(), stretch)
                return ""
    nodes = "1 node has" if breaker.max_drains == 1 else f"{breaker.max_drains} nodes have"
    return f"{nodes} been drained within {breaker.within_s:g} s"


def _remove_old(slots: Iterable[Path], stretch: int) -> None:
    for slot in slots:
        if int(slot.name.split("-")[1]) < stretch:
            with contextlib.suppress(OSError):
                slot.unlink()
