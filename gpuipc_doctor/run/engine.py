"""From a request to a report: discover, plan, run, rerun failures, join known issues, report."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime

from gpuipc_doctor import __version__, knownissues, node_name, surveys
from gpuipc_doctor.api import Context, allocator, loader
from gpuipc_doctor.knownissues import Harm, KnownIssue
from gpuipc_doctor.model import Device, Fact, Finding, Node, Setting, Tier
from gpuipc_doctor.node import (
    arming,
    collective_libraries,
    environment,
    gpus,
    inventory,
    mpi_choice,
    variables,
)
from gpuipc_doctor.probe_types import MpiStack, Workaround
from gpuipc_doctor.report_types import Report, Result
from gpuipc_doctor.run import (
    causes,
    check_files,
    conclusions,
    order,
    planner,
    reruns,
    room,
    site_expectations,
    skips,
    workarounds,
)
from gpuipc_doctor.run.causes import controls, node_state, recognition, setting_trials
from gpuipc_doctor.run.conclusions import Doubt, Ended, NotRun
from gpuipc_doctor.run.discovery import ON_GPUS, Discovery, Found
from gpuipc_doctor.run.open_drivers import OpenDrivers
from gpuipc_doctor.run.planner import Plan, PlannedProbe, Planner, TooManyFollowUps
from gpuipc_doctor.run.preview import Preview, of_ranks
from gpuipc_doctor.run.request import Request, Watcher
from gpuipc_doctor.run.results import ResultLog, blamed_first
from gpuipc_doctor.run.room import RoomSurvey
from gpuipc_doctor.run.schedule import Schedule
from gpuipc_doctor.run.stack_discovery import StackDiscovery, Stacks
from gpuipc_doctor.run.survey_runner import SurveyRunner, asks_foreign
from gpuipc_doctor.run.tours import Tours
from gpuipc_doctor.site.config import SiteConfig
from gpuipc_doctor.supervise import process_limits
from gpuipc_doctor.supervise.probe import Limits
from gpuipc_doctor.supervise.session import Session

RERUN_BUDGET_FRACTION = 0.25
"""Fraction of the budget reserved for rerunning failed MPI probes, since hangs may use up the rest."""


@dataclass(frozen=True, slots=True)
class NodeInventory:
    """A node's inventory, and the effect of each set environment variable."""

    facts: tuple[Fact, ...]
    settings: tuple[Setting, ...]
    lacking: tuple[str, ...]
    """Missing settings that would help diagnose a hanging job."""

    @property
    def told(self) -> tuple[Fact, ...]:
        """The facts for the report, without variables that are unset (only known issues need those)."""
        return tuple(fact for fact in self.facts if fact.value is not None or fact.name in inventory.NAMES)


