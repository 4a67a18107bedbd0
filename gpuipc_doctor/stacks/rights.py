"""Why the kernel does not let a process be read, and what to do about that."""

from __future__ import annotations

import os
import pwd
import re
from contextlib import suppress
from pathlib import Path

from gpuipc_doctor.files.node_files import number, quietly
from gpuipc_doctor.stacks.process_list import PROC

YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")


def reason(pid: int) -> str:
    """The first of ptrace(2)'s conditions ("Ptrace access mode checking") that this process does not meet."""
    try:
        owner = (PROC / str(pid)).stat().st_uid
        real = _real_uid(pid)
        same_users = namespace(pid, "user") in ("", namespace(os.getpid(), "user"))
    except OSError:
        return "the process has ended"
    if real not in (os.geteuid(), None) and os.geteuid() != 0:
        return f"the process belongs to {_name(real)}; run this as root or as {_name(real)}"
    if real is not None and owner != real and os.geteuid() != 0:
        return "it is not dumpable (set-uid, capabilities or PR_SET_DUMPABLE); run this as root"
    if not same_users:
        return "the process is in a container's user namespace; run this as root of the node"
    if yama() > 1 or (yama() == 1 and os.geteuid() != 0):
        return f"kernel.yama.ptrace_scope is {yama()}; run this as root or set it to 0"
    return "permission denied; run this as root, with CAP_SYS_PTRACE"


_FIRST_PIDS = "pid:[4026531836]"
"""The node's own pid namespace: PROC_PID_INIT_INO in Linux, include/linux/proc_ns.h."""

MOUNTS = Path("/proc/self/mountinfo")


def hiding(unread: int = 0) -> str:
    """What hides processes of this node from this one, and what to do; empty if nothing does.

    ``unread``: how many of the listed processes cannot be read.
    """
    if namespace(os.getpid(), "pid") not in ("", _FIRST_PIDS):
        return (
            "this is a pid namespace of its own (a container), which hides the node's; run this on the node"
        )
    if os.geteuid() == 0:
        return ""
    if option := re.search(r" - proc \S+ \S*\b(hidepid=(?!0|off)\w+)", quietly(MOUNTS)):
        return f"/proc is mounted with {option[1]}, which hides other users' processes; run this as root"
    return f"{unread} processes of other users cannot be read; run this as root" if unread else ""


def _real_uid(pid: int) -> int | None:
    found = re.search(r"^Uid:\s+([0-9]+)", quietly(PROC / str(pid) / "status"), re.MULTILINE)
    return int(found[1]) if found else None


def namespace(pid: int, kind: str) -> str:
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/{kind}")  # noqa: PTH115 - it is no path
    return ""


def yama() -> int:
    """Value of ``kernel.yama.ptrace_scope``; 0 for a kernel without Yama."""
    return number(YAMA) or 0


def _name(uid: int | None) -> str:
    with suppress(KeyError, TypeError):
        return pwd.getpwuid(uid).pw_name  # type: ignore[arg-type]
    return f"uid {uid}"
