"""The network adapters that the kernel lists by fabric, whoever made them.

The files: Linux, Documentation/ABI/stable/sysfs-class-infiniband; of HPE's adapters see `cxi`.
"""

from __future__ import annotations

from pathlib import Path

LISTED = {"cxi": "/sys/class/cxi", "verbs": "/sys/class/infiniband"}
"""By fabric, where."""


def adapters(root: Path) -> dict[str, tuple[str, ...]]:
    """By fabric, of the node whose files stand below ``root``: ``{"cxi": (), "verbs": ("mlx5_0",)}``."""
    return {
        fabric: tuple(sorted(path.name for path in (root / where.lstrip("/")).glob("*")))
        for fabric, where in LISTED.items()
    }


def ports(root: Path) -> dict[str, str]:
    """The state of each port of verbs: ``{"mlx5_0/1": "ACTIVE"}``. What cannot be read is left out."""
    found = {}
    for file in sorted((root / "sys/class/infiniband").glob("*/ports/*/state")):
        try:
            text = file.read_text(errors="replace")
        except OSError:
            continue
        found[f"{file.parents[2].name}/{file.parent.name}"] = text.rpartition(":")[2].strip()
    return found
