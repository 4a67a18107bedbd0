"""Plan, supervise, judge, join with the known issues: from a request to a report.

Finding the devices is itself a probe (the check `plan.DISCOVERY`), because initialising a driver can hang.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Protocol

from gpuipc_doctor import __version__, environment, inventory, knownissues, loader, plan, verdict
from gpuipc_doctor.config import SiteConfig
from gpuipc_doctor.handover import device_from_json
from gpuipc_doctor.knownissues import KnownIssue
from gpuipc_doctor.model import (
    CheckInfo,
    Device,
    Ending,
    Fact,
    Finding,
    Json,
    Node,
    ProbeOutcome,
    Report,
    Result,
    RoleOutcome,
    Setting,
    Status,
    Tier,
)
from gpuipc_doctor.plan import Plan, PlannedProbe, Request
from gpuipc_doctor.supervise.execution import Limits
from gpuipc_doctor.supervise.session import Session

HANGS_BEFORE_GIVING_UP = 2
"""So many hangs in the same call on one device, and its other probes are not run: each costs a deadline."""


MAX_JOBS = 4
"""Probes at a time. Drivers let one process at a time initialise: more would only wait for each other, and
that counts against their deadlines."""


@dataclass(frozen=True, slots=True)
class Stock:
    """What a node is made of, and what each environment variable that is set does there."""

    facts: tuple[Fact, ...]
    settings: tuple[Setting, ...]

    @property
    def told(self) -> tuple[Fact, ...]:
        """The facts less the variables that are not set, which matter to known issues alone."""
        return tuple(fact for fact in self.facts if fact.value is not None or fact.name in inventory.NAMES)


class Watcher(Protocol):
    """Is told what runs; called from several threads."""

    def planned(self, total: int) -> None: ...
    def started(self, key: str, text: str, deadline_s: float) -> None: ...
    def finished(self, key: str) -> None: ...


@dataclass
class Run:
    """One run: its session, its clock, and what it has learned so far."""

    request: Request
    config: SiteConfig
    session: Session
    watcher: Watcher
    started_at: float = field(default_factory=time.monotonic)
    checks: list[CheckInfo] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    interrupted: bool = False
    probes_run: int = 0
    hangs: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def until(self) -> float:
        budget = self.request.budget_s or self.config.budget_s[self.request.tier]
        return self.started_at + budget

    # -- the stages -------------------------------------------------------------------------------------

    def discover(self) -> tuple[tuple[Device, ...], tuple[Fact, ...]]:
        """Run the discovery check; its results count, its records become devices and facts.

        Beside it run the inventory's surveys, which only add facts: none of their results counts.
        """
        discovery = loader.built_in_dir() / f"{plan.DISCOVERY.replace('-', '_')}.py"
        items = [loader.load_file(file) for file in (discovery, inventory.SURVEYS)]
        options: dict[str, dict[str, Json]] = {
            plan.DISCOVERY: {"backends": self.request.backends, "required": self.request.backend != "auto"},
            inventory.CHECK: {"root": self.session.node.root, "foreign": self.asks_foreign},
        }
        config = replace(self.config, options=options, disabled={})
        layout = plan.lay_out(items, self.request, config, ())
        outcomes = self.execute(layout, jobs=len(layout.probes))
        self.checks = [info for info in self.checks if info.id != inventory.CHECK]
        self.results = [result for result in self.results if result.check != inventory.CHECK]
        found = [record for outcome in outcomes for record in outcome.records.values()]
        devices = [device_from_json(data) for record in found for data in record.get("devices", ())]
        devices.sort(key=lambda device: (device.backend, device.index))
        if self.request.backend == "auto" and devices:
            # One vendor's driver is enough; the absence of the other's is no news.
            self.results = [r for r in self.results if r.finding.status is not Status.SKIP]
        facts = [Fact(*fact) for record in found for fact in record.get("facts", ())]
        return tuple(devices), (*facts, *inventory.learned(outcomes))

    @property
    def asks_foreign(self) -> bool:
        """Whether libraries and programs that the environment chooses may run: never in a prolog, as root."""
        return self.request.tier > Tier.PROLOG

    def take_stock(self, asked: Sequence[Fact], issues: Iterable[KnownIssue] = ()) -> Stock:
        """The whole inventory, of which ``asked`` is what workers were told.

        Of the environment it tells the variables that matter, and those that ``issues`` ask for, set or not.
        """
        node = self.session.node
        variables = environment.load()
        environ = environment.read(node.root, {**os.environ, **node.env})
        facts = inventory.read(node.root, asked, foreign=self.asks_foreign)
        settings = tuple(environment.judge(environ, variables, facts))
        needs = (need for issue in issues for need in issue.needs if need.is_env)
        names = {*variables, *(need.fact.removeprefix("env:") for need in needs)}
        return Stock((*facts, *environment.facts(environ, sorted(names))), settings)

    def execute(self, layout: Plan, jobs: int) -> list[ProbeOutcome]:
        """Run the plan's probes, so many at once, and judge each as it ends."""
        self.checks += layout.checks
        self.results += layout.concluded
        self.watcher.planned(len(layout.probes))
        outcomes: list[ProbeOutcome] = []
        waiting = list(layout.probes)
        running: dict[Future[ProbeOutcome], PlannedProbe] = {}
        with ThreadPoolExecutor(max(jobs, 1)) as pool, self._interruptible():
            while waiting or running:
                for planned in self._startable(waiting, list(running.values()), jobs):
                    waiting.remove(planned)
                    if reason := self._why_not(planned):
                        self._conclude(planned, Finding.skip(reason))
                    else:
                        running[pool.submit(self._supervise, planned)] = planned
                for future in self._wait(running):
                    planned = running.pop(future)
                    outcome = future.result()
                    self._take(planned, outcome)
                    outcomes.append(outcome)
                    waiting[:0] = self._more(planned, outcome)
        return outcomes

    # -- one probe --------------------------------------------------------------------------------------

    def _supervise(self, planned: PlannedProbe) -> ProbeOutcome:
        probe = planned.probe
        key = f"{planned.check.id} {probe.subject} {probe.name}"
        self.watcher.started(key, f"{planned.check.id} on {probe.subject}", probe.deadline_s)
        try:
            return self.session.run(planned.check.id, planned.file, probe, until=self.until)
        finally:
            self.watcher.finished(key)

    def _take(self, planned: PlannedProbe, outcome: ProbeOutcome) -> None:
        """Judge an outcome: a completed probe by its check, any other by the one rule for all."""
        if not outcome.stopped and planned.check.id not in (plan.DISCOVERY, inventory.CHECK):
            self.probes_run += 1
        if outcome.completed:
            findings = judge(planned, outcome)
        else:
            findings = [verdict.conclude(outcome)]
            self._remember_hang(outcome)
        for finding in findings:
            self._conclude(planned, finding, outcome)

    def _more(self, planned: PlannedProbe, outcome: ProbeOutcome) -> list[PlannedProbe]:
        """What the check wants to know after a probe that did not complete."""
        if outcome.completed or outcome.stopped:
            return []
        deadline = planned.probe.deadline_s
        return [
            replace(planned, probe=replace(probe, deadline_s=deadline))
            for probe in planned.check.again(outcome)
        ]

    def _conclude(self, planned: PlannedProbe, finding: Finding, outcome: ProbeOutcome | None = None) -> None:
        self.results.append(
            Result(
                check=planned.check.id,
                finding=finding,
                devices=tuple(device.label for device in planned.probe.devices),
                probe=planned.probe.name,
                elapsed_s=outcome.elapsed_s if outcome else 0.0,
                roles=_blamed_first(outcome) if outcome else (),
                logs=Path(outcome.logs).name if outcome and self.request.keep_logs else "",
            )
        )

    def _remember_hang(self, outcome: ProbeOutcome) -> None:
        role = outcome.roles.get(outcome.blamed or "")
        if role and role.operation and role.ending in (Ending.HUNG, Ending.UNKILLABLE):
            self.hangs.update((device.label, role.operation) for device in outcome.devices)

    def _why_not(self, planned: PlannedProbe) -> str:
        """Why a probe is not to be run now, or nothing."""
        if self.interrupted:
            return "interrupted before this probe ran"
        if time.monotonic() > self.until:
            return f"budget; run it alone with `gpuipc-doctor check {planned.check.id}`"
        if self.session.unkillable:
            return f"no GPU probe may run beside a process that cannot be killed: {self.session.unkillable}"
        for device in planned.probe.devices:
            for (label, operation), count in self.hangs.items():
                if label == device.label and count >= HANGS_BEFORE_GIVING_UP:
                    return f"{operation} had hung {count} times on {label} by then"
        return ""

    # -- concurrency ------------------------------------------------------------------------------------

    def _startable(
        self, waiting: Sequence[PlannedProbe], running: Sequence[PlannedProbe], jobs: int
    ) -> list[PlannedProbe]:
        """In plan order, the probes that may start now: an exclusive one needs devices that nobody uses."""
        used = {device for planned in running for device in planned.probe.devices}
        closed = {
            device for planned in running if planned.probe.exclusive for device in planned.probe.devices
        }
        chosen: list[PlannedProbe] = []
        for planned in waiting:
            if len(running) + len(chosen) >= jobs:
                break
            devices = set(planned.probe.devices)
            if devices & (used if planned.probe.exclusive else closed):
                closed |= devices  # its turn comes before that of later ones
                continue
            chosen.append(planned)
            used |= devices
            if planned.probe.exclusive:
                closed |= devices
        return chosen

    def _wait(self, running: dict[Future[ProbeOutcome], PlannedProbe]) -> set[Future[ProbeOutcome]]:
        """Wait for the next probe to end. Ctrl-C ends those that run; what was learned stays."""
        if not running:
            return set()
        try:
            return wait(running, return_when=FIRST_COMPLETED).done
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the end is near, and bounded
            self.interrupted = True
            self.session.stop()
            return wait(running).done

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Make SIGTERM mean what Ctrl-C means, for as long as probes run."""

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGTERM, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)


def _blamed_first(outcome: ProbeOutcome) -> tuple[RoleOutcome, ...]:
    return tuple(sorted(outcome.roles.values(), key=lambda role: role.role != outcome.blamed))


def judge(planned: PlannedProbe, outcome: ProbeOutcome) -> list[Finding]:
    """The check's own conclusions. A check that fails to conclude is an ERROR, never silence."""
    try:
        findings = list(planned.check.judge(outcome))
    except Exception as error:
        return [Finding.error(f"judging failed: {type(error).__name__}: {error}", str(planned.file))]
    return findings or [Finding.error("the check concluded nothing", str(planned.file))]


