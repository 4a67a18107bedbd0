"""The software that a simulated node claims: its files and links, as an inventory finds a real node's.

No library here can be loaded. The claims are read below the node's root alone, and say no more than a name,
a place or a package's description.
"""

from __future__ import annotations

from collections.abc import Mapping

_MODULES = {
    "amdgpu": "amdgpu",
    "cxi-driver": "cxi_ss1",
    "gdrcopy": "gdrdrv",
    "kdreg2": "kdreg2",
    "nvidia-peermem": "nvidia_peermem",
    "xpmem": "xpmem",
}
"""Component → the kernel module whose version it is."""

_PACKAGED = {
    "libfabric": ("libfabric.so.1", "libfabric"),
    "mpich": ("libmpi.so.12", "mpich"),
    "openmpi": ("libmpi.so.40", "ompi"),
    "ucx": ("libucp.so.0", "ucx"),
}
"""Component → its library and the pkg-config file beside it, which tells the version."""

_LINKED = {
    "cray-mpich": (
        "libmpi_gnu_123.so.12",
        "../../opt/cray/pe/mpich/{}/ofi/gnu/12.3/lib/libmpi_gnu_123.so.12",
    ),
    "cuda-runtime": ("libcudart.so.{major}", "libcudart.so.{}"),
    "libcuda": ("libcuda.so.1", "libcuda.so.{}"),
    "nccl": ("libnccl.so.2", "libnccl.so.{}"),
    "shs-libfabric": ("libfabric.so.1", "../../opt/cray/libfabric/{}/lib64/libfabric.so.1"),
}
"""Component → its library, and where the link of that name leads, which tells the version."""

_LIB = "/usr/lib64"

NAMES = frozenset({*_MODULES, *_PACKAGED, *_LINKED})
"""The components whose versions can be claimed here."""


def files(versions: Mapping[str, str]) -> dict[str, str]:
    """Text by absolute path."""
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
    """Target by absolute path of the link; each target is to be an empty file."""
    return {
        f"{_LIB}/{soname.format(major=version.partition('.')[0])}": target.format(version)
        for name, (soname, target) in _LINKED.items()
        if (version := versions.get(name))
    }
