"""One record per vendor of GPUs: all that the tool must know of it outside its backend and the simulator.

No other module names a vendor's backend, library, variable or tool to tell vendors apart
(`tests/unit/test_vendors.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

SHARED_EVENTS = "shared-events"
"""Events that other processes open by handle."""


class Binding(NamedTuple):
    """The Python package by which workers call the driver."""

    package: str
    requirement: str
    """Argument of ``pip install``, as in this package's extra; empty: the vendor's library is called itself,
    and ``package`` is Debian's."""
    modules: tuple[str, ...]
    """What workers import, the package's own first."""


class Errors(NamedTuple):
    """Names of the driver's errors, by what they mean."""

    out_of_memory: str
    out_of_memory_code: int
    already_mapped: frozenset[str]
    """Another mapping overlaps the requested one."""
    refused: frozenset[str]
    """A healthy driver refuses to export or open a handle in this way; all of ``already_mapped`` also."""
    not_supported: frozenset[str]
    """The driver or this kind of GPU lacks the feature."""
    not_permitted: frozenset[str] = frozenset()
    too_many_peers: frozenset[str] = frozenset()
    vague: frozenset[str] = frozenset()
    """Little free memory may be the reason, although the error does not say so."""


class Calls(NamedTuple):
    """Names of the driver's functions, by what they do."""

    initialise: str
    create_context: frozenset[str] = frozenset()
    opens_memory: str = "IpcOpen|Mem(Pool)?Import|EnablePeer"
    """Regular expression for those that map memory of another process or GPU."""
    capabilities: tuple[tuple[str, str], ...] = (
        ("Ipc", "legacy-ipc"),
        ("MemPoolExport|MemPoolImport", "pool-ipc"),
        ("MemPool|Async", "memory-pools"),
        ("Mem(Create|Export|Import)", "vmm-ipc"),
    )
    """Regular expression → the capability that a GPU lacks if it does not support such a function."""


class Choice(NamedTuple):
    """How this tool shows a process some GPUs only."""

    variable: str
    by_uuid: bool
    """Whether it takes uuids, which each GPU has and nothing renumbers, rather than indices among the GPUs
    that are left."""
    order: Mapping[str, str] = {}
    """What numbers GPUs in the order of the PCI bus."""
    one_queue: Mapping[str, str] = {}
    """What gives a process one queue between host and GPU."""


class CollectiveFamily(NamedTuple):
    """The vendor's library of collectives."""

    name: str
    fact: str
    soname: str
    in_wheels: tuple[str, ...]
    """Where PyTorch's wheels have the library, below a directory of Python's path."""
    in_sdks: tuple[str, ...]
    sdk: str


