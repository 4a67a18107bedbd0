"""What this node is called: by Slurm, whose names need not be those of the hosts, else by its kernel."""

from __future__ import annotations

import os


def full() -> str:
    """As others reach it: with its domain, where the host's name has one."""
    return _by_slurm() or os.uname().nodename


def short() -> str:
    """As sets of nodes have it."""
    return _by_slurm() or os.uname().nodename.partition(".")[0]


def _by_slurm() -> str:
    return os.environ.get("SLURMD_NODENAME", "")
