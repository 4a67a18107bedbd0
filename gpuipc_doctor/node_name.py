"""This node's name: the one that Slurm uses, or else the host name. The two may differ."""

from __future__ import annotations

import os
from pathlib import Path


def full() -> str:
    """The name by which other hosts reach this node; with its domain, if the host name includes one."""
    return _by_slurm() or os.uname().nodename


def short() -> str:
    """The name without a domain, as in node sets."""
    return _by_slurm() or os.uname().nodename.partition(".")[0]


def below(root: str) -> str:
    """The host name that the node's files below ``root`` state; else this node's `full` name."""
    try:
        text = (Path(root) / "proc/sys/kernel/hostname").read_text(errors="replace")
    except OSError:
        text = ""
    return text.strip() or full()


def _by_slurm() -> str:
    return os.environ.get("SLURMD_NODENAME", "")
