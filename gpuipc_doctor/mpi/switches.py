"""Environment that changes how an MPI library uses IPC: what turns it off, and what is known to help.

The same variable is a number in one release and a word in the next, so each row says where it is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpuipc_doctor.mpi.facts import Facts


@dataclass(frozen=True, slots=True)
class Switch:
    """One setting, for the versions from ``introduced`` on and before ``fixed`` (empty: unbounded).

    ``family`` and ``via`` say whom it is for, as in `routes`; family ``*`` is every one. ``no_ipc``: device
    memory then does not go through IPC at all, which makes it the control of a comparison. ``cost`` says in
    words what it costs.
    """

    family: str
    env: Mapping[str, str]
    cost: str
    source: str
    via: str = "own"
    no_ipc: bool = False
    backends: tuple[str, ...] = ("cuda", "hip")
    introduced: str = ""
    fixed: str = ""


_MAPS_ANEW = "every message maps its buffer anew"
_VIA_HOST = "device memory goes through the host"

SWITCHES: tuple[Switch, ...] = (
    Switch(
        "*",
        {"UCX_CUDA_IPC_CACHE": "n"},
        _MAPS_ANEW,
        "H200: cures the growth with MPICH 5.0.2 and Open MPI 5.0.11 over UCX 1.22.0",
        via="ucx",
        backends=("cuda",),
    ),
    Switch(
        "*",
        # Open MPI takes UCX up only with transports of a list, in which cuda_ipc may be the only one here.
        {
            "UCX_TLS": "^{ucx_ipc}",
            "OMPI_MCA_opal_common_ucx_tls": "any",
            "OMPI_MCA_opal_common_ucx_devices": "any",
        },
        _VIA_HOST,
        "https://openucx.readthedocs.io/en/master/faq.html (UCX_TLS)",
        via="ucx",
        no_ipc=True,
    ),
    Switch(
        "mpich",
        {"MPIR_CVAR_CH4_IPC_GPU_HANDLE_CACHE": "0"},
        _MAPS_ANEW,
        "MPICH CHANGES and src/mpid/ch4/shm/ipc/gpu/gpu_post.c: a number up to 4.1",
        introduced="3.4",
        fixed="4.2.0",
    ),
    Switch(
        "mpich",
        {"MPIR_CVAR_CH4_IPC_GPU_HANDLE_CACHE": "disabled"},
        _MAPS_ANEW,
        "MPI_T of 4.3.2 and 5.0.2: generic, specialized or disabled; a word from 4.2.0 on",
        introduced="4.2.0",
        fixed="5.1.0a1",
    ),
    Switch(
        "mpich",
        {"MPIR_CVAR_CH4_IPC_GPU_CACHE_SIZE": "disabled"},
        _MAPS_ANEW,
        "MPI_T of 4.3.2 and 5.0.2: unlimited, limited or disabled",
        introduced="4.3.0",
        fixed="5.1.0a1",
    ),
    Switch(
        "mpich",
        {"MPIR_CVAR_CH4_IPC_GPU_CACHE_SIZE": "0"},
        _MAPS_ANEW,
        "https://github.com/pmodels/mpich/pull/7862: a number of entries",
        introduced="5.1.0a1",
    ),
    Switch(
        "mpich",
        {"MPIR_CVAR_CH4_IPC_GPU_P2P_THRESHOLD": "1000000000"},
        _VIA_HOST,
        "MPI_T of 4.3.2 and 5.0.2: messages of so many bytes and more go through IPC",
        no_ipc=True,
        introduced="3.4",
    ),
    Switch(
        "cray-mpich",
        {"MPICH_GPU_IPC_ENABLED": "0"},
        _VIA_HOST,
        "https://cpe.ext.hpe.com/docs/latest/mpt/mpich/intro_mpi.html; eth-cscs/alps-gh200-reproducers",
        no_ipc=True,
    ),
    Switch(
        "openmpi",
        {"OMPI_MCA_btl_smcuda_use_cuda_ipc": "0"},
        _VIA_HOST,
        "https://docs.open-mpi.org/en/v5.0.x/tuning-apps/networking/cuda.html",
        no_ipc=True,
        backends=("cuda",),
    ),
    Switch(
        "intel-mpi",
        {"I_MPI_OFFLOAD_CACHE_MAX_SIZE": "1"},
        "every buffer but the last one sent is mapped anew",
        "MPI_T of 2021.17 (MPIR_CVAR_GPU_CACHE_MAX_SIZE, 256 by default); on a simulated node 1 holds the "
        "growth at one buffer, and 0 changes nothing",
        introduced="2021.17",
    ),
    Switch(
        "intel-mpi",
        {"I_MPI_OFFLOAD_IPC": "0"},
        _VIA_HOST,
        "Intel MPI developer reference, What's New in 2021.8; MPI_T of 2021.17 (MPIR_CVAR_GPU_ENABLE_IPC)",
        no_ipc=True,
        introduced="2021.8",
    ),
    Switch(
        "mvapich",
        {"MV2_CUDA_ENABLE_IPC_CACHE": "0"},
        _MAPS_ANEW,
        "MVAPICH2, src/mpid/ch3/channels/mrail/src/gen2/ibv_cuda_util.c",
        backends=("cuda",),
        fixed="3.0a",
    ),
    Switch(
        "mvapich",
        {"MV2_CUDA_IPC": "0"},
        _VIA_HOST,
        "MVAPICH2, src/mpid/ch3/channels/mrail/src/gen2/ibv_param.h",
        no_ipc=True,
        backends=("cuda",),
        fixed="3.0a",
    ),
)
"""In order of cost within a family: what keeps IPC comes before what turns it off."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The variable that bounds how many buffers, or bytes, of others a library keeps mapped.

    Of versions of the library, or of UCX where ``via`` is that.
    """

    family: str
    variable: str
    via: str = "own"
    introduced: str = ""
    fixed: str = ""
    backends: tuple[str, ...] = ("cuda", "hip")
    in_bytes: bool = False


BOUNDS = (
    Bound("*", "UCX_CUDA_IPC_CACHE_MAX_REGIONS", via="ucx", introduced="1.21", backends=("cuda",)),
    Bound("mpich", "MPIR_CVAR_CH4_IPC_GPU_MAX_CACHE_ENTRIES", introduced="4.3.0", fixed="5.1.0a1"),
    Bound("mpich", "MPIR_CVAR_CH4_IPC_GPU_CACHE_SIZE", introduced="5.1.0a1"),
    Bound("cray-mpich", "MPICH_GPU_IPC_CACHE_MAX_SIZE"),
    Bound(
        "openmpi",
        "OMPI_MCA_rcache_rgpusm_rcache_size_limit",
        introduced="2.1.0",
        backends=("cuda",),
        in_bytes=True,
    ),
    Bound("intel-mpi", "I_MPI_OFFLOAD_CACHE_MAX_SIZE", introduced="2021.17"),
    Bound("mvapich", "MV2_CUDA_IPC_MAX_CACHE_ENTRIES", fixed="3.0a", backends=("cuda",)),
)
"""From the sources and tags of each, and the developer references of Intel and HPE."""


def bounding(facts: Facts, via: str, ucx: str) -> Bound | None:
    """What bounds a library's cache of mappings; None when nothing is known to."""
    version = ucx if via == "ucx" else facts.identity.version
    return next((row for row in BOUNDS if _is_of(row, facts, via, version)), None)


