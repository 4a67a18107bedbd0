"""The worker's part: who has device files of GPUs open, and which files in ``/dev/shm`` nobody has open.

Reads ``/proc`` and ``/dev/shm`` below ``root``; removes nothing.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from gpuipc_doctor.api import Worker
from gpuipc_doctor.files.node_files import matching
from gpuipc_doctor.node.memory_usage import DeviceUser, GpuUsers, Holder, LeftFile
from gpuipc_doctor.node.survey_room import holder_of, is_alive, user_of
from gpuipc_doctor.stacks import rights
from gpuipc_doctor.stacks.mappings import mappings

_DEVICES = re.compile(r"/dev/(nvidia\d+|nvidiactl|nvidia-uvm|nvidia-caps/nvidia-cap\d+|kfd|dri/renderD\d+)")
"""Device files that a process opens before it uses a GPU."""

SHARED_MEMORY = "dev/shm"

_LIBRARIES = ("cuda.shm.*", "nccl-*", "vllm*", "torch_*", "ucx*")
"""Names of files of CUDA, NCCL, vLLM, PyTorch and UCX."""

_OWNER = re.compile(r"cuda\.shm\.\d+\.(?P<hex>[0-9a-f]+)\.\d+|torch_(?P<decimal>\d+)_.*")
"""Names that tell their owner's pid. PyTorch: aten/src/ATen/MapAllocator.cpp."""


@dataclass(slots=True)
class _Seen:
    """What a pass over all processes saw. ``unread``: processes whose files this one may not read."""

    devices: dict[int, tuple[str, ...]] = field(default_factory=dict)
    shared: set[int] = field(default_factory=set)
    unread: int = 0


def look(w: Worker, root: Path, holders: Collection[int]) -> GpuUsers:
    """``holders``: pids with memory on a GPU, as the driver lists them."""
    candidates = list(_candidates(root))
    seen = _Seen()
    for directory in matching(root, "/proc/[0-9]*"):
        if directory.name != str(os.getpid()):
            _read(w, directory, seen, maps=bool(candidates))
    others = sorted(pid for pid in seen.devices if pid not in holders)
    hidden = rights.hiding(seen.unread) if root == Path("/") else ""

    def described(pid: int) -> Holder:
        process = holder_of(root, pid, None, True)
        return replace(process, is_alive=True) if hidden else process  # it need not have ended

    return GpuUsers(
        tuple(map(described, sorted(holders))),
        tuple(DeviceUser(described(pid), seen.devices[pid]) for pid in others),
        tuple(_left(root, candidates, seen.shared)),
        hidden,
    )


def _read(w: Worker, directory: Path, seen: _Seen, *, maps: bool) -> None:
    """Read one process, which may end meanwhile. Its mappings can hang while it allocates memory."""
    devices = set[str]()
    try:
        with w.armed(f"list {directory}/fd"):
            for link in (directory / "fd").iterdir():
                with suppress(FileNotFoundError):
                    name = str(link.readlink())
                    if _DEVICES.fullmatch(name):
                        devices.add(name)
                    elif name.startswith(f"/{SHARED_MEMORY}/"):
                        seen.shared.add(link.stat().st_ino)
        if maps:
            with w.armed(f"read {directory}/maps"):
                text = (directory / "maps").read_text(errors="replace")
            seen.shared |= {
                each.inode for each in mappings(text) if each.file.startswith(f"/{SHARED_MEMORY}/")
            }
    except PermissionError:
        seen.unread += 1
    except OSError:
        return
    if devices:
        seen.devices[int(directory.name)] = tuple(sorted(devices))


def _candidates(root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Files of the libraries that this user may judge: its own, as root all."""
    for path in matching(root, f"/{SHARED_MEMORY}/*"):
        if any(fnmatchcase(path.name, name) for name in _LIBRARIES):
            with suppress(FileNotFoundError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode) and os.geteuid() in (0, status.st_uid):
                    yield path, status


def _left(
    root: Path, candidates: Collection[tuple[Path, os.stat_result]], shared: Collection[int]
) -> Iterator[LeftFile]:
    for path, status in candidates:
        owner = _OWNER.fullmatch(path.name)
        pid = int(owner["decimal"] or owner["hex"], 10 if owner["decimal"] else 16) if owner else None
        lives = pid is not None and ((root / "proc" / str(pid)).is_dir() or is_alive(pid))
        if status.st_ino not in shared and not lives:
            name = f"/{path.relative_to(root)}"
            yield LeftFile(name, status.st_blocks * 512, user_of(root, status.st_uid, True), pid)
