"""Libraries whose ranks ``srun`` can start, and the options with which ranks find each other."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from gpuipc_doctor.files import foreign

_LIMIT_S = 10.0
"""Seconds to wait for Slurm's controller. Without an answer, srun is assumed to work."""

_PMI = {"mpich": "pmi2", "mvapich": "pmi2", "openmpi": "pmix"}
"""The rank interface of each library. Tried under Slurm 22.05: MPICH 4.3.2 and 5.0.2, Open MPI 5.0.11. Cray
MPICH always uses the site's default."""


_COMES_WITH = {
    "pmix": "the PMIx library, which Slurm loads as libpmix.so (Debian: libpmix-dev, Red Hat: pmix-devel)",
    "pmi2": "Slurm's plugin mpi_pmi2.so (Debian: slurm-wlm-basic-plugins, Red Hat: slurm)",
}
"""What a rank interface needs on every node. Slurm 22.05 includes a PMIx plugin, but not the PMIx library."""


def starts(family: str, environment: Mapping[str, str]) -> bool:
    """Whether ``srun`` can start ranks of this library.

    Under srun, Intel MPI 2021.17 crashes in `MPI_Init` unless the user names Slurm's PMI library.
    """
    return family != "intel-mpi" or "I_MPI_PMI_LIBRARY" in environment


def pmi(family: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The option ``--mpi=…``; empty if the user or the site sets the interface. Without an interface, ranks
    do not find each other."""
    scontrol = shutil.which("scontrol", path=environment.get("PATH"))
    if "SLURM_MPI_TYPE" in environment or family not in _PMI or scontrol is None:
        return ()
    ended = _ask((scontrol, "show", "config"), environment)
    none_by_default = ended and re.search(r"^MpiDefault\s*=\s*none\s*$", ended.stdout, re.MULTILINE)
    return (f"--mpi={_PMI[family]}",) if none_by_default else ()


def refused(srun: Sequence[str], environment: Mapping[str, str]) -> str:
    """The rank interface that this ``srun`` command cannot load; empty if there is none. Starts no step.

    ``srun --mpi=list`` cannot be used: it also lists interfaces that cannot be loaded.
    """
    ended = _ask((*srun, "--test-only", "-n1", "true"), environment)
    invalid = ended and re.search(r"Invalid MPI type '([^']*)'", ended.stderr)
    return invalid[1] if invalid else ""


def remedy(interface: str) -> str:
    """The remedy for an interface that ``srun`` refused."""
    needs = _COMES_WITH.get(re.sub(r"_v\d+$", "", interface), "what Slurm's error message names")
    return f"install {needs} on every node, or set mpi.launcher in the site config"


def _ask(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str] | None:
    try:
        return foreign.run(command, limit_s=_LIMIT_S, environment=environment)
    except (OSError, subprocess.TimeoutExpired):
        return None
