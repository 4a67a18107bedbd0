"""The software of a simulated node: files and links as an inventory finds them on a real node.

The files serve only to be found, by name, place and package description. Those in `LIBRARIES` can be loaded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

_MODULES = {
    "amdgpu": "amdgpu",
    "cxi-driver": "cxi_ss1",
    "gdrcopy": "gdrdrv",
    "kdreg2": "kdreg2",
    "nvidia-peermem": "nvidia_peermem",
    "xpmem": "xpmem",
}
"""Component → kernel module that has the component's version."""

_PACKAGED = {
    "libfabric": ("libfabric.so.1", "libfabric"),
    "mpich": ("libmpi.so.12", "mpich"),
    "openmpi": ("libmpi.so.40", "ompi"),
    "ucx": ("libucp.so.0", "ucx"),
}
"""Component → (library, name of its pkg-config file, which has the version)."""

_LINKED = {
    "cray-mpich": (
        "libmpi_gnu_123.so.12",
        "../../opt/cray/pe/mpich/{}/ofi/gnu/12.3/lib/libmpi_gnu_123.so.12",
    ),
    "cuda-runtime": ("libcudart.so.{major}", "libcudart.so.{}"),
    "libcuda": ("libcuda.so.1", "libcuda.so.{}"),
    "level-zero": ("libze_loader.so.1", "libze_loader.so.{}"),
    "nccl": ("libnccl.so.2", "libnccl.so.{}"),
    "oneccl": ("libccl.so.1", "../../opt/intel/oneapi/ccl/{}/lib/libccl.so.1.0"),
    "shs-libfabric": ("libfabric.so.1", "../../opt/cray/libfabric/{}/lib64/libfabric.so.1"),
}
"""Component → (library, target of its link). The target's name has the version."""

_LIB = "/usr/lib64" if os.uname().machine == "x86_64" else "/usr/lib"

LIBRARIES = {"nccl": f"{_LIB}/libnccl.so.2", "rccl": "/opt/rocm/lib/librccl.so.1"}
"""Component → path of its library, which workers can load, unlike the others."""

NAMES = frozenset({*_MODULES, *_PACKAGED, *_LINKED, *LIBRARIES})
"""Components whose versions a profile can state."""


def files(versions: Mapping[str, str]) -> dict[str, str]:
    """Absolute path → text of each file of these versions."""
    made = {
        f"/sys/module/{module}/version": f"{versions[name]}\n"
        for name, module in _MODULES.items()
        if name in versions
    }
    for name, (soname, package) in _PACKAGED.items():
        if name in versions:
            made[f"{_LIB}/{soname}"] = ""
            made[f"{_LIB}/pkgconfig/{package}.pc"] = f"Name: {package}\nVersion: {versions[name]}\n"
    return made


def links(versions: Mapping[str, str]) -> dict[str, str]:
    """Absolute path of a link → its target. The caller must create each target as an empty file."""
    return {
        f"{_LIB}/{soname.format(major=version.partition('.')[0])}": target.format(version)
        for name, (soname, target) in _LINKED.items()
        if (version := versions.get(name))
    }