class MpiNames(NamedTuple):
    """The vendor's names in MPI libraries and what they use."""

    driver: str
    """Regular expression for libraries that all programs for this vendor's GPUs link with."""
    configure: str
    """Open MPI's configure option for the vendor; MPICH's is ``mpich_configure``."""
    mpich_configure: str
    accelerator: str
    """Name of Open MPI's accelerator component for the vendor; also UCX's alias for the vendor's
    transports, and its name for the vendor's memory."""
    ucx_component: str
    ucx_copy: str
    """The transport by which UCX recognises this vendor's device memory."""
    ucx_ipc: str
    gtl: str
    """Cray MPICH's GPU transport library."""
    cray_module: str
    intel_mode: str = ""
    """The value of I_MPI_OFFLOAD_MODE; empty: Intel MPI does not support the vendor."""
    intel_first: bool = False
    """Whether Intel MPI, left to itself, takes this vendor's GPUs if it can load the library."""
    open_mpi_built: str = ""
    """Open MPI 4's variable for whether it was built for the vendor."""
    open_mpi_switch: str = ""
    """Open MPI's variable that is 0 if its code for the vendor is switched off."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Vendor:
    """A vendor whose GPUs the tool knows, tested or not."""

    backend: str
    """The backend's name, with which labels of devices begin: ``cuda:0``."""
    name: str
    pci: str
    """The vendor's number on the PCI bus."""
    hides: Mapping[str, bool]
    """Each environment variable that hides GPUs → whether its empty value hides all."""
    facts: frozenset[str]
    """Components and facts that concern only this vendor's GPUs."""
    drivers: frozenset[str]
    """Those of them that show the vendor's driver on a node."""
    word: str
    """Part of the names of environment variables that only this vendor's software reads."""

    @property
    def gpu(self) -> str:
        return f"{self.name} GPU"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SupportedVendor(Vendor):
    """A vendor with a backend."""

    platform: str
    """The vendor's programming model, as MPI libraries call it."""
    library: str
    """The driver library, by the name with which programs load it."""
    library_remedy: str
    binding: Binding
    errors: Errors
    calls: Calls
    lacks: frozenset[str] = frozenset()
    """Capabilities (`api.capabilities`) that no device has, because the API has no such calls; also
    `SHARED_EVENTS`."""
    instead: Mapping[str, str]
    """Capability → what to use on a GPU without it."""
    kernel_marks: tuple[str, ...]
    """Files below the root that all exist if the kernel driver is loaded."""
    control_files: tuple[str, ...]
    """Glob patterns of the device files that every process must be able to open for reading and writing."""
    gpu_files: str
    """Glob pattern of the GPUs' own device files, of which a confined job may open some only."""
    choice: Choice
    renumbering: tuple[str, str] | None = None
    """Two variables of ``hides`` of which the second counts the GPUs that the first leaves, from 0."""
    instances: tuple[str, ...] = ()
    """Variables that give a process or a container instances of divided GPUs."""
    handles_have_numbers: bool = False
    """Whether a handle names its GPU by number, so that its opener must see the same GPUs."""
    simulated_on_host: bool = True
    """Whether simulated device memory is host memory to any program."""
    checks_topology: bool = False
    """Whether the driver may refuse peer access because of IOMMU and ACS."""
    experimental: bool = False
    """Whether the backend was never run on a GPU of this vendor, as every screen of it says."""
    manages: bool = False
    """Whether its management library is asked: NVML. AMD's is not, since no AMD GPU was there to try it."""
    tool: str
    """The command that lists GPUs with the processes that use them."""
    collectives: CollectiveFamily
    mpi: MpiNames
    component: str
    """To whom bug reports go (`ticket`)."""
    dra_driver: str
    """Name of the vendor's driver for Kubernetes' dynamic resource allocation."""
    site: str
    """The shipped site config for a Slurm cluster with these GPUs."""
    allocators: Mapping[str, tuple[str, ...]]
    """Array library (its fact) → its allocators that can be tested."""
    allocators_from: str
    """How to install one."""
    wheels: str = ""
    """Part of the names or versions of distributions built for this vendor; empty: those without a mark."""
    forks_after_import: bool = False
    """Whether importing an array library leaves the driver alone, so that workers may be forked after it."""


_WITHOUT_IPC = (
    "nothing to repair; run MPI and NCCL without GPU IPC: NCCL_P2P_DISABLE=1, UCX_TLS=^{}, "
    "MPICH_GPU_IPC_ENABLED=0"
)
"""What to do on a node whose GPUs have no IPC by design."""

