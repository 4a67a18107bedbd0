"""Which files root may let decide anything."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def untrusted(path: Path) -> str:
    """Why root must not let this path decide anything: others can write it, or replace it. Empty if fine."""
    if os.geteuid() != 0:
        return ""
    way = _way(path)
    for one in way:
        try:
            status, itself = one.stat(), one.lstat()
        except OSError:
            continue  # whoever reads it says so
        # In a sticky directory such as /tmp others can add files, but neither move nor replace root's.
        is_sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        is_way_there = one not in (path.absolute(), path.resolve())
        if foreign := itself.st_uid or status.st_uid:
            return f"is not trusted: {one} belongs to user {foreign}; as root, use files of root's"
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not (is_sticky and is_way_there):
            # Without that bit for all, a directory such as /tmp would be of no use to anybody else.
            cure = "use a directory that only root can write" if is_sticky else f"first `chmod go-w {one}`"
            return f"is not trusted: others can write {one}; as root, {cure}"
    return ""


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