@dataclass
class Run:
    """One run's stages, in order."""

    planner: Planner
    discovery: Discovery
    stack_discovery: StackDiscovery
    schedule: Schedule
    log: ResultLog
    room: RoomSurvey
    facts_from_files: Future[tuple[Fact, ...]]
    """Facts from files, read while drivers initialise."""
    issues: Sequence[KnownIssue] = ()
    _endings: set[object] = field(default_factory=set)
    _sharing: dict[int, list[PlannedProbe]] = field(default_factory=dict)
    """Number of a shared probe → the equal probes of other checks, which are not run themselves."""

    @property
    def request(self) -> Request:
        return self.planner.request

    def collect_inventory(self, found: Found) -> NodeInventory:
        """The whole inventory, with the workers' facts. Environment variables are as the user and the site
        set them, without those that were added for a simulated node's workers."""
        node = self.discovery.node
        known = variables.load()
        of_ranks = (
            environment.SetVariable(name, said.value, said.where)
            for name, said in found.site.node.environment.items()
        )
        environ = environment.read(node.root, os.environ, of_ranks)
        facts = inventory.merged(
            found.facts,
            (*inventory.of_modules(node.root), *self.facts_from_files.result()),
            foreign=asks_foreign(self.request.tier) and node.root == "/",
            surveyed=self.request.job_gpus is None,
        )
        settings = tuple(environment.judge(environ, known, facts))
        needs = (name for issue in self.issues for need in issue.needs if need.is_env for name in need.names)
        cures = (name for issue in self.issues for cure in issue.workarounds for name in cure.env)
        names = {*known, *(name.removeprefix("env:") for name in needs), *cures}
        lacking = tuple(arming.lacking(facts, environ))
        return NodeInventory((*facts, *environment.facts(environ, sorted(names))), settings, lacking)

    def import_libraries(self) -> None:
        """Start importing the array libraries found, which takes seconds, before any probe needs them."""
        if any(check.needs_allocators for check in self.planner.checks):
            facts = self.facts_from_files.result()
            for backend in self.request.backends:
                for modules in allocator.modules(facts, backend):
                    self.schedule.session.expect({backend, *modules})

    def plan_probes(
        self,
        node_inventory: NodeInventory,
        devices: tuple[Device, ...],
        stacks: Stacks,
        site: SiteConfig,
        seen: node_state.Seen,
    ) -> Plan:
        """The plan for these devices and stacks. ``seen``: the limits and free space of this process."""
        facts = mpi_choice.relevant_facts(node_inventory.facts, stacks.mpi, self.log.loaded_in_ranks())
        facts = collective_libraries.in_use(facts, stacks.collectives)
        matches = knownissues.match_versions(self.issues, facts, devices)
        unexpected = site_expectations.of_versions(
            self.planner.config, node_inventory.facts, surveyed=self.request.job_gpus is None
        )
        harms: tuple[Harm, ...] = ()
        if not self.request.accept_harm:
            harms = tuple(knownissues.harms(self.issues, node_inventory.facts, devices))
        context = Context(
            devices,
            node_inventory.facts,
            matches,
            stacks.mpi,
            fabric=stacks.fabric,
            collectives=stacks.collectives,
            across=stacks.across,
            settings=node_inventory.settings,
            lacking=node_inventory.lacking,
            unexpected=tuple(unexpected),
            unread=knownissues.newer_than_read(facts),
            unmet=tuple(
                site_expectations.of_node(site, node_inventory.facts, self.discovery.node.root, seen)
            ),
            states_links=bool(site.node.gpus.nvlinks),
            harmful=frozenset(harm.step for harm in harms),
            simulated=bool(self.discovery.node.simulated),
            time_left_s=max(self.schedule.until - time.monotonic(), 0.0),
        )
        harmful = {(harm.step, harm.device): skips.would_harm(harm) for harm in harms}
        return self.planner.plan_probes(context, already=self.log.checks, harmful=harmful)

    def with_room(self, devices: tuple[Device, ...]) -> tuple[Device, ...]:
        """The devices that have free memory for tests. The others are reported, and not tested."""
        full = self.room.full(devices) if self.planner.uses_device_memory else {}
        for device, finding in full.items():
            self.log.announce(ON_GPUS)
            self.log.say(Result(surveys.DRIVERS, finding, (device.label,)))
            self.log.probes_run += 1  # an answer about the GPU
        return tuple(device for device in devices if device not in full)

    def report_missing(self, site: SiteConfig) -> None:
        """Report the checks that the site config requires and that this whole run did not include."""
        if self.request.tier is Tier.PROLOG or self.log.checks.keys() >= site.required.keys():
            return
        loaded = check_files.load(self.planner.config.checks_dirs)
        known = {item.check.id: item.check.tier for item in loaded if isinstance(item, loader.LoadedCheck)}
        for info, result in site_expectations.of_required(
            site, self.log.checks.keys(), known, self.request.tier
        ):
            self.log.announce(info)
            self.log.say(result)

    def report_untested(self, site: SiteConfig) -> None:
        """Report the subjects that the site config, for a whole run, or the command line requires."""
        by_site = {} if self.request.checks or self.request.tier is Tier.PROLOG else site.required_subjects
        required = {**by_site, **dict.fromkeys(self.request.required, "--require")}
        for info, result in site_expectations.of_subjects(
            required, self.log.checks.values(), self.log.results(), self.request.tier
        ):
            self.log.announce(info)
            self.log.say(result)

    def execute(self, layout: Plan, devices: Sequence[Device]) -> None:
        """Run the plan's probes and keep their results."""
        self.log.announce(*layout.checks)
        self.log.say(*layout.concluded)
        spare_s = 0.0
        if self.request.workarounds and any(planned.probe.launch for planned in layout.probes):
            spare_s = RERUN_BUDGET_FRACTION * max(self.schedule.until - time.monotonic(), 0.0)
        self._sharing = planner.sharing(layout.probes)
        shared = {each.number for others in self._sharing.values() for each in others}
        probes = [planned for planned in layout.probes if planned.number not in shared]
        self.schedule.run(probes, self._jobs(devices), self._take_shared, spare_s=spare_s)
        for device, (lost, watched) in self.schedule.lost.items():
            if isinstance(lost, str):
                says = (
                    "memory of {device} that no process holds was not compared with before the tests: {why}"
                )
                found = Finding.skip("not-compared", says, device=device.label, why=lost)
            elif self.log.passed(device):
                says = "{missing:mib} of {device} are held by no process since the first test; tests alone "
                says += "lost none: cannot tell which did"
                found = Finding.error("unexplained-change", says, missing=lost, device=device.label)
            else:
                continue
            self.log.say(Result(watched[0].check.id, found, (device.label,)))
        for outcome, finding in self.schedule.tours.not_together:
            self.log.say(Result(surveys.RANKS, finding, roles=blamed_first(outcome)))

    def rerun_failures(self, mpi: MpiStack, facts: Sequence[Fact], devices: Sequence[Device]) -> None:
        """Rerun failed MPI probes: with workarounds, then with debug logs, then with the workarounds that the
        logs suggest."""
        self.try_what_may_help(facts, devices, mpi.workarounds)
        reruns.rerun_with_logs(self.log, self.schedule, self.planner, mpi.louder)
        self.try_what_may_help(facts, devices, mpi.workarounds)

    def try_what_may_help(
        self, facts: Sequence[Fact], devices: Sequence[Device], built_in: Sequence[Workaround] = ()
    ) -> None:
        """Rerun failures with workarounds that may help."""
        if self.request.workarounds and self.log.to_cure():
            seen = knownissues.join(self.issues, facts, self.log.results(), devices)
            of = workarounds.candidates(self.issues, seen, facts, built_in)
            workarounds.try_all(self.log, self.schedule, self.planner, of)

    def _take_shared(self, planned: PlannedProbe, ended: Ended | Doubt) -> Sequence[PlannedProbe]:
        """Take a probe's end for every check that shares it. A failure belongs to one of them: to the check
        for which the failed role acted, by default to the first."""
        sharing = [planned, *self._sharing.pop(planned.number, ())]
        if len(sharing) == 1 or isinstance(ended, (NotRun, Doubt)) or ended.completed or ended.stopped:
            return [more for each in sharing for more in self._take(each, ended)]
        named = ended.roles[ended.blamed].acts_for if ended.blamed else ""
        owner = next((each for each in sharing if each.check.id == named), planned)
        for other in sharing:
            if other is not owner:
                says = "the launch that this check shares with {check} failed"
                skipped = Finding.skip("launch-failed", says, check=owner.check.id)
                self.log.keep_unrun(other, skipped)
        return self._take(owner, ended)

    def _take(self, planned: PlannedProbe, ended: Ended | Doubt) -> Sequence[PlannedProbe]:
        if isinstance(ended, Doubt):
            self.log.count(ended.outcome)
            found = conclusions.of_doubt(planned, ended)
            self.log.keep(planned, ended.outcome, found, in_company=True)
            return ()
        if isinstance(ended, NotRun) and planned.check.searches and planned.follows:
            ended = planned.unfinished(ended.stopped or "not run")  # the findings so far are already known
        if isinstance(ended, NotRun):
            self.log.keep_unrun(planned, ended.finding, ended.stopped)
            return ()
        without = planned.check.uses_fabric or planned.check.id == surveys.HEALTH
        if ended.devices or not (without and self.planner.needs_gpu):
            self.log.count(ended)  # messages in host memory do not test a GPU
        more, wrong = list[PlannedProbe](), []
        try:
            more = self.planner.follow_ups(planned, ended)
        except TooManyFollowUps as many:
            wrong.append(conclusions.left_out(many))
        except (Exception, SystemExit) as error:
            wrong.append(planned.mistake("planning follow-up probes failed", error))
        ending = (planned.origin, reruns.kind_of(planned, ended))
        if not more or (
            ending not in self._endings and not planned.check.searches
        ):  # of follow-up probes, each way of ending is reported once
            series, failed = conclusions.recorded(planned, ended)
            self.log.keep(planned, ended, [*conclusions.conclude(planned, ended), *failed, *wrong], series)
        self._endings.add(ending)
        return more

    def _jobs(self, devices: Sequence[Device]) -> int:
        """Maximum number of concurrent probes; before a job, one for each GPU."""
        in_front_of_job = self.request.job_gpus is not None
        return len(devices) if in_front_of_job else order.jobs(devices)


