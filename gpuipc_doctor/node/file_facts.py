"""Facts from plain files of the kernel and of packages, which cannot hang like a driver call."""

from __future__ import annotations

import os
import re
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from gpuipc_doctor.files.node_files import Tree, shown
from gpuipc_doctor.model import Fact
from gpuipc_doctor.node import gpus


def facts(tree: Tree, environ: Mapping[str, str]) -> Iterator[Fact]:
    yield from _kernel_build(tree)
    yield _iommu(tree)
    yield _dev_shm(tree)
    yield _container(tree, environ)
    yield _namespaces(tree)
    yield from _amd_boards(tree)
    yield gpus.intel_gpus(tree, environ.get("ZE_AFFINITY_MASK", ""))
    yield _render_nodes(tree)
    yield _imex_daemon(tree)
    yield _cxi_devices(tree)
    yield from _python_packages(tree)


def of_modules(tree: Tree) -> Iterator[Fact]:
    """Facts about kernel modules. Read them late, because a driver may load modules and create devices at
    first use. Source: NVIDIA driver README, "nvidia-modprobe"."""
    for name, file, find in _STATED:
        yield _stated(tree, name, file, find)
    yield _imex_channels(tree)


# -- one file, one value --------------------------------------------------------------------------------


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _distribution(text: str) -> str:
    """The distribution's name, from ``PRETTY_NAME="Rocky Linux 9.4 (Blue Onyx)"``: os-release(5)."""
    found = re.search(r"^PRETTY_NAME=(['\"]?)(.+)\1$", text, re.MULTILINE)
    return found[2] if found else ""


def _processor(text: str) -> str:
    """The processor's name, from ``model name : AMD EPYC 7763``, or on arm64 from ``CPU part : 0xd4f``."""
    found = re.search(r"^(?:model name|cpu)\s*: (.+)$", text, re.MULTILINE)
    part = re.search(r"^CPU implementer\s*: (\S+)$(?:\n.*)*?\nCPU part\s*: (\S+)$", text, re.MULTILINE)
    named = found[1] if found else ""
    if part and not found:
        named = _CORES.get((part[1], part[2]), f"CPU part {part[2]} of implementer {part[1]}")
    return f"{named}, {os.uname().machine}" if named else os.uname().machine


_CORES = {
    ("0x41", "0xd0c"): "Arm Neoverse N1",
    ("0x41", "0xd40"): "Arm Neoverse V1",
    ("0x41", "0xd49"): "Arm Neoverse N2",
    ("0x41", "0xd4f"): "Arm Neoverse V2",  # NVIDIA Grace
}
"""(implementer, part) of a processor's cores → name (Linux, arch/arm64/include/asm/cputype.h)."""


def _page_size(text: str) -> str:
    found = re.search(r"^KernelPageSize:\s*(\d+) kB$", text, re.MULTILINE)
    return _size(int(found[1]) << 10) if found else ""


_MEMORY_MODES = {"": "the driver's default", "driver": "CDMM", "numa": "NUMA"}


def _gpu_memory_mode(text: str) -> str:
    """The parameter NVreg_CoherentGPUMemoryMode of NVIDIA's module, which has it since 580."""
    found = re.search(r'^CoherentGPUMemoryMode: "(.*)"$', text, re.MULTILINE)
    return _MEMORY_MODES.get(found[1], found[1]) if found else ""


def _nvrm_version(text: str) -> str:
    """The version in ``NVRM version: NVIDIA UNIX Open Kernel Module for x86_64 580.159.04 Release …``."""
    found = re.search(r"^NVRM version:.*?\s([0-9]+(?:\.[0-9]+){1,2})\s", text, re.MULTILINE)
    return found[1] if found else ""


def _nvrm_licence(text: str) -> str:
    found = re.search(r"^NVRM version:.*?(Open )?Kernel Module", text, re.MULTILINE)
    return ("open" if found[1] else "proprietary") if found else ""


_BOOT_WORDS = re.compile(
    r"(?:(?:intel_|amd_|arm-smmu\S*)?iommu|iommu\.|pci|pcie_|swiotlb|cma|hugetlb|(?:default_)?hugepages|"
    r"transparent_hugepage|numa_balancing|init_on_|movable|isolcpus|nohz_full|cgroup|systemd\.unified_cgroup|"
    r"nvidia|nouveau|amdgpu|modprobe\.blacklist|module_blacklist|lsm|security)"
)
"""Prefixes of kernel parameters for devices, DMA, memory and process isolation."""


