"""HIP through AMD's ``hip.hip`` (hip-python, versions 7.2 and 10)."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import cached_property
from inspect import signature
from typing import Any

from gpuipc_doctor.api.driver_errors import BackendUnavailable, DriverError, KernelsUnavailable
from gpuipc_doctor.api.gpu import HANDLE_BYTES
from gpuipc_doctor.files.node_files import Tree
from gpuipc_doctor.model import Device, Fact, Json
from gpuipc_doctor.vendors import AMD
from gpuipc_doctor.worker.backends import calls, hostmemory, kernel_sources
from gpuipc_doctor.worker.backends.absence import NO_DEVICE, Cause, Causes
from gpuipc_doctor.worker.backends.causes import (
    limited_process,
    module_not_loaded,
    no_kernel_fusion_driver,
    no_overcommit,
)
from gpuipc_doctor.worker.backends.driver import (
    LAZY_ENABLE_PEER_ACCESS,
    NON_BLOCKING,
    Driver,
    HandleType,
    version_fact,
)

_PCI = "/sys/bus/pci/devices"
_TRAITS = {
    "compute partition": "current_compute_partition",
    "memory partition": "current_memory_partition",
    "PCIe link": "current_link_width",
    "VBIOS": "vbios_version",
}
"""Trait (`equal_gpus`) → the kernel's file of a GPU: Linux, Documentation/gpu/amdgpu."""

_KFD_NODES = "/sys/class/kfd/kfd/topology/nodes"
_XGMI = "11"
"""``HSA_IOLINKTYPE_XGMI``, the type of a link between GPUs: Linux, drivers/gpu/drm/amd/amdkfd/kfd_crat.h."""

_NO_DEVICE_CODES = frozenset({NO_DEVICE, 101})
# ROCm 5.2.3 without a GPU: hipInit returns hipErrorInvalidDevice, hipGetDeviceCount hipErrorNoDevice.

_MODULE = module_not_loaded("amdgpu", "/sys/module/amdgpu")

_CAUSES = Causes(
    known_codes={
        35: Cause(
            "the kernel driver is older than the HIP runtime needs", "update amdgpu, or load an older ROCm"
        ),
    },
    looks={
        2: (limited_process, no_overcommit),
        **dict.fromkeys((*_NO_DEVICE_CODES, 999), (_MODULE, no_kernel_fusion_driver)),
    },
    no_device_codes=_NO_DEVICE_CODES,
)


