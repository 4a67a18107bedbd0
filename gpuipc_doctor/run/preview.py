"""The preview of a run: its probes, and how it would start ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpuipc_doctor.model import Device
from gpuipc_doctor.probe_types import MpiStack
from gpuipc_doctor.run.planner import Plan
from gpuipc_doctor.site.config import NodeConfig
from gpuipc_doctor.site.launcher import words


@dataclass(frozen=True, slots=True)
class RankItem:
    """A property of the ranks (``launcher``, …), its value and its source."""

    kind: str
    value: str
    where: str


@dataclass(frozen=True, slots=True)
class Preview:
    plan: Plan
    ranks: tuple[RankItem, ...]
    """How ranks would start; empty if the site config has no settings for ranks and no MPI library was
    found."""


def of_ranks(site: NodeConfig, mpi: MpiStack | None, devices: Iterable[Device]) -> Iterator[RankItem]:
    """How ranks would start, and their environment; without an MPI library, only the site's settings."""
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
