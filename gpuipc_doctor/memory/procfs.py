"""Processes as the kernel names them."""

from __future__ import annotations

from pathlib import Path


def name_of(pid: int) -> str:
    """Its command's name; empty when it has ended, or is in another pid namespace than this one."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""
