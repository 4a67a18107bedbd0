"""The plan of a run: the requested checks on the requested devices, as numbered probes."""

from __future__ import annotations

import itertools
import traceback
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path

from gpuipc_doctor import surveys
from gpuipc_doctor.api import Check, Context, loader
from gpuipc_doctor.api.loader import BrokenCheck, LoadedCheck
from gpuipc_doctor.files.yamlfile import BadFile
from gpuipc_doctor.log_lines import place_of_error
from gpuipc_doctor.model import Device, Finding, Json, Tier
from gpuipc_doctor.probe_types import MpiStack, Probe, ProbeOutcome
from gpuipc_doctor.report_types import CheckInfo, Result
from gpuipc_doctor.run import check_files, skips
from gpuipc_doctor.run.request import NothingToSend, Request, UnknownName
from gpuipc_doctor.site.config import SiteConfig
from gpuipc_doctor.site.config_mistakes import bad_options
from gpuipc_doctor.vendors import SUPPORTED

MAX_FOLLOW_UPS = 40
"""Maximum follow-up probes of a check on one subject."""


@dataclass(frozen=True, slots=True)
class PlannedProbe:
    """A probe with its check and number. ``number`` is unique in the run; a rerun has a new one.

    ``follows``: number of the original probe, if this is a follow-up.
    """

    number: int
    check: Check
    file: Path
    probe: Probe
    repetition: int = 1
    follows: int | None = None

    @property
    def origin(self) -> int:
        """Number of the original probe of a chain of follow-ups."""
        return self.follows or self.number

    @property
    def place(self) -> tuple[str, str]:
        return self.check.id, self.probe.subject

    @property
    def key(self) -> str:
        return f"{self.check.id} {self.probe.subject} {self.probe.name}"

    def unfinished(self, stopped: str) -> ProbeOutcome:
        """The outcome for a probe that was not run; ``stopped`` is the reason."""
        probe = self.probe
        return ProbeOutcome(
            probe.name, probe.devices, probe.params, {}, None, 0.0, stopped=stopped, launch=probe.launch
        )

    def mistake(self, what: str, error: BaseException) -> Finding:
        """An ERROR that describes a mistake in a check's code."""
        return _mistake(self.file, what, error)


@dataclass(frozen=True, slots=True)
class Plan:
    """Probes to run, and findings that need no probe."""

    checks: tuple[CheckInfo, ...]
    probes: tuple[PlannedProbe, ...]
    concluded: tuple[Result, ...]


class TooManyFollowUps(Exception):
    """A check requests too many follow-up probes: the number that ran, and the number requested."""

    def __init__(self, asked: int, more: int) -> None:
        self.asked, self.more = asked, more


