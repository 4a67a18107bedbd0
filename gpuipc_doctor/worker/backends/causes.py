"""Causes of a failed initialisation that a node's files and this process's limits and libraries show."""

from __future__ import annotations

import re

from gpuipc_doctor.files.node_files import Tree, gpus_on_bus, kernel_driver
from gpuipc_doctor.supervise import process_limits
from gpuipc_doctor.worker.backends.absence import CONTAINER_MARKS, Cause, Look


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
        if re.search(r"\[(integrity|confidentiality)\]", node.line("/sys/kernel/security/lockdown")):
            return Cause(
                f"the kernel module {module} is not loaded; the kernel refuses unsigned modules (lockdown)",
                f"modprobe {module}; if its key is rejected, enrol the key that signed it "
                "(mokutil --import), or switch Secure Boot off",
            )
        return Cause(
            f"the kernel module {module} is not loaded", f"modprobe {module}; if it fails, see dmesg"
        )

    return look


_NO_OTHERS = ("", "vfio-pci")


def other_driver(pci_vendor: str, own: tuple[str, ...]) -> Look:
    """Look whether all GPUs of a vendor are bound to another kernel driver, such as nouveau."""

    def look(node: Tree) -> Cause | None:
        bound = {kernel_driver(gpu) for gpu in gpus_on_bus(node.root, pci_vendor)}
        if not bound or bound & {*own, *_NO_OTHERS}:
            return None
        names = " and ".join(sorted(bound))
        return Cause(
            f"the kernel driver {names} is bound to this node's GPUs",
            f"blacklist {names} in /etc/modprobe.d, rebuild the initramfs, reboot",
        )

    return look


def no_device_files(node: Tree) -> Cause | None:
    """Look whether NVIDIA's module is loaded and its device files are missing, as in a container."""
    if node.exists("/dev/null") and node.exists("/proc/driver/nvidia/version"):
        for name, pattern in (("/dev/nvidiactl", "/dev/nvidiactl"), ("/dev/nvidia0", "/dev/nvidia[0-9]*")):
            if not any(node.glob(pattern)):
                return Cause(
                    f"{name} does not exist",
                    "nvidia-modprobe -c 0 -u; in a container, pass the GPUs to it (--gpus, --device)",
                )
    return None


def no_overcommit(node: Tree) -> Cause | None:
    """Look whether the kernel grants no more address space than there is memory; drivers reserve far more."""
    if node.line("/proc/sys/vm/overcommit_memory").strip() == "2":
        return Cause(
            "the kernel does not overcommit memory (vm.overcommit_memory is 2)",
            "sysctl vm.overcommit_memory=0",
        )
    return None


def no_unified_memory_device(node: Tree) -> Cause | None:
    """Look whether ``/dev/nvidia-uvm`` is missing beside ``/dev/nvidiactl``."""
    if node.exists("/dev/nvidiactl") and not node.exists("/dev/nvidia-uvm"):
        return Cause(
            "/dev/nvidia-uvm does not exist",
            "modprobe nvidia-uvm && nvidia-modprobe -u -c 0; in a container, pass /dev/nvidia-uvm to it",
        )
    return None


def no_kernel_fusion_driver(node: Tree) -> Cause | None:
    """Look whether a device file of AMD's is missing although amdgpu is loaded, as in a container."""
    if node.exists("/sys/module/amdgpu") and node.exists("/dev/null"):
        for name, pattern in (("/dev/kfd", "/dev/kfd"), ("/dev/dri/renderD128", "/dev/dri/renderD*")):
            if not any(node.glob(pattern)):
                remedy = "in a container, pass --device=/dev/kfd --device=/dev/dri"
                return Cause(f"{name} does not exist", remedy)
    return None


def limited_process(_node: Tree) -> Cause | None:
    """Look for a limit of this process's memory or files; a driver reserves much address space."""
    from gpuipc_doctor.report import sentences

    for name, limit in process_limits.of_drivers().items():
        says = sentences.fill(process_limits.words(name), {"limit": limit})
        return Cause(says, process_limits.remedy(name))
    return None


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
