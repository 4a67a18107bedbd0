"""The worker's part: who has device files of GPUs open, and which files in ``/dev/shm`` nobody has open.

Reads ``/proc`` and ``/dev/shm`` below ``root``; removes nothing.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from gpuipc_doctor.api import Worker
from gpuipc_doctor.files.node_files import matching
from gpuipc_doctor.node.memory_usage import DeviceUser, GpuUsers, Holder, LeftFile
from gpuipc_doctor.node.survey_room import holder_of, is_alive, user_of
from gpuipc_doctor.stacks import open_files, rights

_DEVICES = re.compile(r"/dev/(nvidia\d+|nvidiactl|nvidia-uvm|nvidia-caps/nvidia-cap\d+|kfd|dri/renderD\d+)")
"""Device files that a process opens before it uses a GPU."""

SHARED_MEMORY = "dev/shm"

_LIBRARIES = ("cuda.shm.*", "nccl-*", "vllm*", "torch_*", "ucx*")
"""Names of files of CUDA, NCCL, vLLM, PyTorch and UCX."""

_OWNER = re.compile(r"cuda\.shm\.\d+\.(?P<hex>[0-9a-f]+)\.\d+|torch_(?P<decimal>\d+)_.*")
"""Names that tell their owner's pid. PyTorch: aten/src/ATen/MapAllocator.cpp."""


def look(w: Worker, root: Path, holders: Collection[int]) -> GpuUsers:
    """``holders``: pids with memory on a GPU, as the driver lists them."""
    proc = root / "proc"
    files = matching(root, f"/{SHARED_MEMORY}/*")  # those that are made later are not judged
    seen = open_files.look(proc, f"/{SHARED_MEMORY}", _DEVICES, w.armed)
    others = sorted(seen.devices.keys() - {os.getpid(), *holders})
    hidden, left = "", list(_left(root, files, seen.inodes))
    if root == Path("/"):
        hidden = rights.hiding(seen.unread)
        if not open_files.shows_own(proc):
            hidden, left = "the kernel does not show which files processes have open", []
    if hidden:  # their owners may live
        left = [replace(each, pid=None) for each in left]

    def described(pid: int) -> Holder:
        process = holder_of(root, pid, None, True)
        return replace(process, is_alive=True) if hidden else process  # it need not have ended

    return GpuUsers(
        tuple(map(described, sorted(holders))),
        tuple(DeviceUser(described(pid), seen.devices[pid]) for pid in others),
        tuple(left),
        hidden,
    )


def _left(root: Path, files: Iterable[Path], used: Collection[int]) -> Iterator[LeftFile]:
    """Files of the libraries that nobody has open, of this user, for root of all. ``used``: inodes."""
    for path in files:
        if not any(fnmatchcase(path.name, name) for name in _LIBRARIES):
            continue
        owner = _OWNER.fullmatch(path.name)
        pid = int(owner["decimal"] or owner["hex"], 10 if owner["decimal"] else 16) if owner else None
        lives = pid is not None and ((root / "proc" / str(pid)).is_dir() or is_alive(pid))
        with suppress(FileNotFoundError):
            status = path.lstat()
            may_judge = stat.S_ISREG(status.st_mode) and os.geteuid() in (0, status.st_uid)
            if may_judge and not lives and status.st_ino not in used:
                name = f"/{path.relative_to(root)}"
                yield LeftFile(name, status.st_blocks * 512, user_of(root, status.st_uid, True), pid)
