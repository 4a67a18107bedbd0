"""Intel's GPUs through Level Zero's loader. Experimental: never run on an Intel GPU.

Level Zero has no current context, no pools, and shares no memory of several parts; devices, contexts and
command lists are objects. A stream of this tool is an immediate command list. Sources: the specification,
and intel/compute-runtime for what it leaves open.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from uuid import UUID

from gpuipc_doctor.api.driver_errors import BackendUnavailable, DriverError, KernelsUnavailable
from gpuipc_doctor.api.gpu import Arm
from gpuipc_doctor.files.node_files import Tree
from gpuipc_doctor.model import Device, DriverFault, Fact
from gpuipc_doctor.vendors import SUPPORTED
from gpuipc_doctor.worker.backends.absence import Cause, Causes
from gpuipc_doctor.worker.backends.driver import Driver, version_fact
from gpuipc_doctor.worker.backends.levelzero import functions, handles, sysman

_UNINITIALIZED = 0x78000001
_FOR_EVER = 2**64 - 1
_SYNCHRONOUS, _ASYNCHRONOUS, _HIGH = 1, 2, 2
"""``ze_command_queue_mode_t``, ``ZE_COMMAND_QUEUE_PRIORITY_PRIORITY_HIGH``."""
_GPU, _INTEL = 1, 0x8086
_SHARES_MEMORY, _HOST_VISIBLE = 1, 1
"""``ZE_IPC_PROPERTY_FLAG_MEMORY``, ``ZE_EVENT_POOL_FLAG_HOST_VISIBLE``."""
_DEVICE, _HOST = functions.DeviceMemoryDesc, functions.HostMemoryDesc
DRIVER_LIBRARY = "libze_intel_gpu.so.1"
_KEEP_NOTHING = {"NEOReadDebugKeys": "1", "ExperimentalEnableDeviceAllocationCache": "0"}
"""compute-runtime's keys: else it keeps freed memory, up to 8 % of a device, which looks like a leak."""
_TABLES = tuple(f"{kind}ProcAddrTable" for kind in ("zeGetGlobal", "zeGetMem", "zesGetMemory"))
"""Loader 1.8 refuses a driver without one of the tables that it knows, and says no more."""


def _no_driver(_node: Tree) -> Cause | None:
    """Look whether the loader finds no driver, or whether Intel's cannot be loaded: it then says no more."""
    named = os.environ.get("ZE_ENABLE_ALT_DRIVERS", "")
    for library in filter(None, named.split(",")) if named else (DRIVER_LIBRARY,):
        try:
            loaded = ctypes.CDLL(library)
            if lacking := [table for table in _TABLES if not hasattr(loaded, table)]:
                remedy = "install a loader and a driver of the same time"
                return Cause(f"{library} is no driver for this loader: it has no {lacking[0]}", remedy)
        except OSError as error:
            remedy = "install Intel's driver (Debian: libze-intel-gpu1; Intel: intel-level-zero-gpu)"
            if named:
                remedy = "unset ZE_ENABLE_ALT_DRIVERS, or let it name a library that exists"
            return Cause(f"the loader finds no driver: {error}", remedy, is_absence=True)
    return None


_CAUSES = Causes(
    known_codes={
        0x78000003: Cause("the driver lacks a function that this loader needs", "update both together"),
    },
    looks={_UNINITIALIZED: (_no_driver,)},
    no_device_codes=frozenset({_UNINITIALIZED, 100}),
)


def _no_such_call(*_: object) -> Any:
    raise NotImplementedError("Level Zero has no such call: the vendor's record lacks this capability")


_lacking: Any = _no_such_call