class HipDriver(Driver):
    vendor, causes = AMD, _CAUSES
    # A HIP context is its device: creating takes a reference, destroying drops it (rules.yaml, HIP_CONTEXT).
    contexts_own_memory = False
    pools_have_one_descriptor = True
    """MemoryPool::Export (hip_mempool_impl.cpp) always returns the same descriptor, even a closed one, and
    hipMemPoolDestroy does not close it. Tried with 5.7.1, 6.4.3 and 7.2.4 over an emulated kernel driver."""
    # `process_memory` stays empty: AMD's management library is not used, because no AMD GPU was available
    # to try it.
    plain_memory_is_coherent = False
    """Memory of hipMalloc, pools and hipMemCreate is coarse-grained: what a kernel writes is visible
    elsewhere when it has ended ("Coherence control" in HIP's documentation)."""
    no_extra = None
    calls = calls.HIP | {
        "runtime-version": "hipRuntimeGetVersion",
        "alloc-with-flags": "hipExtMallocWithFlags",
        "rtc-create": "hiprtcCreateProgram",
        "rtc-compile": "hiprtcCompileProgram",
        "rtc-log-size": "hiprtcGetProgramLogSize",
        "rtc-log": "hiprtcGetProgramLog",
        "rtc-code-size": "hiprtcGetCodeSize",
        "rtc-code": "hiprtcGetCode",
        "rtc-destroy": "hiprtcDestroyProgram",
    }
    names = {  # noqa: RUF012  # a constant; ClassVar is on the base
        "memory-handle": "hipIpcMemHandle_st",
        "event-handle": "hipIpcEventHandle_st",
        "pool-properties": "hipMemPoolProps",
        "native-atomics": "hipDeviceP2PAttr.hipDevP2PAttrNativeAtomicSupported",
        "memory-properties": "hipMemAllocationProp",
        "access": "hipMemAccessDesc",
        "pointer-data": "hipMemPoolPtrExportData",
        "handle-type": "hipMemAllocationHandleType",
        "dma-buf": "DmaBufSupported",
        "dma-buf-descriptor": "hipMemRangeHandleType.hipMemRangeHandleTypeDmaBufFd",
        "pinned": "hipMemAllocationType.hipMemAllocationTypePinned",
        "on-device": "hipMemLocationType.hipMemLocationTypeDevice",
        "capture-of-thread": "hipStreamCaptureMode.hipStreamCaptureModeThreadLocal",
        "read-write": "hipMemAccessFlags.hipMemAccessFlagsProtReadWrite",
        "minimum": "hipMemAllocationGranularity_flags.hipMemAllocationGranularityMinimum",
        "release-threshold": "hipMemPoolAttr.hipMemPoolAttrReleaseThreshold",
        "reserved": "hipMemPoolAttr.hipMemPoolAttrReservedMemCurrent",
        "used": "hipMemPoolAttr.hipMemPoolAttrUsedMemCurrent",
        "event-dependencies": "hipMemPoolAttr.hipMemPoolReuseFollowEventDependencies",
        "opportunistic": "hipMemPoolAttr.hipMemPoolReuseAllowOpportunistic",
        "internal-dependencies": "hipMemPoolAttr.hipMemPoolReuseAllowInternalDependencies",
    }
    attribute = "hipDeviceAttribute_t.hipDeviceAttribute{}"
    unknown_attribute = "hipErrorInvalidValue"
    unexportable = {  # noqa: RUF012  # likewise
        "async-pool": "MemoryPoolsSupported",
        "managed": "ManagedMemory",
        "pinned-host": "CanMapHostMemory",
        "vmm": "VirtualMemoryManagementSupported",
    }

    def _import_binding(self) -> Any:
        from hip import hip

        return hip

    @cached_property
    def release(self) -> tuple[int, int]:
        """Major and minor version of the runtime; 0.0 if unknown."""
        number = int(self.call("runtime-version"))
        return number // 10_000_000, number // 100_000 % 100

    @property
    def generation(self) -> int:
        return self.release[0]

    @property
    def open_flags(self) -> int:
        # Before ROCm 6 the flag is refused with hipErrorInvalidValue (seen on 5.2.3 and 5.7.1).
        return 0 if 0 < self.generation < 6 else LAZY_ENABLE_PEER_ACCESS

    def compare_gpus(self, devices: Sequence[Device]) -> dict[str, Json]:
        """From the kernel driver's files; AMD's management library is not used."""
        tree = Tree(self.absence.root)
        traits: dict[str, Json] = {}
        links = xgmi_links(tree)
        for device in devices:
            found = {trait: tree.line(f"{_PCI}/{device.pci}/{file}") for trait, file in _TRAITS.items()}
            found["xGMI links"] = links.get(device.pci, "")
            traits[device.label] = {trait: value for trait, value in found.items() if value}
        return {"traits": traits}

    def memory_info(self, device: Device) -> tuple[int, int]:
        # hipMemGetInfo counts the calling process alone on ROCm 5.2.3, all processes on 5.7.1 (seen on both).
        if not (0, 0) < self.release < (5, 7):
            return super().memory_info(device)
        _, total = super().memory_info(device)
        file = self.absence.root / f"sys/bus/pci/devices/{device.pci}/mem_info_vram_used"
        try:
            return total - int(file.read_text()), total
        except (OSError, ValueError) as error:
            release = ".".join(map(str, self.release))
            raise BackendUnavailable(
                f"used memory of {device.label} is unknown: hipMemGetInfo of HIP {release} counts only "
                f"the calling process, and {file} cannot be read ({error})",
                "update ROCm to 5.7 or newer",
                broken=True,
            ) from error

    def take_working_memory(self) -> None:
        # ROCr reserves scratch memory (140 MiB on gfx90a) with a process's first queue, and a stream has one.
        self.call("stream-destroy", self.call("stream-create", NON_BLOCKING))

    def address_of(self, struct: Any) -> int:
        return int(struct.as_c_void_p().value)

    def ordinal_of(self, address: int) -> int:
        if "attributes" in signature(self.api.hipPointerGetAttributes).parameters:  # hip-python 7.2
            attributes = self.api.hipPointerAttribute_t()
            self.call("pointer-attribute", attributes, address)
        else:
            attributes = self.call("pointer-attribute", address)
        return int(attributes.device)

    def create_context(self, ordinal: int) -> Any:
        return self.call("context-create", 0, ordinal)

    def uuid(self, ordinal: int) -> str:
        # 16 characters: a serial number in hexadecimal, which ROCR_VISIBLE_DEVICES takes after "GPU-".
        identity = self.call("device-uuid", ordinal)
        serial = hostmemory.peek(self.address_of(identity), 16).rstrip(b"\0").decode("ascii", "replace")
        return f"GPU-{serial}" if serial.strip("X") else ""

    def capabilities(self, ordinal: int) -> frozenset[str]:
        # HIP's context functions are deprecated: a later binding may lack them.
        contexts = {"contexts"} if hasattr(self.api, "hipCtxCreate") else set()
        pools = {"memory-pools"} if self.attribute_of(ordinal, "MemoryPoolsSupported") else set()
        # No attribute for exporting VMM memory by descriptor: it comes with VMM.
        vmm = {"vmm-ipc"} if self.attribute_of(ordinal, "VirtualMemoryManagementSupported") else set()
        shared = self.attribute_of(ordinal, "MemoryPoolSupportedHandleTypes") & HandleType.DESCRIPTOR
        pools |= {"pool-ipc"} if shared else set()
        return frozenset({"legacy-ipc", "multi-process"} | contexts | pools | vmm)

    def pool_attribute(self, pool: Any, name: str) -> int:
        value = bytearray(8)
        self.call("pool-get", pool, self.named(name), value)
        return int.from_bytes(value, sys.byteorder)

    def set_pool_attribute(self, pool: Any, name: str, value: int) -> None:
        self.call(
            "pool-set",
            pool,
            self.named(name),
            value.to_bytes(8, sys.byteorder),
        )

    def ask_for_handles(self, request: Any, handle_type: HandleType) -> None:
        # The second field, requestedHandleType, is in an unnamed union, which hip-python leaves out.
        hostmemory.poke(self.address_of(request) + 4, int(handle_type).to_bytes(4, sys.byteorder))

    def _export(self, operation: str, thing: Any, handle_type: HandleType, nbytes: int) -> bytes:
        handle = bytearray(nbytes)
        self.call(operation, handle, thing, self.handle_type(handle_type), 0)
        return bytes(handle)

    def export_descriptor(self, operation: str, thing: Any) -> int:
        number = self._export(operation, thing, HandleType.DESCRIPTOR, 4)
        self.see_result(operation, any(number))
        return int.from_bytes(number, sys.byteorder)

    def export_dmabuf(self, address: int, nbytes: int) -> int:
        number = bytearray(4)
        self.call("dmabuf-export", number, address, nbytes, self.named("dma-buf-descriptor"), 0)
        self.see_result("dmabuf-export", any(number))
        return int.from_bytes(number, sys.byteorder)

    def import_descriptor(self, operation: str, descriptor: int) -> Any:
        # The number itself is passed as the address: rocclr/device/rocm/rocdevice.cpp casts it back. Before
        # ROCm 7.1 hipMemImportFromShareableHandle reads it there (ROCm/rocm-systems#11020): 6.4.3 crashes on
        # a number, 7.2.4 returns hipErrorInvalidValue for an address.
        flags = (0,) if operation == "pool-import" else ()
        is_read = operation == "vmm-import" and (0, 0) < self.release < (7, 1)
        number = descriptor.to_bytes(4, sys.byteorder)
        shared = hostmemory.address_of(number) if is_read else descriptor
        return self.call(operation, shared, self.handle_type(HandleType.DESCRIPTOR), *flags)

    def export_fabric(self, memory: Any) -> bytes:
        return self._export("vmm-export", memory, HandleType.FABRIC, HANDLE_BYTES)

    def export_pointer(self, address: int) -> bytes:
        if "export_data" in signature(self.api.hipMemPoolExportPointer).parameters:  # hip-python 7.2
            shared = self.named("pointer-data")()
            self.call("pool-export-pointer", shared, address)
        else:
            shared = self.call("pool-export-pointer", address)
        return self.handle_bytes("pool-export-pointer", shared)

    def _function(self, name: str) -> Any:
        if not name.startswith("hiprtc"):
            return super()._function(name)
        from hip import hiprtc

        return getattr(hiprtc, name)

    def load_kernels(self, ordinal: int) -> Any:
        try:
            return self.call("module-load", self._code_of_kernels)
        except DriverError as error:
            if error.fault.name not in kernel_sources.REFUSALS:
                raise
            raise kernel_sources.refused(error) from error

    @cached_property
    def _code_of_kernels(self) -> bytearray:
        """The kernels for the current device, compiled once per process: it takes a good part of a second."""
        try:
            program = self.call(
                "rtc-create", kernel_sources.hip_source().encode(), b"gpuipc.hip", 0, None, None
            )
        except (BackendUnavailable, DriverError, ImportError) as missing:  # no libhiprtc.so
            reason = re.sub(
                r"'?b'([^']*)''?", r"\1", str(missing.__cause__ or missing)
            )  # as hip-python quotes
            raise KernelsUnavailable(f"hiprtc cannot be used: {reason}") from missing
        try:
            self.call("rtc-compile", program, 0, None)
        except DriverError as error:
            log = bytearray(int(self.call("rtc-log-size", program)))
            self.call("rtc-log", program, log)
            raise kernel_sources.refused(error, log.partition(b"\0")[0].decode(errors="replace")) from error
        code = bytearray(self.number("rtc-code-size", program))
        self.call("rtc-code", program, code)
        self.call("rtc-destroy", program.createRef())
        return code

    def peer(self, ordinal: int, context: object) -> Any:
        return ordinal

    def copy_by_address(self) -> tuple[Any, ...]:
        return (self.api.hipMemcpyKind.hipMemcpyDefault,)

    def alloc_coherent(self, nbytes: int) -> int:
        return self.number("alloc-with-flags", nbytes, self.api.hipDeviceMallocFinegrained)

    def versions(self) -> list[Fact]:
        return [
            self._version("hip-driver", "driver-version"),
            self._version("hip-runtime", "runtime-version"),
        ]

    def _version(self, name: str, operation: str) -> Fact:
        number = int(self.call(operation))  # HIP_VERSION: 10000000 * major + 100000 * minor + patch
        text = f"{number // 10_000_000}.{number // 100_000 % 100}.{number % 100_000}"
        return version_fact(name, number, text, self.calls[operation])