def collect_inventory(request: Request, config: SiteConfig, node: Node, watcher: Watcher) -> NodeInventory:
    """The inventory alone, as in a report: facts from files, drivers and libraries."""
    with prepared(request, config, node, watcher) as run:
        found = run.discovery.drivers()
        run.issues = knownissues.load(config.known_issues_dirs)
        return run.collect_inventory(found)


def survey_node(
    request: Request, config: SiteConfig, node: Node, watcher: Watcher
) -> tuple[tuple[Device, ...], NodeInventory, MpiStack | None]:
    """The devices, the inventory, and the MPI, if any, that checks would use."""
    with prepared(request, config, node, watcher) as run:
        found = run.discovery.drivers()
        return found.devices, run.collect_inventory(found), run.stack_discovery.mpi(found.devices, found.site)


def dry_run(request: Request, config: SiteConfig, node: Node, watcher: Watcher) -> Preview:
    """The probes that `run` would start. Only discovery is run."""
    with prepared(request, config, node, watcher) as run:
        found = run.discovery.drivers()
        run.issues = knownissues.load(config.known_issues_dirs)
        devices = request.select_devices(found.devices, found.left_out) if found.devices else ()
        stacks = run.stack_discovery.stacks(devices, found.site, start_ranks=False)
        plan = run.plan_probes(run.collect_inventory(found), devices, stacks, found.site, node_state.look())
        plan = replace(plan, concluded=(*run.log.results(), *plan.concluded))
        told = of_ranks(found.site.node, stacks.mpi, devices) if run.planner.asks_for_mpi else ()
        return Preview(plan, tuple(told))


