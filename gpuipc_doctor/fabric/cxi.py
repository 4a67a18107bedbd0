"""HPE's adapters as the kernel shows them, and why libfabric would leave one out.

The files and their meaning: HPE's driver (shs-cxi-driver, drivers/net/ethernet/hpe/ss1/cass_sysfs.c and
cass_sbl.c) and its users (shs-libcxi, src/devinfo.c and utils/cxi_stat.c). The conditions under which
libfabric leaves an adapter out: libfabric, prov/cxi/src/cxip_if.c (cxip_query_if_list, netdev_ama_check,
netdev_link). Read, and never tried: there was no such adapter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_NO_EVENT_QUEUE = "0"
"""``C_EQ_NONE`` (cassini_user_defs.h): the retry handler has no event queue, for none runs."""

_TEMPORARY = "3"
"""``NET_ADDR_SET`` (linux/netdevice.h): the address was set, as the fabric manager does."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """One of ``/sys/class/cxi``. What cannot be read is empty."""

    name: str
    link: str
    """``up``, ``down`` or what else the driver says."""
    speed: str
    retries: str
    """Of the link layer: ``on`` or ``off``."""
    loopback: str
    interface: str
    """Its network interface, ``hsn0``."""
    left_out: str
    """Why libfabric offers it to nobody, in words; empty where nothing speaks against it."""


def adapters(root: Path) -> list[Adapter]:
    """Those of the node whose files stand below ``root``, in order."""
    found = sorted((root / "sys/class/cxi").glob("cxi*"), key=lambda path: (len(path.name), path.name))
    return [_adapter(root, path) for path in found]


def _adapter(root: Path, path: Path) -> Adapter:
    device, port = path / "device", path / "device/port"
    second = (device / "port/0").is_dir()  # of the 400 Gbit/s generation
    interface = next((one.name for one in sorted((device / "net").glob("*"))), "")
    return Adapter(
        path.name,
        link=_read(port / ("0/link/state" if second else "link")),
        speed=_read(port / ("0/link/speed" if second else "speed")),
        retries=_read(port / ("0/llr/state" if second else "link_layer_retry")),
        loopback=_read(port / ("0/link/config/loopback" if second else "loopback")),
        interface=interface,
        left_out=next(_against(root, path, interface), ""),
    )


def _against(root: Path, path: Path, interface: str) -> Iterator[str]:
    if _read(path / "device/properties/pct_eq") == _NO_EVENT_QUEUE:
        yield f"its retry handler is not running (systemctl status cxi_rh@{path.name})"
    if not interface:
        yield "it has no network interface"
        return
    net = root / "sys/class/net" / interface
    first = _read(net / "address").partition(":")[0]
    if first and (_read(net / "addr_assign_type") != _TEMPORARY or int(first, 16) & 3 != 2):
        yield f"{interface} has no address of the fabric manager (AMA): {_read(net / 'address')}"


def _read(file: Path) -> str:
    """The first line; empty where there is none to be read."""
    try:
        return file.read_text(errors="replace").partition("\n")[0].strip()
    except OSError:
        return ""
