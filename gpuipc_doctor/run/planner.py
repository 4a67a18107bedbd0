"""What to run: the checks that were asked for, on the devices that were asked for, as numbered probes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path

from gpuipc_doctor.api import Check, Context, loader
from gpuipc_doctor.api.allocator import installed
from gpuipc_doctor.api.loader import BrokenCheck, LoadedCheck
from gpuipc_doctor.model import (
    CheckInfo,
    Device,
    Evidence,
    EvidenceKind,
    FabricStack,
    Finding,
    Json,
    MpiStack,
    Probe,
    ProbeOutcome,
    Result,
    Tier,
)
from gpuipc_doctor.run import check_files
from gpuipc_doctor.run.request import NothingToSend, Request, UnknownName
from gpuipc_doctor.site.config import SiteConfig, bad_options
from gpuipc_doctor.site.yamlfile import BadFile

DISCOVERY = "driver-init"
"""The check that finds the devices; it runs before everything else is planned."""

MPI_DISCOVERY = "mpi-gpu-aware"
"""The check that looks at the MPI library; it runs first where checks need MPI."""

MPI_START = "mpi-start"
"""The check that starts ranks; it runs before all others that need MPI."""

HIDDEN_PEERS = "cray-mpich-gpu-binding-hides-peers"
"""The known issue of launchers that show each rank one GPU."""

MAX_FOLLOW_UPS = 40
"""Probes that a check may ask for on one subject after others did not complete."""


@dataclass(frozen=True, slots=True)
class PlannedProbe:
    """A probe and whose it is. ``number`` is its own in the whole run; a rerun has another.

    ``follows``: the number of the one that was planned first, where this one follows up what that met.
    """

    number: int
    check: Check
    file: Path
    probe: Probe
    repetition: int = 1
    follows: int | None = None

    @property
    def origin(self) -> int:
        """The number of the probe that was planned first, of all that follow each other."""
        return self.follows or self.number

    @property
    def place(self) -> tuple[str, str]:
        return self.check.id, self.probe.subject

    def mistake(self, what: str, error: BaseException) -> Finding:
        """An ERROR that says what a check did wrong."""
        return _mistake(self.file, what, error)


@dataclass(frozen=True, slots=True)
class Plan:
    """Probes to run, and what can be said without running any."""

    checks: tuple[CheckInfo, ...]
    probes: tuple[PlannedProbe, ...]
    concluded: tuple[Result, ...]


class TooManyFollowUps(Exception):
    """A check goes on asking for probes: so many have run, and it wants so many more."""

    def __init__(self, asked: int, more: int) -> None:
        self.asked, self.more = asked, more


@dataclass
class Planner:
    """Selects the checks of a request when it is made, and lays them out when it is known what is here.

    Making one raises `UnknownName` for a check that does not exist, `BadFile` for its options, and
    `NothingToSend`.
    """

    request: Request
    config: SiteConfig
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _follow_ups: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.selected: Sequence[LoadedCheck | BrokenCheck] = select(self.request, self.config)
        options = {check.id: check.options for check in self.checks}
        bad = [mistake for file in self.config.files.documents for mistake in bad_options(file, options)]
        if bad:
            raise BadFile(bad)
        if self.request.nodes > 1 and not (self.asks_for_mpi or self.goes_across):
            raise NothingToSend

    @property
    def checks(self) -> tuple[Check, ...]:
        """Those that were asked for and that load."""
        return tuple(item.check for item in self.selected if isinstance(item, LoadedCheck))

    @property
    def opens_devices(self) -> bool:
        """Whether a check that was asked for will have a worker open each GPU."""
        return any(check.requires and not self._is_disabled(check.id) for check in self.checks)

    @property
    def asks_for_mpi(self) -> bool:
        return any(check.needs_mpi or check.id == MPI_DISCOVERY for check in self.checks)

    @property
    def asks_for_fabric(self) -> bool:
        return any(check.uses_fabric for check in self.checks)

    @property
    def goes_across(self) -> bool:
        return any(check.across for check in self.checks)

    @property
    def needs_gpu(self) -> bool:
        """Whether the answer that was asked for takes a GPU. All checks of a tier together always do."""
        return (
            not self.request.checks
            or bool(self.discoveries)
            or any(check.requires or check.needs_mpi or check.needs_allocators for check in self.checks)
        )

    @property
    def discoveries(self) -> tuple[str, ...]:
        """Checks that others build on, of those that were asked for."""
        return tuple(id_ for id_ in self.request.checks if id_ in (DISCOVERY, MPI_DISCOVERY))

    def survey(
        self,
        file: Path,
        options: Mapping[str, Json],
        devices: tuple[Device, ...] = (),
        mpi: MpiStack | None = None,
    ) -> tuple[CheckInfo, tuple[PlannedProbe, ...]]:
        """A check that finds out what is here: with these options, never disabled, and once."""
        item = loader.load_file(file)
        assert isinstance(item, LoadedCheck)
        probes, _ = self._ask(item, Context(devices, options=options, mpi=mpi))
        return _info(item.check), tuple(probes)

    def plan_probes(
        self,
        context: Context,
        *,
        already: Collection[str] = (),
        harmful: Mapping[tuple[str, str], Finding] | None = None,
    ) -> Plan:
        """Ask every selected check for its probes on the devices that have what it requires.

        ``context`` holds all devices that were selected; each check is given its own part of it. Checks that
        have run ``already``, because others build on them, are left out. ``harmful``: what is said in place
        of a probe that does so on a device, by the words of `Probe.harms` and the device's label. All probes
        come once, then all of them again: what changes meanwhile befalls them alike.
        """
        infos: list[CheckInfo] = []
        probes: list[PlannedProbe] = []
        concluded: list[Result] = []
        for item in self.selected:
            if _id(item) in already:
                continue
            if isinstance(item, BrokenCheck):
                infos.append(CheckInfo(item.id, "(does not load)", self.request.tier))
                says = "the check file does not load: {reason}"
                concluded.append(Result(item.id, Finding.error("broken-check", says, reason=item.reason)))
                continue
            infos.append(_info(item.check))
            planned, said = self._of_check(item, context)
            for one in planned:
                harm = _harm(one.probe, harmful or {})
                if harm is None:
                    probes.append(one)
                else:
                    said.append(_result(one, harm))
            concluded += said
        rounds = (self._again(probes, repetition) for repetition in range(2, self.request.repeat + 1))
        return Plan(tuple(infos), (*probes, *itertools.chain.from_iterable(rounds)), tuple(concluded))

    def rerun(
        self, planned: PlannedProbe, env: Mapping[str, str], shorter: Probe | None = None
    ) -> PlannedProbe:
        """The same probe, or a shorter one in its place, under more environment."""
        probe = planned.probe
        if shorter:
            probe = replace(shorter, env={**shorter.env, **env}, deadline_s=probe.deadline_s)
        elif launch := probe.launch:
            probe = replace(probe, launch=replace(launch, env={**launch.env, **env}))
        return replace(planned, number=next(self._numbers), probe=probe)

    def follow_ups(self, planned: PlannedProbe, outcome: ProbeOutcome) -> list[PlannedProbe]:
        """What the check wants to know after a probe that did not complete.

        Raises `TooManyFollowUps`, and whatever the check's own code raises.
        """
        if outcome.completed or outcome.stopped:
            return []
        more = []
        for probe in planned.check.again(outcome):
            verify(probe, planned.file)
            bounded = replace(probe, deadline_s=planned.probe.deadline_s)
            more.append(replace(planned, number=next(self._numbers), probe=bounded, follows=planned.origin))
        asked = self._follow_ups[planned.place]
        if asked + len(more) > MAX_FOLLOW_UPS:
            raise TooManyFollowUps(asked, len(more))
        self._follow_ups[planned.place] += len(more)
        return more

    def _again(self, probes: Sequence[PlannedProbe], repetition: int) -> Iterator[PlannedProbe]:
        for planned in probes:
            yield replace(planned, number=next(self._numbers), repetition=repetition)

    def _is_disabled(self, check: str) -> bool:
        disabled = self.config.disabled.get(check)
        return disabled is not None and not disabled.has_expired(date.today())

    def _of_check(self, item: LoadedCheck, context: Context) -> tuple[list[PlannedProbe], list[Result]]:
        """One check's probes, and what is said of it without any."""
        check, said = item.check, list[Result]()
        if disabled := self.config.disabled.get(check.id):
            values = {"where": disabled.where, "reason": disabled.reason}
            if self._is_disabled(check.id):
                says = "disabled at {where}: {reason}"
                return [], [Result(check.id, Finding.skip("disabled", says, **values))]
            ended = Finding.warn(
                "disabling-ended",
                "runs again: it was disabled until {until} at {where}",
                disabled.reason,
                remedy="remove that entry, or give it another date",
                until=str(disabled.until),
                **values,
            )
            said.append(Result(check.id, ended))
        if check.uses_fabric and (without := _without_fabric(context.fabric)):
            return [], [*said, Result(check.id, without)]
        able = []
        for device in context.devices:
            if unfit := _missing_requirement(check, device, context):
                said.append(Result(check.id, unfit, (device.label,)))
            else:
                able.append(device)
        if (check.requires or check.needs_mpi or check.needs_allocators) and not able:
            return [], said
        if check.control and not able and not self.request.checks:
            says = "it is a control of {of}, which no GPU is here for"
            remedy = f"run it alone with `gpuipc-doctor check {check.id}`"
            return [], [
                *said,
                Result(check.id, Finding.skip("no-subject", says, remedy=remedy, of=check.control.of)),
            ]
        own = replace(
            context,
            devices=tuple(able),
            options=self.config.options.get(check.id, {}),
            memory=self.config.memory,
            tier=self.request.tier,
        )
        probes, asked = self._ask(item, own)
        return probes, [*said, *asked]

    def _ask(self, item: LoadedCheck, context: Context) -> tuple[list[PlannedProbe], list[Result]]:
        """One check's probes, and what it concludes without any. Never raises on a check's mistake."""
        probes: list[PlannedProbe] = []
        said: list[Result] = []
        check, file = item.check, item.file
        try:
            for asked in check.probes(context):
                if isinstance(asked, Finding):
                    said.append(Result(check.id, asked))
                    continue
                verify(asked, file)
                deadline = self.request.deadline_s or self.config.deadline_s or asked.deadline_s
                probe = replace(asked, deadline_s=deadline)
                if self.request.tier is Tier.SOAK:  # as applications have it
                    probe = replace(probe, concurrent=frozenset(probe.roles))
                planned = PlannedProbe(next(self._numbers), check, file, probe)
                if unfit := _no_peer_access(check, asked) or _hidden(asked):
                    said.append(_result(planned, unfit))
                else:
                    probes.append(planned)
        except (Exception, SystemExit) as error:
            return [], [Result(check.id, _mistake(file, "planning failed", error))]
        if self.request.partner and any(map(_is_across, probes)):  # the question is about the two of them
            probes = list(filter(_is_across, probes))
        if not probes and not said:
            nothing = Finding.error("asks-nothing", "the check asked for nothing", str(file))
            said.append(Result(check.id, nothing))
        return probes, said


