"""Log levels of MPI libraries, and of the libraries that they use, in every run and in reruns of failures."""

from __future__ import annotations

from collections.abc import Mapping

ERRORS_ONLY: Mapping[str, str] = {"FI_LOG_LEVEL": "warn"}
"""Variables set in every run: by default libfabric does not even log its errors (src/log.c, `fi_log_init`).

Without an error, this setting costs nothing. UCX, MPICH and Open MPI log their errors by default."""

_LIBFABRIC = {"FI_LOG_LEVEL": "info"}
"""The most verbose level of a release build, which has no ``debug`` (include/rdma/providers/fi_log.h)."""

_UCX = {"UCX_LOG_LEVEL": "info"}
"""The most verbose level that a release build has (contrib/configure-release)."""

_RAISED: Mapping[str, Mapping[str, str]] = {
    # What is set, and which modules it has: MPI_T of 4.3.2 and 5.0.2.
    "mpich": {"MPIR_CVAR_DEBUG_SUMMARY": "1"},
    # As in the report of December 2023 behind the check mpi-small-message.
    "cray-mpich": {"MPICH_VERSION_DISPLAY": "1", "MPICH_ENV_DISPLAY": "1"},
    # docs.open-mpi.org, "Debugging Open MPI": each framework's verbosity.
    "openmpi": {"OMPI_MCA_pml_base_verbose": "10", "OMPI_MCA_btl_base_verbose": "10"},
    # Intel MPI developer reference, I_MPI_DEBUG.
    "intel-mpi": {"I_MPI_DEBUG": "6"},
    # MVAPICH2 user guide.
    "mvapich": {"MV2_DEBUG_SHOW_BACKTRACE": "1"},
}


def raised(family: str, *, over_ucx: bool, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment that makes a library of ``family`` log more, except what the user has set."""
    env = {**_LIBFABRIC, **(_UCX if over_ucx else {}), **_RAISED.get(family, {})}
    return {name: value for name, value in env.items() if name not in environment}
