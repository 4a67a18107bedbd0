"""Files and directories that another user can change, which root must not trust."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple


def untrusted(path: Path) -> str:
    """Why root must not use this path: others can write or replace it. Empty if they cannot."""
    if os.geteuid() != 0 or not (found := changeable(path)):
        return ""
    if found.owner:
        return f"is not trusted: {found.path} belongs to user {found.owner}; as root, use root's files"
    # Without that bit for everyone, other users could not use a directory such as /tmp.
    only_root = "use a directory that only root can write"
    cure = only_root if found.is_sticky else f"first `chmod go-w {found.path}`"
    return f"is not trusted: others can write {found.path}; as root, {cure}"


class Changeable(NamedTuple):
    """A path that another user can change. ``owner`` is that user; 0 if the mode allows others to write."""

    path: Path
    owner: int
    is_sticky: bool


def changeable(path: Path) -> Changeable | None:
    """The first file or directory on the way to ``path``, links included, that a user other than root and
    this process's user can change. For root, a group's write permission counts everywhere. For other users it
    counts only at ``path``, because a directory's group may be the user's own."""
    for place in way(path):
        try:
            status, itself = place.stat(), place.lstat()
        except OSError:
            continue  # its reader reports the error
        owners = {itself.st_uid, status.st_uid} - {0, os.geteuid()}
        is_way_there = place not in (path.absolute(), path.resolve())
        # In a sticky directory such as /tmp others can add files, but not move or replace ours.
        is_sticky = stat.S_ISDIR(status.st_mode) and bool(status.st_mode & stat.S_ISVTX)
        others = stat.S_IWOTH if is_way_there and os.geteuid() else stat.S_IWGRP | stat.S_IWOTH
        if owners or (status.st_mode & others and not (is_sticky and is_way_there)):
            return Changeable(place, min(owners, default=0), is_sticky)
    return None


def way(path: Path) -> list[Path]:
    """Every file and directory that determines ``path``, including those behind symbolic links."""
    seen: list[Path] = []
    ahead = [path.absolute()]
    while ahead:
        named = ahead.pop()
        for one in (named, *named.parents):
            if one not in seen:
                seen.append(one)
                if one.is_symlink():
                    ahead.append(one.parent / one.readlink())
    return seen