def _is_across(planned: PlannedProbe) -> bool:
    return planned.probe.launch is not None and planned.probe.launch.nodes > 1


def built_in(id_: str) -> Path:
    """The file of a built-in check."""
    return loader.built_in_dir() / f"{id_.replace('-', '_')}.py"


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
    if not isinstance(probe.concurrent, Set) or not probe.concurrent <= probe.roles.keys():
        raise ValueError(f"probe {probe.name!r}: concurrent must be a set of its roles")
    if not isinstance(probe.starters, Set) or not probe.starters < probe.roles.keys():
        raise ValueError(f"probe {probe.name!r}: starters must be a set of its roles, and not all of them")


def select(request: Request, config: SiteConfig) -> list[LoadedCheck | BrokenCheck]:
    """The checks asked for by id, else all up to the tier, less the discovery, which runs when needed.

    Raises `UnknownName`.
    """
    available = {_id(item): item for item in check_files.load(config.checks_dirs)}
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


_BRINGS_ALLOCATORS = {
    "cuda": "`pip install 'gpuipc-doctor[cuda12]'` brings CuPy, `pip install torch` PyTorch",
    "hip": "install PyTorch for ROCm, or CuPy for ROCm, of the node's ROCm version",
}
"""By backend. On a simulated node no allocator is looked for."""