def _boot_parameters(text: str) -> str:
    found = " ".join(word for word in text.split() if _BOOT_WORDS.match(word))
    return found or ("none of interest" if text.strip() else "")


def _memlock(text: str) -> str:
    """The soft and hard limit in ``Max locked memory 8388608 unlimited bytes``."""
    found = re.search(r"^Max locked memory\s+(\S+)\s+(\S+)", text, re.MULTILINE)
    if not found:
        return ""
    soft, hard = (_size(int(limit)) if limit.isdigit() else limit for limit in found.groups())
    return soft if soft == hard else f"{soft}, at most {hard}"


def _size(nbytes: int) -> str:
    """Bytes as ``64 MiB``."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if nbytes >> shift >= 10 or (nbytes and nbytes % (1 << shift) == 0):
            return f"{nbytes >> shift} {unit}"
    return f"{nbytes} B"


_SECCOMP = {"0": "off", "1": "strict", "2": "filter"}
"""Number in the kernel → name of seccomp's mode (Linux, include/uapi/linux/seccomp.h)."""


def _seccomp(text: str) -> str:
    """The mode of seccomp and, since Linux 5.9, its number of filters: ``filter (1)``."""
    said = dict(re.findall(r"^(Seccomp|Seccomp_filters):\s*(\d+)$", text, re.MULTILINE))
    mode = _SECCOMP.get(said.get("Seccomp", ""), "")
    return f"{mode} ({said['Seccomp_filters']})" if mode == "filter" and "Seccomp_filters" in said else mode


_STATED: tuple[tuple[str, str, Callable[[str], str]], ...] = (
    ("os", "/etc/os-release", _distribution),
    ("cpu", "/proc/cpuinfo", _processor),
    ("page-size", "/proc/self/smaps", _page_size),
    ("kernel", "/proc/sys/kernel/osrelease", _first_line),
    ("boot-parameters", "/proc/cmdline", _boot_parameters),
    ("numa-balancing", "/proc/sys/kernel/numa_balancing", _first_line),
    ("ptrace-scope", "/proc/sys/kernel/yama/ptrace_scope", _first_line),
    ("perf-event-paranoid", "/proc/sys/kernel/perf_event_paranoid", _first_line),
    ("seccomp", "/proc/self/status", _seccomp),
    ("memlock", "/proc/self/limits", _memlock),
    ("nvidia-driver", "/proc/driver/nvidia/version", _nvrm_version),
    ("nvidia-driver", "/sys/module/nvidia/version", _first_line),
    ("nvidia-module", "/proc/driver/nvidia/version", _nvrm_licence),
    ("gpu-memory-mode", "/proc/driver/nvidia/params", _gpu_memory_mode),
    ("nvidia-peermem", "/sys/module/nvidia_peermem/version", _first_line),
    ("nvidia-peermem", "/sys/module/nv_peer_mem/version", _first_line),
    ("gdrcopy", "/sys/module/gdrdrv/version", _first_line),
    ("amdgpu", "/sys/module/amdgpu/version", _first_line),
    ("i915", "/sys/module/i915/version", _first_line),
    ("xe", "/sys/module/xe/version", _first_line),
    ("rocm", "/opt/rocm/.info/version", _first_line),
    ("xpmem", "/sys/module/xpmem/version", _first_line),
    ("kdreg2", "/sys/module/kdreg2/version", _first_line),
    ("cxi-driver", "/sys/module/cxi_ss1/version", _first_line),
    ("cxi-driver", "/sys/module/cxi_core/version", _first_line),
)
"""(fact, file that states its value, function that extracts the value)."""


def _stated(tree: Tree, name: str, file: str, find: Callable[[str], str]) -> Fact:
    try:
        value = shown(find(tree.text(file)))
    except FileNotFoundError:
        module = file.rpartition("/")[0]
        if file.startswith("/sys/module/") and name not in _PART_OF_KERNEL and tree.exists(module):
            return Fact(name, "loaded", module)
        return Fact(name, None, f"no {file}")
    except OSError as error:
        return Fact(name, None, f"{file}: {error.strerror}")
    return Fact(name, value, file) if value else Fact(name, None, f"not stated in {file}")


