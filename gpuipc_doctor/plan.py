"""What to run: the checks that were asked for, on the devices that were asked for, as probes in order."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from gpuipc_doctor import loader
from gpuipc_doctor.allocator import installed
from gpuipc_doctor.api import Check, Context
from gpuipc_doctor.config import SiteConfig
from gpuipc_doctor.loader import BrokenCheck, LoadedCheck
from gpuipc_doctor.model import CheckInfo, Device, Finding, Probe, Result, Tier

DISCOVERY = "driver-init"
"""The check that finds the devices; it runs before everything else is planned."""

MPI_DISCOVERY = "mpi-gpu-aware"
"""The check that looks at the MPI library; it runs first where checks need MPI."""

BACKENDS = ("cuda", "hip")


class UnknownName(Exception):
    """A check or a device that was asked for does not exist. The text says so and names the near miss."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names) or 'none'}"
        super().__init__(f"no {kind} {name!r}; {hint}")


class AmbiguousName(UnknownName):
    """What was asked for exists several times. The text names all."""

    def __init__(self, kind: str, name: str, meanings: Iterable[str]) -> None:
        which = f"{kind} {name!r} may be any of {', '.join(sorted(meanings))}; name the one you mean"
        Exception.__init__(self, which)


@dataclass(frozen=True, slots=True)
class Request:
    """What the caller asked for. No ``checks`` means all of the tier; no ``devices`` means all of them."""

    checks: tuple[str, ...] = ()
    tier: Tier = Tier.ACCEPTANCE
    backend: str = "auto"
    devices: tuple[str, ...] = ()
    deadline_s: float | None = None
    budget_s: float | None = None
    keep_logs: Path | None = None
    mpi_lib: str | None = None
    nodes: int = 1
    """Messages go between ranks on so many nodes, too."""
    workarounds: bool = True
    repeat: int = 1
    """How often every probe is run, those that find out what is here excepted."""
    job_gpus: str | None = None
    """A job's GPUs as Slurm names them (``0,2``), empty for all; None asks the drivers for what they show."""

    @property
    def backends(self) -> tuple[str, ...]:
        return BACKENDS if self.backend in ("auto", "all") else (self.backend,)


@dataclass(frozen=True, slots=True)
class PlannedProbe:
    check: Check
    file: Path
    probe: Probe
    repetition: int = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """Probes to run, and what can be said without running any."""

    checks: tuple[CheckInfo, ...]
    probes: tuple[PlannedProbe, ...]
    concluded: tuple[Result, ...]

    def repeated(self, times: int) -> Plan:
        """All probes once, then all of them again: what changes meanwhile befalls them alike."""
        rounds = range(1, times + 1)
        probes = (replace(planned, repetition=number) for number in rounds for planned in self.probes)
        return replace(self, probes=tuple(probes))


def select_checks(request: Request, config: SiteConfig) -> list[LoadedCheck | BrokenCheck]:
    """The checks asked for by id, else all up to the tier, less the discoveries, which run when needed.

    Raises `UnknownName`.
    """
    available = {_id(item): item for item in loader.load(config.checks_dirs)}
    for id_ in request.checks:
        if id_ not in available:
            raise UnknownName("check", id_, available)
    if request.checks:
        return [available[id_] for id_ in dict.fromkeys(request.checks) if id_ != DISCOVERY]
    del available[DISCOVERY]
    return [
        item
        for item in available.values()
        if isinstance(item, BrokenCheck) or item.check.tier <= request.tier
    ]


def built_in(id_: str) -> Path:
    """The file of a built-in check."""
    return loader.built_in_dir() / f"{id_.replace('-', '_')}.py"


def select_devices(request: Request, devices: Sequence[Device]) -> tuple[Device, ...]:
    """The devices asked for by label, uuid or (with one backend) index, else all.

    Raises `UnknownName`, and `AmbiguousName` for an index that several backends have.
    """
    if not request.devices:
        return tuple(devices)
    chosen: dict[str, Device] = {}
    for name in request.devices:
        matching = [d for d in devices if name in (d.label, d.uuid, str(d.index))]
        if not matching:
            raise UnknownName("device", name, (device.label for device in devices))
        if len(matching) > 1:
            raise AmbiguousName("device", name, (device.label for device in matching))
        chosen[matching[0].label] = matching[0]
    return tuple(chosen.values())


