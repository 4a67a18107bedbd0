"""Which files and directories another user can change: root lets none of those decide anything."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple


def untrusted(path: Path) -> str:
    """Why root must not let this path decide anything: others can write it, or replace it. Empty if fine."""
    if os.geteuid() != 0 or not (found := changeable(path)):
        return ""
    if found.owner:
        return f"is not trusted: {found.path} belongs to user {found.owner}; as root, use files of root's"
    # Without that bit for all, a directory such as /tmp would be of no use to anybody else.
    only_root = "use a directory that only root can write"
    cure = only_root if found.is_sticky else f"first `chmod go-w {found.path}`"
    return f"is not trusted: others can write {found.path}; as root, {cure}"


class Changeable(NamedTuple):
    """A path that another user can change: ``owner`` is that user, 0 where the mode lets others write it."""

    path: Path
    owner: int
    is_sticky: bool


def changeable(path: Path) -> Changeable | None:
    """The first file or directory on the way to ``path``, links included, that a third user can change.

    Root trusts no group. Any other user's group may be his own, so it may write what is on the way.
    """
    for one in _way(path):
        try:
            status, itself = one.stat(), one.lstat()
        except OSError:
            continue  # whoever reads it says so
        owners = {itself.st_uid, status.st_uid} - {0, os.geteuid()}
        is_way_there = one not in (path.absolute(), path.resolve())
        # In a sticky directory such as /tmp others can add files, but neither move nor replace ours.
        is_sticky = stat.S_ISDIR(status.st_mode) and bool(status.st_mode & stat.S_ISVTX)
        others = stat.S_IWOTH if is_way_there and os.geteuid() else stat.S_IWGRP | stat.S_IWOTH
        if owners or (status.st_mode & others and not (is_sticky and is_way_there)):
            return Changeable(one, min(owners, default=0), is_sticky)
    return None


def _way(path: Path) -> list[Path]:
    """Every file and directory that decides what ``path`` is, those behind symbolic links included."""
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
