"""Find out what is here, plan, run, join with the known issues: from a request to a report.

Finding the devices is itself a probe (the check `plan.DISCOVERY`), because initialising a driver can hang;
so are the inventory's surveys, and looking at the MPI library.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from gpuipc_doctor import (
    __version__,
    environment,
    inventory,
    knownissues,
    loader,
    louder,
    plan,
    trials,
    verdict,
)
from gpuipc_doctor.api import Context
from gpuipc_doctor.config import SiteConfig
from gpuipc_doctor.handover import device_from_json
from gpuipc_doctor.inventory import gpus
from gpuipc_doctor.knownissues import KnownIssue
from gpuipc_doctor.loader import BrokenCheck, LoadedCheck
from gpuipc_doctor.model import (
    CheckInfo,
    Device,
    Fact,
    Finding,
    Json,
    Launch,
    MpiStack,
    Node,
    Probe,
    ProbeOutcome,
    Report,
    Result,
    Setting,
    Status,
    Tier,
)
from gpuipc_doctor.mpi import choice, finding
from gpuipc_doctor.plan import Plan, Request
from gpuipc_doctor.runner import MAX_JOBS, Runner, Watcher
from gpuipc_doctor.supervise.execution import Limits
from gpuipc_doctor.supervise.session import Session

DAY_S = 86_400.0
"""The deadline of what only waits, in seconds: longer than any run."""


@dataclass(frozen=True, slots=True)
class Stock:
    """What a node is made of, and what each environment variable that is set does there."""

    facts: tuple[Fact, ...]
    settings: tuple[Setting, ...]

    @property
    def told(self) -> tuple[Fact, ...]:
        """The facts less the variables that are not set, which matter to known issues alone."""
        return tuple(fact for fact in self.facts if fact.value is not None or fact.name in inventory.NAMES)


class Run:
    """One run's stages, in order."""

    def __init__(self, request: Request, config: SiteConfig, session: Session, watcher: Watcher) -> None:
        self.request = request
        self.config = config
        self.session = session
        self.node = session.node
        self.started_at = time.monotonic()
        budget_s = request.budget_s or config.budget_s[request.tier] * request.repeat
        self.runner = Runner(session, watcher, self.started_at + budget_s, bool(request.keep_logs))

    def discover(
        self, selected: Sequence[LoadedCheck | BrokenCheck] = ()
    ) -> tuple[tuple[Device, ...], tuple[Fact, ...]]:
        """The devices to test, and what drivers and libraries say of themselves."""
        if self.request.job_gpus is None:
            return self._ask_drivers(
                [plan.built_in(plan.DISCOVERY), inventory.SURVEYS], self.request.backends
            )
        job = gpus.of_job(self.node.root, self.request.job_gpus)
        devices, facts, missing = self._devices_of(job, any(map(self._opens_devices, selected)))
        if job.unknown:
            self._tell_discovery(f"this node has no GPU {', '.join(job.unknown)}; it lists {job.known}")
        if missing:
            self._tell_discovery(f"the driver does not show {', '.join(missing)}")
        return devices, facts

    def _devices_of(
        self, job: gpus.JobGpus, opened: bool
    ) -> tuple[tuple[Device, ...], tuple[Fact, ...], tuple[str, ...]]:
        """A job's GPUs, what a driver says if it is asked, and the GPUs that it does not show.

        Where the checks will have ``opened`` the GPUs, and the kernel tells which is which, no driver is
        asked: each initialisation costs.
        """
        if job.is_identified and opened:
            return job.devices, (), ()
        if job.unknown and not job.chosen:
            return (), (), ()
        self.session.node = replace(self.node, visible=job.visible)
        backends = job.backends or self.request.backends
        found, facts = self._ask_drivers([plan.built_in(plan.DISCOVERY)], backends)
        for backend in job.backends:  # that the node's other GPUs are hidden is as it should be
            self.runner.drop(plan.DISCOVERY, Status.SKIP, probe=backend)
        devices, missing = job.numbered(found)
        return devices, facts, missing if found else ()  # else the driver has said why

    def _opens_devices(self, item: LoadedCheck | BrokenCheck) -> bool:
        return (
            isinstance(item, LoadedCheck)
            and bool(item.check.requires)
            and item.check.id not in self.config.disabled
        )

    def _tell_discovery(self, error: str) -> None:
        """Say what is wrong with the job's GPUs, whether or not a driver was asked for them."""
        if plan.DISCOVERY not in self.has_run:
            self.runner.checks.append(CheckInfo(plan.DISCOVERY, "the job's GPUs are found", Tier.PROLOG))
        self.runner.results.append(Result(plan.DISCOVERY, Finding.error(error)))

    def _ask_drivers(
        self, files: Sequence[Path], backends: Sequence[str]
    ) -> tuple[tuple[Device, ...], tuple[Fact, ...]]:
        """Run the discovery check; its results count, its records become devices and facts.

        Of the inventory's surveys, which may run beside it and only add facts, no result counts.
        """
        options: dict[str, dict[str, Json]] = {
            plan.DISCOVERY: {"backends": backends, "required": self.request.backend != "auto"},
            inventory.CHECK: {
                "root": self.node.root,
                "foreign": self.asks_foreign,
                "mpi": self.request.mpi_lib or self.config.mpi.library or "",
            },
        }
        outcomes = self._look_around(files, options)
        self.runner.drop(inventory.CHECK)
        found = [record for outcome in outcomes for record in outcome.records.values()]
        devices = [device_from_json(data) for record in found for data in record.get("devices", ())]
        devices.sort(key=lambda device: (device.backend, device.index))
        if self.request.backend == "auto" and devices:
            # One vendor's driver is enough; the absence of the other's is no news.
            here = {device.backend for device in devices}
            for absent in set(backends) - here:
                self.runner.drop(plan.DISCOVERY, Status.SKIP, probe=absent)
        facts = [Fact(*fact) for record in found for fact in record.get("facts", ())]
        facts += [
            Fact(f"{outcome.params['backend']}-driver", None, verdict.conclude(outcome).summary)
            for outcome in outcomes
            if "backend" in outcome.params and not outcome.completed
        ]
        return tuple(devices), (*facts, *inventory.learned(outcomes))

    def jobs(self, devices: Sequence[Device]) -> int:
        """Probes at a time. Before a job all its GPUs at once: drivers overlap a little, and time is dear."""
        in_front_of_job = self.request.job_gpus is not None
        return len(devices) if in_front_of_job else min(MAX_JOBS, len(os.sched_getaffinity(0)))

    @property
    def asks_foreign(self) -> bool:
        """Whether libraries and programs that the environment chooses may run: never in a prolog, as root."""
        return self.request.tier > Tier.PROLOG

    def take_stock(self, asked: Sequence[Fact], issues: Iterable[KnownIssue] = ()) -> Stock:
        """The whole inventory, of which ``asked`` is what workers were told.

        Of the environment it tells the variables that matter, and those that ``issues`` ask for, set or not.
        """
        variables = environment.load()
        environ = environment.read(self.node.root, {**os.environ, **self.node.env})
        surveyed = self.request.job_gpus is None
        facts = inventory.read(self.node.root, asked, foreign=self.asks_foreign, surveyed=surveyed)
        settings = tuple(environment.judge(environ, variables, facts))
        needs = (need for issue in issues for need in issue.needs if need.is_env)
        names = {*variables, *(need.fact.removeprefix("env:") for need in needs)}
        return Stock((*facts, *environment.facts(environ, sorted(names))), settings)

    @contextlib.contextmanager
    def drivers_kept_open(self, devices: Iterable[Device]) -> Iterator[None]:
        """Have a worker hold each driver meanwhile, as a persistence daemon does where there is one.

        Without either, the last process to end shuts the GPUs down and the next initialises them anew: on two
        H200s that came to 2 of 14 seconds.
        """
        file = plan.built_in(plan.DISCOVERY)
        hold = loader.role(file, "keep_open")
        with contextlib.ExitStack() as held:
            for backend in sorted({device.backend for device in devices}):
                probe = Probe("kept open", {backend: hold}, params={"backend": backend}, deadline_s=DAY_S)
                held.enter_context(self.runner.session.beside(plan.DISCOVERY, file, probe))
            yield

    def find_mpi(
        self, selected: Sequence[LoadedCheck | BrokenCheck], devices: tuple[Device, ...]
    ) -> MpiStack | None:
        """The MPI that the selected checks need, looked at by the check `plan.MPI_DISCOVERY`.

        None when none of them needs one, and when there is none; its results then say why. A simulated
        node has no MPI of its own: one must be named for it.
        """
        checks = [item.check for item in selected if isinstance(item, LoadedCheck)]
        if not devices or not any(check.needs_mpi or check.id == plan.MPI_DISCOVERY for check in checks):
            return None
        named = self.request.mpi_lib or self.config.mpi.library
        info = CheckInfo(plan.MPI_DISCOVERY, "the MPI library takes device pointers", Tier.ACCEPTANCE)
        if self.node.simulated and not named:
            self.runner.tell(info, Finding.skip("a simulated node has no MPI; name one with --mpi-lib"))
            return None
        try:
            library = finding.find_library(self.request.mpi_lib, self.config.mpi.library, os.environ)
        except finding.NotFound as absent:
            self.runner.tell(info, Finding.error(absent.reason, remedy=absent.remedy))
            return None
        options = {"library": library.path, "chosen_by": library.source, "named": bool(named)}
        outcomes = self._look_around(
            [plan.built_in(plan.MPI_DISCOVERY)], {plan.MPI_DISCOVERY: options}, devices
        )
        seen = next((outcome.records["mpi"] for outcome in outcomes if outcome.completed), {})
        if "facts" not in seen:
            return None
        launch = self._launch(seen, info, nodes=1)
        if launch is None:
            return None
        across = self._launch(seen, info, self.request.nodes) if self.request.nodes > 1 else None
        backends = {device.backend for device in devices}
        stack = choice.stack(seen, backends, launch, os.environ, simulated=bool(self.node.simulated))
        return replace(stack, across=across)

    def context(
        self,
        stock: Stock,
        issues: Sequence[KnownIssue],
        devices: tuple[Device, ...],
        selected: Sequence[LoadedCheck | BrokenCheck],
    ) -> Context:
        """What the checks plan by, and what those say that need no probe."""
        matches = knownissues.match_versions(issues, stock.facts, devices)
        return Context(devices, stock.facts, matches, self.find_mpi(selected, devices), stock.settings)

    def _launch(self, seen: Mapping[str, Json], info: CheckInfo, nodes: int) -> Launch | None:
        """How to start ranks on so many nodes; where that cannot be done, that is reported."""
        try:
            return choice.launch(seen, self.config.mpi.launcher, os.environ, nodes)
        except finding.NotFound as absent:
            self.runner.tell(info, Finding.error(absent.reason, remedy=absent.remedy))
            return None

    @property
    def has_run(self) -> set[str]:
        """The checks that have run by now."""
        return {info.id for info in self.runner.checks}

    def _look_around(
        self,
        files: Iterable[Path],
        options: Mapping[str, Mapping[str, Json]],
        devices: tuple[Device, ...] = (),
    ) -> list[ProbeOutcome]:
        """Run checks that others build on: with these options, never disabled, and no test of a GPU."""
        config = replace(self.config, options=options, disabled={})
        items = [loader.load_file(file) for file in files]
        layout = plan.lay_out(items, self.request, config, Context(devices))
        asked_for = any(item.id in self.request.checks for item in layout.checks)
        return self.runner.execute(layout, jobs=max(len(layout.probes), 1), counts=asked_for)