@dataclass
class Planner:
    """Selects the checks of a request when created, and plans their probes after discovery.

    Raises `UnknownName` for an unknown check, `BadFile` for invalid options, and `NothingToSend`.
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
            raise NothingToSend(
                item.check.id for item in loader.load() if isinstance(item, LoadedCheck) and item.check.across
            )

    @property
    def checks(self) -> tuple[Check, ...]:
        """The requested checks that could be loaded."""
        return tuple(item.check for item in self.selected if isinstance(item, LoadedCheck))

    @property
    def opens_devices(self) -> bool:
        """Whether a requested check will have a worker open each GPU."""
        return any(check.requires and not self._is_disabled(check.id) for check in self.checks)

    @property
    def uses_device_memory(self) -> bool:
        """Whether a requested check will allocate memory of NVIDIA's GPUs, or is the one that tells of it."""
        return any(SUPPORTED[backend].manages for backend in self.request.backends) and (
            surveys.DRIVERS in self.request.checks
            or any(
                check.requires or check.needs_mpi or check.needs_allocators or check.uses_collectives
                for check in self.checks
            )
        )

    @property
    def asks_for_mpi(self) -> bool:
        return any(check.needs_mpi or check.id == surveys.MPI_LIBRARY for check in self.checks)

    @property
    def asks_for_fabric(self) -> bool:
        return any(check.uses_fabric for check in self.checks)

    @property
    def asks_for_collectives(self) -> bool:
        return any(check.uses_collectives for check in self.checks)

    @property
    def goes_across(self) -> bool:
        return any(check.across for check in self.checks)

    @property
    def needs_gpu(self) -> bool:
        """Whether the request needs a GPU. A whole tier always does."""
        return (
            not self.request.checks
            or any(id_ in self.request.checks for id_ in (*surveys.PROBES, surveys.HEALTH))
            or any(check.requires or check.needs_mpi or check.needs_allocators for check in self.checks)
        )

    def survey(
        self,
        file: Path,
        options: Mapping[str, Json],
        devices: tuple[Device, ...] = (),
        mpi: MpiStack | None = None,
    ) -> tuple[CheckInfo, tuple[PlannedProbe, ...]]:
        """Plan a survey with these options. It is run once and cannot be disabled."""
        item = loader.load_file(file)
        assert isinstance(item, LoadedCheck)
        probes, _ = self._ask(item, Context(devices, options=options, mpi=mpi))
        return info(item.check), tuple(probes)

    def plan_probes(
        self,
        context: Context,
        *,
        already: Collection[str] = (),
        harmful: Mapping[tuple[str, str], Finding] | None = None,
    ) -> Plan:
        """Have every selected check plan its probes on the devices with the required capabilities.

        ``context`` holds all selected devices; each check gets its own part of it. Checks in ``already`` have
        run, because others depend on them, and are omitted. ``harmful``: (step of `Probe.harms`, device's
        label) → the SKIP that replaces a probe with this step. Repetitions repeat the whole list, so that
        changes over time affect all probes equally.
        """
        infos: list[CheckInfo] = []
        probes: list[PlannedProbe] = []
        concluded: list[Result] = []
        for item in self.selected:
            if _id(item) in already:
                continue
            if isinstance(item, BrokenCheck):
                infos.append(CheckInfo(item.id, "(does not load)", self.request.tier))
                says = "cannot load the check file: {reason}"
                concluded.append(Result(item.id, Finding.error("broken-check", says, reason=item.reason)))
                continue
            infos.append(info(item.check))
            planned_probes, results = self._plan_check(item, context)
            concluded += results
            for planned in planned_probes:
                if skip := skips.harmful_step(planned.probe, harmful or {}):
                    concluded.append(_result(planned, skip))
                else:
                    probes.append(planned)
        rounds = (self._repeat(probes, repetition) for repetition in range(2, self.request.repeat + 1))
        return Plan(tuple(infos), (*probes, *itertools.chain.from_iterable(rounds)), tuple(concluded))

    def rerun(
        self,
        planned: PlannedProbe,
        env: Mapping[str, str],
        shorter: Probe | None = None,
        unset: frozenset[str] = frozenset(),
    ) -> PlannedProbe:
        """The same probe, or a shorter replacement, with additional environment, or without variables."""
        probe = replace(planned.probe, unset=unset)
        if shorter:
            probe = replace(shorter, env={**shorter.env, **env}, deadline_s=probe.deadline_s)
        elif launch := probe.launch:
            probe = replace(probe, launch=replace(launch, env={**launch.env, **env}))
        else:
            probe = replace(probe, env={**probe.env, **env})
        return replace(planned, number=next(self._numbers), probe=probe)

    def follow_ups(self, planned: PlannedProbe, outcome: ProbeOutcome) -> list[PlannedProbe]:
        """The check's follow-up probes after an incomplete probe, or after any probe if the check searches.

        Raises `TooManyFollowUps`, and any exception of the check's own code.
        """
        searches = planned.check.searches
        if outcome.stopped or (outcome.completed and not searches):
            return []
        more = []
        for probe in planned.check.again(outcome):
            verify(probe, planned.file)
            bounded = probe if searches else replace(probe, deadline_s=planned.probe.deadline_s)
            more.append(replace(planned, number=next(self._numbers), probe=bounded, follows=planned.origin))
        asked = self._follow_ups[planned.place]
        if asked + len(more) > MAX_FOLLOW_UPS:
            raise TooManyFollowUps(asked, len(more))
        self._follow_ups[planned.place] += len(more)
        return more

    def _repeat(self, probes: Sequence[PlannedProbe], repetition: int) -> Iterator[PlannedProbe]:
        for planned in probes:
            yield replace(planned, number=next(self._numbers), repetition=repetition)

    def _is_disabled(self, check: str) -> bool:
        disabled = self.config.disabled.get(check)
        return disabled is not None and not disabled.has_expired(date.today())

    def _plan_check(self, item: LoadedCheck, context: Context) -> tuple[list[PlannedProbe], list[Result]]:
        """One check's probes on the devices that it can test, and its findings without a probe."""
        check, results = item.check, list[Result]()
        if waiver := self.config.disabled.get(check.id):
            if self._is_disabled(check.id):
                return [], [Result(check.id, skips.disabled(waiver))]
            results.append(Result(check.id, skips.disabling_ended(waiver)))
        if check.uses_fabric and (skip := skips.no_fabric(context.fabric)):
            return [], [*results, Result(check.id, skip)]
        able = []
        for device in context.devices:
            if skip := skips.missing_requirement(check, device, context):
                results.append(Result(check.id, skip, (device.label,)))
            else:
                able.append(device)
        if not able and (check.requires or check.needs_mpi or check.needs_allocators):
            return [], results
        if not able and check.control and not self.request.checks:
            return [], [*results, Result(check.id, skips.only_control(check, check.control.of))]
        own = replace(
            context,
            devices=tuple(able),
            options=self.config.options.get(check.id, {}),
            memory=self.config.memory,
            tier=self.request.tier,
        )
        probes, findings = self._ask(item, own)
        return probes, [*results, *findings]

    def _ask(self, item: LoadedCheck, context: Context) -> tuple[list[PlannedProbe], list[Result]]:
        """One check's probes, and its findings without a probe. Mistakes in the check become findings."""
        probes: list[PlannedProbe] = []
        results: list[Result] = []
        check, file = item.check, item.file
        try:
            survey = surveys.PROBES.get(check.id)
            for asked in (*check.probes(context), *(survey(context) if survey else ())):
                if isinstance(asked, Finding):
                    results.append(Result(check.id, asked))
                    continue
                verify(asked, file)
                deadline = self.request.deadline_s or self.config.deadline_s or asked.deadline_s
                probe = replace(asked, deadline_s=deadline)
                if self.request.tier is Tier.SOAK:  # the environment that applications have
                    probe = replace(probe, concurrent=frozenset(probe.roles))
                planned = PlannedProbe(next(self._numbers), check, file, probe)
                if skip := skips.no_peer_access(check, asked, context.inventory) or skips.hidden_by_launcher(
                    asked
                ):
                    results.append(_result(planned, skip))
                else:
                    probes.append(planned)
        except (Exception, SystemExit) as error:
            return [], [Result(check.id, _mistake(file, "planning failed", error))]
        if self.request.partner and any(map(_is_across, probes)):  # both devices are needed to answer
            probes = list(filter(_is_across, probes))
        if not probes and not results:
            nothing = Finding.error("asks-nothing", "the check's own code planned nothing to run", str(file))
            results.append(Result(check.id, nothing))
        return probes, results


