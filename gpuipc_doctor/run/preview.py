"""What a run would do: its probes, and how it would start ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpuipc_doctor.model import Device, MpiStack
from gpuipc_doctor.run.planner import Plan
from gpuipc_doctor.site.config import NodeConfig
from gpuipc_doctor.site.launcher import words


@dataclass(frozen=True, slots=True)
class RankItem:
    """One thing that ranks would have: its kind, such as ``launcher``, and where that was found or said."""

    kind: str
    value: str
    where: str


@dataclass(frozen=True, slots=True)
class Preview:
    plan: Plan
    ranks: tuple[RankItem, ...]
    """Nothing where neither the site says anything of ranks, nor an MPI library was found."""


def of_ranks(site: NodeConfig, mpi: MpiStack | None, devices: Iterable[Device]) -> Iterator[RankItem]:
    """What ranks would have. Where no MPI library was looked at, it is what the site says."""
    if mpi:
        yield RankItem("library", mpi.library, "found" if mpi.library != site.mpi.library else "mpi.library")
        yield RankItem("launcher", " ".join(mpi.launch.command), site.mpi.where or "found")
    elif site.mpi.launcher:
        command = " ".join(words(site.mpi.launcher, {}, nodes=1))
        yield RankItem("launcher", command, site.mpi.where)
    for module in site.modules:
        yield RankItem("module", module.value, module.where)
    backends = dict.fromkeys(device.backend for device in devices)
    for number, backend in enumerate(backend for backend in backends if backend in site.preload):
        said = site.preload[backend]
        yield RankItem("preload", mpi.launch.preload[number] if mpi else said.value, said.where)
    for name, said in site.environment.items():
        yield RankItem("environment", f"{name}={said.value}", said.where)