_PART_OF_KERNEL = ("amdgpu", "nvidia-driver")
"""Modules that are not reported as "loaded" when their version is unknown."""


# -- the kernel -----------------------------------------------------------------------------------------


_LONGEST_CONFIG = 4 << 20
"""Maximum bytes of a kernel's options."""


def _kernel_build(tree: Tree) -> Iterator[Fact]:
    """Kernel options that RCCL also checks before it uses dma-buf (its rocmwrap.cc)."""
    release = tree.line("/proc/sys/kernel/osrelease")
    if not re.fullmatch(r"[\w.+~-]+", release):
        release = "*"
    files = ("/proc/config.gz", f"/boot/config-{release}", f"/lib/modules/{release}/config")
    for file in files:
        try:
            raw = tree.raw(file)
            if file.endswith(".gz"):
                raw = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(raw, _LONGEST_CONFIG)
            text = raw.decode(errors="replace")
        except (OSError, zlib.error):
            continue
        if "CONFIG_" not in text:
            continue
        built = re.findall(r"^CONFIG_(PCI_P2PDMA|DMABUF_MOVE_NOTIFY)=y", text, re.MULTILINE)
        yield Fact("kernel-dma-buf", ", ".join(sorted(built)) or "neither", file)
        return
    yield Fact("kernel-dma-buf", None, f"no {', '.join(files)}")


def _iommu(tree: Tree) -> Fact:
    where = "/sys/class/iommu"
    try:
        units = sorted(os.listdir(tree.path(where)))  # noqa: PTH208 - only the names
    except FileNotFoundError:
        return Fact("iommu", None, f"no {where}")
    except OSError as error:
        return Fact("iommu", None, f"{where}: {error.strerror}")
    if not units:
        return Fact("iommu", "off", f"nothing in {where}")
    types = {tree.line(file) for file in tree.glob("/sys/kernel/iommu_groups/*/type")}
    if types == {"identity"}:
        mode = "passthrough"
    else:
        mode = "translating" if any(kind.startswith("DMA") for kind in types) else "on"
    return Fact("iommu", mode, f"{where} ({', '.join(units)}), /sys/kernel/iommu_groups/*/type")


def _dev_shm(tree: Tree) -> Fact:
    name = "/dev/shm"  # noqa: S108 - looked at, not written to
    try:
        status = os.statvfs(tree.path(name))
    except OSError:
        return Fact("dev-shm", None, f"no {name}")
    return Fact("dev-shm", _size(status.f_frsize * status.f_blocks), name)


# -- containers -----------------------------------------------------------------------------------------

_CONTAINER_FILES = {
    "/.dockerenv": "docker",
    "/run/.containerenv": "podman",
    "/.singularity.d": "apptainer",
    "/var/run/secrets/kubernetes.io": "kubernetes",
}
_CONTAINER_VARIABLES = {
    "APPTAINER_CONTAINER": "apptainer",
    "SINGULARITY_CONTAINER": "apptainer",
    "ENROOT_ROOTFS": "enroot",
    "SHIFTER_IMAGEREQUEST": "shifter",
    "KUBERNETES_SERVICE_HOST": "kubernetes",
}


def _container(tree: Tree, environ: Mapping[str, str]) -> Fact:
    signs = {file: kind for file, kind in _CONTAINER_FILES.items() if tree.exists(file)}
    if tree.is_real:
        signs |= {name: kind for name, kind in _CONTAINER_VARIABLES.items() if name in environ}
    if signs:
        return Fact("container", ", ".join(dict.fromkeys(signs.values())), ", ".join(signs))
    return Fact("container", "none", f"no {', '.join(_CONTAINER_FILES)}, and no variable of a container")


_FIRST_NAMESPACES = {"ipc": 0xEFFFFFFF, "uts": 0xEFFFFFFE, "user": 0xEFFFFFFD, "pid": 0xEFFFFFFC}
"""Inode numbers of the kernel's initial namespaces (Linux, include/linux/proc_ns.h)."""


def _namespaces(tree: Tree) -> Fact:
    where = "/proc/self/ns"
    own = []
    for kind, first in _FIRST_NAMESPACES.items():
        try:
            link = str(tree.path(f"{where}/{kind}").readlink())
        except OSError:
            return Fact("namespaces", None, f"no {where}/{kind}")
        if not re.fullmatch(rf"{kind}:\[[0-9]+\]", link):
            return Fact("namespaces", None, f"not stated in {where}/{kind}")
        if link != f"{kind}:[{first}]":
            own.append(kind)
    return Fact("namespaces", f"own {', '.join(own)}" if own else "the node's own", where)


