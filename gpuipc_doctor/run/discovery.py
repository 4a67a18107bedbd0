"""Discover drivers by probes, because initialising a driver can hang."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gpuipc_doctor import node_name, surveys
from gpuipc_doctor.api import loader
from gpuipc_doctor.api.equal_gpus import Traits, off_bus
from gpuipc_doctor.files.node_files import is_off_bus
from gpuipc_doctor.model import Device, Fact, Finding, Node, Tier
from gpuipc_doctor.node import gpus, inventory
from gpuipc_doctor.node.gpus import JobGpus
from gpuipc_doctor.probe_types import ProbeOutcome
from gpuipc_doctor.report import sentences
from gpuipc_doctor.report_types import CheckInfo
from gpuipc_doctor.run import site_expectations
from gpuipc_doctor.run.hanging_gpus import HangingGpus, has_hung
from gpuipc_doctor.run.open_drivers import OpenDrivers
from gpuipc_doctor.run.planner import PlannedProbe, Planner
from gpuipc_doctor.run.room import RoomSurvey
from gpuipc_doctor.run.skips import REFUSED, UNCHECKED, UNSAFE, refusal_of_peers
from gpuipc_doctor.run.survey_runner import SurveyRunner, asks_foreign
from gpuipc_doctor.site import hosts
from gpuipc_doctor.site.config import NodeGpus, SiteConfig
from gpuipc_doctor.supervise import blame
from gpuipc_doctor.supervise.assignment import device_from_json
from gpuipc_doctor.versions import Range, Verdict

CHECKING = Range("cuda-driver", "13.5")
"""Versions of CUDA whose driver grants peer access over PCIe only if the IOMMU and ACS let it work."""

ON_GPUS = CheckInfo(surveys.DRIVERS, "the job's GPUs are found", Tier.PROLOG)
"""The survey to which findings on the GPUs belong, even if no driver was queried."""


_JobGpus = tuple[tuple[Device, ...], tuple[Fact, ...], tuple[str, ...], Traits]
_NOTHING: _JobGpus = ((), (), (), {})


@dataclass(frozen=True, slots=True)
class Found:
    """The devices to test, the facts from drivers and libraries, and this node's config."""

    devices: tuple[Device, ...]
    facts: tuple[Fact, ...]
    site: SiteConfig
    left_out: tuple[Device, ...] = ()
    """GPUs that are not tested: initialising their driver hangs, or did not succeed beside one that does."""


