"""Discover drivers and libraries by probes, because initialising a driver can hang."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gpuipc_doctor import inventory, node_name
from gpuipc_doctor.api import loader
from gpuipc_doctor.api.equal_gpus import Traits
from gpuipc_doctor.fabric import devices as fabric_devices
from gpuipc_doctor.fabric import programs as fabric_programs
from gpuipc_doctor.inventory import collective_libraries
from gpuipc_doctor.inventory.gpus import JobGpus, of_intel
from gpuipc_doctor.model import (
    CheckInfo,
    CollectiveStack,
    Device,
    FabricStack,
    Fact,
    Finding,
    Json,
    Launch,
    MpiStack,
    Node,
    ProbeOutcome,
    Result,
    StatedFabric,
    Status,
    Tier,
)
from gpuipc_doctor.mpi import choice, locate, ranks, slurm
from gpuipc_doctor.mpi.ranks import RankSetting
from gpuipc_doctor.report import sentences
from gpuipc_doctor.run import conclusions, site_expectations
from gpuipc_doctor.run.conclusions import Doubt
from gpuipc_doctor.run.planner import PlannedProbe, Planner
from gpuipc_doctor.run.results import ResultLog
from gpuipc_doctor.run.schedule import Ended, NotRun, Schedule
from gpuipc_doctor.site import hosts
from gpuipc_doctor.site.config import NodeGpus, SiteConfig
from gpuipc_doctor.supervise import blame
from gpuipc_doctor.supervise.assignment import device_from_json


@dataclass(frozen=True, slots=True)
class Found:
    """The devices to test, the facts from drivers and libraries, and this node's config."""

    devices: tuple[Device, ...]
    facts: tuple[Fact, ...]
    site: SiteConfig


@dataclass(frozen=True, slots=True)
class Stacks:
    """What the selected checks need for messages between processes: MPI, fabric programs, a launcher."""

    mpi: MpiStack | None
    fabric: FabricStack
    across: Launch | None
    collectives: CollectiveStack


