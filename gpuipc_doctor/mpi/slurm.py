"""Which libraries' ranks ``srun`` can start, and what it must be told so that they know of each other."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence

_LIMIT_S = 10.0
"""For the controller to answer; without its answer nothing is added, and nothing is taken for a refusal."""

_PMI = {"mpich": "pmi2", "mvapich": "pmi2", "openmpi": "pmix"}
"""The interface that a library speaks. Tried under Slurm 22.05: MPICH 4.3.2 and 5.0.2, Open MPI 5.0.11. Cray
MPICH's is always its site's default."""


_COMES_WITH = {
    "pmix": "the PMIx library, which Slurm loads as libpmix.so (Debian: libpmix-dev, Red Hat: pmix-devel)",
    "pmi2": "Slurm's plugin mpi_pmi2.so (Debian: slurm-wlm-basic-plugins, Red Hat: slurm)",
}
"""What an interface needs on every node. Slurm has the plugin for PMIx without the library (tried: 22.05)."""


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
    ended = _ask((scontrol, "show", "config"), environment)
    none_by_default = ended and re.search(r"^MpiDefault\s*=\s*none\s*$", ended.stdout, re.MULTILINE)
    return (f"--mpi={_PMI[family]}",) if none_by_default else ()


def refused(srun: Sequence[str], environment: Mapping[str, str]) -> str:
    """The interface to ranks that this ``srun`` with its options cannot load; empty where it can.

    Its own list (``--mpi=list``) also names those that it cannot. No step is started for the answer.
    """
    ended = _ask((*srun, "--test-only", "-n1", "true"), environment)
    invalid = ended and re.search(r"Invalid MPI type '([^']*)'", ended.stderr)
    return invalid[1] if invalid else ""


def remedy(interface: str) -> str:
    """What makes ``srun`` load an interface that it refused."""
    needs = _COMES_WITH.get(re.sub(r"_v\d+$", "", interface), "what Slurm's own error names")
    return f"install {needs} on every node, or name a launcher as mpi.launcher in the site config"


def _ask(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str] | None:
    """How a command of Slurm ended, if it did in time."""
    try:
        return subprocess.run(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
