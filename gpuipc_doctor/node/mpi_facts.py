"""Facts about an MPI library, from the result of `mpi_survey.survey`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpuipc_doctor.model import Json
from gpuipc_doctor.node.mpi_identity import identify
from gpuipc_doctor.vendors import SUPPORTED

VARIABLES = (
    "MPIR_CVAR_ENABLE_GPU",
    "MPIR_CVAR_NOLOCAL",
    "MPIR_CVAR_OFFLOAD_CUDA_LIBRARY",
    "MPIR_CVAR_OFFLOAD_LEVEL_ZERO_LIBRARY",
    "MVP_ENABLE_GPU",
    "accelerator_cuda_major_version",
    "accelerator_rocm_major_version",
    "mpi_built_with_cuda_support",
    "opal_cuda_support",
    "pml",
    "pml_ucx_priority",
)
"""Control variables that the rows of `mpi_transports` depend on."""

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
"""Control variables for message sizes, in bytes, at which the protocol changes."""

EDGE_ENVIRONMENT: Mapping[str, int] = {
    "MPICH_GPU_IPC_THRESHOLD": 1024,
    "FI_CXI_RDZV_THRESHOLD": 16384,
    "FI_CXI_SAFE_DEVMEM_COPY_THRESHOLD": 4096,
}
"""Environment variable → its default message size in bytes, for Cray MPICH (intro_mpi) and its libfabric
provider (fi_cxi(7))."""

ENVIRONMENT = re.compile(
    r"MPIR_|MPICH_|I_MPI_OFFLOAD|OMPI_MCA_|MV2_|MVP_|UCX_|FI_CXI_|CRAY_MPICH_ROOTDIR$|LD_PRELOAD$"
)
"""Environment variables that affect or explain the handling of device pointers."""


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text and text.isdecimal() else otherwise


class Facts:
    """The facts about one library, for the devices of one backend."""

    def __init__(self, seen: Mapping[str, Json], backend: str) -> None:
        self.backend = backend
        self.platform, self.vendor = SUPPORTED[backend].platform, SUPPORTED[backend].mpi
        self.identity = identify(seen["version_text"])
        self.environment: Mapping[str, str] = seen["environment"]
        self.cannot_load: Mapping[str, str] = seen["cannot_load"]
        self.level_zero: str = seen["level_zero"]
        self._seen = seen
        self._ucx: Mapping[str, Json] = seen["ucx"] or {"library": "none", "version": "", "components": []}

    def variable(self, name: str) -> Json:
        """Value of a control variable as read by the library; None if it has no such variable."""
        assert name in VARIABLES, name
        return self._seen["variables"].get(name)

    @property
    def edges(self) -> tuple[int, ...]:
        """The message sizes in bytes, in order, at which the library may change its protocol."""
        sizes = {self._seen["variables"].get(name, 0) for name in EDGES}
        if self.identity.family == "cray-mpich":
            sizes |= {_number(self.environment.get(name), size) for name, size in EDGE_ENVIRONMENT.items()}
        sizes.add(_number(self.environment.get("UCX_RNDV_THRESH"), 0))
        return tuple(sorted(size for size in sizes if size > 1))  # 0, 1 and -1 mean always or automatic

    @property
    def linked(self) -> bool:
        """Whether the library itself, not a dependency, links with the vendor's driver or runtime."""
        return any(re.match(self.vendor.driver, name) for name in self._seen["needs"])

    @property
    def gtl_loaded(self) -> bool:
        return any(name.startswith(self.vendor.gtl) for name in self._seen["loaded"])

    @property
    def netmods(self) -> list[str]:
        """MPICH ch4's network modules, default first, from a text such as ``MPICH Device: ch4:ucx ofi``."""
        found = re.search(r"Device\s*:\s*ch4:(.+)", self._seen["version_text"])
        return re.split(r"[\s,]+", found[1].strip()) if found else []

    @property
    def netmod(self) -> str:
        """The network module in use.

        It is read from the environment, because text control variables have their default until `MPI_Init`
        (seen in MPICH 4.3.2 and 5.0.2). If the variable is set with several prefixes, MPIR_CVAR_ takes
        precedence.
        """
        values = [
            self.environment.get(f"{prefix}CH4_NETMOD") for prefix in ("MPICH_", "MPIR_PARAM_", "MPIR_CVAR_")
        ]
        return next(filter(None, [*reversed(values), *self.netmods]), "")

    @property
    def ucx_version(self) -> str:
        return str(self._ucx.get("version", ""))

    @property
    def ucx_has_vendor(self) -> bool:
        return self.vendor.ucx_component in self._ucx["components"]

    @property
    def ucx_tls(self) -> str:
        """The transports that UCX_TLS allows or, after a leading ``^``, excludes."""
        return self.environment.get("UCX_TLS") or "all"

    @property
    def ucx_lets_vendor(self) -> bool:
        """Whether UCX_TLS lets UCX recognise this vendor's memory."""
        named = set(self.ucx_tls.lstrip("^").split(","))
        names = {self.vendor.ucx_copy, self.vendor.accelerator}
        return not named & names if self.ucx_tls.startswith("^") else bool(named & (names | {"all"}))

    @property
    def may_choose_ucx(self) -> bool:
        """Whether Open MPI may use UCX, which it does by default if it finds an InfiniBand adapter."""
        return self.variable("pml_ucx_priority") is not None and self.variable("pml") in ("", "ucx")

    def fill_in(self, template: str) -> str:
        """A table's text with its placeholders filled in."""
        vendor, environment = self.vendor, self.environment
        unloadable, reason = next(iter(self.cannot_load.items()), ("", ""))
        return template.format(
            mpi=self.identity.title,
            gpu=self.platform,
            configure=vendor.configure if self.identity.family == "openmpi" else vendor.mpich_configure,
            ucx=f"UCX {self._ucx['version']} ({self._ucx['library']})",
            ucx_tls=self.ucx_tls,
            ucx_copy=vendor.ucx_copy,
            ucx_ipc=vendor.ucx_ipc,
            gtl=f"{environment.get('CRAY_MPICH_ROOTDIR', '$CRAY_MPICH_ROOTDIR')}/gtl/lib/{vendor.gtl}",
            cray_module=vendor.cray_module,
            intel_mode=vendor.intel_mode,
            unloadable=unloadable,
            reason=reason,
            level_zero=self.level_zero,
        )