def run(
    request: Request,
    config: SiteConfig,
    node: Node,
    watcher: Watcher,
    *,
    limits: Limits | None = None,
) -> Report:
    """Run the requested checks. Raises `UnknownName` before any probe except discovery. ``limits`` replace
    the usual ones."""
    started, started_at = datetime.now().astimezone(), time.monotonic()
    host = node_name.below(node.root)
    with (
        prepared(request, config, node, watcher, limits) as run,
        ThreadPoolExecutor(1) as aside,
        contextlib.ExitStack() as resources,
    ):
        resources.enter_context(run.schedule.interruptible())
        loading = aside.submit(knownissues.load, config.known_issues_dirs)  # while the drivers initialise
        numbering = aside.submit(knownissues.edition, config.known_issues_dirs)
        if request.tier > Tier.PROLOG:
            resources.enter_context(run.discovery.open_drivers)
        if request.tier is Tier.PROLOG and run.planner.uses_device_memory:
            resources.enter_context(run.room.begin())
        before = aside.submit(node_state.look) if request.tier > Tier.PROLOG else None
        aside.submit(run.import_libraries)
        found = run.discovery.drivers()
        run.issues, edition = loading.result(), numbering.result()
        # If no device is found, the result is that of the discovery.
        devices = request.select_devices(found.devices, found.left_out) if found.devices else ()
        node_inventory = run.collect_inventory(found)
        able = run.with_room(devices)
        stacks = run.stack_discovery.stacks(able, found.site, start_ranks=True)
        seen = before.result() if before else {}
        plan = run.plan_probes(node_inventory, able, stacks, found.site, seen)
        run.execute(plan if able or not devices else room.without_probes(plan), able)
        if request.tier > Tier.PROLOG:  # which has no time for it
            reruns.measure_again(run.log, run.schedule, run.planner)
        facts, stack = run.log.with_tested_collectives(node_inventory.facts), tuple[Fact, ...]()
        if mpi := stacks.mpi:
            in_ranks = run.log.loaded_in_ranks()
            facts = mpi_choice.in_use(facts, mpi, in_ranks)
            stack = () if in_ranks is None else mpi_choice.messages_went_through(facts, mpi)
            controls.compare_settings(run.log)
            run.rerun_failures(mpi, facts, devices)
        else:
            run.try_what_may_help(facts, devices)
        may_try = request.workarounds and request.tier > Tier.PROLOG
        causes.explain(
            *(run.log, seen, node_state.look, os.environ, facts, run.planner.checks),
            of_site=found.site.node.environment,
            mpi=stacks.mpi.family if stacks.mpi else "",
            rerun=setting_trials.rerunning(run.schedule, run.planner) if may_try else None,
        )
        if not request.checks:
            run.report_missing(found.site)
        run.report_untested(found.site)
    results = run.log.results()
    joins = knownissues.join(run.issues, facts, results, devices)
    if request.tier > Tier.PROLOG:  # a prolog's line names what is joined; to read all texts takes 0.5 s
        dirs = config.known_issues_dirs
        run.log.recognised = recognition.recognise(results, joins, facts, run.issues, dirs)
        results = run.log.results()
    return Report(
        host=host,
        started=started.isoformat(timespec="seconds"),
        elapsed_s=time.monotonic() - started_at,
        tier=request.tier,
        tool_version=__version__,
        devices=devices,
        inventory=node_inventory.told,
        checks=tuple(run.log.checks.values()),
        results=results,
        joins=joins,
        simulated=node.simulated,
        interrupted=run.schedule.interrupted,
        probes_run=run.log.probes_run,
        needs_gpu=run.planner.needs_gpu,
        stack=stack,
        known_issues=edition,
        processes=run.schedule.session.processes,
        initialisations=run.schedule.session.initialisations,
        whole=not (request.checks or request.devices),
    )


