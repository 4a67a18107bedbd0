"""The mappings of a process: lines of ``/proc/PID/maps``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_REMOVED = " (deleted)"

_LINE = re.compile(
    r"^([0-9a-f]{1,16})-([0-9a-f]{1,16}) ([a-z-]{4}) ([0-9a-f]{1,16}) ([0-9a-f]+:[0-9a-f]+) ([0-9]+)"
    r"(?: +(.*))?$",
    re.MULTILINE,
)


class Mapping(NamedTuple):
    """A mapping: the addresses from ``begin`` up to ``end``, with the file's contents from ``offset`` on."""

    begin: int
    end: int
    rights: str
    """Permissions such as ``r-xp``: read, write and execute, then p (private) or s (shared)."""
    offset: int
    device: str
    inode: int
    file: str
    """Path of the file, even if removed; a name such as ``[stack]``; or empty for anonymous memory."""
    is_removed: bool

    def place(self, pid: int) -> str:
        """Path at which the file of a process's mapping can be opened even if it was removed.

        This needs CAP_CHECKPOINT_RESTORE (proc(5)).
        """
        return f"/proc/{pid}/map_files/{self.begin:x}-{self.end:x}"


def mappings(text: str) -> Iterator[Mapping]:
    """The mappings in the text of ``maps``; lines of another form are omitted."""
    for begin, end, rights, offset, device, inode, name in _LINE.findall(text):
        yield Mapping(
            int(begin, 16),
            int(end, 16),
            rights,
            int(offset, 16),
            device,
            int(inode),
            name.removesuffix(_REMOVED),
            name.endswith(_REMOVED),
        )