def _missing_requirement(check: Check, device: Device, context: Context) -> Finding | None:
    """Why a check cannot run on a device, if so."""
    mpi = context.mpi
    if lacking := check.requires - device.capabilities:
        says = "{device} lacks {lacking}"
        remedy = "another driver or GPU, where one has it"
        return Finding.skip("incapable", says, remedy=remedy, device=device.label, lacking=sorted(lacking))
    if check.needs_mpi and mpi is None:
        return Finding.skip(
            "no-mpi", "no MPI to test", remedy="see what mpi-gpu-aware says, or --mpi-lib FILE"
        )
    if check.needs_mpi and mpi and not mpi.starts:
        return Finding.skip(
            "no-ranks", "no ranks of this MPI could be started", remedy="see what mpi-start says"
        )
    if check.needs_mpi and mpi and device.backend not in mpi.takes:
        says = "this MPI takes no device pointers: {why}"
        return Finding.skip("mpi-takes-no-device-pointers", says, remedy=mpi.remedy, why=mpi.why_not)
    if check.needs_allocators and not installed(context.inventory, device.backend):
        return Finding.skip(
            "no-allocator",
            "no CuPy or PyTorch found for this vendor's GPUs",
            remedy=_BRINGS_ALLOCATORS[device.backend],
        )
    return None