@dataclass
class Discovery:
    """Discovers `drivers` first, then `stacks`.

    ``job``: before a job, the job's GPUs as the kernel lists them; else None.
    """

    node: Node
    job: JobGpus | None
    planner: Planner
    schedule: Schedule
    log: ResultLog

    def drivers(self) -> Found:
        if self.job is None:
            devices, facts, unlisted, traits = self._ask_drivers(
                self.planner.request.backends, self._survey()
            )
            self._tell(_on_gpus(), *site_expectations.of_other_gpus(self._intel(devices)))
            site = self._settled(gpus_of(devices, self.node.root, unlisted, os.environ))
            expected, backends = site.node.gpus, self.planner.request.backends
            if len(backends) > 1:
                differences = site_expectations.of_gpus(expected, devices, os.environ)
            else:
                differences = site_expectations.check_backend_gpus(backends[0], expected, devices, os.environ)
            self._tell(_on_gpus(), *differences)
            self._tell(_on_gpus(), *site_expectations.of_links(expected, devices, traits, os.environ))
            return Found(devices, facts, site)
        devices, facts, missing = self._of_job(self.job)
        site = self._settled(gpus_of(self.job.of_node, self.node.root))
        if self.job.unknown:
            ids = ", ".join(self.job.unknown)
            says = "this node has no GPU {ids}; it lists {known}"
            self._tell(_on_gpus(), Finding.error("unknown-gpu", says, ids=ids, known=self.job.known))
        if missing:
            says = "the driver does not list {gpus}"
            self._tell(_on_gpus(), Finding.error("gpu-not-shown", says, gpus=list(missing)))
        return Found(devices, facts, site)

    def _settled(self, gpus: NodeGpus) -> SiteConfig:
        config, host = self.planner.config, node_name.short()
        self._tell(_on_gpus(), *site_expectations.of_types(config.types_of(host, gpus), gpus, os.environ))
        site = config.of_node(host, gpus)
        self.log.gpus = site.node.gpus
        if self.planner.request.tier > Tier.PROLOG:
            self.log.required = site.required
        return site

    def _of_job(self, job: JobGpus) -> tuple[tuple[Device, ...], tuple[Fact, ...], tuple[str, ...]]:
        """(GPUs of a job, facts from their driver if it was queried, GPUs that the driver does not list).

        If the kernel identifies the GPUs and the checks will open them anyway, no driver is queried, since
        each initialisation takes time.
        """
        if job.is_identified and self.planner.opens_devices:
            return job.devices, (), ()
        if job.unknown and not job.chosen:
            return (), (), ()
        found, facts, _, _ = self._ask_drivers(job.backends or self.planner.request.backends)
        devices, missing = job.numbered(found)
        return devices, facts, missing if found else ()  # otherwise the driver has given the reason

    def _survey(self) -> tuple[PlannedProbe, ...]:
        """Query drivers and libraries for inventory facts; the findings are not reported."""
        request, config = self.planner.request, self.planner.config
        options = {
            "root": self.node.root,
            "foreign": asks_foreign(request.tier),
            "mpi": request.mpi_lib or config.mpi.library or "",
        }
        return self.planner.survey(inventory.SURVEYS, options)[1]

    def _ask_drivers(
        self, backends: Sequence[str], beside: Sequence[PlannedProbe] = ()
    ) -> tuple[tuple[Device, ...], tuple[Fact, ...], Mapping[str, int], Traits]:
        """(all devices, facts about them, backend → number of GPUs on the bus that its driver does not
        list, traits of the devices)."""
        options = {
            "backends": backends,
            "required": self.planner.request.backend != "auto",
            "links": self.planner.config.expects_nvlinks,
        }
        info, asked = self.planner.survey(loader.survey("devices").file, options)
        ended = self._run((*asked, *beside))
        answers = [outcome for outcome in ended.values() if isinstance(outcome, ProbeOutcome)]
        found = [record for outcome in answers for record in outcome.records.values()]
        devices = [device_from_json(data) for record in found for data in record.get("devices", ())]
        devices.sort(key=lambda device: (device.backend, device.index))
        devices = _testable(devices)
        self._keep(info, asked, ended, unsurprising=self._unsurprising(devices))
        facts = [Fact(*fact) for record in found for fact in record.get("facts", ())]
        facts += [
            Fact(f"{outcome.params['backend']}-driver", None, sentences.summary(blame.conclude(outcome)))
            for outcome in answers
            if "backend" in outcome.params and not outcome.completed
        ]
        unlisted = {
            outcome.params["backend"]: record["on_bus"] - len(record["devices"])
            for outcome in answers
            for record in outcome.records.values()
            if "on_bus" in record
        }
        traits = {label: found for record in found for label, found in record.get("traits", {}).items()}
        return tuple(devices), (*facts, *inventory.facts_from_surveys(answers)), unlisted, traits

    def _unsurprising(self, devices: Collection[Device]) -> Collection[str]:
        """Backends whose absence or hidden devices need not be reported."""
        if self.job is not None:
            return self.job.backends  # the node's other GPUs are meant to be hidden
        # One vendor's driver is enough: the other's absence needs no report.
        asked_all = self.planner.request.backend == "auto" and (devices or self._intel(devices))
        here = {device.backend for device in devices}
        return set(self.planner.request.backends) - here if asked_all else ()

    def _intel(self, devices: Collection[Device]) -> list[str]:
        return [] if devices else of_intel(self.node.root)

    def stacks(self, devices: tuple[Device, ...], site: SiteConfig, *, start_ranks: bool) -> Stacks:
        """Find the stacks. ``start_ranks``: also start ranks and record which devices each one sees."""
        mpi = self.mpi(devices, site)
        if mpi and start_ranks:
            mpi = self._started(mpi, devices)
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
            self._tell(_on_mpi(), Finding.skip("no-mpi", says, remedy=remedy))
            return None
        backends = {device.backend: None for device in devices}
        try:
            setting = ranks.setting(site.node, backends, os.environ, self.node.root)
        except locate.NotFound as absent:
            self._tell(_on_mpi(), _absent("unlike-the-site", absent))
            return None
        environment = setting.of(os.environ)
        try:
            library = locate.find_library(request.mpi_lib, site.mpi.library, environment)
        except locate.NotFound as absent:
            self._tell(_on_mpi(), _absent("no-library", absent))
            return None
        options = {
            "library": library.path,
            "chosen_by": library.source,
            "named": bool(named),
            "environment": {**setting.environment, **setting.preloading},
            "simulated": bool(self.node.simulated),
        }
        answers = self._ask("mpi", options, devices)
        seen = next((answer.records["mpi"] for answer in answers if answer.completed), {})
        launch = self._launch(seen, setting, site.mpi.launcher, 1) if "facts" in seen else None
        if launch is None:
            return None
        across = None
        if request.nodes > 1:
            across = self._launch(seen, setting, site.mpi.launcher, request.nodes, self._hosts)
        stack = choice.stack(seen, backends, launch, environment, simulated=bool(self.node.simulated))
        return replace(stack, across=across)

    def _started(self, mpi: MpiStack, devices: tuple[Device, ...]) -> MpiStack:
        """The MPI after a test whether ranks start, and which devices the launcher shows each rank."""
        if not (mpi.takes and any(check.needs_mpi for check in self.planner.checks)):
            return mpi
        answers = self._ask("ranks", {}, devices, mpi)
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
            found = choice.launcher(seen, template, setting, os.environ, nodes, hosts)
        except locate.NotFound as absent:
            self._tell(_on_mpi(), _absent("no-launcher", absent))
            return None
        if found.refused and nodes == 1:  # of several it is the same
            refused = Finding.warn(
                "srun-cannot-start-ranks",
                "srun cannot start this MPI's ranks (it cannot load --mpi={interface}); using {launcher}",
                remedy=slurm.remedy(found.refused),
                interface=found.refused,
                launcher=found.source,
            )
            self._tell(_on_mpi(), refused)
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
            env = ranks.setting(site.node, (), os.environ, self.node.root).environment
        except locate.NotFound as absent:
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
        return replace(found, least=least.gb_per_s, least_where=least.where)

    def _across(self, mpi: MpiStack | None, site: SiteConfig) -> Launch | None:
        """How to start processes on several nodes, with or without MPI, if a selected check needs it."""
        request = self.planner.request
        if request.nodes == 1 or not self.planner.goes_across:
            return None
        if mpi and mpi.across:
            return mpi.across
        try:
            return locate.find_plain_launcher(site.mpi.launcher, os.environ, request.nodes, self._hosts)
        except locate.NotFound as absent:
            for check in self.planner.checks:
                if check.across and not check.needs_mpi:
                    self._tell(CheckInfo(check.id, check.title, check.tier), _absent("no-launcher", absent))
            return None

    @property
    def _hosts(self) -> tuple[str, ...]:
        partner = self.planner.request.partner
        return (node_name.full(), partner) if partner else ()

    def _ask(
        self,
        supplies: str,
        options: Mapping[str, Json],
        devices: tuple[Device, ...],
        mpi: MpiStack | None = None,
    ) -> list[ProbeOutcome]:
        """Run the survey that supplies this, and keep its results."""
        info, asked = self.planner.survey(loader.survey(supplies).file, options, devices, mpi)
        ended = self._run(asked)
        self._keep(info, asked, ended)
        return [outcome for outcome in ended.values() if isinstance(outcome, ProbeOutcome)]

    def _run(self, probes: Sequence[PlannedProbe]) -> dict[int, Ended]:
        ended: dict[int, Ended] = {}

        def take(planned: PlannedProbe, one: Ended | Doubt) -> Sequence[PlannedProbe]:
            assert not isinstance(one, Doubt)  # no tour has been planned yet
            ended[planned.number] = one
            return ()

        self.schedule.run(probes, len(probes), take)
        return ended

    def _keep(
        self,
        info: CheckInfo,
        probes: Iterable[PlannedProbe],
        ended: Mapping[int, Ended],
        unsurprising: Collection[str] = (),
    ) -> None:
        """Keep the results of a check's probes, except SKIPs of ``unsurprising`` backends.

        The probes count as a test of a GPU only if the check was selected and a GPU was found.
        """
        self.log.announce(info)
        for planned in probes:
            one = ended[planned.number]
            if isinstance(one, NotRun):
                self.log.keep_unrun(planned, one.finding, one.stopped)
                continue
            findings = conclusions.conclude(planned, one)
            if planned.probe.name in unsurprising:
                findings = [finding for finding in findings if finding.status is not Status.SKIP]
            self.log.keep(planned, one, findings)
            was_there = any(finding.status is not Status.SKIP for finding in findings)
            if was_there and info.id in self.planner.request.checks:
                self.log.count(one)

    def _tell(self, info: CheckInfo, *findings: Finding) -> None:
        self.log.announce(info)
        self.log.say(*(Result(info.id, finding) for finding in findings))