@dataclass
class Discovery:
    """Discovers `drivers`.

    ``job``: before a job, the job's GPUs as the kernel lists them; else None.
    """

    node: Node
    job: JobGpus | None
    planner: Planner
    surveys: SurveyRunner
    open_drivers: OpenDrivers
    room: RoomSurvey

    def __post_init__(self) -> None:
        self._hanging = HangingGpus(self.planner, self.surveys, self.open_drivers)

    def drivers(self) -> Found:
        return self._find_node_gpus() if self.job is None else self._find_job_gpus(self.job)

    def _find_node_gpus(self) -> Found:
        backends = self.planner.request.backends
        devices, facts, unlisted, traits = self._ask_drivers(backends, self._plan_inventory())
        site = self._settle_config(gpus_of(devices, self.node.root, unlisted, os.environ))
        expected = site.node.gpus
        if len(backends) > 1:
            differences = site_expectations.of_gpus(expected, devices, os.environ)
        else:
            differences = site_expectations.check_backend_gpus(backends[0], expected, devices, os.environ)
        self._tell(*differences)
        facts = (*facts, *self._ask_unchecked(devices, facts))
        refusal = refusal_of_peers(facts)
        self._tell(*site_expectations.of_links(expected, devices, traits, os.environ, refusal))
        return Found(devices, facts, site, tuple(self._hanging.left_out))

    def _find_job_gpus(self, job: JobGpus) -> Found:
        bus = Path(self.node.root, "sys/bus/pci/devices")
        lost = [gpu.pci for gpu in job.chosen if is_off_bus(bus / gpu.pci)]
        self._tell(*off_bus(lost))
        job = replace(job, chosen=tuple(gpu for gpu in job.chosen if gpu.pci not in lost))
        site = self._settle_config(gpus_of(job.of_node, self.node.root))
        expected = site.node.gpus
        if self.planner.request.by_gpu:  # a start with all GPUs may hang again
            expected = replace(expected, nvlinks=0, peers=0)
        asks_links = bool(expected.nvlinks or expected.peers != 0)
        numbered = self._number_job_gpus(job, asks_links=asks_links) if job.chosen or not lost else _NOTHING
        devices, facts, missing, traits = numbered
        self._tell(*site_expectations.of_job(expected, job, devices, traits))
        if job.unknown:
            ids = ", ".join(job.unknown)
            says = "this node has no GPU {ids}; it lists {known}"
            self._tell(Finding.error("unknown-gpu", says, ids=ids, known=job.known))
        if missing:
            says = "the driver does not list {gpus}"
            self._tell(Finding.error("gpu-not-shown", says, gpus=list(missing)))
        return Found(devices, facts, site)

    def _ask_unchecked(self, devices: Sequence[Device], facts: Iterable[Fact]) -> Iterator[Fact]:
        """Whether peer access depends on the driver's check of IOMMU and ACS, which CUDA 13.5 and newer make
        (CUDA Features Archive, 13.5): the driver is asked again, with or without it.

        That only concerns the answer of cuDeviceCanAccessPeer: nothing is copied here.
        """
        checked = [device for device in devices if device.vendor.checks_topology]
        lacking, is_unchecked = _pairs_without_access(checked), os.environ.get(UNCHECKED) == "1"
        checks = any(
            fact.name == "cuda-driver" and fact.value and CHECKING.judge(fact.value) is Verdict.BAD
            for fact in facts
        )
        if len(checked) < 2 or not checks or bool(lacking) is is_unchecked:
            return
        environment = {UNCHECKED: "0" if is_unchecked else "1"}
        options = {"backends": [checked[0].backend], "required": False, "environment": environment}
        _, asked = self.planner.survey(loader.built_in_file(surveys.DRIVERS), options)
        ended = self.surveys.run(asked).values()
        answers = [outcome for outcome in ended if isinstance(outcome, ProbeOutcome)]
        found = [record for outcome in answers for record in outcome.records.values()]
        again = [device_from_json(data) for record in found for data in record.get("devices", ())]
        if is_unchecked and _pairs_without_access(again):
            yield Fact("peer-access", UNSAFE, f"{UNCHECKED}=0 takes it away")
        elif not is_unchecked and again and not lacking & _pairs_without_access(again):
            yield Fact("peer-access", REFUSED, f"{UNCHECKED}=1 grants it")

    def _tell(self, *findings: Finding) -> None:
        self.surveys.tell(ON_GPUS, *findings)

    def _settle_config(self, gpus: NodeGpus) -> SiteConfig:
        config, host = self.planner.config, node_name.short()
        types = config.types_of(host, gpus)
        self._tell(*site_expectations.of_types(types, gpus, os.environ))
        site = config.of_node(host, gpus)
        self.surveys.log.gpus = site.node.gpus
        if self.planner.request.tier > Tier.PROLOG:
            self.surveys.log.required = site.required
        return site

    def _number_job_gpus(self, job: JobGpus, *, asks_links: bool) -> _JobGpus:
        """(GPUs of a job, facts from their driver if it was queried, GPUs that the driver does not list,
        traits of the GPUs).

        If the kernel identifies the GPUs and the checks will open them anyway, no driver is queried, since
        each initialisation takes time; with ``asks_links`` it is, because the kernel does not list links.
        """
        if job.is_identified and self.planner.opens_devices and not asks_links:
            return job.devices, (), (), {}
        if job.unknown and not job.chosen:
            return _NOTHING
        found, facts, answered, traits = self._ask_drivers(job.backends or self.planner.request.backends)
        devices, missing = job.numbered(found)
        # A driver that has not answered, or listed nothing, has given the reason.
        missing = tuple(gpu for gpu in missing if found and gpu.partition(":")[0] in answered)
        labels = {device.identity: device.label for device in devices}
        traits = {labels.get(device.identity, ""): traits.get(device.label, {}) for device in found}
        return devices, facts, missing, traits

    def _plan_inventory(self) -> tuple[PlannedProbe, ...]:
        """Query drivers and libraries for inventory facts; the findings are not reported."""
        request, config = self.planner.request, self.planner.config
        options = {
            "root": self.node.root,
            "foreign": asks_foreign(request.tier),
            "mpi": request.mpi_lib or config.mpi.library or "",
            "rooms": self.room.params if self.planner.uses_device_memory else None,
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
            "links": self.planner.config.expects_nvlinks or self.planner.request.asks_ways,
        }
        info, asked = self.planner.survey(loader.built_in_file(surveys.DRIVERS), options)
        ended = self.surveys.run((*asked, *beside))
        told = list[str]()  # that GPUs are hidden, and which
        for one in asked:
            may_ask = self.planner.request.tier > Tier.PROLOG
            if may_ask and has_hung(ended[one.number]) and (others := self._hanging.ask_others(one)):
                ended[one.number] = others
                told.append(one.probe.name)
        answers = [outcome for outcome in ended.values() if isinstance(outcome, ProbeOutcome)]
        found = [record for outcome in answers for record in outcome.records.values()]
        for record in (record for record in found if "rooms" in record):
            self.room.hear(record)
        devices = [device_from_json(data) for record in found for data in record.get("devices", ())]
        devices.sort(key=lambda device: (device.backend, device.index))
        devices = _testable(devices)
        self.surveys.keep(info, asked, ended, unsurprising={*self._unsurprising(devices), *told})
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
        request = self.planner.request
        here = {device.backend for device in devices} or {*request.backends} & gpus.EXPERIMENTAL
        return {*request.backends} - here if request.backend == "auto" and here else ()


def _pairs_without_access(devices: Collection[Device]) -> set[tuple[str, str]]:
    """The pairs of these devices of which the first has no peer access to the second."""
    labels = {device.label for device in devices}
    return {(device.label, other) for device in devices for other in labels - device.peers - {device.label}}


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


def _testable(devices: Sequence[Device]) -> list[Device]:
    """The devices that can be tested. Devices of equal identity cannot be distinguished, and are excluded."""
    identities = Counter(device.identity for device in devices if device.identity)
    return [device for device in devices if device.has_credible_size and identities[device.identity] < 2]