def take_stock(request: Request, config: SiteConfig, node: Node, watcher: Watcher) -> Stock:
    """The inventory alone: files of the node, and what its drivers and libraries say of themselves."""
    with Session(node, Limits(start_up_s=config.start_up_s)) as session:
        run = Run(request, config, session, watcher)
        _, facts = run.discover()
        return run.take_stock(facts)


def dry_run(request: Request, config: SiteConfig, node: Node, watcher: Watcher) -> Plan:
    """What `run` would do, after finding out what is here and nothing else."""
    selected = plan.select_checks(request, config)
    with Session(node, Limits(start_up_s=config.start_up_s)) as session:
        run = Run(request, config, session, watcher)
        devices, facts = run.discover(selected)
        devices = plan.select_devices(request, devices)
        issues = knownissues.load(config.known_issues_dirs)
        context = run.context(run.take_stock(facts, issues), issues, devices, selected)
    layout = plan.lay_out(selected, request, config, context, already=run.has_run)
    return layout.repeated(request.repeat)


def run(
    request: Request,
    config: SiteConfig,
    node: Node,
    watcher: Watcher,
    *,
    remove: Sequence[Path] = (),
    limits: Limits | None = None,
) -> Report:
    """Run the checks that were asked for. Raises `plan.UnknownName` before any probe but the discovery.

    ``remove``: directories that must not outlive this process, even when it is killed. ``limits``: other
    than the usual ones.
    """
    started = datetime.now().astimezone()
    host = (Path(node.root) / "proc/sys/kernel/hostname").read_text().strip()
    selected = plan.select_checks(request, config)
    limits = limits or Limits(start_up_s=config.start_up_s)
    with (
        Session(node, limits, keep_logs=request.keep_logs, remove=remove) as session,
        ThreadPoolExecutor(1) as aside,
        contextlib.ExitStack() as resources,
    ):
        run = Run(request, config, session, watcher)
        resources.enter_context(run.runner.interruptible())
        loading = aside.submit(knownissues.load, config.known_issues_dirs)  # while the drivers initialise
        devices, asked = run.discover(selected)
        if request.tier > Tier.PROLOG:
            resources.enter_context(run.drivers_kept_open(devices))
        issues = loading.result()
        if devices:  # without any, what was found out about the drivers is the answer
            devices = plan.select_devices(request, devices)
        stock = run.take_stock(asked, issues)
        context = run.context(stock, issues, devices, selected)
        facts, mpi = stock.facts, context.mpi
        layout = plan.lay_out(selected, request, config, context, already=run.has_run)
        run.runner.execute(layout.repeated(request.repeat), jobs=run.jobs(devices))
        if mpi:
            facts = choice.in_use(facts, mpi)
            louder.listen(run.runner, mpi.louder)
            if request.workarounds:
                seen = knownissues.join(issues, facts, run.runner.results, devices)
                trials.try_all(run.runner, trials.candidates(issues, seen, facts, mpi.workarounds))
    results = _in_plan_order(run.runner.results, run.runner.checks)
    return Report(
        host=host,
        started=started.isoformat(timespec="seconds"),
        elapsed_s=time.monotonic() - run.started_at,
        tier=request.tier,
        tool_version=__version__,
        devices=devices,
        inventory=stock.told,
        checks=tuple(run.runner.checks),
        results=results,
        joins=knownissues.join(issues, facts, results, devices),
        simulated=node.simulated,
        interrupted=run.runner.interrupted,
        probes_run=run.runner.probes_run,
    )


def _in_plan_order(results: Sequence[Result], checks: Sequence[CheckInfo]) -> tuple[Result, ...]:
    """Results come as probes end; readers want them in the order of the checks and devices."""
    place = {info.id: number for number, info in enumerate(checks)}

    def in_order(result: Result) -> tuple[object, ...]:
        return place[result.check], result.devices, result.probe, result.repetition

    return tuple(sorted(results, key=in_order))
