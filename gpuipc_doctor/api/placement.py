"""Whether roles ran where they were to run."""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.model import Finding


def misplaced(nodes: Iterable[str], *, across: bool) -> Finding | None:
    """Say that nobody can tell, where two roles ran on these nodes and were to run on two, or on one."""
    ran_on = sorted(set(nodes))
    if len(ran_on) == 1 + across:
        return None
    return Finding.error(
        "misplaced",
        "the launcher did not put the ranks on {wanted}: they ran on {nodes}",
        remedy="see that the allocation has the nodes, and to mpi.launcher of the site config",
        wanted="two nodes" if across else "one node",
        nodes=ran_on,
    )