def _on_gpus() -> CheckInfo:
    """The survey to which findings on the GPUs belong, even if no driver was queried."""
    return CheckInfo(loader.survey("devices").id, "the job's GPUs are found", Tier.PROLOG)


def _on_mpi() -> CheckInfo:
    return CheckInfo(loader.survey("mpi").id, "the MPI library accepts device pointers", Tier.ACCEPTANCE)


def gpus_of(
    devices: Collection[Device],
    root: str,
    unlisted: Mapping[str, int] | None = None,
    environment: Mapping[str, str] | None = None,
) -> NodeGpus:
    """The node's listed and unlisted GPUs. ``environment`` may name Slurm's configuration file; before a job
    it is empty, because the job's user must not choose a file."""
    by_slurm = partial(hosts.gpus_by_slurm, node_name.short(), environment or {}, Path(root))
    return NodeGpus(devices, unlisted or {}, by_slurm)


def asks_foreign(tier: Tier) -> bool:
    """Whether to run libraries and programs chosen by the environment: never in a prolog, which runs as
    root."""
    return tier > Tier.PROLOG


def _testable(devices: Sequence[Device]) -> list[Device]:
    """The devices that can be tested. Devices of equal identity cannot be distinguished, and are excluded."""
    identities = Counter(device.identity for device in devices if device.identity)
    return [device for device in devices if device.has_credible_size and identities[device.identity] < 2]


def _absent(key: str, absent: locate.NotFound) -> Finding:
    return Finding.error(key, "{reason}", remedy=absent.remedy, reason=absent.reason)