def lay_out(
    selected: Iterable[LoadedCheck | BrokenCheck],
    request: Request,
    config: SiteConfig,
    context: Context,
    already: Collection[str] = (),
) -> Plan:
    """Ask every selected check for its probes on the devices that have what it requires.

    ``context`` holds all devices that were selected; each check is given its own part of it. Checks that
    have run ``already``, because others build on them, are left out.
    """
    infos: list[CheckInfo] = []
    probes: list[PlannedProbe] = []
    concluded: list[Result] = []
    for item in selected:
        if _id(item) in already:
            continue  # it has run as a discovery
        if isinstance(item, BrokenCheck):
            infos.append(CheckInfo(item.id, "(does not load)", request.tier))
            concluded.append(Result(item.id, Finding.error(f"the check file does not load: {item.reason}")))
            continue
        check = item.check
        infos.append(CheckInfo(check.id, check.title, check.tier))
        if disabled := config.disabled.get(check.id):
            if not disabled.has_expired(date.today()):
                reason = f"disabled at {disabled.where}: {disabled.reason}"
                concluded.append(Result(check.id, Finding.skip(reason)))
                continue
            ended = f"runs again: it was disabled until {disabled.until} at {disabled.where}"
            remedy = "remove that entry, or give it another date"
            concluded.append(Result(check.id, Finding.warn(ended, disabled.reason, remedy=remedy)))
        able = []
        for device in context.devices:
            if unfit := _unfit(check, device, context):
                concluded.append(Result(check.id, unfit, (device.label,)))
            else:
                able.append(device)
        if (check.requires or check.needs_mpi or check.needs_allocators) and not able:
            continue
        options = config.options.get(check.id, {})
        own = replace(context, devices=tuple(able), options=options, memory=config.memory, tier=request.tier)
        planned, said = _ask(item, own, request, config)
        probes += planned
        concluded += said
    return Plan(tuple(infos), tuple(probes), tuple(concluded))


def _unfit(check: Check, device: Device, context: Context) -> Finding | None:
    """Why a check cannot run on a device, if so."""
    mpi = context.mpi
    if lacking := check.requires - device.capabilities:
        return Finding.skip(f"{device.label} has no {', '.join(sorted(lacking))}")
    if check.needs_mpi and mpi is None:
        return Finding.skip("no MPI to test")
    if check.needs_mpi and mpi and device.backend not in mpi.takes:
        return Finding.skip(f"this MPI takes no device pointers: {mpi.why_not}", remedy=mpi.remedy)
    if check.needs_allocators and not installed(context.inventory, device.backend):
        return Finding.skip(
            "neither CuPy nor PyTorch was found for it",
            remedy="pip install 'gpuipc-doctor[cuda12]' brings CuPy; a simulated node has none",
        )
    return None


def _apart(check: Check, probe: Probe) -> Result | None:
    """Why a check of IPC cannot run on a pair of devices, if so: the second must reach the first's memory."""
    if "legacy-ipc" not in check.requires or len(probe.devices) != 2:
        return None
    exporter, importer = probe.devices
    if exporter.label in importer.peers:
        return None
    one, other = sorted(probe.devices, key=lambda device: device.index)
    reason = f"no peer access between {one.label} and {other.label}"
    return Result(check.id, Finding.skip(reason), (exporter.label, importer.label), probe.name)


def _ask(
    item: LoadedCheck, context: Context, request: Request, config: SiteConfig
) -> tuple[list[PlannedProbe], list[Result]]:
    """One check's probes, and what it concludes without any. Never raises on a check's mistake."""
    probes: list[PlannedProbe] = []
    said: list[Result] = []
    try:
        for asked in item.check.probes(context):
            if isinstance(asked, Finding):
                said.append(Result(item.check.id, asked))
            else:
                verify(asked, item.file)
                if apart := _apart(item.check, asked):
                    said.append(apart)
                    continue
                deadline = request.deadline_s or config.deadline_s or asked.deadline_s
                probes.append(PlannedProbe(item.check, item.file, replace(asked, deadline_s=deadline)))
    except (Exception, SystemExit) as error:
        reason = f"planning failed: {type(error).__name__}: {error}"
        return [], [Result(item.check.id, Finding.error(reason, str(item.file)))]
    if not probes and not said:
        said.append(Result(item.check.id, Finding.error("the check asked for nothing", str(item.file))))
    return probes, said


def verify(probe: Probe, file: Path) -> None:
    """Raise what is wrong with a probe. A worker finds a role by its name in the check's file."""
    if not isinstance(probe, Probe):
        raise TypeError(f"{probe!r} is neither a Probe nor a Finding")
    if not all(isinstance(device, Device) for device in probe.devices):
        raise TypeError(f"the devices of probe {probe.name!r} must be devices of the context")
    names = vars(loader.module(file))
    for role, function in probe.roles.items():
        if names.get(getattr(function, "__name__", "")) is not function:
            raise ValueError(
                f"role {role!r} of probe {probe.name!r} is not a function defined in {file.name}"
            )


def _id(item: LoadedCheck | BrokenCheck) -> str:
    return item.check.id if isinstance(item, LoadedCheck) else item.id
