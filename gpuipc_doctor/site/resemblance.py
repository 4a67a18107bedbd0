"""Shipped site configs that match a node's hardware, if no config names its system."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from gpuipc_doctor.files import yamlfile
from gpuipc_doctor.site import config, layers
from gpuipc_doctor.site.layers import Layers

if TYPE_CHECKING:
    from gpuipc_doctor.model import Device


def resembling(
    devices: Collection[Device], fabrics: Collection[str], has_launcher: Callable[[str], bool], cluster: str
) -> list[str]:
    """Names of shipped site configs with nodes of this GPU model and fabric, and at least this many GPUs.

    Of several, those with the fewest lost GPUs count; of these, those whose launcher the node has.
    ``cluster``: Slurm's name for this cluster. If it is known, configs that name a cluster are excluded,
    because they are for other clusters.
    """
    found: list[tuple[int, bool, str]] = []
    for file in sorted(layers.shipped().glob("*.yaml")):
        document = yamlfile.read(file, schema=None)
        if cluster and "cluster" in document.data:
            continue
        site, *types = config.of_nodes(Layers((document,)))
        for node in (site, *(kind.over(site) for kind in types)):
            gpus, program = node.gpus, node.mpi.launcher.partition(" ")[0] or "srun"
            lost = gpus.count - len(devices)
            are = gpus.model and all(gpus.are(device.name) for device in devices)
            if devices and are and lost >= 0 and node.fabric and node.fabric.value in fabrics:
                found.append((lost, not has_launcher(program), file.stem))
    return sorted({name for *rank, name in found if rank == list(min(found)[:2])})
