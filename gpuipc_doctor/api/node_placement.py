"""Whether roles ran on the requested nodes."""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.model import Finding


def misplaced(nodes: Iterable[str], *, across: bool) -> Finding | None:
    """An ERROR unless the two roles ran on two nodes, or on one, as requested."""
    ran_on = sorted(set(nodes))
    if len(ran_on) == 1 + across:
        return None
    return Finding.error(
        "misplaced",
        "the launcher did not put the ranks on {wanted}: they ran on {nodes}",
        remedy="check the allocation's nodes, and mpi.launcher in the site config",
        wanted="two nodes" if across else "one node",
        nodes=ran_on,
    )
