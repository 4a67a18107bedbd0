"""HIP through AMD's ``hip.hip`` (hip-python, versions 7.2 and 10)."""

from __future__ import annotations

import sys
from functools import cached_property
from inspect import signature
from typing import Any

from gpuipc_doctor.api.gpu import HANDLE_BYTES, DriverError
from gpuipc_doctor.backends import hostmemory
from gpuipc_doctor.backends.absence import NO_DEVICE, Vendor
from gpuipc_doctor.backends.driver import LAZY_ENABLE_PEER_ACCESS, NON_BLOCKING, Driver, HandleType
from gpuipc_doctor.model import Fact

AMD = Vendor(
    gpu="AMD GPU",
    binding="hip-python",
    extra="rocm",
    library="libamdhip64.so",
    library_remedy="install ROCm's HIP runtime, or add its directory (/opt/rocm/lib) to LD_LIBRARY_PATH",
    kernel_marks=("sys/module/amdgpu", "dev/kfd"),
    pci_vendor="0x1002",
    device_files=("dev/kfd", "dev/dri/renderD*"),
    device_files_remedy="join the groups that own the device files (often video and render), or run as root",
    # ROCr asks whether its variable is set (flag.h), HIP whether its own are not empty (rocdevice.cpp).
    hiding_variables={
        "ROCR_VISIBLE_DEVICES": True,
        "HIP_VISIBLE_DEVICES": False,
        "CUDA_VISIBLE_DEVICES": False,
    },
    known_codes={
        35: ("the kernel driver is older than the HIP runtime needs", "update amdgpu, or load an older ROCm"),
    },
    # ROCm 5.2.3 without a GPU: hipInit returns hipErrorInvalidDevice, hipGetDeviceCount hipErrorNoDevice.
    no_device_codes=frozenset({NO_DEVICE, 101}),
)


