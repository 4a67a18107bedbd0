"""The loader's functions in the form of the other bindings: each returns ``(result, value…)``.

Their parameters are in `_FUNCTIONS`, after the headers of oneapi-src/level-zero. Debian 12's loader (1.8)
lacks those that came with the specification's versions 1.5 and 1.6; `has` tells.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from gpuipc_doctor.api.gpu import HANDLE_BYTES

ze_result_t = IntEnum(
    "ze_result_t",
    {
        "ZE_RESULT_SUCCESS": 0,
        "ZE_RESULT_NOT_READY": 1,
        "ZE_RESULT_ERROR_DEVICE_LOST": 0x70000001,
        "ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY": 0x70000002,
        "ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY": 0x70000003,
        "ZE_RESULT_ERROR_MODULE_BUILD_FAILURE": 0x70000004,
        "ZE_RESULT_ERROR_MODULE_LINK_FAILURE": 0x70000005,
        "ZE_RESULT_ERROR_DEVICE_REQUIRES_RESET": 0x70000006,
        "ZE_RESULT_ERROR_DEVICE_IN_LOW_POWER_STATE": 0x70000007,
        "ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS": 0x70010000,
        "ZE_RESULT_ERROR_NOT_AVAILABLE": 0x70010001,
        "ZE_RESULT_ERROR_DEPENDENCY_UNAVAILABLE": 0x70020000,
        "ZE_RESULT_ERROR_UNINITIALIZED": 0x78000001,
        "ZE_RESULT_ERROR_UNSUPPORTED_VERSION": 0x78000002,
        "ZE_RESULT_ERROR_UNSUPPORTED_FEATURE": 0x78000003,
        "ZE_RESULT_ERROR_INVALID_ARGUMENT": 0x78000004,
        "ZE_RESULT_ERROR_INVALID_NULL_HANDLE": 0x78000005,
        "ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE": 0x78000006,
        "ZE_RESULT_ERROR_INVALID_NULL_POINTER": 0x78000007,
        "ZE_RESULT_ERROR_INVALID_SIZE": 0x78000008,
        "ZE_RESULT_ERROR_UNSUPPORTED_SIZE": 0x78000009,
        "ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT": 0x7800000A,
        "ZE_RESULT_ERROR_INVALID_SYNCHRONIZATION_OBJECT": 0x7800000B,
        "ZE_RESULT_ERROR_INVALID_ENUMERATION": 0x7800000C,
        "ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION": 0x7800000D,
        "ZE_RESULT_ERROR_OVERLAPPING_REGIONS": 0x7800001B,
        "ZE_RESULT_ERROR_UNKNOWN": 0x7FFFFFFE,
    },
)


class Handle(ctypes.Structure):
    """``ze_ipc_mem_handle_t``."""

    _fields_ = [("data", ctypes.c_ubyte * HANDLE_BYTES)]


def structure(name: str, number: int, /, **fields: Any) -> type[ctypes.Structure]:
    """A structure that begins with its type, ``number``, and a pointer to extensions, set in new ones."""

    def initialise(self: ctypes.Structure, **values: Any) -> None:
        ctypes.Structure.__init__(self, stype=number, **values)

    members = [("stype", ctypes.c_int), ("next", ctypes.c_void_p), *fields.items()]
    return type(name, (ctypes.Structure,), {"_fields_": members, "__init__": initialise})


_UINT, _LONG, _TEXT = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_char * 256

DriverProperties = structure("ze_driver_properties_t", 0x1, uuid=ctypes.c_ubyte * 16, version=_UINT)
IpcProperties = structure("ze_driver_ipc_properties_t", 0x2, flags=_UINT)
DeviceProperties = structure(
    "ze_device_properties_t",
    0x3,
    type=ctypes.c_int,
    vendor=_UINT,
    id=_UINT,
    flags=_UINT,
    subdevice=_UINT,
    clock=_UINT,
    most_bytes=_LONG,
    contexts=_UINT,
    priorities=_UINT,
    shape=_UINT * 5,
    timer=_LONG,
    bits=_UINT * 2,
    uuid=ctypes.c_ubyte * 16,
    name=_TEXT,
)
MemoryProperties = structure(
    "ze_device_memory_properties_t", 0x7, flags=_UINT, clock=_UINT, width=_UINT, bytes=_LONG, name=_TEXT
)
AllocationProperties = structure(
    "ze_memory_allocation_properties_t", 0x17, type=ctypes.c_int, id=_LONG, page=_LONG
)
PciProperties = structure(
    "ze_pci_ext_properties_t", 0x10008, address=_UINT * 4, speed=ctypes.c_int32 * 2, bandwidth=_LONG
)
ContextDesc = structure("ze_context_desc_t", 0xD, flags=_UINT)
DeviceMemoryDesc = structure("ze_device_mem_alloc_desc_t", 0x15, flags=_UINT, ordinal=_UINT)
HostMemoryDesc = structure("ze_host_mem_alloc_desc_t", 0x16, flags=_UINT)
QueueDesc = structure(
    "ze_command_queue_desc_t",
    0xE,
    ordinal=_UINT,
    index=_UINT,
    flags=_UINT,
    mode=ctypes.c_int,
    priority=ctypes.c_int,
)
EventPoolDesc = structure("ze_event_pool_desc_t", 0x10, flags=_UINT, count=_UINT)
EventDesc = structure("ze_event_desc_t", 0x11, index=_UINT, signal=_UINT, wait=_UINT)
SysmanPciProperties = structure(
    "zes_pci_properties_t",
    0x2,
    address=_UINT * 4,
    speed=ctypes.c_int32 * 2,
    bandwidth=_LONG,
    counters=ctypes.c_ubyte * 3,
)
MemoryModule = structure(
    "zes_mem_properties_t",
    0xB,
    type=ctypes.c_int,
    on_subdevice=ctypes.c_ubyte,
    subdevice=_UINT,
    location=ctypes.c_int,
    bytes=_LONG,
    width=ctypes.c_int32,
    channels=ctypes.c_int32,
)
MemoryState = structure("zes_mem_state_t", 0x1E, health=ctypes.c_int, free=_LONG, total=_LONG)

_KINDS = {
    "p": ctypes.c_void_p,
    "n": ctypes.c_size_t,
    "u": ctypes.c_uint32,
    "q": ctypes.c_uint64,
    "h": Handle,
    "b": ctypes.c_ubyte,
}
_FUNCTIONS = {
    "zeInit": "u",
    "zeDriverGet": "p p",
    "zeDriverGetProperties": "p p",
    "zeDriverGetIpcProperties": "p p",
    "zeDriverGetExtensionFunctionAddress": "p p *p",
    "zeDeviceGet": "p p p",
    "zeDeviceGetProperties": "p p",
    "zeDevicePciGetPropertiesExt": "p p",
    "zeDeviceGetMemoryProperties": "p p p",
    "zeDeviceCanAccessPeer": "p p *b",
    "zeContextCreate": "p p *p",
    "zeContextDestroy": "p",
    "zeMemAllocDevice": "p p n n p *p",
    "zeMemAllocShared": "p p p n n p *p",
    "zeMemAllocHost": "p p n n *p",
    "zeMemFree": "p p",
    "zeMemGetAllocProperties": "p p p *p",
    "zeMemGetAddressRange": "p p *p *n",
    "zeMemGetIpcHandle": "p p *h",
    "zeMemPutIpcHandle": "p h",
    "zeMemOpenIpcHandle": "p p h u *p",
    "zeMemCloseIpcHandle": "p p",
    "zeCommandListCreateImmediate": "p p p *p",
    "zeCommandListDestroy": "p",
    "zeCommandListHostSynchronize": "p q",
    "zeCommandListAppendMemoryCopy": "p p p n p u p",
    "zeCommandListAppendMemoryFill": "p p p n n p u p",
    "zeCommandListAppendSignalEvent": "p p",
    "zeCommandListAppendEventReset": "p p",
    "zeCommandListAppendWaitOnEvents": "p u p",
    "zeEventPoolCreate": "p p u p *p",
    "zeEventCreate": "p p *p",
    "zeEventQueryStatus": "p",
    "zeEventHostSynchronize": "p q",
    "zeEventDestroy": "p",
    "zeEventPoolDestroy": "p",
    "zesInit": "u",
    "zesDriverGet": "p p",
    "zesDeviceGet": "p p p",
    "zesDevicePciGetProperties": "p p",
    "zesDeviceEnumMemoryModules": "p p p",
    "zesMemoryGetProperties": "p p",
    "zesMemoryGetState": "p p",
}
"""Function → its parameters: pointer, size, 32 and 64 bits, IPC handle, bool; ``*``: returned there."""


class Functions:
    """The functions of one loaded loader, as attributes. Raises `AttributeError` for one that it lacks."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)

    def has(self, name: str) -> bool:
        return hasattr(self._library, name)

    def __getattr__(self, name: str) -> Callable[..., tuple[Any, ...]]:
        if name.startswith("_"):
            raise AttributeError(name)
        function = getattr(self._library, name)
        words = _FUNCTIONS[name].split()
        function.restype = ctypes.c_uint32
        function.argtypes = [
            ctypes.POINTER(_KINDS[word[1:]]) if word.startswith("*") else _KINDS[word] for word in words
        ]
        returned = [_KINDS[word[1:]] for word in words if word.startswith("*")]

        def called(*arguments: Any) -> tuple[Any, ...]:
            values = [kind() for kind in returned]
            code = function(*arguments, *map(ctypes.byref, values))
            return ze_result_t(code), *(getattr(value, "value", value) for value in values)

        setattr(self, name, called)
        return called
