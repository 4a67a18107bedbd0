"""This node's name: Slurm's, which may differ from the host name, else the kernel's."""

from __future__ import annotations

import os


def full() -> str:
    """The name for other hosts: with its domain, if the host name includes one."""
    return _by_slurm() or os.uname().nodename


def short() -> str:
    """The name as in node sets."""
    return _by_slurm() or os.uname().nodename.partition(".")[0]


def _by_slurm() -> str:
    return os.environ.get("SLURMD_NODENAME", "")
