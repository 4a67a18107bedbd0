"""Which libraries' ranks ``srun`` can start, and what it must be told so that they know of each other."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping

_LIMIT_S = 10.0
"""For the controller to answer; without its answer nothing is added."""

_PMI = {"mpich": "pmi2", "mvapich": "pmi2", "openmpi": "pmix"}
"""The interface that a library speaks. Tried under Slurm 22.05: MPICH 4.3.2 and 5.0.2, Open MPI 5.0.11. Cray
MPICH's is always its site's default."""


def starts(family: str, environment: Mapping[str, str]) -> bool:
    """Whether ``srun`` can start ranks of that library.

    Intel MPI 2021.17 crashes in `MPI_Init` without Slurm's PMI library, which the user has to name; its own
    launcher starts ranks in an allocation without.
    """
    return family != "intel-mpi" or "I_MPI_PMI_LIBRARY" in environment


def pmi(family: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """``--mpi=…`` where neither the user nor the site says which; ranks would otherwise each be alone."""
    scontrol = shutil.which("scontrol", path=environment.get("PATH"))
    if "SLURM_MPI_TYPE" in environment or family not in _PMI or scontrol is None:
        return ()
    try:
        config = subprocess.run(
            [scontrol, "show", "config"],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    none_by_default = re.search(r"^MpiDefault\s*=\s*none\s*$", config, re.MULTILINE)
    return (f"--mpi={_PMI[family]}",) if none_by_default else ()