class LevelZeroDriver(Driver):
    vendor, causes = SUPPORTED["ze"], _CAUSES
    contexts_own_memory = False
    pools_have_one_descriptor = False
    plain_memory_is_coherent = False
    no_extra = None
    names = {}  # noqa: RUF012  # the binding's structures are in levelzero.functions
    attribute = unknown_attribute = ""
    not_ready = 1
    unexportable = {"managed": "", "pinned-host": ""}  # noqa: RUF012
    calls = {  # noqa: RUF012
        "init": "zeInit",
        "drivers": "zeDriverGet",
        "driver-properties": "zeDriverGetProperties",
        "extension": "zeDriverGetExtensionFunctionAddress",
        "host-register": "zexDriverImportExternalPointer",
        "host-unregister": "zexDriverReleaseImportedPointer",
        "ipc-properties": "zeDriverGetIpcProperties",
        "device-count": "zeDeviceGet",
        "device-name": "zeDeviceGetProperties",
        "device-uuid": "zeDeviceGetProperties",
        "device-pci": "zeDevicePciGetPropertiesExt",
        "device-memory": "zeDeviceGetMemoryProperties",
        "can-access": "zeDeviceCanAccessPeer",
        "context-create": "zeContextCreate",
        "context-destroy": "zeContextDestroy",
        "mem-alloc": "zeMemAllocDevice",
        "managed-alloc": "zeMemAllocShared",
        "host-alloc": "zeMemAllocHost",
        "mem-free": "zeMemFree",
        "host-free": "zeMemFree",
        "mem-info": "zesMemoryGetState",
        "address-range": "zeMemGetAddressRange",
        "pointer-attribute": "zeMemGetAllocProperties",
        "ipc-get": "zeMemGetIpcHandle",
        "ipc-put": "zeMemPutIpcHandle",
        "ipc-open": "zeMemOpenIpcHandle",
        "ipc-close": "zeMemCloseIpcHandle",
        "stream-create": "zeCommandListCreateImmediate",
        "stream-create-priority": "zeCommandListCreateImmediate",
        "stream-destroy": "zeCommandListDestroy",
        "stream-sync": "zeCommandListHostSynchronize",
        "stream-query": "zeCommandListHostSynchronize",
        "stream-wait-event": "zeCommandListAppendWaitOnEvents",
        **dict.fromkeys(
            ("copy-to-device", "copy-from-device", "copy-on-device", "copy-by-address", "copy-peer"),
            "zeCommandListAppendMemoryCopy",
        ),
        **dict.fromkeys(("copy-to-device-async", "copy-from-device-async"), "zeCommandListAppendMemoryCopy"),
        **dict.fromkeys(("fill-8", "fill-16", "fill-32"), "zeCommandListAppendMemoryFill"),
        "event-pool": "zeEventPoolCreate",
        "event-create": "zeEventCreate",
        "event-reset": "zeCommandListAppendEventReset",
        "event-record": "zeCommandListAppendSignalEvent",
        "event-query": "zeEventQueryStatus",
        "event-synchronize": "zeEventHostSynchronize",
        "event-destroy": "zeEventDestroy",
        "event-pool-destroy": "zeEventPoolDestroy",
        "sysman-init": "zesInit",
        "sysman-drivers": "zesDriverGet",
        "sysman-devices": "zesDeviceGet",
        "sysman-pci": "zesDevicePciGetProperties",
        "sysman-memories": "zesDeviceEnumMemoryModules",
        "sysman-memory": "zesMemoryGetProperties",
    }

    def __init__(self, arm: Arm, root: Path) -> None:
        super().__init__(arm, root)
        self._exported = handles.Exported()
        self._devices: list[int] = []
        self._context = 0
        self._here: tuple[int, int] = 0, 0
        """The current device, and its own command list, whose commands are done when the call returns."""
        self._lists: dict[int, int] = {}
        self._pools: dict[int, int] = {}
        """Event → its pool."""
        self._memories: dict[int, list[int]] = {}
        self._adapted: Mapping[str, Callable[..., Any]] = {
            "device-count": self._count,
            "device-memory": self._total,
            "primary-retain": self._retain,
            "primary-reset": self._reset,
            "context-destroy": self._reset,
            "context-set": self._set,
            "mem-alloc": lambda nbytes: self._allocate("mem-alloc", _DEVICE, nbytes, 0, self._here[0]),
            "managed-alloc": lambda nbytes, _: self._allocate(
                "managed-alloc", _DEVICE, _HOST, nbytes, 0, self._here[0]
            ),
            "host-alloc": lambda nbytes, _: self._allocate("host-alloc", _HOST, nbytes, 0),
            "mem-free": self._free,
            "host-register": lambda address, nbytes, _: self._extension("host-register", address, nbytes),
            "host-unregister": partial(self._extension, "host-unregister"),
            "host-free": lambda address: self._raw("host-free", self._context, address),
            "address-range": lambda address: self._raw("address-range", self._context, address),
            "ipc-close": lambda address: self._raw("ipc-close", self._context, address),
            "enable-peer": lambda *_: None,  # a device reaches those that it can access
            "disable-peer": lambda *_: None,
            "copy-to-device": self._copy,
            "copy-from-device": self._copy,
            "copy-on-device": self._copy,
            "copy-by-address": self._copy,
            "copy-to-device-async": self._copy,
            "copy-from-device-async": self._copy,
            "copy-peer": lambda to, _, source, __, nbytes, stream=0: self._copy(to, source, nbytes, stream),
            "fill-8": partial(self._fill, 1),
            "fill-16": partial(self._fill, 2),
            "fill-32": partial(self._fill, 4),
            "stream-create": lambda _: self._list(self._of_streams),
            "stream-create-priority": lambda *_: self._list(self._of_streams, _HIGH),
            "stream-sync": self._synchronise,
            "stream-query": lambda stream: self._synchronise(stream, 0),
            "stream-wait-event": lambda stream, event, _: self._raw(
                "stream-wait-event", self._list_of(stream), 1, ctypes.byref(ctypes.c_void_p(event))
            ),
            "event-create": self._create_event,
            "event-record": self._record,
            "event-synchronize": lambda event: self._raw("event-synchronize", event, _FOR_EVER),
            "event-destroy": self._destroy_event,
        }

    def _import_binding(self) -> Any:
        return None

    @cached_property
    def _functions(self) -> functions.Functions:
        for key, value in _KEEP_NOTHING.items():
            os.environ.setdefault(key, value)
        found = functions.Functions(self.vendor.library)
        if not found.has("zesInit"):
            os.environ["ZES_ENABLE_SYSMAN"] = "1"  # else Sysman has no functions
        return found

    def _function(self, name: str) -> Any:
        return getattr(self._functions, name)

    def _extension(self, operation: str, *arguments: int) -> None:
        """Call a function that the loader does not have, but the driver."""
        name = self.calls[operation]
        address = self._raw("extension", self._drivers[0], name.encode())
        kinds = (ctypes.c_void_p, ctypes.c_size_t)[: len(arguments)]
        function = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p, *kinds)(address)
        with self.arm(name):
            result = functions.ze_result_t(function(self._drivers[0], *arguments))
        if result:
            raise DriverError(DriverFault(name, int(result), result.name))

    def _raw(self, operation: str, *arguments: Any) -> Any:
        return super().call(operation, *arguments)

    def call(self, operation: str, *arguments: Any) -> Any:
        return self._adapted.get(operation, partial(self._raw, operation))(*arguments)

    # Devices

    def _count(self) -> int:
        of_drivers = (sysman.listed(self._raw, "device-count", each) for each in self._drivers)
        self._devices = [device for devices in of_drivers for device in devices if self._is_ours(device)]
        return len(self._devices)

    @cached_property
    def _drivers(self) -> list[int]:
        return sysman.listed(self._raw, "drivers")

    def _is_ours(self, device: int) -> bool:
        properties = self._properties(device)
        return bool(properties.type == _GPU and properties.vendor == _INTEL)

    def _properties(self, device: int) -> Any:
        properties = functions.DeviceProperties()
        self._raw("device-name", device, ctypes.byref(properties))
        return properties

    def device_at(self, ordinal: int) -> int:
        return self._devices[ordinal]

    def text(self, operation: str, device: int) -> str:
        if operation == "device-name":
            name: bytes = self._properties(device).name
            return name.decode(errors="replace").strip()
        properties = functions.PciProperties()
        self._raw("device-pci", device, ctypes.byref(properties))
        return sysman.address(properties)

    def _total(self, device: int) -> int:
        count = ctypes.c_uint32()
        self._raw("device-memory", device, ctypes.byref(count), None)
        parts = (functions.MemoryProperties * count.value)(
            *(functions.MemoryProperties() for _ in range(count.value))
        )
        self._raw("device-memory", device, ctypes.byref(count), parts)
        return sum(part.bytes for part in parts)

    def uuid(self, device: int) -> str:
        return str(UUID(bytes=bytes(self._properties(device).uuid)))

    def capabilities(self, device: int) -> frozenset[str]:
        properties = functions.IpcProperties()
        self._raw("ipc-properties", self._drivers[0], ctypes.byref(properties))
        shares = {"legacy-ipc"} if properties.flags & _SHARES_MEMORY else set()
        return frozenset({"multi-process"} | shares)

    def versions(self) -> list[Fact]:
        found = []
        for driver in self._drivers[:1]:
            properties = functions.DriverProperties()
            self._raw("driver-properties", driver, ctypes.byref(properties))
            number = int(properties.version)
            text = f"{number >> 24}.{number >> 16 & 0xFF}.{number & 0xFFFF}"
            found.append(version_fact("ze-driver", number, text, self.calls["driver-properties"]))
        return found

    def memory_info(self, device: Device) -> tuple[int, int]:
        here = self._here[0]
        if here not in self._memories:
            has_own = self._functions.has("zesInit")
            if has_own:
                self._raw("sysman-init", 0)
            properties = self._properties(here)
            tile = properties.subdevice if properties.flags & sysman.SUBDEVICE else None
            self._memories[here] = sysman.modules(self._raw, here, device.pci, tile, own=has_own)
        if not self._memories[here]:
            raise BackendUnavailable(
                f"used memory of {device.label} is unknown: Sysman lists no memory of it",
                "run as root, or unset ZES_ENABLE_SYSMAN",
                broken=True,
            )
        free, total = sysman.free_and_total(self._raw, self._memories[here])
        # compute-runtime describes 95 % of a device: the rest is no memory for programs, and not free.
        hidden = max(0, total - self._total(here))
        return max(0, free - hidden), total - hidden

    # The context, of all devices, and the current device

    def _retain(self, device: int) -> int:
        if not self._context:
            wanted = functions.ContextDesc()
            self._context = self._raw("context-create", self._drivers[0], ctypes.byref(wanted))
        return device

    create_context = _retain

    def _set(self, device: int) -> None:
        self._here = device, 0
        if device not in self._lists:
            self._lists[device] = self._list(_SYNCHRONOUS)
            self._here = device, self._lists[device]
            self._warm_up()
        self._here = device, self._lists[device]

    def _warm_up(self) -> None:
        """Copy once: with its first command a driver allocates device memory (2 MiB, over the
        emulated xe), which would look like a leak."""
        address = self._raw("mem-alloc", self._context, ctypes.byref(_DEVICE()), 2, 0, self._here[0])
        self._copy(address, address + 1, 1)
        self._raw("mem-free", self._context, address)

    def _reset(self, device: int) -> None:
        if own := self._lists.pop(device, 0):
            self._raw("stream-destroy", own)

    # Memory

    def _allocate(self, operation: str, *arguments: Any) -> int:
        passed = (ctypes.byref(each()) if isinstance(each, type) else each for each in arguments)
        return int(self._raw(operation, self._context, *passed))

    def _free(self, address: int) -> None:
        handles_of_it = self._exported.end(address)
        has_put = self._functions.has("zeMemPutIpcHandle")
        for handle in handles_of_it if has_put else ():
            self._raw("ipc-put", self._context, functions.Handle.from_buffer_copy(handle))
        self._raw("mem-free", self._context, address)
        if not has_put:
            self._exported.close_rest(handles_of_it)

    def ordinal_of(self, address: int) -> int:
        properties = functions.AllocationProperties()
        device = self._raw("pointer-attribute", self._context, address, ctypes.byref(properties))
        return self._devices.index(device)

    def export_handle(self, address: int) -> bytes:
        base, _ = self.numbers("address-range", address)
        handle = bytes(self._raw("ipc-get", self._context, address).data)
        self.see_result("ipc-get", any(handle))
        return self._exported.packed(base, handle)

    def open_handle(self, handle: bytes) -> int:
        try:
            with handles.opened(handle) as here:
                given = functions.Handle.from_buffer_copy(here)
                return self.address("ipc-open", self._context, self._here[0], given, 0)
        except PermissionError as error:
            raise BackendUnavailable(
                f"pidfd_getfd: {error.strerror}: no other process's descriptor can be fetched",
                "sysctl kernel.yama.ptrace_scope=1, or in a container add the right to trace (SYS_PTRACE)",
                broken=True,
            ) from error
        except OSError as error:  # the exporter has closed it with its memory, or has ended
            number = error.errno or 0
            raise DriverError(DriverFault("pidfd_getfd", number, errno.errorcode.get(number, ""))) from error

    def unexportable_kinds(self, device: int) -> tuple[str, ...]:
        return tuple(self.unexportable)

    def alloc_coherent(self, nbytes: int) -> int:
        return self.number("mem-alloc", nbytes)

    # Command lists

    @cached_property
    def _of_streams(self) -> int:
        """Without zeCommandListHostSynchronize, which the specification has since 1.6, each command is waited
        for."""
        return _ASYNCHRONOUS if self._functions.has("zeCommandListHostSynchronize") else _SYNCHRONOUS

    def _list(self, mode: int, priority: int = 0) -> int:
        queue = functions.QueueDesc(mode=mode, priority=priority)
        return int(self._raw("stream-create", self._context, self._here[0], ctypes.byref(queue)))

    def _list_of(self, stream: int) -> int:
        return stream or self._here[1]

    def _copy(self, to: int, source: int, nbytes: int, stream: int = 0) -> None:
        self._raw("copy-to-device", self._list_of(stream), to, source, nbytes, None, 0, None)

    def _fill(self, width: int, address: int, value: int, count: int, stream: int) -> None:
        pattern = value.to_bytes(width, "little")
        self._raw("fill-8", self._list_of(stream), address, pattern, width, width * count, None, 0, None)

    def _synchronise(self, stream: int, timeout: int = _FOR_EVER) -> None:
        if stream and self._of_streams == _ASYNCHRONOUS:
            self._raw("stream-sync", stream, timeout)

    def _create_event(self, _flags: int) -> int:
        of_pool, of_event = functions.EventPoolDesc(flags=_HOST_VISIBLE, count=1), functions.EventDesc()
        pool = self._raw("event-pool", self._context, ctypes.byref(of_pool), 0, None)
        event = self._raw("event-create", pool, ctypes.byref(of_event))
        self._pools[event] = pool
        return int(event)

    def _record(self, event: int, stream: int) -> None:
        self._raw("event-reset", self._list_of(stream), event)
        self._raw("event-record", self._list_of(stream), event)

    def _destroy_event(self, event: int) -> None:
        self._raw("event-destroy", event)
        self._raw("event-pool-destroy", self._pools.pop(event))

    def peer(self, device: int, context: object) -> int:
        return device

    def has_native_atomics(self, device: int, other: int) -> bool:
        return False

    def load_kernels(self, device: int) -> Any:
        raise KernelsUnavailable("Level Zero takes kernels as SPIR-V, which this tool does not have")

    address_of = ask_for_handles = _lacking
    export_descriptor = import_descriptor = export_fabric = export_pointer = _lacking
    pool_attribute = set_pool_attribute = _lacking


DRIVER = LevelZeroDriver