def suitable(facts: Facts, via: str) -> tuple[Switch, ...]:
    """The rows that are right for a library: of their ``env`` what it reads, with respect for what is set."""
    return tuple(
        replace(
            row, env={name: _value(facts, name, row.env[name]) for name in row.env if _reads(facts, name)}
        )
        for row in SWITCHES
        if _is_of(row, facts, via, facts.identity.version)
    )


def _reads(facts: Facts, variable: str) -> bool:
    return facts.identity.family == "openmpi" or not variable.startswith("OMPI_")


def _is_of(row: Switch | Bound, facts: Facts, via: str, version: str) -> bool:
    """Whether a row speaks of this library, or of all, on this way of messages and in this version."""
    return (
        row.family in ("*", facts.identity.family)
        and row.via == via
        and facts.backend in row.backends
        and _covers(row, version)
    )


def _value(facts: Facts, name: str, value: str) -> str:
    """A row's value; to a UCX_TLS that is set, taking the IPC transport out means something else."""
    if name != "UCX_TLS" or facts.ucx_tls == "all":
        return facts.fill_in(value)
    vendor = facts.vendor
    if facts.ucx_tls.startswith("^"):
        return f"{facts.ucx_tls},{vendor.ucx_ipc}"
    without_alias = [
        vendor.ucx_copy if one == vendor.accelerator else one for one in facts.ucx_tls.split(",")
    ]
    return ",".join(one for one in without_alias if one != vendor.ucx_ipc)


def _covers(row: Switch | Bound, version: str) -> bool:
    from packaging.version import InvalidVersion, Version

    if not row.introduced and not row.fixed:
        return True
    try:
        ours = Version(version)
    except InvalidVersion:
        return False
    return not (row.introduced and ours < Version(row.introduced)) and not (
        row.fixed and ours >= Version(row.fixed)
    )
