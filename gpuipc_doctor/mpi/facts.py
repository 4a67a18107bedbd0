"""What `survey.survey` saw of an MPI library, in the terms in which the tables ask."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpuipc_doctor.model import Json
from gpuipc_doctor.mpi.identity import identify


@dataclass(frozen=True, slots=True)
class Vendor:
    """What MPI libraries and what they use call one vendor's parts."""

    name: str
    driver: str
    """Libraries one of which everything links with that uses this vendor's GPUs: a regular expression."""
    configure: str
    """Open MPI's option that builds it in; MPICH's is ``mpich_configure``."""
    mpich_configure: str
    accelerator: str
    """Open MPI's accelerator component; UCX's alias for all transports of this vendor, too."""
    ucx_component: str
    ucx_copy: str
    """The transport by which UCX recognises this vendor's device memory."""
    ucx_ipc: str
    gtl: str
    """Cray MPICH's GPU transport library."""
    cray_module: str


VENDORS = {
    "cuda": Vendor(
        name="CUDA",
        driver=r"libcuda(rt)?\.so",
        configure="--with-cuda",
        mpich_configure="--with-cuda",
        accelerator="cuda",
        ucx_component="cuda_cpy",
        ucx_copy="cuda_copy",
        ucx_ipc="cuda_ipc",
        gtl="libmpi_gtl_cuda.so",
        cray_module="craype-accel-nvidia90",
    ),
    "hip": Vendor(
        name="ROCm",
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
}
"""By backend."""

VARIABLES = (
    "MPIR_CVAR_ENABLE_GPU",
    "MPIR_CVAR_NOLOCAL",
    "MPIR_CVAR_OFFLOAD_CUDA_LIBRARY",
    "MVP_ENABLE_GPU",
    "accelerator_cuda_major_version",
    "accelerator_rocm_major_version",
    "mpi_built_with_cuda_support",
    "opal_cuda_support",
    "pml",
    "pml_ucx_priority",
)
"""The control variables on which the routes depend."""

EDGES = (
    "MPIR_CVAR_CH4_IPC_CMA_P2P_THRESHOLD",
    "MPIR_CVAR_CH4_IPC_GPU_P2P_THRESHOLD",
    "MPIR_CVAR_CH4_IPC_XPMEM_P2P_THRESHOLD",
    "MPIR_CVAR_CH4_OFI_EAGER_THRESHOLD",
    "MPIR_CVAR_GPU_DEVICE_KERNELCOPY_THRESHOLD",
    "MPIR_CVAR_GPU_IPC_MULTIRAIL_THRESHOLD",
    "MPIR_CVAR_GPU_IPC_THRESHOLD",
    "MPIR_CVAR_GPU_PIPELINE_THRESHOLD",
    "btl_sm_eager_limit",
    "btl_sm_rndv_eager_limit",
    "btl_smcuda_eager_limit",
    "btl_tcp_eager_limit",
    "btl_vader_eager_limit",
)
"""The control variables that are message sizes in bytes from which on another protocol is used."""

EDGE_ENVIRONMENT: Mapping[str, int] = {
    "MPICH_GPU_IPC_THRESHOLD": 1024,
    "FI_CXI_RDZV_THRESHOLD": 16384,
    "FI_CXI_SAFE_DEVMEM_COPY_THRESHOLD": 4096,
}
"""Such sizes that only the environment tells, each with its default: Cray MPICH's (intro_mpi) and those of
its libfabric provider (fi_cxi(7))."""

ENVIRONMENT = re.compile(
    r"MPIR_|MPICH_|I_MPI_OFFLOAD|OMPI_MCA_|MV2_|MVP_|UCX_|FI_CXI_|CRAY_MPICH_ROOTDIR$|LD_PRELOAD$"
)
"""Environment variables that decide, or explain, what becomes of a device pointer."""


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text and text.isdecimal() else otherwise


class Facts:
    """The facts about one library, looked at for the devices of one backend."""

    def __init__(self, seen: Mapping[str, Json], backend: str) -> None:
        self.backend = backend
        self.vendor = VENDORS[backend]
        self.identity = identify(seen["version_text"])
        self.environment: Mapping[str, str] = seen["environment"]
        self.cannot_load: Mapping[str, str] = seen["cannot_load"]
        self._seen = seen
        self._ucx: Mapping[str, Json] = seen["ucx"] or {"library": "none", "version": "", "components": []}

    def variable(self, name: str) -> Json:
        """The value of a control variable as the library itself reads it; None when it has none such."""
        assert name in VARIABLES, name
        return self._seen["variables"].get(name)

    @property
    def edges(self) -> tuple[int, ...]:
        """The message sizes in bytes, in order, at which the library may change its protocol."""
        sizes = {self._seen["variables"].get(name, 0) for name in EDGES}
        if self.identity.family == "cray-mpich":
            sizes |= {_number(self.environment.get(name), size) for name, size in EDGE_ENVIRONMENT.items()}
        sizes.add(_number(self.environment.get("UCX_RNDV_THRESH"), 0))
        return tuple(sorted(size for size in sizes if size > 1))  # 0, 1 and -1: always, or chosen by itself

    @property
    def linked(self) -> bool:
        """Whether the library itself, not one that it uses, links with the vendor's driver or runtime."""
        return any(re.match(self.vendor.driver, name) for name in self._seen["needs"])

    @property
    def gtl_loaded(self) -> bool:
        return any(name.startswith(self.vendor.gtl) for name in self._seen["loaded"])

    @property
    def netmods(self) -> list[str]:
        """MPICH ch4's network modules, the default one first: ``MPICH Device: ch4:ucx ofi``."""
        found = re.search(r"Device\s*:\s*ch4:(.+)", self._seen["version_text"])
        return re.split(r"[\s,]+", found[1].strip()) if found else []

    @property
    def netmod(self) -> str:
        """The one that messages go through.

        A control variable that is a text has its environment's value only after `MPI_Init` (seen in MPICH
        4.3.2 and 5.0.2), so the environment is asked. Of its three prefixes the last one here wins.
        """
        values = [
            self.environment.get(f"{prefix}CH4_NETMOD") for prefix in ("MPICH_", "MPIR_PARAM_", "MPIR_CVAR_")
        ]
        return next(filter(None, [*reversed(values), *self.netmods]), "")

    @property
    def ucx_has_vendor(self) -> bool:
        return self.vendor.ucx_component in self._ucx["components"]

    @property
    def ucx_tls(self) -> str:
        """The transports that UCX is told to use; a ``^`` before them excludes them instead."""
        return self.environment.get("UCX_TLS") or "all"

    @property
    def ucx_lets_vendor(self) -> bool:
        """Whether the transports that UCX is told to use let it recognise this vendor's memory."""
        named = set(self.ucx_tls.lstrip("^").split(","))
        names = {self.vendor.ucx_copy, self.vendor.accelerator}
        return not named & names if self.ucx_tls.startswith("^") else bool(named & (names | {"all"}))

    @property
    def may_choose_ucx(self) -> bool:
        """Whether Open MPI may send by UCX: it does by itself where it finds an InfiniBand adapter."""
        return self.variable("pml_ucx_priority") is not None and self.variable("pml") in ("", "ucx")

    def fill_in(self, template: str) -> str:
        """A table's text with what it leaves open, in braces, filled in."""
        vendor, environment = self.vendor, self.environment
        unloadable, reason = next(iter(self.cannot_load.items()), ("", ""))
        return template.format(
            mpi=self.identity.title,
            gpu=vendor.name,
            configure=vendor.configure if self.identity.family == "openmpi" else vendor.mpich_configure,
            ucx=f"UCX {self._ucx['version']} ({self._ucx['library']})",
            ucx_tls=self.ucx_tls,
            ucx_copy=vendor.ucx_copy,
            ucx_ipc=vendor.ucx_ipc,
            gtl=f"{environment.get('CRAY_MPICH_ROOTDIR', '$CRAY_MPICH_ROOTDIR')}/gtl/lib/{vendor.gtl}",
            cray_module=vendor.cray_module,
            unloadable=unloadable,
            reason=reason,
        )
