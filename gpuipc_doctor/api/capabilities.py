"""What a GPU and its driver can do, and what to use instead of what they lack."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from itertools import chain

from gpuipc_doctor.model import Device
from gpuipc_doctor.vendors import SUPPORTED, SupportedVendor

CAPABILITIES = frozenset(
    {"legacy-ipc", "multi-process", "contexts", "memory-pools", "vmm-ipc", "pool-ipc", "fabric-handles"}
)
"""Device capabilities, as listed in a check's ``requires``.

``legacy-ipc``: `cuIpcGetMemHandle` or `hipIpcGetMemHandle` and related calls work; between two devices only
with peer access (`Device.peers`). ``multi-process``: several processes may use the device at a time (no
exclusive compute mode). ``contexts``: a process may create several contexts. ``memory-pools``: stream-ordered
allocation from own pools (`cuMemAllocFromPoolAsync`, `hipMallocFromPoolAsync`). ``vmm-ipc``: physical memory
(`cuMemCreate`, `hipMemCreate`) can be exported as a descriptor. ``pool-ipc``: pools can be exported as a
descriptor. ``fabric-handles``: the device claims support for fabric handles; an H200 does so even if it
refuses them without an IMEX channel.
"""


def lacking(call: str) -> list[str]:
    """The capability of `CAPABILITIES` that a GPU lacks if it does not support a driver's function."""
    rows = chain(*(vendor.calls.capabilities for vendor in SUPPORTED.values()))
    return [name for functions, name in rows if re.search(functions, call)][:1]


def words_of_lack(vendor: SupportedVendor, lacking: Collection[str], mode: str = "") -> str:
    """What a device cannot do, and how that was recognised. ``mode``: its compute mode, if known."""
    if absent := vendor.lacks.intersection(lacking):
        names = ", ".join(sorted(absent))
        if vendor.experimental:
            return f"has no {names} that this tool tests through {vendor.platform}"
        return f"lacks {names}: {vendor.platform} has no such calls"
    if "multi-process" in lacking:
        mode = mode or "exclusive or prohibited (CU_DEVICE_ATTRIBUTE_COMPUTE_MODE is not 0)"
        return f"admits no second process: its compute mode is {mode}"
    return f"lacks {', '.join(sorted(lacking))} (its driver says so)"


def instead_of(devices: Iterable[Device], lacking: Collection[str]) -> str:
    """What to use without these capabilities; ``devices`` may be empty."""
    of_devices = [device.vendor for device in devices] or SUPPORTED.values()
    vendors = [vendor for vendor in of_devices if not vendor.lacks.intersection(lacking)]
    if not vendors:
        return ""
    known = (text for vendor in vendors for name, text in vendor.instead.items() if name in lacking)
    return next(known, "use another GPU or driver")