NVIDIA = SupportedVendor(
    backend="cuda",
    name="NVIDIA",
    component="nvidia",
    dra_driver="gpu.nvidia.com",
    platform="CUDA",
    pci="0x10de",
    library="libcuda.so.1",
    library_remedy="install the NVIDIA driver, or in a container make its libraries visible (--gpus, --nv)",
    kernel_marks=("proc/driver/nvidia/version",),
    control_files=("dev/nvidiactl", "dev/nvidia-uvm"),
    gpu_files="dev/nvidia[0-9]*",
    facts=frozenset({"nvidia-driver", "nvidia-module", "nvidia-peermem", "gdrcopy", "mig", "nccl"})
    | {"cuda-driver", "cuda-runtime", "libcuda"},
    drivers=frozenset({"nvidia-driver", "cuda-driver"}),
    word="CUDA",
    hides={"CUDA_VISIBLE_DEVICES": True},
    instances=("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
    choice=Choice(
        variable="CUDA_VISIBLE_DEVICES",
        by_uuid=True,
        order={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        one_queue={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
    ),
    tool="nvidia-smi",
    checks_topology=True,
    manages=True,
    binding=Binding(
        package="cuda-bindings",
        requirement="cuda-bindings>=12.9,<13",
        modules=("cuda.bindings.driver", "pynvml", "ctypes"),
    ),
    errors=Errors(
        out_of_memory="CUDA_ERROR_OUT_OF_MEMORY",
        out_of_memory_code=2,
        already_mapped=frozenset({"CUDA_ERROR_ALREADY_MAPPED"}),
        refused=frozenset({"CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_INVALID_CONTEXT"})
        | {"CUDA_ERROR_INVALID_HANDLE", "CUDA_ERROR_NOT_SUPPORTED"},
        not_supported=frozenset({"CUDA_ERROR_NOT_SUPPORTED"}),
        not_permitted=frozenset({"CUDA_ERROR_NOT_PERMITTED"}),
        too_many_peers=frozenset({"CUDA_ERROR_TOO_MANY_PEERS"}),
        vague=frozenset({"CUDA_ERROR_UNKNOWN"}),
    ),
    calls=Calls(initialise="cuInit", create_context=frozenset({"cuDevicePrimaryCtxRetain", "cuCtxCreate"})),
    instead={
        "multi-process": "nvidia-smi -c 0; or let jobs share the GPU through MPS",
        "legacy-ipc": _WITHOUT_IPC.format("cuda_ipc"),
        "vmm-ipc": "nothing to repair; set NCCL_CUMEM_ENABLE=0, and no expandable segments in PyTorch",
        "memory-pools": "nothing to repair; jobs allocate with cudaMalloc",
        "pool-ipc": "nothing to repair; jobs share memory of cudaMalloc, not of pools",
        "fabric-handles": "nothing to repair; only NVLink between nodes needs them: NCCL_MNNVL_ENABLE=0",
    },
    collectives=CollectiveFamily(
        name="NCCL",
        fact="nccl",
        soname="libnccl.so.2",
        in_wheels=("nvidia/nccl/lib/libnccl.so.2",),
        in_sdks=("/opt/nvidia/hpc_sdk/Linux_*/*/comm_libs/nccl/lib/libnccl.so.2",),
        sdk="NVIDIA HPC SDK",
    ),
    mpi=MpiNames(
        driver=r"libcuda(rt)?\.so",
        configure="--with-cuda",
        mpich_configure="--with-cuda",
        accelerator="cuda",
        ucx_component="cuda_cpy",
        ucx_copy="cuda_copy",
        ucx_ipc="cuda_ipc",
        gtl="libmpi_gtl_cuda.so",
        cray_module="craype-accel-nvidia90",
        intel_mode="cuda",
        open_mpi_built="mpi_built_with_cuda_support",
        open_mpi_switch="opal_cuda_support",
    ),
    site="generic-slurm-nvidia",
    allocators={"cupy": ("MemoryPool", "MemoryAsyncPool"), "pytorch": ("PyTorch",)},
    forks_after_import=True,
    allocators_from="`pip install cupy-cuda12x` or `pip install torch` (for CUDA 13: cupy-cuda13x)",
)

AMD = SupportedVendor(
    backend="hip",
    name="AMD",
    component="amd",
    dra_driver="gpu.amd.com",
    platform="ROCm",
    pci="0x1002",
    library="libamdhip64.so",
    library_remedy="install ROCm's HIP runtime, or add its directory (/opt/rocm/lib) to LD_LIBRARY_PATH",
    kernel_marks=("sys/module/amdgpu", "dev/kfd"),
    control_files=("dev/kfd",),
    gpu_files="dev/dri/renderD*",
    facts=frozenset(["amdgpu", "rocm", "hip-driver", "hip-runtime", "rccl"]),
    drivers=frozenset({"amdgpu", "hip-driver"}),
    word="ROC",
    # ROCr tests whether its variable is set (flag.h), HIP whether its own are not empty (rocdevice.cpp).
    hides={
        "ROCR_VISIBLE_DEVICES": True,
        "HIP_VISIBLE_DEVICES": False,
        "CUDA_VISIBLE_DEVICES": False,
        "GPU_DEVICE_ORDINAL": False,
    },
    choice=Choice(variable="HIP_VISIBLE_DEVICES", by_uuid=False),
    renumbering=("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    handles_have_numbers=True,
    tool="rocm-smi",
    binding=Binding(package="hip-python", requirement="hip-python", modules=("hip.hip", "ctypes")),
    errors=Errors(
        out_of_memory="hipErrorOutOfMemory",
        out_of_memory_code=2,
        already_mapped=frozenset({"hipErrorAlreadyMapped"}),
        refused=frozenset({"hipErrorInvalidValue", "hipErrorInvalidContext", "hipErrorInvalidHandle"})
        | {"hipErrorInvalidDevicePointer", "hipErrorNotSupported"},
        not_supported=frozenset({"hipErrorNotSupported"}),
    ),
    calls=Calls(initialise="hipInit"),
    instead={
        "legacy-ipc": _WITHOUT_IPC.format("rocm_ipc"),
        "vmm-ipc": "nothing to repair; set NCCL_CUMEM_ENABLE=0, and no expandable segments in PyTorch",
        "memory-pools": "nothing to repair; jobs allocate with hipMalloc",
        "pool-ipc": "nothing to repair; jobs share memory of hipMalloc, not of pools",
        "fabric-handles": "nothing to repair; only NVLink between nodes needs them",
    },
    collectives=CollectiveFamily(
        name="RCCL",
        fact="rccl",
        soname="librccl.so.1",
        in_wheels=("torch/lib/librccl.so*",),
        in_sdks=("/opt/rocm/lib/librccl.so.1", "/opt/rocm-*/lib/librccl.so.1"),
        sdk="ROCm",
    ),
    mpi=MpiNames(
        driver=r"lib(amdhip64|hsa-runtime64)\.so",
        configure="--with-rocm",
        mpich_configure="--with-hip",
        accelerator="rocm",
        ucx_component="rocm_cpy",
        ucx_copy="rocm_copy",
        ucx_ipc="rocm_ipc",
        gtl="libmpi_gtl_hsa.so",
        cray_module="craype-accel-amd-gfx90a",
    ),
    site="generic-slurm-amd",
    # CuPy's second pool is refused on HIP (``is_async_alloc_supported`` in cupy/cuda/memory.pyx, 14.2).
    allocators={"cupy": ("MemoryPool",), "pytorch": ("PyTorch",)},
    wheels="rocm",
    allocators_from="install PyTorch or CuPy for the node's ROCm version",
)

INTEL = SupportedVendor(
    backend="ze",
    name="Intel",
    component="intel",
    dra_driver="gpu.intel.com",
    platform="Level Zero",
    pci="0x8086",
    experimental=True,
    library="libze_loader.so.1",
    library_remedy="install Level Zero's loader (Debian: libze1; Intel's packages: level-zero)",
    kernel_marks=(),
    control_files=(),
    gpu_files="dev/dri/renderD*",
    # Not its kernel drivers, which a laptop also has, nor Level Zero's loader, which other nodes have.
    facts=frozenset({"intel-compute-runtime", "oneccl", "ze-driver"}),
    drivers=frozenset({"intel-compute-runtime", "ze-driver"}),
    word="CCL_ZE",
    hides={"ZE_AFFINITY_MASK": False},  # compute-runtime, execution_environment.cpp
    choice=Choice(
        variable="ZE_AFFINITY_MASK",
        by_uuid=False,
        order={"ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1"},
    ),
    tool="xpu-smi ps",
    binding=Binding(package="libze1", requirement="", modules=("ctypes",)),
    errors=Errors(
        out_of_memory="ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
        out_of_memory_code=0x70000003,
        already_mapped=frozenset(),
        refused=frozenset({"ZE_RESULT_ERROR_INVALID_ARGUMENT", "ZE_RESULT_ERROR_INVALID_NULL_HANDLE"})
        | {"ZE_RESULT_ERROR_UNSUPPORTED_FEATURE"}
        | {"EBADF", "ESRCH", "ECONNREFUSED"},  # no such descriptor, process or listener any more
        not_supported=frozenset({"ZE_RESULT_ERROR_UNSUPPORTED_FEATURE"}),
        not_permitted=frozenset({"ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS"}),
        vague=frozenset({"ZE_RESULT_ERROR_UNKNOWN"}),
    ),
    simulated_on_host=False,
    calls=Calls(initialise="zeInit", opens_memory="IpcHandle"),
    # Level Zero has contexts, memory of several parts and events to share; this backend does not use them.
    lacks=frozenset({"contexts", "memory-pools", "pool-ipc", "vmm-ipc", "fabric-handles", SHARED_EVENTS}),
    instead={
        "legacy-ipc": "nothing to repair; run MPI without GPU IPC: I_MPI_OFFLOAD_IPC=0",
    },
    collectives=CollectiveFamily(
        name="oneCCL",
        fact="oneccl",
        soname="libccl.so.1",
        in_wheels=(),
        in_sdks=("/opt/intel/oneapi/ccl/*/lib/libccl.so.1",),
        sdk="oneAPI",
    ),
    mpi=MpiNames(
        driver=r"libze_(loader|intel_gpu)\.so",
        configure="--with-ze",
        mpich_configure="--with-ze",
        accelerator="ze",
        ucx_component="ze_copy",
        ucx_copy="ze_copy",
        ucx_ipc="ze_ipc",
        gtl="libmpi_gtl_ze.so",
        cray_module="craype-accel-intel-max",
        intel_mode="level_zero",
        intel_first=True,
    ),
    site="generic-slurm-intel",
    allocators={},
    allocators_from="not tested: PyTorch's and CuPy's memory on Intel GPUs",
)
"""Experimental: never run on an Intel GPU, but read in sources, and tried on a simulated driver."""

VENDORS: tuple[Vendor, ...] = (NVIDIA, AMD, INTEL)
"""All vendors, in the order in which the tool lists their GPUs."""

SUPPORTED = {vendor.backend: vendor for vendor in VENDORS if isinstance(vendor, SupportedVendor)}
"""Backend → its vendor."""


def untried(backends: Iterable[str]) -> str:
    """What every screen says of GPUs whose backend was never run on one; empty for others."""
    known = (SUPPORTED[backend] for backend in dict.fromkeys(backends) if backend in SUPPORTED)
    return ", ".join(f"EXPERIMENTAL: never run on an {each.gpu}" for each in known if each.experimental)


def installed() -> tuple[str, ...]:
    """Backends whose binding is installed: the simulator replaces drivers but not bindings."""
    return tuple(backend for backend, vendor in SUPPORTED.items() if _is_installed(vendor))


def _is_installed(vendor: SupportedVendor) -> bool:
    if vendor.binding.requirement:
        return find_spec(vendor.binding.modules[0].partition(".")[0]) is not None
    path = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    known = (*filter(None, path), "/usr/lib64", "/usr/local/lib")
    directories = (*map(Path, known), *Path("/usr/lib").glob("*-linux-gnu"))
    return any((directory / vendor.library).exists() for directory in directories)