class HipDriver(Driver):
    backend = "hip"
    vendor = AMD
    # A HIP context is its device: creating takes a reference, destroying drops it (rules.HIP_CONTEXT).
    contexts_own_memory = False
    # `process_memory` stays empty: AMD's management library is not asked, for no AMD GPU was at hand to see
    # what it tells.
    calls = {  # noqa: RUF012  # a constant; ClassVar is on the base
        "init": "hipInit",
        "device-count": "hipGetDeviceCount",
        "device-name": "hipDeviceGetName",
        "device-pci": "hipDeviceGetPCIBusId",
        "device-uuid": "hipDeviceGetUuid",
        "device-memory": "hipDeviceTotalMem",
        "device-attribute": "hipDeviceGetAttribute",
        "can-access": "hipDeviceCanAccessPeer",
        "context-create": "hipCtxCreate",
        "context-destroy": "hipCtxDestroy",
        "context-set": "hipCtxSetCurrent",
        "primary-retain": "hipDevicePrimaryCtxRetain",
        "primary-reset": "hipDevicePrimaryCtxReset",
        "mem-alloc": "hipMalloc",
        "mem-free": "hipFree",
        "mem-info": "hipMemGetInfo",
        "address-range": "hipMemGetAddressRange",
        "copy-to-device": "hipMemcpyHtoD",
        "copy-from-device": "hipMemcpyDtoH",
        "copy-on-device": "hipMemcpyDtoDAsync",
        "stream-create": "hipStreamCreateWithFlags",
        "stream-destroy": "hipStreamDestroy",
        "stream-sync": "hipStreamSynchronize",
        "stream-query": "hipStreamQuery",
        "stream-wait-event": "hipStreamWaitEvent",
        "event-create": "hipEventCreateWithFlags",
        "event-record": "hipEventRecord",
        "ipc-get": "hipIpcGetMemHandle",
        "ipc-open": "hipIpcOpenMemHandle",
        "ipc-close": "hipIpcCloseMemHandle",
        "pool-alloc": "hipMallocAsync",
        "pool-free": "hipFreeAsync",
        "pool-create": "hipMemPoolCreate",
        "pool-destroy": "hipMemPoolDestroy",
        "pool-alloc-from": "hipMallocFromPoolAsync",
        "pool-trim": "hipMemPoolTrimTo",
        "pool-get": "hipMemPoolGetAttribute",
        "pool-set": "hipMemPoolSetAttribute",
        "pool-set-access": "hipMemPoolSetAccess",
        "pool-export": "hipMemPoolExportToShareableHandle",
        "pool-import": "hipMemPoolImportFromShareableHandle",
        "pool-export-pointer": "hipMemPoolExportPointer",
        "pool-import-pointer": "hipMemPoolImportPointer",
        "managed-alloc": "hipMallocManaged",
        "host-alloc": "hipHostMalloc",
        "host-free": "hipHostFree",
        "vmm-granularity": "hipMemGetAllocationGranularity",
        "vmm-create": "hipMemCreate",
        "vmm-reserve": "hipMemAddressReserve",
        "vmm-map": "hipMemMap",
        "vmm-unmap": "hipMemUnmap",
        "vmm-release": "hipMemRelease",
        "vmm-free": "hipMemAddressFree",
        "vmm-set-access": "hipMemSetAccess",
        "vmm-get-access": "hipMemGetAccess",
        "vmm-retain": "hipMemRetainAllocationHandle",
        "vmm-properties": "hipMemGetAllocationPropertiesFromHandle",
        "vmm-export": "hipMemExportToShareableHandle",
        "vmm-import": "hipMemImportFromShareableHandle",
        "driver-version": "hipDriverGetVersion",
        "runtime-version": "hipRuntimeGetVersion",
    }
    pool_attributes = {  # noqa: RUF012  # likewise
        "release-threshold": "hipMemPoolAttrReleaseThreshold",
        "reserved": "hipMemPoolAttrReservedMemCurrent",
        "used": "hipMemPoolAttrUsedMemCurrent",
        "event-dependencies": "hipMemPoolReuseFollowEventDependencies",
        "opportunistic": "hipMemPoolReuseAllowOpportunistic",
        "internal-dependencies": "hipMemPoolReuseAllowInternalDependencies",
    }

    def _import_binding(self) -> Any:
        from hip import hip

        return hip

    @cached_property
    def release(self) -> tuple[int, int]:
        """Major and minor version of the runtime; 0.0 where it does not say."""
        number = int(self.call("runtime-version"))
        return number // 10_000_000, number // 100_000 % 100

    @property
    def generation(self) -> int:
        return self.release[0]

    @property
    def open_flags(self) -> int:
        # Before ROCm 6 the flag is refused with hipErrorInvalidValue (seen on 5.2.3 and 5.7.1).
        return 0 if 0 < self.generation < 6 else LAZY_ENABLE_PEER_ACCESS

    def take_working_memory(self) -> None:
        # ROCr reserves scratch memory (140 MiB on gfx90a) with a process's first queue, and a stream has one.
        self.call("stream-destroy", self.call("stream-create", NON_BLOCKING))

    def address_of(self, struct: Any) -> int:
        return int(struct.as_c_void_p().value)

    def new_handle(self) -> Any:
        return self.api.hipIpcMemHandle_st()

    def create_context(self, ordinal: int) -> Any:
        return self.call("context-create", 0, ordinal)

    def uuid(self, ordinal: int) -> str:
        # 16 characters: a serial number in hexadecimal, which ROCR_VISIBLE_DEVICES takes after "GPU-".
        identity = self.call("device-uuid", ordinal)
        serial = hostmemory.peek(self.address_of(identity), 16).rstrip(b"\0").decode("ascii", "replace")
        return f"GPU-{serial}" if serial.strip("X") else ""

    def capabilities(self, ordinal: int) -> frozenset[str]:
        # HIP's context calls are deprecated: a later binding may do without them.
        contexts = {"contexts"} if hasattr(self.api, "hipCtxCreate") else set()
        pools = {"memory-pools"} if self._attribute("MemoryPoolsSupported", ordinal) else set()
        # There is no attribute for VMM memory by descriptor: what has VMM has that.
        vmm = {"vmm-ipc"} if self._attribute("VirtualMemoryManagementSupported", ordinal) else set()
        shared = self._attribute("MemoryPoolSupportedHandleTypes", ordinal) & HandleType.DESCRIPTOR
        pools |= {"pool-ipc"} if shared else set()
        return frozenset({"legacy-ipc", "multi-process"} | contexts | pools | vmm)

    def _attribute(self, name: str, ordinal: int) -> int:
        """An attribute of a device; 0 where the runtime is too old to know it."""
        attribute = getattr(self.api.hipDeviceAttribute_t, f"hipDeviceAttribute{name}")
        try:
            return int(self.call("device-attribute", attribute, ordinal))
        except DriverError as error:
            if error.fault.name == "hipErrorInvalidValue":
                return 0
            raise

    def unexportable_kinds(self, ordinal: int) -> tuple[str, ...]:
        needs = {
            "async-pool": "MemoryPoolsSupported",
            "managed": "ManagedMemory",
            "pinned-host": "CanMapHostMemory",
            "vmm": "VirtualMemoryManagementSupported",
        }
        return tuple(kind for kind, name in needs.items() if self._attribute(name, ordinal))

    def create_pool(self, ordinal: int, handle_type: HandleType) -> Any:
        properties = self.api.hipMemPoolProps()
        properties.allocType = self.api.hipMemAllocationType.hipMemAllocationTypePinned
        properties.location.type = self.api.hipMemLocationType.hipMemLocationTypeDevice
        properties.handleTypes = self._handle_type(handle_type)
        properties.location.id = ordinal
        return self.call("pool-create", properties)

    def pool_attribute(self, pool: Any, name: str) -> int:
        value = bytearray(8)
        self.call("pool-get", pool, self._pool_attribute(name), value)
        return int.from_bytes(value, sys.byteorder)

    def set_pool_attribute(self, pool: Any, name: str, value: int) -> None:
        self.call("pool-set", pool, self._pool_attribute(name), value.to_bytes(8, sys.byteorder))

    def _pool_attribute(self, name: str) -> Any:
        return getattr(self.api.hipMemPoolAttr, self.pool_attributes[name])

    def vmm_request(self, ordinal: int, handle_type: HandleType) -> tuple[Any, Any]:
        request = self.api.hipMemAllocationProp()
        request.type = self.api.hipMemAllocationType.hipMemAllocationTypePinned
        # The second field, requestedHandleType, is in a union without a name, which hip-python leaves out.
        hostmemory.poke(self.address_of(request) + 4, int(handle_type).to_bytes(4, sys.byteorder))
        request.location.type = self.api.hipMemLocationType.hipMemLocationTypeDevice
        request.location.id = ordinal
        granularity = self.api.hipMemAllocationGranularity_flags.hipMemAllocationGranularityMinimum
        return request, granularity

    def access(self, ordinal: int) -> Any:
        access = self.api.hipMemAccessDesc()
        access.location.type = self.api.hipMemLocationType.hipMemLocationTypeDevice
        access.location.id = ordinal
        access.flags = self.api.hipMemAccessFlags.hipMemAccessFlagsProtReadWrite
        return access

    def _handle_type(self, handle_type: HandleType) -> Any:
        return self.api.hipMemAllocationHandleType(int(handle_type))

    def _export(self, operation: str, thing: Any, handle_type: HandleType, nbytes: int) -> bytes:
        handle = bytearray(nbytes)
        self.call(operation, handle, thing, self._handle_type(handle_type), 0)
        return bytes(handle)

    def export_descriptor(self, operation: str, thing: Any) -> int:
        return int.from_bytes(self._export(operation, thing, HandleType.DESCRIPTOR, 4), sys.byteorder)

    def import_descriptor(self, operation: str, descriptor: int) -> Any:
        # The number itself takes the place of an address: rocclr/device/rocm/rocdevice.cpp casts it back.
        # Before ROCm 7.1 hipMemImportFromShareableHandle reads it there (ROCm/rocm-systems#11020): 6.4.3
        # crashes on a number, 7.2.4 returns hipErrorInvalidValue for an address.
        flags = (0,) if operation == "pool-import" else ()
        is_read = operation == "vmm-import" and (0, 0) < self.release < (7, 1)
        number = descriptor.to_bytes(4, sys.byteorder)
        shared = hostmemory.address_of(number) if is_read else descriptor
        return self.call(operation, shared, self._handle_type(HandleType.DESCRIPTOR), *flags)

    def export_fabric(self, memory: Any) -> bytes:
        return self._export("vmm-export", memory, HandleType.FABRIC, HANDLE_BYTES)

    def import_fabric(self, handle: bytes) -> Any:
        return self.call("vmm-import", hostmemory.address_of(handle), self._handle_type(HandleType.FABRIC))

    def export_pointer(self, address: int) -> bytes:
        if "export_data" in signature(self.api.hipMemPoolExportPointer).parameters:  # hip-python 7.2
            shared = self.api.hipMemPoolPtrExportData()
            self.call("pool-export-pointer", shared, address)
        else:
            shared = self.call("pool-export-pointer", address)
        return self.handle_bytes("pool-export-pointer", shared)

    def import_pointer(self, pool: Any, data: bytes) -> int:
        shared = self.api.hipMemPoolPtrExportData()
        hostmemory.poke(self.address_of(shared), data)
        return self.number("pool-import-pointer", pool, shared)

    def versions(self) -> list[Fact]:
        return [
            self._version("hip-driver", "driver-version"),
            self._version("hip-runtime", "runtime-version"),
        ]

    def _version(self, name: str, operation: str) -> Fact:
        number = int(self.call(operation))  # HIP_VERSION: 10000000 * major + 100000 * minor + patch
        text = f"{number // 10_000_000}.{number // 100_000 % 100}.{number % 100_000}"
        return Fact(name, text, self.calls[operation])