def sharing(probes: Iterable[PlannedProbe]) -> dict[int, list[PlannedProbe]]:
    """Number of a probe → the later, equal probes of other checks: one run, which each of them judges."""
    first: dict[str, PlannedProbe] = {}
    found: dict[int, list[PlannedProbe]] = {}
    for planned in probes:
        runs = first.setdefault(repr((planned.repetition, planned.probe)), planned)
        if runs.check is not planned.check:
            found.setdefault(runs.number, []).append(planned)
    return found


def _is_across(planned: PlannedProbe) -> bool:
    return planned.probe.launch is not None and planned.probe.launch.nodes > 1


def verify(probe: Probe, file: Path) -> None:
    """Raise an error for an invalid probe, such as one whose roles workers cannot find by their names."""
    if not isinstance(probe, Probe):
        raise TypeError(f"{probe!r} is neither a Probe nor a Finding")
    if not all(isinstance(device, Device) for device in probe.devices):
        raise TypeError(f"the devices of probe {probe.name!r} must be devices from the check's `ctx`")
    for role, function in probe.roles.items():
        try:
            loader.name_of(function, file)
        except ValueError as error:
            raise ValueError(f"role {role!r} of probe {probe.name!r} {error}") from None
    if not isinstance(probe.concurrent, Set) or not probe.concurrent <= probe.roles.keys():
        raise ValueError(f"probe {probe.name!r}: concurrent must be a set of its roles")
    if not isinstance(probe.starters, Set) or not probe.starters < probe.roles.keys():
        raise ValueError(f"probe {probe.name!r}: starters must be a set of its roles, and not all of them")


def select(request: Request, config: SiteConfig) -> list[LoadedCheck | BrokenCheck]:
    """The checks requested by id, or else all of the tier, without the survey of devices, which always runs.

    Raises `UnknownName`. If all requested checks are built in, no other check file is imported.
    """
    built_in = loader.built_in()
    names = dict.fromkeys((*request.checks, *request.also) if request.checks else ())
    available: dict[str, LoadedCheck | BrokenCheck]
    if names and names.keys() <= built_in.keys():
        available = {id_: loader.load_file(built_in[id_]) for id_ in names}
    else:
        available = {_id(item): item for item in check_files.load(config.checks_dirs)}
    for id_ in names:
        if id_ not in available:
            raise UnknownName("check", id_, [*available, "--all"], "gpuipc-doctor list")
    if names:
        return [available[id_] for id_ in names if id_ != surveys.DRIVERS]
    del available[surveys.DRIVERS]
    return [
        item
        for item in available.values()
        if isinstance(item, BrokenCheck)
        or item.check.id in request.also
        or (item.check.tier <= request.tier and not item.check.on_request)
    ]


def _result(planned: PlannedProbe, finding: Finding) -> Result:
    labels = tuple(device.label for device in planned.probe.devices)
    return Result(planned.check.id, finding, labels, planned.probe.name)


def _mistake(file: Path, what: str, error: BaseException) -> Finding:
    says = "{what}: {exception}: {message}"
    place = place_of_error("".join(traceback.format_exception(error)))
    values = {"what": what, "exception": type(error).__name__, "message": str(error)}
    return Finding.error("check-failed", says, f"{file.parent / place}" if place else str(file), **values)


def info(check: Check) -> CheckInfo:
    return CheckInfo(check.id, check.title, check.tier, check.subject)


def _id(item: LoadedCheck | BrokenCheck) -> str:
    return item.check.id if isinstance(item, LoadedCheck) else item.id
