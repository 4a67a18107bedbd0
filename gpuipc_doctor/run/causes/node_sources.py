"""What makes MPI, NCCL and drivers fail without being at fault, read in a process of its own.

Run as a script, which needs the standard library only: a hung mount or name server hangs this process and
not the tool. Arguments: the sources to read. Writes a line of JSON when it begins a source, and one with what
the source says.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

PARAMETER_FILES = (
    "~/.openmpi/mca-params.conf",
    "/etc/openmpi/openmpi-mca-params.conf",
    "~/.nccl.conf",  # https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    "/etc/nccl.conf",
    "~/ucx.conf",  # openucx/ucx src/ucs/config/parser.c
    "/etc/ucx/ucx.conf",
)
PRELOAD_FILE = "/etc/ld.so.preload"

GROUP_FILE, GROUPS = "/proc/self/cgroup", "/sys/fs/cgroup"
MEMORY_LIMITS = ("memory.max", "memory.limit_in_bytes")  # of cgroup v2 and v1: cgroups(7)
_COUNTS = {"oom_kill": "killed", "max": "full"}
"""Lines of memory.events."""

UNLIMITED_BYTES = 1 << 60
"""Larger limits of memory are none; v1 states 2^63 without the last page."""

SLURM_FILES = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf", "/etc/slurm-llnl/slurm.conf")
_MAX_BYTES = 64 << 10


def shared_memory() -> object:
    return space("/dev/shm")  # noqa: S108 - looked at, not written to


def temporary_files() -> object:
    return space(os.environ.get("TMPDIR") or tempfile.gettempdir())


def space(name: str) -> dict[str, object]:
    """A directory's free bytes and inodes for this user, whether it is a mount point, and who may write."""
    status = os.statvfs(name)
    return {
        "name": name,
        "free": status.f_bavail * status.f_frsize,
        "inodes": status.f_favail if status.f_files else None,  # some file systems count none
        "is_mount": os.path.ismount(name),
        "is_read_only": bool(status.f_flag & os.ST_RDONLY),
        "is_writable": os.access(name, os.W_OK | os.X_OK),
    }


def job_step() -> object:
    """What holds for this job or container: its control groups' least ``memory`` in bytes and ``processes``
    that it may still start, each with the group; how many of its processes the kernel has ``killed`` for want
    of memory, how often it was ``full``, and slurm.conf's ``propagated`` limits."""
    found: dict[str, object] = {}
    for group in _control_groups():
        for name in MEMORY_LIMITS:
            _keep_least(found, "memory", _number(group / name), group)
        if (most := _number(group / "pids.max")) is not None:
            _keep_least(found, "processes", most - (_number(group / "pids.current") or 0), group)
        for line in (*lines_of(group / "memory.events"), *lines_of(group / "memory.oom_control")):
            name, _, times = line.partition(" ")
            if name in _COUNTS and times.isdigit():
                found.setdefault(_COUNTS[name], int(times))
        if (failures := _number(group / "memory.failcnt")) is not None:
            found.setdefault("full", failures)
    for file in SLURM_FILES:
        for line in lines_of(Path(file)):
            key, stated, value = line.partition("#")[0].partition("=")
            if stated and key.strip().lower().startswith("propagateresourcelimits"):
                found["propagated"] = f"{key.strip()}={value.strip()} ({file})"
    return found


def _control_groups() -> list[Path]:
    """The directories of this process's control groups and of the groups above, the nearest first."""
    found = []
    for line in lines_of(Path(GROUP_FILE)):
        _, _, names_and_path = line.partition(":")
        names, _, path = names_and_path.partition(":")
        controllers = names.split(",")
        chosen = [name for name in controllers if name in ("memory", "pids")]
        for top in [Path(GROUPS)] if not names else [Path(GROUPS) / name for name in chosen]:
            own = top / path.lstrip("/")
            found += [each for each in (own, *own.parents) if each == top or top in each.parents]
    return found