def take_stock(request: Request, config: SiteConfig, node: Node, watcher: Watcher) -> Stock:
    """The inventory alone: files of the node, and what its drivers and libraries say of themselves."""
    with Session(node, Limits(start_up_s=config.start_up_s)) as session:
        run = Run(request, config, session, watcher)
        _, facts = run.discover()
        return run.take_stock(facts)


def dry_run(request: Request, config: SiteConfig, node: Node, watcher: Watcher) -> Plan:
    """What `run` would do, after finding the devices and nothing else."""
    selected = plan.select_checks(request, config)
    with Session(node, Limits(start_up_s=config.start_up_s)) as session:
        devices, facts = Run(request, config, session, watcher).discover()
    return plan.lay_out(selected, request, config, plan.select_devices(request, devices), facts)


def run(
    request: Request,
    config: SiteConfig,
    node: Node,
    watcher: Watcher,
    *,
    remove: Sequence[Path] = (),
) -> Report:
    """Run the checks that were asked for. Raises `plan.UnknownName` before any probe but the discovery.

    ``remove``: directories that must not outlive this process, even when it is killed.
    """
    started = datetime.now().astimezone()
    host = (Path(node.root) / "proc/sys/kernel/hostname").read_text().strip()
    selected = plan.select_checks(request, config)
    limits = Limits(start_up_s=config.start_up_s)
    with (
        Session(node, limits, keep_logs=request.keep_logs, remove=remove) as session,
        ThreadPoolExecutor(1) as aside,
    ):
        run = Run(request, config, session, watcher)
        loading = aside.submit(knownissues.load, config.known_issues_dirs)  # while the drivers initialise
        devices, asked = run.discover()
        issues = loading.result()
        devices = plan.select_devices(request, devices)
        stock = run.take_stock(asked, issues)
        facts = stock.facts
        matches = knownissues.match_versions(issues, facts, devices)
        layout = plan.lay_out(selected, request, config, devices, facts, matches, settings=stock.settings)
        run.execute(layout, jobs=min(MAX_JOBS, len(os.sched_getaffinity(0))))
    results = _in_plan_order(run.results, run.checks)
    return Report(
        host=host,
        started=started.isoformat(timespec="seconds"),
        elapsed_s=time.monotonic() - run.started_at,
        tier=request.tier,
        tool_version=__version__,
        devices=devices,
        inventory=stock.told,
        checks=tuple(run.checks),
        results=results,
        joins=knownissues.join(issues, facts, results, devices),
        simulated=node.simulated,
        interrupted=run.interrupted,
        probes_run=run.probes_run,
    )


def _in_plan_order(results: Sequence[Result], checks: Sequence[CheckInfo]) -> tuple[Result, ...]:
    """Results come as probes end; readers want them in the order of the checks and devices."""
    place = {info.id: number for number, info in enumerate(checks)}
    return tuple(sorted(results, key=lambda result: (place[result.check], result.devices, result.probe)))