# -- devices --------------------------------------------------------------------------------------------


def _amd_boards(tree: Tree) -> Iterator[Fact]:
    """Models, serial and part numbers (Linux, drivers/gpu/drm/amd/amdgpu/amdgpu_fru_eeprom.c)."""
    where = "/sys/bus/pci/devices/*"
    boards = [file.rpartition("/")[0] for file in tree.glob(f"{where}/product_name")]
    names = (tree.line(f"{board}/product_name") for board in boards)
    yield models("gpu-model", names, f"{where}/product_name")
    for name, entry in (("gpu-serials", "serial_number"), ("gpu-part-numbers", "product_number")):
        found = ((board.rpartition("/")[2], shown(tree.line(f"{board}/{entry}"))) for board in boards)
        yield from gpus.of_each(name, found, f"{where}/{entry}")


def models(name: str, found: Iterable[str], where: str) -> Fact:
    """Number and model of GPUs: ``4 × NVIDIA H200``."""
    counted = Counter(shown(model) for model in found)
    names = [f"{count} × {model}" if count > 1 else model for model, count in counted.items() if model]
    return Fact(name, ", ".join(names), where) if names else Fact(name, None, f"no {where}")


def _render_nodes(tree: Tree) -> Fact:
    """Whether this user may open the files through which AMD's and Intel's GPUs are used."""
    where = "/dev/dri/renderD*"
    files = list(tree.glob(where))
    closed = [file for file in files if not os.access(tree.path(file), os.R_OK | os.W_OK)]
    if not files:
        return Fact("render-nodes", None, f"no {where}")
    says = (
        f"{len(closed)} of {len(files)} closed to this user" if closed else f"{len(files)}, open to this user"
    )
    return Fact("render-nodes", says, f"{where}{' (often group render)' if closed else ''}")


def _imex_channels(tree: Tree) -> Fact:
    where = "/dev/nvidia-caps-imex-channels"
    found = (file.rpartition("/channel")[2] for file in tree.glob(f"{where}/channel*"))
    names = ", ".join(f"channel{number}" for number in sorted(map(int, filter(str.isdecimal, found))))
    return (
        Fact("imex-channels", names, where) if names else Fact("imex-channels", None, f"no {where}/channel*")
    )


def _imex_daemon(tree: Tree) -> Fact:
    """Whether IMEX's daemon runs. Its own status (``nvidia-imex-ctl -N``) is not used: it can hang, and it
    can be wrong (NVIDIA/k8s-dra-driver-gpu issue 1417, NVIDIA/DCGM issue 308)."""
    driver, name = "/proc/driver/nvidia", "nvidia-imex"
    if not tree.exists(driver):
        return Fact("imex-daemon", None, f"no {driver}")
    for file in tree.glob("/proc/[0-9]*/comm"):
        if tree.line(file) == name:
            return Fact("imex-daemon", "runs", file)
    return Fact(
        "imex-daemon", None, f"no process {name} in /proc; in a container, the node's processes are hidden"
    )


def _cxi_devices(tree: Tree) -> Fact:
    where = "/sys/class/cxi"
    names = [device.rpartition("/")[2] for device in tree.glob(f"{where}/cxi*")]
    return Fact("cxi-devices", ", ".join(names), where) if names else Fact("cxi-devices", None, f"no {where}")


# -- Python packages ------------------------------------------------------------------------------------

_DISTRIBUTIONS = {"pytorch": "torch", "cupy": "cupy*", "vllm": "vllm", "oneccl": "oneccl"}


def _python_packages(tree: Tree) -> Iterator[Fact]:
    """Versions of packages that this Python would import, from pip's metadata."""
    for name, distribution in _DISTRIBUTIONS.items():
        pattern = f"{distribution}-*.dist-info"
        found = False
        for directory in dict.fromkeys(path for path in sys.path if path.startswith("/")):
            for file in tree.glob(f"{directory}/{pattern}"):
                found = True
                yield Fact(name, shown(file.removesuffix(".dist-info").rpartition("-")[2]), file)
        if not found:
            yield Fact(name, None, f"no {pattern} in Python's path")
