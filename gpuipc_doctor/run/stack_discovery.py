"""Find what the selected checks need for messages between processes: MPI, fabric programs, a launcher."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpuipc_doctor import node_name, surveys
from gpuipc_doctor.model import Device, Finding, Json, Node, Tier
from gpuipc_doctor.node import (
    collective_libraries,
    fabric_devices,
    fabric_programs,
    mpi_choice,
    mpi_locate,
    mpi_ranks,
    mpi_slurm,
)
from gpuipc_doctor.node.mpi_ranks import RankSetting
from gpuipc_doctor.probe_types import CollectiveStack, FabricStack, Launch, MpiStack, StatedFabric
from gpuipc_doctor.report_types import CheckInfo
from gpuipc_doctor.run.planner import Planner, info
from gpuipc_doctor.run.survey_runner import SurveyRunner, asks_foreign
from gpuipc_doctor.site.config import SiteConfig
from gpuipc_doctor.vendors import SUPPORTED


@dataclass(frozen=True, slots=True)
class Stacks:
    """What the selected checks need for messages between processes: MPI, fabric programs, a launcher."""

    mpi: MpiStack | None
    fabric: FabricStack
    across: Launch | None
    collectives: CollectiveStack


@dataclass
class StackDiscovery:
    """Finds the stacks after the drivers."""

    node: Node
    planner: Planner
    surveys: SurveyRunner

    def stacks(self, devices: tuple[Device, ...], site: SiteConfig, *, start_ranks: bool) -> Stacks:
        """Find the stacks. ``start_ranks``: also start ranks and record which devices each one sees."""
        mpi = self.mpi(devices, site)
        if mpi and start_ranks:
            mpi = self._start_ranks(mpi, devices)
        found = self._collectives(devices, site)
        return Stacks(mpi, self._fabric(mpi, site), self._across(mpi, site), found)

    def mpi(self, devices: tuple[Device, ...], site: SiteConfig) -> MpiStack | None:
        """The MPI for the selected checks.

        None if no check needs an MPI, or if no MPI is found; the results of the survey then say why. A
        simulated node has no MPI of its own, so one must be named.
        """
        request = self.planner.request
        if not devices or not self.planner.asks_for_mpi:
            return None
        named = request.mpi_lib or site.mpi.library
        if self.node.simulated and not named:
            says = "a simulated node has no MPI; name one with --mpi-lib"
            remedy = "--mpi-lib FILE; `pip install mpich` is enough on a simulated node"
            self._tell_of_mpi(Finding.skip("no-mpi", says, remedy=remedy))
            return None
        backends = {device.backend: None for device in devices}
        try:
            setting = mpi_ranks.setting(site.node, backends, os.environ, self.node.root)
        except mpi_locate.NotFound as absent:
            self._tell_of_mpi(_absent("unlike-the-site", absent))
            return None
        environment = setting.of(os.environ)
        try:
            library = mpi_locate.find_library(request.mpi_lib, site.mpi.library, environment)
        except mpi_locate.NotFound as absent:
            self._tell_of_mpi(_absent("no-library", absent))
            return None
        seen = self._ask_library(library, setting, bool(named), devices)
        launch = self._launch(seen, setting, site.mpi.launcher, 1) if "facts" in seen else None
        if launch is None:
            return None
        across = None
        if request.nodes > 1:
            across = self._launch(seen, setting, site.mpi.launcher, request.nodes, self._hosts)
        stack = mpi_choice.stack(seen, backends, launch, environment, simulated=bool(self.node.simulated))
        return replace(stack, across=across)

    def _ask_library(
        self, library: mpi_locate.Library, setting: RankSetting, named: bool, devices: tuple[Device, ...]
    ) -> Mapping[str, Json]:
        """What a process with this library loaded recorded; empty if it did not complete."""
        options = {
            "library": library.path,
            "chosen_by": library.source,
            "named": named,
            "environment": {**setting.environment, **setting.preloading},
            "simulated": [
                name for name, each in SUPPORTED.items() if self.node.simulated and each.simulated_on_host
            ],
        }
        answers = self.surveys.ask(surveys.MPI_LIBRARY, options, devices)
        return next((answer.records["mpi"] for answer in answers if answer.completed), {})

    def _tell_of_mpi(self, finding: Finding) -> None:
        self.surveys.tell(_on_mpi(), finding)

    def _start_ranks(self, mpi: MpiStack, devices: tuple[Device, ...]) -> MpiStack:
        """The MPI after a test whether ranks start, and which devices the launcher shows each rank."""
        if not (mpi.takes and any(check.needs_mpi for check in self.planner.checks)):
            return mpi
        answers = self.surveys.ask(surveys.RANKS, {}, devices, mpi)
        records = [record for answer in answers for record in answer.records.values()]
        if not any("shown" in record for record in records):
            return replace(mpi, starts=False)
        shows = tuple(frozenset(record.get("shown", ())) for record in records)
        is_bound = any(labels != {device.label for device in devices} for labels in shows)
        starts = all("mpi" in record for record in records) or not all(shows)
        ends_badly = any(answer.launcher for answer in answers)
        launch = replace(mpi.launch, shows=shows if is_bound else (), ends_badly=ends_badly)
        return replace(mpi, starts=starts, launch=launch)

    def _launch(
        self,
        seen: Mapping[str, Json],
        setting: RankSetting,
        template: str,
        nodes: int,
        hosts: Sequence[str] = (),
    ) -> Launch | None:
        """How to start ranks on this many nodes; if that is impossible, a result says so."""
        try:
            found = mpi_choice.launcher(seen, template, setting, os.environ, nodes, hosts)
        except mpi_locate.NotFound as absent:
            self._tell_of_mpi(_absent("no-launcher", absent))
            return None
        if found.refused and nodes == 1:  # of several it is the same
            refused = Finding.warn(
                "srun-cannot-start-ranks",
                "srun cannot start this MPI's ranks (it cannot load --mpi={interface}); using {launcher}",
                remedy=mpi_slurm.remedy(found.refused),
                interface=found.refused,
                launcher=found.source,
            )
            self._tell_of_mpi(refused)
        return found.launch

    def _fabric(self, mpi: MpiStack | None, site: SiteConfig) -> FabricStack:
        """Programs for testing libfabric and UCX, if a selected check needs them; none is run here.

        A simulated node has its own programs and those of a named MPI. Empty if the site config states that
        its nodes have no fabric.
        """
        request, simulated = self.planner.request, bool(self.node.simulated)
        if not self.planner.asks_for_fabric:
            return FabricStack()
        here = FabricStack(
            stated=StatedFabric(said.value, said.where) if (said := site.node.fabric) else None,
            adapters=fabric_devices.adapters(Path(self.node.root)),
        )
        if not asks_foreign(request.tier) or (here.stated and here.stated.name == "none"):
            return here
        try:
            env = mpi_ranks.setting(site.node, (), os.environ, self.node.root).environment
        except mpi_locate.NotFound as absent:
            return replace(here, why_not=str(absent))
        library = mpi.library if mpi else request.mpi_lib or site.mpi.library
        path = self.node.env.get("PATH", "")
        if library or not simulated:
            path = os.pathsep.join(filter(None, (path, {**os.environ, **env}.get("PATH"))))
        programs = fabric_programs.find(self.node.root, path, library, others=not simulated)
        why_not = "" if programs or not simulated else "a simulated node has no MPI; name one with --mpi-lib"
        return replace(here, programs=programs, why_not=why_not, env=env)

    def _collectives(self, devices: Sequence[Device], site: SiteConfig) -> CollectiveStack:
        """The libraries of collectives for these devices, if a selected check needs them; none is loaded."""
        backends = tuple(dict.fromkeys(device.backend for device in devices))
        if not (backends and self.planner.asks_for_collectives and asks_foreign(self.planner.request.tier)):
            return CollectiveStack()
        named = [(file, "--nccl-lib")] if (file := self.planner.request.nccl_lib) else []
        if said := site.node.collectives:
            named.append((said.value, said.where))
        environ = {} if self.node.simulated else os.environ
        found = collective_libraries.find(self.node.root, environ, backends, named)
        least = site.node.least_bandwidth
        return replace(found, least=least.values, least_where=least.where)

    def _across(self, mpi: MpiStack | None, site: SiteConfig) -> Launch | None:
        """How to start processes on several nodes, with or without MPI, if a selected check needs it."""
        request = self.planner.request
        if request.nodes == 1 or not self.planner.goes_across:
            return None
        if mpi and mpi.across:
            return mpi.across
        try:
            return mpi_locate.find_plain_launcher(site.mpi.launcher, os.environ, request.nodes, self._hosts)
        except mpi_locate.NotFound as absent:
            for check in self.planner.checks:
                if check.across and not check.needs_mpi:
                    self.surveys.tell(info(check), _absent("no-launcher", absent))
            return None

    @property
    def _hosts(self) -> tuple[str, ...]:
        partner = self.planner.request.partner
        return (node_name.full(), partner) if partner else ()


def _on_mpi() -> CheckInfo:
    title = "the MPI library accepts device pointers"
    return CheckInfo(surveys.MPI_LIBRARY, title, Tier.ACCEPTANCE)


def _absent(key: str, absent: mpi_locate.NotFound) -> Finding:
    return Finding.error(key, "{reason}", remedy=absent.remedy, reason=absent.reason)
