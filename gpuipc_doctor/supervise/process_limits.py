"""Limits of this tool's own processes (setrlimit(2)), and what shows that a probe reached one.

They are those of whoever started the tool: a shell, or slurmd, whose unit sets those of a prolog. A job has
others, so a limit that was reached says nothing about the node. Locked memory is not among them, because
slurm.conf can give jobs slurmd's limit (`run.causes`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # the prolog's guard and the first lines of the command use this, too
    from gpuipc_doctor.probe_types import ProbeOutcome, RoleOutcome

MOST_FILES = 65536
"""The most open files to which a soft limit is raised. Programs that close every possible descriptor, as some
launchers do, would take minutes for the 10^9 that containers allow."""

LIMITED = "limited"
"""Key of the finding about a limit that was reached."""

FEW = 256
"""Open files, and processes beside those of the same user, with which ranks of each MPI start."""


_OUT_OF_REACH = {"address space": 16 << 40, "data": 64 << 30}
"""Bytes that no worker reaches: a driver reserves addresses for the memory of the node and of its GPUs, some
TiB; a worker itself writes some GiB."""


class _Kind(NamedTuple):
    which: int
    says: str
    shell: str
    """How a shell names it."""
    unit: str
    """How systemd names it: systemd.exec(5)."""
    words: str = ""
    """Expression for what a process prints that reaches the limit."""
    signal: str = ""
    of_driver: str = ""
    """Expression for the errors of a driver that reaches the limit."""


_MEMORY = (
    r"MemoryError|Cannot allocate memory|bad_alloc|[Oo]ut of memory|ENOMEM|failed to map segment|"
    r"can.t start new thread|pthread_create"
)
_OF_MEMORY = "OUT_OF_MEMORY|OutOfMemory|OPERATING_SYSTEM"
NO_PROCESS = (
    r"can.t start new thread|pthread_create|"
    r"(fork|clone|spawn|exec|thread|process)\w*\b.*[Rr]esource temporarily unavailable"
)
"""Expression for what a program prints that may start no further process; a socket's EAGAIN reads alike."""

_KINDS = {
    "address space": _Kind(
        resource.RLIMIT_AS, "address space limited to {limit:mib}", "-v", "AS", _MEMORY, of_driver=_OF_MEMORY
    ),
    "data": _Kind(
        resource.RLIMIT_DATA,
        "private memory limited to {limit:mib}",
        "-d",
        "DATA",
        _MEMORY,
        of_driver=_OF_MEMORY,
    ),
    "file size": _Kind(
        resource.RLIMIT_FSIZE,
        "files limited to {limit} bytes",
        "-f",
        "FSIZE",
        r"File too large|EFBIG|SIGXFSZ",
        "SIGXFSZ",
        "OPERATING_SYSTEM",
    ),
    "processor time": _Kind(
        resource.RLIMIT_CPU, "processor time limited to {limit} s", "-t", "CPU", "CPU time limit", "SIGXCPU"
    ),
    "open files": _Kind(
        resource.RLIMIT_NOFILE,
        "open files limited to {limit}",
        "-n",
        "NOFILE",
        "[Tt]oo many open files|EMFILE|Errno 24",
    ),
    "processes": _Kind(
        resource.RLIMIT_NPROC, "this user's processes limited to {limit}", "-u", "NPROC", NO_PROCESS
    ),
}


_before: dict[str, int | None] = {}


def started_with() -> dict[str, int | None]:
    """The soft limits with which this process was started, by name; None where there is none."""
    kinds = {name: kind.which for name, kind in _KINDS.items()} | {"locked memory": resource.RLIMIT_MEMLOCK}
    soft = {name: resource.getrlimit(which)[0] for name, which in kinds.items()}
    return _before or {
        name: None if value == resource.RLIM_INFINITY else value for name, value in soft.items()
    }


def raise_soft() -> None:
    """Raise the soft limits of this process, and so of its workers, to the hard ones.

    Not that of processor time: only its soft limit ends a process by a signal of its own (SIGXCPU).
    """
    _before.update(started_with())
    for kind in _KINDS.values():
        soft, hard = resource.getrlimit(kind.which)
        if kind.which == resource.RLIMIT_NOFILE:
            wanted = max(soft, MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES))
        else:
            wanted = soft if kind.which == resource.RLIMIT_CPU else hard
        if wanted != soft:
            with contextlib.suppress(OSError, ValueError):  # below what the process already has
                resource.setrlimit(kind.which, (wanted, hard))


