"""How much of a device's memory a role may take: the site's share, from a check's plan to its roles."""

from __future__ import annotations

from dataclasses import asdict

from gpuipc_doctor.api.worker import Worker
from gpuipc_doctor.model import Json, MemoryShare


def share(memory: MemoryShare) -> dict[str, Json]:
    """What goes to the ``params`` of a probe whose roles ask for their `share_of_free`."""
    return {"share": asdict(memory)}


def share_of_free(w: Worker) -> int:
    """Bytes of what this role's device has free that it may take."""
    return MemoryShare(**w.params["share"]).of(w.gpu.memory_info()[0])
