"""The identity of a node as it is, to which a stored PASS belongs; read in milliseconds without a driver."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import gpuipc_doctor

DRIVER_FILES = (
    "/proc/sys/kernel/osrelease",
    "/proc/driver/nvidia/version",
    "/sys/module/nvidia/version",
    "/sys/module/nvidia_uvm/srcversion",
    "/sys/module/amdgpu/version",
    "/sys/module/amdgpu/srcversion",
    "/opt/rocm/.info/version",
)
"""Files that appear, change or vanish when a driver is loaded or replaced."""

LIBRARY_FILES = ("/etc/ld.so.cache", "/opt/rocm/lib")
"""Files that change when a library is installed in a standard place."""

GPU_ENTRIES = ("/proc/driver/nvidia/gpus", "/sys/bus/pci/drivers/nvidia")
"""Directories with one entry per GPU, named by bus address. The driver re-creates the entry when it takes the
GPU. So without a reboot, no GPU can be exchanged or renumbered unnoticed.

NVIDIA's file ``information`` is not read, because the driver then wakes and queries each GPU. Source:
NVIDIA's open-gpu-kernel-modules, nv_procfs_read_gpu_info and rm_get_vbios_version.
"""

GPU_FILES = (
    ("/proc/driver/nvidia/capabilities", "mig"),
    ("/sys/class/kfd/kfd/topology/nodes", "properties"),
)
"""Directories with one entry per GPU, and the files in them that change with the GPU."""

MAX_FILES = 10_000


def identity(config: Mapping[str, bytes]) -> dict[str, str]:
    """Name → stamp of everything that must be unchanged for a stored pass to count.

    ``config``: path → contents of the config's files, in order of precedence. Files named in the config are
    covered by `of_site`, because the config must be read first.
    """
    package = Path(gpuipc_doctor.__file__).parent
    return {
        "boot": boot(),
        "driver": _digest([*map(_text, DRIVER_FILES), *map(_stamp, LIBRARY_FILES)]),
        "GPUs": _digest(_gpus()),
        "config": of_config(config),
        # The directory around the package also contains the vendors' bindings.
        "gpuipc-doctor": _digest([gpuipc_doctor.__version__, _stamp(str(package.parent)), *_tree(package)]),
    }


def boot() -> str:
    """The kernel's id of this boot; empty if it has none."""
    return _text("/proc/sys/kernel/random/boot_id")


def of_config(config: Mapping[str, bytes]) -> str:
    return _digest(f"{path} {hashlib.sha256(content).hexdigest()}" for path, content in config.items())


def of_site(paths: Iterable[Path]) -> dict[str, str]:
    """Name → stamp as in `identity`, for the site's files and directories that affect results."""
    return {"check or known issue": _digest(line for path in paths for line in _tree(path))}


def now() -> float:
    """Seconds since boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()[:24]


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - a dozen of them in ms
            return file.read(4096).strip()
    except OSError:
        return ""


def _gpus() -> Iterator[str]:
    for top in GPU_ENTRIES:
        with contextlib.suppress(OSError), os.scandir(top) as entries:
            yield from sorted(f"{entry.path} {entry.inode()}" for entry in entries)
    for top, name in GPU_FILES:
        yield from _of_each(top, name)


def _of_each(top: str, name: str) -> Iterator[str]:
    """For each entry of ``top``: the contents of its file or directory ``name``."""
    try:
        entries = sorted(os.listdir(top))  # noqa: PTH208
    except OSError:
        return
    for entry in entries:
        path = f"{top}/{entry}/{name}"
        yield f"{path} {_text(path)}"
        with contextlib.suppress(OSError):
            yield from sorted(os.listdir(path))  # noqa: PTH208


def _stamp(path: str) -> str:
    """A stamp that differs after a file is replaced or changed."""
    try:
        status = os.stat(path)  # noqa: PTH116 - hundreds of them in milliseconds
    except OSError:
        return f"{path}: none"
    return f"{path}: {status.st_mtime_ns} {status.st_size} {status.st_ino}"


def _tree(top: Path) -> Iterator[str]:
    if not top.is_dir():
        yield _stamp(str(top))
        return
    found = 0
    for directory, names, files in os.walk(top):
        names[:] = sorted(name for name in names if name != "__pycache__")
        for name in sorted(files):
            found += 1
            if found > MAX_FILES:
                return
            yield _stamp(f"{directory}/{name}")