def _without_fabric(fabric: FabricStack) -> Finding | None:
    """Where the site says that its nodes have no fabric: that, and what the kernel lists all the same."""
    if fabric.stated is None or fabric.stated.name != "none":
        return None
    return Finding.skip(
        "no-fabric-here",
        "{where} says that this node has no fabric",
        *(
            f"all the same the kernel lists {', '.join(names)} ({of})"
            for of, names in fabric.adapters.items()
            if names
        ),
        where=fabric.stated.where,
    )


def _no_peer_access(check: Check, probe: Probe) -> Finding | None:
    """The SKIP for a pair without peer access, else None: the importer must reach the exporter's memory."""
    if "legacy-ipc" not in check.requires or len(probe.devices) != 2:
        return None
    exporter, importer = probe.devices
    if exporter.label in importer.peers:
        return None
    one, other = sorted(probe.devices, key=lambda device: device.index)
    says = "no peer access between {from_device} and {to_device}"
    return Finding.skip("no-peer-access", says, from_device=one.label, to_device=other.label)


def _hidden(probe: Probe) -> Finding | None:
    """Why ranks cannot use these devices, if so: the launcher binds others to them."""
    launch = probe.launch
    if launch is None or launch.nodes > 1 or not probe.devices or launch.can_use(probe.devices):
        return None
    of_backend = probe.devices[0].backend + ":"
    shows = [[label for label in sorted(labels) if label.startswith(of_backend)] for labels in launch.shows]
    each = all(len(labels) == 1 for labels in shows)
    return Finding.skip(
        "hidden-by-launcher",
        f"the launcher shows each rank {'one GPU' if each else 'some of the GPUs'}: {{shown}}",
        Evidence(
            EvidenceKind.ISSUE,
            "Slurm's GPU binding hides the other ranks' GPUs, and IPC handles cannot be opened",
            {"issue": HIDDEN_PEERS},
        ),
        remedy="to test every device and pair, bind no GPU in mpi.launcher: srun --gpu-bind=none, without "
        "--gpus-per-task (Intel MPI binds them itself: I_MPI_OFFLOAD_PIN=0); "
        f"for jobs see `gpuipc-doctor known-issues show {HIDDEN_PEERS}`",
        shown=[f"rank {rank} {' and '.join(labels) or 'none'}" for rank, labels in enumerate(shows)],
    )


def _harm(probe: Probe, harmful: Mapping[tuple[str, str], Finding]) -> Finding | None:
    """What speaks against running a probe on its devices, if anything."""
    steps = ((step, device.label) for step in sorted(probe.harms) for device in probe.devices)
    return next((harmful[step] for step in steps if step in harmful), None)


def _result(planned: PlannedProbe, finding: Finding) -> Result:
    """What is said in place of a probe."""
    labels = tuple(device.label for device in planned.probe.devices)
    return Result(planned.check.id, finding, labels, planned.probe.name)


def _mistake(file: Path, what: str, error: BaseException) -> Finding:
    says = "{what}: {exception}: {message}"
    values = {"what": what, "exception": type(error).__name__, "message": str(error)}
    return Finding.error("check-failed", says, str(file), **values)


def _info(check: Check) -> CheckInfo:
    return CheckInfo(check.id, check.title, check.tier)


def _id(item: LoadedCheck | BrokenCheck) -> str:
    return item.check.id if isinstance(item, LoadedCheck) else item.id
