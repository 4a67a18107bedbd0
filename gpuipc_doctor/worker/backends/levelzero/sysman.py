"""Free memory of a device, from Sysman, which counts all processes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from gpuipc_doctor.worker.backends.levelzero import functions

_ON_DEVICE = 1
"""``ZES_MEM_LOC_DEVICE``."""
SUBDEVICE = 1 << 1
"""``ZE_DEVICE_PROPERTY_FLAG_SUBDEVICE``: a device is a tile."""

Call = Callable[..., Any]


def listed(call: Call, operation: str, *of: Any) -> list[int]:
    """Handles from a function that first gives their number."""
    count = ctypes.c_uint32()
    call(operation, *of, ctypes.byref(count), None)
    handles = (ctypes.c_void_p * (count.value or 1))()
    if count.value:
        call(operation, *of, ctypes.byref(count), handles)
    return [handle or 0 for handle in handles[: count.value]]


def address(pci: Any) -> str:
    domain, bus, slot, function = pci.address
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function}"


def modules(call: Call, device: Any, pci: str, tile: int | None, *, own: bool) -> list[int]:
    """Sysman's handles of a device's memory. ``own``: Sysman has devices of its own, after zesInit; else the
    core's are used. ``tile``: number of the sub-device, if the device is one."""
    candidates = [device]
    if own:
        drivers = listed(call, "sysman-drivers")
        candidates = [each for driver in drivers for each in listed(call, "sysman-devices", driver)]
    found = []
    for each in candidates:
        if own:
            properties = functions.SysmanPciProperties()
            call("sysman-pci", each, ctypes.byref(properties))
            if address(properties) != pci:
                continue
        for module in listed(call, "sysman-memories", each):
            state = functions.MemoryModule()
            call("sysman-memory", module, ctypes.byref(state))
            is_ours = tile is None or not state.on_subdevice or state.subdevice == tile
            if state.location == _ON_DEVICE and is_ours:
                found.append(module)
    return found


def free_and_total(call: Call, found: list[int]) -> tuple[int, int]:
    free = total = 0
    for module in found:
        state = functions.MemoryState()
        call("mem-info", module, ctypes.byref(state))
        free += state.free
        total += state.total
    return free, total
