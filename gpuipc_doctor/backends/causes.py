"""Causes of a failed initialisation that a node's files and this process's limits and libraries show."""

from __future__ import annotations

import re
import resource

from gpuipc_doctor.backends.absence import Cause, Look
from gpuipc_doctor.node_files import Tree

CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv", "/.singularity.d", "/run/host/container-manager")

_MIB = 1 << 20


def module_not_loaded(module: str, loaded: str) -> Look:
    """Look whether a kernel module is not loaded, or not built for the running kernel. ``loaded``: path that
    exists while it is loaded."""

    def look(node: Tree) -> Cause | None:
        release = node.line("/proc/sys/kernel/osrelease")
        try:
            modules = node.text(f"/lib/modules/{release}/modules.dep")
        except OSError:  # a container, for example, has none
            return None
        if node.exists(loaded) or not release:
            return None
        if not re.search(rf"/{module}\.ko(\.\w+)?:", modules):
            return Cause(
                f"there is no {module} module for the running kernel {release}",
                f"build it (dkms autoinstall, or reinstall the driver), then modprobe {module}",
            )
        return Cause(
            f"the kernel module {module} is not loaded", f"modprobe {module}; if it fails, see dmesg"
        )

    return look


def no_unified_memory_device(node: Tree) -> Cause | None:
    """Look whether ``/dev/nvidia-uvm`` is missing beside ``/dev/nvidiactl``."""
    if node.exists("/dev/nvidiactl") and not node.exists("/dev/nvidia-uvm"):
        return Cause(
            "/dev/nvidia-uvm does not exist",
            "modprobe nvidia-uvm && nvidia-modprobe -u -c 0; in a container, pass /dev/nvidia-uvm to it",
        )
    return None


def no_kernel_fusion_driver(node: Tree) -> Cause | None:
    """Look whether ``/dev/kfd`` is missing although amdgpu is loaded, as in a container."""
    if node.exists("/sys/module/amdgpu") and node.exists("/dev/dri") and not node.exists("/dev/kfd"):
        return Cause("/dev/kfd does not exist", "in a container, pass --device=/dev/kfd --device=/dev/dri")
    return None


def limited_address_space(_node: Tree) -> Cause | None:
    """Look for a limit of this process's address space, of which a driver reserves far more than it uses."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    return Cause(
        f"this process's address space is limited to {limit // _MIB} MiB (ulimit -v)",
        "ulimit -v unlimited; under Slurm, see VSizeFactor in slurm.conf",
    )


def other_libcuda(node: Tree) -> Cause | None:
    """Look whether the loaded ``libcuda.so.1`` is of another version than the kernel module."""
    module = re.search(r"Kernel Module\b[^\n]*?\s(\d+(?:\.\d+)+)", _text(node, "/proc/driver/nvidia/version"))
    library = re.search(r"(/\S*/libcuda\.so\.(\d+(?:\.\d+)+))", _text(Tree.of_machine(), "/proc/self/maps"))
    in_container = any(map(node.exists, CONTAINER_MARKS))
    by_runtime = "and let the container runtime bring the node's (--gpus, --nv)"
    if module and library and module[1] != library[2]:
        path, version = library.groups()
        return Cause(
            f"libcuda.so.1 is {path} of version {version}, the kernel module is of version {module[1]}",
            f"remove {path} from the image, {by_runtime}"
            if in_container
            else "reload the kernel module or reboot to activate an updated driver; "
            f"or, if the driver was not updated, remove {path}",
        )
    if in_container:
        return Cause(
            "the container's libcuda.so.1 and the node's kernel module have different versions",
            f"remove libcuda.so.* from the image, {by_runtime}",
        )
    return None


def _text(node: Tree, name: str) -> str:
    try:
        return node.text(name)
    except OSError:
        return ""
