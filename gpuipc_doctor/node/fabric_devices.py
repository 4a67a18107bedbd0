"""The kernel's network adapters by fabric, and why libfabric would ignore an HPE adapter.

The facts are from these sources; no such adapter was tried.

- verbs: Linux, Documentation/ABI/stable/sysfs-class-infiniband. The same directory has Amazon's EFA adapters
  (``efa_0``, drivers/infiniband/hw/efa) and the Omni-Path adapters of Intel and Cornelis (``hfi1_0``,
  drivers/infiniband/hw/hfi1). udev may rename them.
- HPE: shs-cxi-driver (drivers/net/ethernet/hpe/ss1/cass_sysfs.c, cass_sbl.c) and shs-libcxi (src/devinfo.c,
  utils/cxi_stat.c)
- libfabric's conditions: prov/cxi/src/cxip_if.c (cxip_query_if_list, netdev_ama_check, netdev_link)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuipc_doctor.files.node_files import matching, quietly

CXI, VERBS = "/sys/class/cxi", "/sys/class/infiniband"
"""The kernel's directories of HPE's adapters, and of all others."""

_AMAZON, _CORNELIS, _INTEL = "0x1d0f", "0x434e", "0x8086"

_OMNI_PATH = ("0x24f0", "0x24f1")
"""PCI ids of Intel's Omni-Path adapters; Intel's other adapters are verbs adapters."""


def adapters(root: Path) -> dict[str, tuple[str, ...]]:
    """The node's adapters, from files below ``root``: ``{"cxi": (), "verbs": ("mlx5_0",), …}``."""
    found: dict[str, list[str]] = {"cxi": [], "verbs": [], "efa": [], "opa": []}
    found["cxi"] += (path.name for path in matching(root, f"{CXI}/*"))
    for path in matching(root, f"{VERBS}/*"):
        found[_fabric(path)].append(path.name)
    return {fabric: tuple(names) for fabric, names in found.items()}


def active(root: Path) -> dict[str, tuple[str, ...]]:
    """The node's adapters that have an active port or show no ports, from files below ``root``."""
    up = {adapter.name: adapter.link in ("up", "") for adapter in cxi_adapters(root)}
    for port, state in ports(root).items():
        adapter = port.partition("/")[0]
        up[adapter] = up.get(adapter, False) or state == "ACTIVE"
    return {
        fabric: tuple(name for name in names if up.get(name, True))
        for fabric, names in adapters(root).items()
    }


def _fabric(adapter: Path) -> str:
    """The fabric of an adapter in the kernel's list for verbs."""
    vendor, device = (quietly(adapter / "device" / name) for name in ("vendor", "device"))
    if vendor == _AMAZON or adapter.name.startswith("efa"):
        return "efa"
    is_intels = vendor == _INTEL and device in _OMNI_PATH
    return "opa" if is_intels or vendor == _CORNELIS or adapter.name.startswith("hfi1") else "verbs"


def ports(root: Path) -> dict[str, str]:
    """State of each verbs port: ``{"mlx5_0/1": "ACTIVE"}``. Unreadable ports are omitted."""
    found = {}
    for file in matching(root, f"{VERBS}/*/ports/*/state"):
        if text := quietly(file):
            found[f"{file.parents[2].name}/{file.parent.name}"] = text.rpartition(":")[2].strip()
    return found


# -- HPE's ----------------------------------------------------------------------------------------------

_NO_EVENT_QUEUE = "0"
"""``C_EQ_NONE`` (cassini_user_defs.h): no event queue, so no retry handler is running."""

_TEMPORARY = "3"
"""``NET_ADDR_SET`` (linux/netdevice.h): the address was set by software, such as the fabric manager."""


@dataclass(frozen=True, slots=True)
class CxiAdapter:
    """An adapter of ``/sys/class/cxi``. Unreadable fields are empty."""

    name: str
    link: str
    """``up``, ``down`` or another state of the driver."""
    speed: str
    retries: str
    """Link-layer retry: ``on`` or ``off``."""
    loopback: str
    interface: str
    """Name of its network interface, such as ``hsn0``."""
    left_out: str
    """Why libfabric ignores this adapter; empty if no reason was found."""


def cxi_adapters(root: Path) -> list[CxiAdapter]:
    """The node's HPE adapters, from files below ``root``, in order."""
    found = matching(root, f"{CXI}/cxi*")
    return [_adapter(root, path) for path in sorted(found, key=lambda path: (len(path.name), path.name))]


def _adapter(root: Path, path: Path) -> CxiAdapter:
    device, port = path / "device", path / "device/port"
    second = (device / "port/0").is_dir()  # of the 400 Gbit/s generation
    interface = next((file.name for file in matching(device, "net/*")), "")
    return CxiAdapter(
        path.name,
        link=_line(port / ("0/link/state" if second else "link")),
        speed=_line(port / ("0/link/speed" if second else "speed")),
        retries=_line(port / ("0/llr/state" if second else "link_layer_retry")),
        loopback=_line(port / ("0/link/config/loopback" if second else "loopback")),
        interface=interface,
        left_out=next(_against(root, path, interface), ""),
    )


def _against(root: Path, path: Path, interface: str) -> Iterator[str]:
    if _line(path / "device/properties/pct_eq") == _NO_EVENT_QUEUE:
        yield f"its retry handler is not running (systemctl status cxi_rh@{path.name})"
    if not interface:
        yield "the adapter has no network interface"
        return
    net = root / "sys/class/net" / interface
    address, kind = _line(net / "address"), _line(net / "addr_assign_type")
    first = re.match(r"([0-9a-f]{2}):", address)
    if first and kind.isdecimal() and (kind != _TEMPORARY or int(first[1], 16) & 3 != 2):
        yield f"{interface} has no address of the fabric manager (AMA): {address}"


def _line(file: Path) -> str:
    return quietly(file).partition("\n")[0].strip()