@contextlib.contextmanager
def prepared(
    request: Request,
    config: SiteConfig,
    node: Node,
    watcher: Watcher,
    limits: Limits | None = None,
) -> Iterator[Run]:
    """A run with its checks selected, in its own session. Raises `UnknownName`."""
    process_limits.raise_soft()
    request = replace(request, absent=gpus.not_asked(node.root))
    job = None if request.job_gpus is None else gpus.of_job(node.root, request.job_gpus)
    if job:
        node = replace(node, visible=job.visible)
    until = time.monotonic() + (request.budget_s or config.budget_s[request.tier] * request.repeat)
    limits = limits or Limits(start_up_s=config.start_up_s)
    with (
        Session(node, limits, keep_logs=request.keep_logs) as session,
        ThreadPoolExecutor(1) as aside,
    ):
        for backend in job.backends if job else request.backends:
            session.expect({backend})  # meanwhile, this may import modules
        planned = Planner(request, config)
        facts_from_files = aside.submit(inventory.facts_from_files, node.root, dict(os.environ))
        tours = Tours(
            seed=secrets.randbelow(1 << 16) if request.seed is None else request.seed,
            isolate=request.isolate or request.tier is Tier.SOAK,
            by_gpu=request.by_gpu,
            most=1 if request.tier is Tier.PROLOG else order.MAX_JOBS,
        )
        schedule = Schedule(session, watcher, until, tours)
        log = ResultLog(
            keeps_logs=bool(request.keep_logs), suppressed=config.suppressed, tell=watcher.concluded
        )
        surveys = SurveyRunner(planned, schedule, log)
        uuids = [gpu.uuid for gpu in job.devices] if job and job.is_identified else []
        free = RoomSurvey(session, node, request.tier, uuids)
        drivers = OpenDrivers(session, request.backends)
        discovery = Discovery(node, job, planned, surveys, drivers, free)
        stack_discovery = StackDiscovery(node, planned, surveys)
        yield Run(planned, discovery, stack_discovery, schedule, log, free, facts_from_files)