def _keep_least(found: dict[str, object], name: str, value: int | None, group: Path) -> None:
    least = found.get(name)
    if value is not None and value < UNLIMITED_BYTES and (least is None or value < least[0]):  # type: ignore[index]
        found[name] = [value, str(group)]


def _number(path: Path) -> int | None:
    """The number that a file states; None for ``max`` and for a file that cannot be read."""
    first = "".join(lines_of(path)[:1]).strip()
    return int(first) if first.isdigit() else None


def host_name() -> object:
    """This host's name, why it has no address (empty if it has one), and its address if another host's."""
    name = socket.gethostname()
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)
    except OSError as error:
        return {"name": name, "error": str(error.strerror)}
    elsewhere = [where for family, kind, _, _, where in found if not _is_own(family, kind, where)]
    return {"name": name, "error": "", "elsewhere": elsewhere[0][0] if len(elsewhere) == len(found) else ""}


def _is_own(family: int, kind: int, where: tuple[object, ...]) -> bool:
    """Whether an address is one of this host's, which alone a socket can have."""
    with socket.socket(family, kind) as trial:
        try:
            trial.bind(where)
        except OSError as error:
            return error.errno != errno.EADDRNOTAVAIL
    return True


def interfaces() -> object:
    """Names of network interfaces and of RDMA devices, and whether the loopback interface is up."""
    rdma = Path("/sys/class/infiniband")
    return {
        "loopback": _is_up("lo"),
        "network": sorted(name for _, name in socket.if_nameindex()),
        "rdma": sorted(os.listdir(rdma)) if rdma.is_dir() else [],  # noqa: PTH208 - only the names
    }


def _is_up(interface: str) -> bool:
    """Whether a network interface is up: SIOCGIFFLAGS and IFF_UP of netdevice(7)."""
    get_flags, up = 0x8913, 1
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            answer = fcntl.ioctl(any_socket, get_flags, struct.pack("16s16x", interface.encode()))
    except OSError:  # no such interface, or no IPv4 here
        return False
    return bool(struct.unpack("16xh14x", answer)[0] & up)


def parameters() -> object:
    """[file:line, name, value] of each setting in files of parameters of Open MPI, NCCL and UCX."""
    found = []
    named = [os.environ[name] for name in ("NCCL_CONF_FILE",) if os.environ.get(name)]
    for name in (*named, *PARAMETER_FILES):
        path = Path(name).expanduser()
        for number, line in enumerate(lines_of(path), 1):
            key, stated, value = line.partition("#")[0].partition("=")
            if stated and key.strip():
                found.append([f"{path}:{number}", key.strip(), value.strip()])
    return found


def preloads() -> object:
    """[where, path] of each library that is preloaded into every process."""
    separated = os.environ.get("LD_PRELOAD", "").replace(":", " ")
    found = [["LD_PRELOAD", path] for path in separated.split()]
    for number, line in enumerate(lines_of(Path(PRELOAD_FILE)), 1):
        found += [[f"{PRELOAD_FILE}:{number}", path] for path in line.partition("#")[0].split()]
    return found


def lines_of(path: Path) -> list[str]:
    """The lines of a file, of which only the beginning is read; none if it cannot be read."""
    try:
        if not path.is_file():
            return []
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode(errors="replace").splitlines()
    except OSError:  # another user's
        return []


SOURCES: dict[str, Callable[[], object]] = {
    "shared memory": shared_memory,
    "temporary files": temporary_files,
    "job step": job_step,
    "interfaces": interfaces,
    "parameters": parameters,
    "preloads": preloads,
    "host name": host_name,
}


def tell(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main(names: list[str]) -> None:
    for name in names:
        tell({"begins": name})
        try:
            said = SOURCES[name]()
        except (OSError, RuntimeError) as error:
            said = {"unreadable": str(error)}
        tell({name: said})


if __name__ == "__main__":
    main(sys.argv[1:])
