"""CUDA through NVIDIA's ``cuda.bindings.driver``, versions 12.9 and 13."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from gpuipc_doctor.api.driver_errors import BackendUnavailable, DriverError
from gpuipc_doctor.files.node_files import Tree
from gpuipc_doctor.model import Device, Fact, Json
from gpuipc_doctor.vendors import NVIDIA
from gpuipc_doctor.worker.backends import calls, hostmemory, kernel_sources
from gpuipc_doctor.worker.backends.absence import NO_DEVICE, Cause, Causes
from gpuipc_doctor.worker.backends.causes import (
    limited_process,
    module_not_loaded,
    no_device_files,
    no_overcommit,
    no_unified_memory_device,
    other_driver,
    other_libcuda,
)
from gpuipc_doctor.worker.backends.driver import Driver, HandleType, version_fact
from gpuipc_doctor.worker.backends.nvml import ProcessMemory
from gpuipc_doctor.worker.nvml import Nvml

_VGPU = re.compile(r"-\d+[ABCQ](?: MIG .*)?$")
"""End of a vGPU type's name, as in ``GRID A100-40C`` and ``NVIDIA A100-1-5C``."""

_MPS = (
    "start `nvidia-cuda-mps-control -d` with the CUDA_MPS_PIPE_DIRECTORY and the user of this process; "
    "or unset CUDA_MPS_PIPE_DIRECTORY to run without MPS"
)

_LOG_BYTES = 4096
"""Of the compiler's log."""

_MODULE = module_not_loaded("nvidia", "/proc/driver/nvidia/version")
_NOUVEAU = other_driver(NVIDIA.pci, ("nvidia",))


