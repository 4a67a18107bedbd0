"""The network adapters that the kernel lists by fabric, whoever made them.

The files: Linux, Documentation/ABI/stable/sysfs-class-infiniband; of HPE's adapters see `cxi`. Those of EFA
and Omni-Path are listed beside those of verbs: drivers/infiniband/hw/efa registers ``efa_0`` for devices of
Amazon, drivers/infiniband/hw/hfi1 ``hfi1_0`` for Intel's 24f0 and 24f1 and for Cornelis'. udev may rename.
"""

from __future__ import annotations

from pathlib import Path

CXI, VERBS = "/sys/class/cxi", "/sys/class/infiniband"
"""Where the kernel lists HPE's adapters, and those of all other fabrics."""

_AMAZON, _CORNELIS, _INTEL = "0x1d0f", "0x434e", "0x8086"

_OMNI_PATH = ("0x24f0", "0x24f1")
"""Intel's adapters of Omni-Path; its others are of verbs."""


def adapters(root: Path) -> dict[str, tuple[str, ...]]:
    """By fabric, of the node whose files stand below ``root``: ``{"cxi": (), "verbs": ("mlx5_0",), …}``."""
    found: dict[str, list[str]] = {"cxi": [], "verbs": [], "efa": [], "opa": []}
    found["cxi"] += sorted(path.name for path in (root / CXI.lstrip("/")).glob("*"))
    for path in sorted((root / VERBS.lstrip("/")).glob("*")):
        found[_fabric(path)].append(path.name)
    return {fabric: tuple(names) for fabric, names in found.items()}


def _fabric(adapter: Path) -> str:
    """The fabric of an adapter that is listed with those of verbs."""
    vendor, device = (_read(adapter / "device" / name) for name in ("vendor", "device"))
    if vendor == _AMAZON or adapter.name.startswith("efa"):
        return "efa"
    is_intels = vendor == _INTEL and device in _OMNI_PATH
    return "opa" if is_intels or vendor == _CORNELIS or adapter.name.startswith("hfi1") else "verbs"


def ports(root: Path) -> dict[str, str]:
    """The state of each port of verbs: ``{"mlx5_0/1": "ACTIVE"}``. What cannot be read is left out."""
    found = {}
    for file in sorted((root / "sys/class/infiniband").glob("*/ports/*/state")):
        if text := _read(file):
            found[f"{file.parents[2].name}/{file.parent.name}"] = text.rpartition(":")[2].strip()
    return found


def _read(file: Path) -> str:
    """Empty where it cannot be read."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""