def present() -> dict[str, int]:
    """The hard limits of this process that one of its children can reach, by name."""
    found = {}
    for name, kind in _KINDS.items():
        soft, hard = resource.getrlimit(kind.which)
        limit = soft if kind.which == resource.RLIMIT_CPU else hard
        if limit == resource.RLIM_INFINITY or limit >= _OUT_OF_REACH.get(name, limit + 1):
            continue
        if kind.which == resource.RLIMIT_NOFILE and limit >= FEW:
            continue
        if kind.which == resource.RLIMIT_NPROC and (os.geteuid() == 0 or limit >= _processes() + FEW):
            continue
        found[name] = limit
    return found


_SCARCE = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_UNREAD = re.compile(f"cannot be read: ({'|'.join(map(os.strerror, _SCARCE))})")
"""In the text of a `BadFile`, which collects the mistakes of several files."""


def is_scarcity(error: BaseException) -> bool:
    """Whether an error, or one behind it, says that processes, memory or descriptors are exhausted."""
    behind = error.__cause__ or error.__context__
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno in _SCARCE)
        or (
            isinstance(error, RuntimeError | ImportError | SystemError)
            and bool(re.search(_MEMORY, str(error)))
        )
        or bool(_UNREAD.search(str(error)))
        or (behind is not None and is_scarcity(behind))
    )


def of_error(error: BaseException) -> str:
    """One line about a scarcity."""
    while not (isinstance(error, MemoryError | OSError) or re.search(_MEMORY, str(error))):
        if unread := _UNREAD.search(str(error)):
            error = OSError(0, unread[1])
            break
        error = error.__cause__ or error.__context__ or MemoryError()
    why = error.strerror if isinstance(error, OSError) else str(error) or "no memory"
    return f"out of system resources: {why}{in_words()}; see `ulimit -a`"


def in_words() -> str:
    """The limits that are set, as a shell names them: `` (ulimit -v is 146484; …)``; empty without any."""
    kib = {resource.RLIMIT_AS: 1024, resource.RLIMIT_DATA: 1024, resource.RLIMIT_FSIZE: 1024}
    kinds = [(_KINDS[name], limit) for name, limit in present().items()]
    said = [f"ulimit {kind.shell} is {limit // kib.get(kind.which, 1)}" for kind, limit in kinds]
    return f" ({', '.join(said)}; set by the shell, or slurmd's unit)" if said else ""


def _processes() -> int:
    """Processes and threads of this user."""
    found = 0
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == os.geteuid():
                found += len(os.listdir(entry / "task"))  # noqa: PTH208 - only their number
    return found


def of_drivers() -> dict[str, int]:
    """Those of `present` that a driver meets, and reports by an error."""
    return {name: limit for name, limit in present().items() if _KINDS[name].of_driver}


def words(name: str) -> str:
    """A sentence part with ``{limit}``: what is limited, and where it is set."""
    kind = _KINDS[name]
    return f"{kind.says} (ulimit {kind.shell}, or Limit{kind.unit} of slurmd's unit)"


def remedy(name: str) -> str:
    """What to do. Slurm limits the address space of a job itself if slurm.conf has VSizeFactor."""
    kind = _KINDS[name]
    return (
        f"before this command `ulimit {kind.shell} unlimited`; if slurmd started it, "
        f"Limit{kind.unit}=infinity in slurmd's unit (`systemctl edit slurmd`), then restart slurmd"
    )


def reached(outcome: ProbeOutcome) -> str:
    """The name of the limit that the failed probe is shown to have reached, by a signal, a driver's error or
    words; empty without any."""
    return next((name for name in outcome.limits if _shows(outcome, _KINDS[name])), "")


def _shows(outcome: ProbeOutcome, kind: _Kind) -> bool:
    roles = outcome.roles.values()
    printed = outcome.launcher.log_tail if outcome.launcher else ()
    said = [line for role in roles for line in (*role.log_tail, role.exception)]
    return any(_shows_role(role, kind) for role in roles) or any(
        re.search(kind.words, line) for line in (*said, *printed)
    )


def _shows_role(role: RoleOutcome, kind: _Kind) -> bool:
    if kind.signal and role.signal == kind.signal:
        return True
    return bool(kind.of_driver and role.fault and re.search(kind.of_driver, role.fault.name))