def _withheld(environ: Mapping[str, str]) -> Cause | None:
    """What NVIDIA's container toolkit was told not to bring into this container."""
    given = environ.get("NVIDIA_VISIBLE_DEVICES")
    if given in ("void", "none", ""):
        name = f"NVIDIA_VISIBLE_DEVICES={given}"
        return Cause(f"{name} gives this container no GPU", "set NVIDIA_VISIBLE_DEVICES=all, or to its GPUs")
    may = environ.get("NVIDIA_DRIVER_CAPABILITIES", "")
    if may and not {"all", "compute"} & {word.strip() for word in may.split(",")}:
        return Cause(
            f"NVIDIA_DRIVER_CAPABILITIES={may} brings no libcuda.so.1 into this container",
            "set NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        )
    return None


_CAUSES = Causes(
    withheld_by=_withheld,
    known_codes={
        34: Cause("the loaded libcuda.so.1 is the toolkit's stub", "remove lib64/stubs from LD_LIBRARY_PATH"),
        # Seen on an H200 in a new pid namespace that still had the old /proc.
        304: Cause(
            "the operating system refused a request of the driver",
            "in a container, mount its own /proc and pass every /dev/nvidia* file; check ulimit -a",
        ),
        802: Cause(
            "the GPUs' fabric is not ready",
            "start nvidia-fabricmanager of the same version as the driver",
        ),
        803: Cause(
            "the user-space driver and the kernel module have different versions",
            "reload the kernel module or reboot to activate the updated driver",
        ),
        804: Cause(
            "the forward-compatibility libcuda.so.1 does not support this GPU",
            "remove the cuda-compat directory from LD_LIBRARY_PATH",
        ),
        805: Cause("the MPS control daemon cannot be reached", _MPS),
        806: Cause("the MPS server cannot be reached", _MPS),
        807: Cause("the MPS server does not accept clients yet", f"wait some seconds and rerun; else {_MPS}"),
        808: Cause(
            "the MPS server has its maximum number of clients", "rerun when other MPS clients have ended"
        ),
        809: Cause(
            "the MPS server has its maximum number of connections",
            "rerun when other MPS clients have ended",
        ),
    },
    looks={
        2: (limited_process, no_overcommit),
        NO_DEVICE: (_NOUVEAU, _MODULE, no_device_files),
        304: (limited_process, no_overcommit, no_unified_memory_device),
        803: (other_libcuda,),
        999: (_NOUVEAU, _MODULE, no_unified_memory_device, no_device_files),
    },
)


class CudaDriver(Driver):
    vendor, causes = NVIDIA, _CAUSES
    contexts_own_memory = True
    pools_have_one_descriptor = False
    plain_memory_is_coherent = True
    no_extra = 0
    calls = calls.CUDA | {"device-uuid-mig": "cuDeviceGetUuid_v2"}
    names = {  # noqa: RUF012  # a constant; ClassVar is on the base
        "memory-handle": "CUipcMemHandle",
        "event-handle": "CUipcEventHandle",
        "pool-properties": "CUmemPoolProps",
        "native-atomics": "CUdevice_P2PAttribute.CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED",
        "log": "CUjit_option.CU_JIT_ERROR_LOG_BUFFER",
        "log-bytes": "CUjit_option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES",
        "memory-properties": "CUmemAllocationProp",
        "access": "CUmemAccessDesc",
        "pointer-data": "CUmemPoolPtrExportData",
        "handle-type": "CUmemAllocationHandleType",
        "dma-buf": "DMA_BUF_SUPPORTED",
        "dma-buf-descriptor": "CUmemRangeHandleType.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD",
        "pinned": "CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED",
        "on-device": "CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE",
        "capture-of-thread": "CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL",
        "read-write": "CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE",
        "minimum": "CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM",
        "release-threshold": "CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD",
        "reserved": "CUmemPool_attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT",
        "used": "CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT",
        "event-dependencies": "CUmemPool_attribute.CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES",
        "opportunistic": "CUmemPool_attribute.CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC",
        "internal-dependencies": "CUmemPool_attribute.CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES",
    }
    attribute = "CUdevice_attribute.CU_DEVICE_ATTRIBUTE_{}"
    unknown_attribute = "CUDA_ERROR_INVALID_VALUE"
    unexportable = {  # noqa: RUF012  # likewise
        "async-pool": "MEMORY_POOLS_SUPPORTED",
        "managed": "MANAGED_MEMORY",
        "pinned-host": "CAN_MAP_HOST_MEMORY",
        "vmm": "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
    }

    def _import_binding(self) -> Any:
        from cuda.bindings import driver

        return driver

    def address_of(self, struct: Any) -> int:
        return int(struct.getPtr())

    def ordinal_of(self, address: int) -> int:
        attribute = self.api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        return int(self.call("pointer-attribute", attribute, address))

    def _function(self, name: str) -> Any:
        return self._ask_pointer if name == "cuPointerGetAttribute" else super()._function(name)

    def _ask_pointer(self, attribute: int, address: int) -> tuple[Any, int]:
        """``cuPointerGetAttribute`` for an attribute that is an int, without the binding: several of its
        versions return 0 for each device's memory (https://github.com/NVIDIA/cuda-python/issues/2928; seen
        with two H200s)."""
        import ctypes

        library = ctypes.CDLL(self.vendor.library)
        value = ctypes.c_int(-1)
        code = library.cuPointerGetAttribute(ctypes.byref(value), int(attribute), ctypes.c_uint64(address))
        return self.api.CUresult(code), value.value

    def create_context(self, ordinal: int) -> Any:
        # cuda-bindings 13 wraps cuCtxCreate_v4, which takes creation parameters first.
        from cuda.bindings import __version__

        parameters = () if __version__.startswith("12.") else (None,)
        return self.call("context-create", *parameters, 0, ordinal)

    def uuid(self, ordinal: int) -> str:
        # With binding 12, plain cuDeviceGetUuid names the physical GPU even for a MIG instance; with 13 it is
        # the second version. Drivers before 11.4 only have the first.
        operation = "device-uuid-mig" if hasattr(self.api, "cuDeviceGetUuid_v2") else "device-uuid"
        try:
            identity = self.call(operation, ordinal)
        except BackendUnavailable:
            identity = self.call("device-uuid", ordinal)
        value = hostmemory.peek(self.address_of(identity), 16).hex()
        if not int(value, 16):
            return ""
        kind = "MIG" if " MIG " in self.text("device-name", ordinal) else "GPU"
        return "-".join((kind, value[:8], value[8:12], value[12:16], value[16:20], value[20:]))

    def capabilities(self, ordinal: int) -> frozenset[str]:
        words = {"contexts"}
        # cuIpcGetMemHandle is "restricted to devices with support for unified addressing":
        # https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html
        if self.attribute_of(ordinal, "UNIFIED_ADDRESSING"):
            words.add("legacy-ipc")
        if self.attribute_of(ordinal, "COMPUTE_MODE") == int(self.api.CUcomputemode.CU_COMPUTEMODE_DEFAULT):
            words.add("multi-process")
        if self.attribute_of(ordinal, "MEMORY_POOLS_SUPPORTED"):
            words.add("memory-pools")
        if self.attribute_of(ordinal, "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED"):
            words.add("vmm-ipc")
        if self.attribute_of(ordinal, "MEMPOOL_SUPPORTED_HANDLE_TYPES") & HandleType.DESCRIPTOR:
            words.add("pool-ipc")
        if self.attribute_of(ordinal, "HANDLE_TYPE_FABRIC_SUPPORTED"):
            words.add("fabric-handles")
        return frozenset(words)

    def kind(self, ordinal: int) -> str:
        # https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html: IPC is restricted by operating
        # system and virtualisation; https://docs.nvidia.com/vgpu: names of vGPU types.
        name, uuid = self.text("device-name", ordinal), self.uuid(ordinal)
        if uuid.startswith("MIG-"):
            return f"a MIG instance (its uuid is {uuid[:12]}…)"
        if _VGPU.search(name):
            return f"a vGPU (its name is {name})"
        if self.attribute_of(ordinal, "INTEGRATED"):
            return "an integrated GPU (CU_DEVICE_ATTRIBUTE_INTEGRATED is 1)"
        if "microsoft" in Tree(self.absence.root).line("/proc/sys/kernel/osrelease").lower():
            return "a GPU under WSL (the kernel is Microsoft's)"
        if self.process_memory.is_confidential:
            return "a GPU in confidential-computing mode (as NVML reports)"
        return ""

    def pool_attribute(self, pool: Any, name: str) -> int:
        return int(self.call("pool-get", pool, self.named(name)))

    def set_pool_attribute(self, pool: Any, name: str, value: int) -> None:
        typed = self.api.cuuint64_t(value) if name == "release-threshold" else value
        self.call("pool-set", pool, self.named(name), typed)

    def access(self, ordinal: int) -> Any:
        return [super().access(ordinal)]

    def ask_for_handles(self, request: Any, handle_type: HandleType) -> None:
        request.requestedHandleTypes = self.handle_type(handle_type)

    def export_descriptor(self, operation: str, thing: Any) -> int:
        return self.number(operation, thing, self.handle_type(HandleType.DESCRIPTOR), 0)

    def export_dmabuf(self, address: int, nbytes: int) -> int:
        return self.number("dmabuf-export", address, nbytes, self.named("dma-buf-descriptor"), 0)

    def import_descriptor(self, operation: str, descriptor: int) -> Any:
        flags = (0,) if operation == "pool-import" else ()
        imported = self.call(operation, descriptor, self.handle_type(HandleType.DESCRIPTOR), *flags)
        self.see_result(operation, int(imported))
        return imported

    def export_fabric(self, memory: Any) -> bytes:
        handle = self.call("vmm-export", memory, self.handle_type(HandleType.FABRIC), 0)
        return bytes(handle) if isinstance(handle, bytes) else self.handle_bytes("vmm-export", handle)

    def export_pointer(self, address: int) -> bytes:
        return self.handle_bytes("pool-export-pointer", self.call("pool-export-pointer", address))

    def load_kernels(self, ordinal: int) -> Any:
        text = kernel_sources.ptx(self.attribute_of(ordinal, "COMPUTE_CAPABILITY_MAJOR")).encode() + b"\0"
        log, options = bytearray(_LOG_BYTES), [self.named("log"), self.named("log-bytes")]
        try:
            return self.call("module-load", text, len(options), options, [log, len(log)])
        except DriverError as error:
            if error.fault.name not in kernel_sources.REFUSALS:
                raise
            raise kernel_sources.refused(error, log.partition(b"\0")[0].decode(errors="replace")) from error

    def peer(self, ordinal: int, context: object) -> Any:
        return context

    def alloc_coherent(self, nbytes: int) -> int:
        return self.number("mem-alloc", nbytes)

    @cached_property
    def process_memory(self) -> ProcessMemory:
        try:
            return ProcessMemory(Nvml(self.arm))
        except (OSError, DriverError):  # may be missing on a node or in a container
            return ProcessMemory()

    def compare_gpus(self, devices: Sequence[Device]) -> dict[str, Json]:
        try:
            nvml = Nvml(self.arm)
        except (OSError, DriverError):
            return {}
        handles = {}
        for device in devices:
            with suppress(DriverError):
                handles[device.label] = nvml.by_uuid(device.uuid)
        traits = {label: nvml.traits(handle) for label, handle in handles.items()}
        ways = {
            label: {other: nvml.way(handle, to) for other, to in handles.items() if other != label}
            for label, handle in handles.items()
        }
        return {"traits": traits, "ways": ways}

    def versions(self) -> list[Fact]:
        number = int(self.call("driver-version"))
        version = f"{number // 1000}.{number % 1000 // 10}"
        return [version_fact("cuda-driver", number, version, "cuDriverGetVersion"), self._nvidia_driver()]

    def _nvidia_driver(self) -> Fact:
        """The driver package's version, which NVML reports but not the CUDA driver API."""
        source = "nvmlSystemGetDriverVersion"
        try:
            return Fact("nvidia-driver", Nvml(self.arm).driver_version(), source)
        except (OSError, DriverError) as error:
            return Fact("nvidia-driver", None, f"{source}: {error}")


DRIVER = CudaDriver