def xgmi_links(tree: Tree) -> dict[str, str]:
    """PCI address of a GPU → number and bandwidth of its xGMI links, as ``7 with 448 GB/s``.

    From the kernel driver's topology. A GPU in partitions, which share an address, is left out.
    """
    found: dict[str, list[str]] = {}
    for node in tree.glob(f"{_KFD_NODES}/*/properties"):
        of_node = _properties(tree, node)
        location, domain = (of_node.get(name, "") for name in ("location_id", "domain"))
        if not location.isdigit() or location == "0":
            continue  # a processor
        number = int(location)
        bus, place, function = number >> 8 & 0xFF, number >> 3 & 0x1F, number & 7
        address = f"{int(domain) if domain.isdigit() else 0:04x}:{bus:02x}:{place:02x}.{function}"
        files = (
            tree.glob(f"{node.rpartition('/')[0]}/{kind}/*/properties") for kind in ("io_links", "p2p_links")
        )
        links = [_properties(tree, file) for each in files for file in each]
        speeds = [int(link.get("max_bandwidth", 0)) for link in links if link.get("type") == _XGMI]
        found.setdefault(address, []).append(
            f"{len(speeds)} with {sum(speeds) // 1000} GB/s" if speeds else ""
        )
    return {address: said for address, (said, *others) in found.items() if not others}


def _properties(tree: Tree, name: str) -> dict[str, str]:
    """Lines ``name number`` of a file; empty if it cannot be read."""
    try:
        lines = tree.text(name).splitlines()
    except OSError:
        return {}
    return {key: value for key, _, value in (line.partition(" ") for line in lines) if value.isdigit()}


DRIVER = HipDriver
