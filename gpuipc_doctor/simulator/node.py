"""Set up a simulated node: the drivers' description, and the node's files.

The workers of a run receive only `Node.env`, with which they load the simulated driver as ``libcuda.so.1`` or
``libamdhip64.so``. The driver reads ``node.sim``: format 1, one record per line, ``kind key=value …`` with
percent-encoded values. Its reader is in ``src/``. Faults of an MPI library are in ``mpi.sim``, in the same
format, for ranks only (`Node.rank_env`). Faults of NCCL and RCCL are in ``nccl.sim``.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

from gpuipc_doctor.files.tables import table
from gpuipc_doctor.model import Node
from gpuipc_doctor.simulator import fabric_programs, software
from gpuipc_doctor.simulator.profile import FAULTS, Profile, SimulatedDevice, load
from gpuipc_doctor.vendors import SUPPORTED

NO_KERNELS = {"I_MPI_ADJUST_ALLREDUCE_OFFLOAD": "4"}
"""Variables with which MPI libraries reduce without kernels of their own, which the simulated drivers cannot
play. Otherwise Intel MPI 2021.17 loads a binary module in MPI_Allreduce from 32 KiB on, and crashes if that
fails; 4 copies through the host."""

_THE_NODES_OWN = {"I_MPI_OFFLOAD_MODE": "cuda"}
"""Without it, Intel MPI takes Level Zero if this machine has its loader."""

_PCI_CLASS = {"cuda": "0x030200", "hip": "0x038000", "ze": "0x038000"}
"""A 3D controller; display controllers without a port."""


def prepare(profile: str, state_dir: Path) -> Node:
    """Set up the node described by ``profile`` (a name or a YAML file).

    ``state_dir`` is a private directory that the caller creates and removes; it holds the simulated GPUs'
    memory. Raises `BadFile` if the profile cannot be used and `SimulatorUnavailable` if the drivers cannot be
    built.
    """
    from gpuipc_doctor.simulator.build import COLLECTIVES, LEVEL_ZERO_DRIVER, MPI_FAULTS, build

    described = load(profile)
    libraries = build()
    state, root, node_file = state_dir / "state", state_dir / "root", state_dir / "node.sim"
    state.mkdir(mode=0o700)
    node_file.write_text(driver_file(described))
    for name, text in claimed_files(described).items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if re.fullmatch(r"/proc/\d+/fd/\d+", name):
            path.symlink_to(text)  # what the process has open
            continue
        path.write_text(text)
        if text.startswith("#!"):
            path.chmod(0o755)
    for name, target in software.links(described.versions).items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # if two libraries have the same name, the loader uses one
        path.symlink_to(target)
        real = path.resolve()
        real.parent.mkdir(parents=True, exist_ok=True)
        real.touch()
    root.mkdir(exist_ok=True)
    # hip-python 10 searches the driver in ROCM_PATH, by default /opt/rocm, before the loader does.
    collectives = {}
    for name, library in COLLECTIVES.items():
        if version := described.versions.get(name):
            link = root / software.LIBRARIES[name].lstrip("/")
            link.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(libraries / library, link.resolve())  # a link would lead out of the node's files
            collectives[name] = version
    if collectives:
        collective_file = state_dir / "nccl.sim"
        collective_file.write_text(collectives_file(described, collectives))
    rocm = state_dir / "rocm"
    rocm.mkdir()
    (rocm / "lib").symlink_to(libraries)
    rank_env = {**NO_KERNELS}
    if described.mpi_faults:
        mpi_file = state_dir / "mpi.sim"
        mpi_file.write_text(mpi_faults_file(described))
        rank_env |= {"LD_PRELOAD": str(libraries / MPI_FAULTS), "GPUIPC_SIM_MPI": str(mpi_file)}
    lent = {}
    has_ze = any(device.backend == "ze" for device in described.devices)
    if described.fabric:
        programs = state_dir / "bin"
        fabric_programs.lend(described.fabric, programs, root, libraries)
        lent = {"PATH": str(programs)}
    return Node(
        env={
            **lent,
            **({} if (has_ze or "I_MPI_OFFLOAD_MODE" in os.environ) else _THE_NODES_OWN),
            "LD_LIBRARY_PATH": ":".join(filter(None, (str(libraries), os.environ.get("LD_LIBRARY_PATH")))),
            "ZE_ENABLE_ALT_DRIVERS": str(libraries / "levelzero" / (LEVEL_ZERO_DRIVER if has_ze else "none")),
            "GPUIPC_SIM_NODE": str(node_file),
            "GPUIPC_SIM_STATE": str(state),
            "ROCM_PATH": str(rocm),
            **({"GPUIPC_SIM_NCCL": str(collective_file)} if collectives else {}),
        },
        rank_env=rank_env,
        root=str(root),
        simulated=described.name,
    )


def driver_file(profile: Profile) -> str:
    """The text of ``node.sim``."""
    return "".join(f"{record}\n" for record in _records(profile))


def mpi_faults_file(profile: Profile) -> str:
    """The text of ``mpi.sim``, with fields in a fixed order."""
    order = ("call", "do", *table(FAULTS)["mpi-call"])
    return "".join(
        f"{_record('fault', {key: fault[key] for key in order})}\n" for fault in profile.mpi_faults
    )


def collectives_file(profile: Profile, versions: Mapping[str, str]) -> str:
    """The text of ``nccl.sim``, with fields in a fixed order."""
    order = ("call", "do", *table(FAULTS)["collective"])
    records = [_record("version", {name: version}) for name, version in versions.items()]
    records += [_record("fault", {key: fault[key] for key in order}) for fault in profile.collective_faults]
    return "".join(f"{record}\n" for record in records)


def _records(profile: Profile) -> Iterator[str]:
    yield _record("sim", {"format": 1, "profile": profile.name})
    yield _record("version", driver_versions(profile.versions))
    for device in profile.devices:
        stated = asdict(device)
        yield _record("device", stated | stated.pop("nvml"))
    for backend, a, b in profile.peers:
        checked = {"checked": 1} if backend == "cuda" and _checks_topology(profile) else {}
        yield _record("peer", {"backend": backend, "a": a, "b": b, **checked})
    for fault in profile.faults:
        yield _record("fault", fault)


def _checks_topology(profile: Profile) -> bool:
    """Whether the driver refuses peer access over PCIe: CUDA 13.5 does so behind an IOMMU that translates
    (CUDA Features Archive, 13.5). GPUs are on PCIe alone if the profile states that they have no NVLink."""
    version = tuple(_parts(profile.versions.get("cuda-driver", ""), 2))
    translates = any(
        name.startswith("/sys/kernel/iommu_groups/") and text.startswith("DMA")
        for name, text in profile.files.items()
    )
    has_links = any(device.nvml.get("links") != 0 for device in profile.devices if device.backend == "cuda")
    return version >= (13, 5) and translates and not has_links


def _record(kind: str, values: Mapping[str, str | int]) -> str:
    return " ".join([kind, *(f"{key}={quote(str(value), safe='/:')}" for key, value in values.items())])


def driver_versions(versions: Mapping[str, str]) -> dict[str, str | int]:
    """Versions reported by the drivers, as the numbers that their calls return.

    ``cuDriverGetVersion``: 1000 * major + 10 * minor. ``hipRuntimeGetVersion`` and ``hipDriverGetVersion``:
    10000000 * major + 100000 * minor + patch (HIP_VERSION in hip_version.h).
    """
    numbers: dict[str, str | int] = {}
    if "nvidia-driver" in versions:
        numbers["nvidia-driver"] = versions["nvidia-driver"]
    if "cuda-driver" in versions:
        major, minor = _parts(versions["cuda-driver"], 2)
        numbers["cuda-driver"] = 1000 * major + 10 * minor
    if "hip-runtime" in versions:
        major, minor, patch = _parts(versions["hip-runtime"], 3)
        numbers["hip-runtime"] = numbers["hip-driver"] = 10_000_000 * major + 100_000 * minor + patch
    if "intel-compute-runtime" in versions:
        major, minor, build = _parts(versions["intel-compute-runtime"], 3)
        numbers |= {"ze-driver": 100 * major + minor, "ze-build": build}
    return numbers


def _parts(version: str, count: int) -> list[int]:
    return [int(part or 0) for part in [*version.split("."), "0", "0"][:count]]


def claimed_files(profile: Profile) -> dict[str, str]:
    """Absolute path → text of the node's files: those derived from devices and versions, then the profile's
    own.
    """
    versions = profile.versions
    files = {"/proc/sys/kernel/hostname": "node01\n"} | software.files(versions)
    if "kernel" in versions:
        files["/proc/sys/kernel/osrelease"] = f"{versions['kernel']}\n"
    if "nvidia-driver" in versions:
        files["/proc/driver/nvidia/version"] = _nvidia_version(
            versions["nvidia-driver"], versions.get("nvidia-module", "proprietary")
        )
        files["/sys/module/nvidia/version"] = f"{versions['nvidia-driver']}\n"
    if "rocm" in versions:
        files["/opt/rocm/.info/version"] = f"{versions['rocm']}\n"
    for device in profile.devices:
        files[f"/sys/bus/pci/devices/{device.pci}/vendor"] = f"{SUPPORTED[device.backend].pci}\n"
        files[f"/sys/bus/pci/devices/{device.pci}/class"] = f"{_PCI_CLASS[device.backend]}\n"
        if device.backend == "hip":
            files[f"/sys/bus/pci/devices/{device.pci}/product_name"] = f"{device.name}\n"
            files[f"/sys/bus/pci/devices/{device.pci}/ras/umc_err_count"] = "ue: 0\nce: 0\n"
        if device.backend == "ze":
            files[f"/sys/bus/pci/devices/{device.pci}/device"] = "0x0bd5\n"
            files[f"/sys/bus/pci/devices/{device.pci}/uevent"] = "DRIVER=xe\n"
        if device.backend == "cuda":
            files[f"/proc/driver/nvidia/gpus/{device.pci}/information"] = _nvidia_information(device)
    if any(device.imex for device in profile.devices):
        files["/dev/nvidia-caps-imex-channels/channel0"] = ""
    for number, text in enumerate(_kfd_nodes(profile)):
        files[f"/sys/class/kfd/kfd/topology/nodes/{number}/properties"] = text
    return files | dict(profile.files)


def _nvidia_version(driver: str, module: str) -> str:
    """NVIDIA's version file in the kernel module's format; build date and compiler are invented."""
    machine = os.uname().machine
    kind = {"open": f"Open Kernel Module for {machine}", "proprietary": f"{machine} Kernel Module"}[module]
    return (
        f"NVRM version: NVIDIA UNIX {kind}  {driver}  Thu Jan  1 00:00:00 UTC 1970\n"
        "GCC version:  gcc version 12.3.0 (simulated)\n"
    )


def _nvidia_information(device: SimulatedDevice) -> str:
    return (
        f"Model: \t\t {device.name}\n"
        "IRQ:   \t\t 0\n"
        f"GPU UUID: \t {device.uuid}\n"
        "Video BIOS: \t ??.??.??.??.??\n"
        "Bus Type: \t PCIe\n"
        "DMA Size: \t 47 bits\n"
        "DMA Mask: \t 0x7fffffffffff\n"
        f"Bus Location: \t {device.pci}\n"
        f"Device Minor: \t {device.index}\n"
    )


def _kfd_nodes(profile: Profile) -> Iterator[str]:
    """Processors as in the list of AMD's kernel driver: a CPU, then the GPUs."""
    amd = [device for device in profile.devices if device.backend == "hip"]
    if amd:
        yield "cpu_cores_count 64\nsimd_count 0\ndrm_render_minor 0\n"
    for device in amd:
        domain, bus, slot, function = (int(part, 16) for part in re.split("[:.]", device.pci))
        yield (
            "cpu_cores_count 0\n"
            "simd_count 912\n"
            f"domain {domain}\n"
            f"location_id {bus << 8 | slot << 3 | function}\n"
            f"drm_render_minor {128 + device.index}\n"
            f"unique_id {int(device.uuid.removeprefix('GPU-').replace('-', '')[:16], 16)}\n"
        )
