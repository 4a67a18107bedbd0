"""Run a plan's probes, so many at once, and keep what each means."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from gpuipc_doctor import verdict
from gpuipc_doctor.model import (
    CheckInfo,
    Ending,
    Finding,
    ProbeOutcome,
    Result,
    RoleOutcome,
    Series,
    Status,
)
from gpuipc_doctor.plan import Plan, PlannedProbe, verify
from gpuipc_doctor.supervise.interrupts import interruptible
from gpuipc_doctor.supervise.session import Session

HANGS_BEFORE_GIVING_UP = 2
"""So many hangs in the same call on one device, and its other probes are not run: each costs a deadline."""

MAX_JOBS = 4
"""Probes at a time. Drivers let one process at a time initialise: more would only wait for each other, and
that counts against their deadlines."""


MAX_FOLLOW_UPS = 40
"""Probes that a check may ask for on one subject after others did not complete."""


class Watcher(Protocol):
    """Is told what runs; called from several threads."""

    def planned(self, total: int) -> None: ...
    def started(self, key: str, text: str, deadline_s: float) -> None: ...
    def finished(self, key: str) -> None: ...


@dataclass
class Runner:
    """Runs plans one after the other. ``until``: `time.monotonic()` seconds at which the budget ends."""

    session: Session
    watcher: Watcher
    until: float
    keeps_logs: bool = False
    checks: list[CheckInfo] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    interrupted: bool = False
    probes_run: int = 0
    failed: list[tuple[PlannedProbe, ProbeOutcome]] = field(default_factory=list)
    _endings: set[tuple[str, str, str, Ending, str]] = field(default_factory=set)
    _hangs: Counter[tuple[str, str]] = field(default_factory=Counter)
    _follow_ups: Counter[tuple[str, str]] = field(default_factory=Counter)

    def tell(self, info: CheckInfo, finding: Finding) -> None:
        """Report a finding that needed no probe."""
        if info not in self.checks:
            self.checks.append(info)
        self.results.append(Result(info.id, finding))

    def drop(self, check: str, status: Status | None = None, probe: str = "") -> None:
        """Forget a check's results: those of a probe with a status, or all of them and that it ran."""
        if status is None:
            self.checks = [info for info in self.checks if info.id != check]
        self.results = [
            result
            for result in self.results
            if result.check != check
            or not (status is None or (result.finding.status is status and result.probe == probe))
        ]

    def execute(self, layout: Plan, jobs: int, *, counts: bool = True) -> list[ProbeOutcome]:
        """Run the plan's probes, so many at once, and judge each as it ends.

        Without ``counts`` they are no test of the node: a run of such probes alone has tested nothing.
        """
        self.checks += layout.checks
        self.results += layout.concluded
        self.watcher.planned(len(layout.probes))
        outcomes: list[ProbeOutcome] = []
        waiting = list(layout.probes)
        running: dict[Future[ProbeOutcome], PlannedProbe] = {}
        with ThreadPoolExecutor(max(jobs, 1)) as pool:
            while waiting or running:
                for planned in self._startable(waiting, list(running.values()), jobs):
                    waiting.remove(planned)
                    if reason := self._why_not(planned):
                        self._conclude(planned, Finding.skip(reason), stopped=self._stopped)
                    else:
                        running[pool.submit(self._supervise, planned)] = planned
                for future in wait(running, return_when=FIRST_COMPLETED).done if running else ():
                    planned = running.pop(future)
                    try:
                        outcome = future.result()
                    except OSError as error:
                        # A full disk, too many processes: nothing that the node's GPUs do.
                        self._conclude(planned, Finding.error(f"the probe could not be run: {error}"))
                        continue
                    outcomes.append(outcome)
                    self.probes_run += counts and not (outcome.stopped or _is_unfit(outcome))
                    more = self._more(planned, outcome)
                    waiting[:0] = more
                    self._take(planned, outcome, told_later=bool(more))
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

    def _take(self, planned: PlannedProbe, outcome: ProbeOutcome, *, told_later: bool = False) -> None:
        """Judge an outcome, and remember what it teaches.

        With ``told_later`` another probe follows up: then only the first ending of its kind is told here.
        """
        if not told_later:  # a check that goes on after a hang has its own bound
            self._remember_hang(outcome)
        findings = conclusions(planned, outcome)
        if any(finding.status is Status.FAIL for finding in findings):
            self.failed.append((planned, outcome))
        if not (self._is_known_ending(planned, outcome) and told_later):
            series, failed = recorded(planned, outcome)
            for finding in [*findings, *failed]:
                self._conclude(planned, finding, outcome, stopped=outcome.stopped, series=series)
                series = ()  # once for each probe

    def _is_known_ending(self, planned: PlannedProbe, outcome: ProbeOutcome) -> bool:
        """Whether a probe of this check on this subject has ended in the same call in the same way."""
        role = outcome.roles.get(outcome.blamed or "")
        if role is None:
            return False
        ending = (planned.check.id, planned.probe.subject, role.operation, role.ending, role.signal)
        known = ending in self._endings
        self._endings.add(ending)
        return known

    def rehearse(self, planned: PlannedProbe) -> ProbeOutcome | str:
        """Run a probe without keeping what it means; or why it may not run now."""
        return self._why_not(planned) or self._supervise(planned)

    def add_evidence(self, check: str, outcome: ProbeOutcome, line: str) -> None:
        """Add a line to what the check's failing findings about this outcome say."""
        roles = _blamed_first(outcome)
        for number, result in enumerate(self.results):
            is_of_it = result.check == check and result.roles == roles
            if is_of_it and result.finding.status is Status.FAIL:
                finding = replace(result.finding, evidence=(*result.finding.evidence, line))
                self.results[number] = replace(result, finding=finding)

    def _more(self, planned: PlannedProbe, outcome: ProbeOutcome) -> list[PlannedProbe]:
        """What the check wants to know after a probe that did not complete."""
        if outcome.completed or outcome.stopped:
            return []
        place = (planned.check.id, planned.probe.subject)
        more: list[PlannedProbe] = []
        try:
            for probe in planned.check.again(outcome):
                verify(probe, planned.file)
                more.append(replace(planned, probe=replace(probe, deadline_s=planned.probe.deadline_s)))
        except (Exception, SystemExit) as error:
            reason = f"planning further failed: {type(error).__name__}: {error}"
            self._conclude(planned, Finding.error(reason, str(planned.file)))
            return []
        if self._follow_ups[place] + len(more) > MAX_FOLLOW_UPS:
            reason = f"{self._follow_ups[place]} probes have followed others: {len(more)} more left out"
            self._conclude(planned, Finding.skip(reason))
            return []
        self._follow_ups[place] += len(more)
        return more

    def _conclude(
        self,
        planned: PlannedProbe,
        finding: Finding,
        outcome: ProbeOutcome | None = None,
        *,
        stopped: str = "",
        series: tuple[Series, ...] = (),
    ) -> None:
        if planned.repetition > 1 and finding.status is Status.SKIP:
            return  # what was tested by then stays tested
        self.results.append(
            Result(
                check=planned.check.id,
                finding=finding,
                devices=tuple(device.label for device in planned.probe.devices),
                probe=planned.probe.name,
                elapsed_s=outcome.elapsed_s if outcome else 0.0,
                roles=_blamed_first(outcome) if outcome else (),
                logs=Path(outcome.logs).name if outcome and self.keeps_logs else "",
                repetition=planned.repetition,
                stopped=stopped,
                series=series,
            )
        )

    def _remember_hang(self, outcome: ProbeOutcome) -> None:
        role = outcome.roles.get(outcome.blamed or "")
        if role and role.operation and role.ending in (Ending.HUNG, Ending.UNKILLABLE):
            self._hangs.update((device.label, role.operation) for device in outcome.devices)

    @property
    def _stopped(self) -> str:
        """Why no probe is started any more: ``interrupted``, ``budget``, or nothing."""
        if self.interrupted:
            return "interrupted"
        return "budget" if time.monotonic() > self.until else ""

    def _why_not(self, planned: PlannedProbe) -> str:
        """Why a probe is not to be run now, or nothing."""
        stopped = self._stopped
        if stopped == "interrupted":
            return "interrupted before this probe ran"
        if stopped == "budget":
            return f"budget; run it alone with `gpuipc-doctor check {planned.check.id}`"
        if self.session.unkillable:
            return f"no GPU probe may run beside a process that cannot be killed: {self.session.unkillable}"
        for device in planned.probe.devices:
            for (label, operation), count in self._hangs.items():
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

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let Ctrl-C, SIGTERM and a lost terminal end what runs, and no more: what was learned stays."""

        def interrupt() -> None:
            self.interrupted = True
            self.session.stop()

        with interruptible(interrupt):
            yield


def _is_unfit(outcome: ProbeOutcome) -> bool:
    return outcome.blamed is not None and outcome.roles[outcome.blamed].ending is Ending.UNFIT


def _blamed_first(outcome: ProbeOutcome) -> tuple[RoleOutcome, ...]:
    return tuple(sorted(outcome.roles.values(), key=lambda role: role.role != outcome.blamed))


def conclusions(planned: PlannedProbe, outcome: ProbeOutcome) -> list[Finding]:
    """What an outcome means: a completed probe by its check, any other by the one rule for all."""
    return judge(planned, outcome) if outcome.completed else [verdict.conclude(outcome)]


def judge(planned: PlannedProbe, outcome: ProbeOutcome) -> list[Finding]:
    """The check's own conclusions. A check that fails to conclude is an ERROR, never silence."""
    try:
        findings = list(planned.check.judge(outcome))
        if strangers := [one for one in findings if not isinstance(one, Finding)]:
            raise TypeError(f"{strangers[0]!r} is no Finding")
    except (Exception, SystemExit) as error:
        return [Finding.error(f"judging failed: {type(error).__name__}: {error}", str(planned.file))]
    return findings or [Finding.error("the check concluded nothing", str(planned.file))]


def recorded(planned: PlannedProbe, outcome: ProbeOutcome) -> tuple[tuple[Series, ...], list[Finding]]:
    """What the check says was recorded over time; an ERROR where it fails to say."""
    try:
        return tuple(planned.check.series(outcome)) if outcome.completed else (), []
    except (Exception, SystemExit) as error:
        reason = f"reading its series failed: {type(error).__name__}: {error}"
        return (), [Finding.error(reason, str(planned.file))]
