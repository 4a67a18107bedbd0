"""What is here to test? Probes that the run makes before it plans its checks; three checks judge them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from gpuipc_doctor.api import Context, Probe
from gpuipc_doctor.surveys import drivers, mpi_library, ranks

DRIVERS, MPI_LIBRARY, RANKS = "driver-init", "mpi-gpu-aware", "mpi-start"
"""The check that judges each survey."""

PROBES: Mapping[str, Callable[[Context], Iterable[Probe]]] = {
    DRIVERS: drivers.probes,
    MPI_LIBRARY: mpi_library.probes,
    RANKS: ranks.probes,
}
