"""Run planned probes, several at once, each when its devices are free, while time is left."""

from __future__ import annotations

import contextlib
import errno
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from gpuipc_doctor.model import Device, Ending, Finding, ProbeOutcome, Result, Tier
from gpuipc_doctor.run.conclusions import Confirmation, Doubt
from gpuipc_doctor.run.idle_wait import IdleDevices
from gpuipc_doctor.run.planner import PlannedProbe
from gpuipc_doctor.run.tours import (
    PlannedTour,
    RunningTour,
    Tours,
    combined,
    is_harmless,
    is_unkillable,
    separated,
)
from gpuipc_doctor.supervise import blame
from gpuipc_doctor.supervise.assignment import StartSignal
from gpuipc_doctor.supervise.launched_tour import NotTogether
from gpuipc_doctor.supervise.session import Session
from gpuipc_doctor.supervise.start import imports
from gpuipc_doctor.supervise.tree import interruptible

HANGS_BEFORE_GIVING_UP = 2
"""Number of hangs in one call on one device after which the device's other probes are skipped: each hang
takes a whole deadline."""

GIVEN_UP = "given-up"
"""Key of the SKIP for these probes."""

MAX_JOBS = 4
"""Maximum probes at a time. Drivers initialise one process at a time, so with more probes, processes would
wait for each other and might exceed their deadlines."""

MOST_AHEAD = 2
"""Maximum probes started early, while others run."""


class Watcher(Protocol):
    """Called for each start and end of a probe. ``key`` identifies the probe; it is not shown."""

    def planned(self, checks: Sequence[str]) -> None:
        """The check of each probe that will run from now on."""

    def started(self, key: str, text: str, deadline_s: float) -> None:
        """A probe starts; each of its operations may take ``deadline_s`` seconds."""

    def finished(self, key: str) -> None: ...
    def concluded(self, result: Result) -> None:
        """The results of a probe."""


@dataclass(frozen=True, slots=True)
class NotRun:
    """Why a probe was not run."""

    finding: Finding
    stopped: str = ""
    """``interrupted`` or ``budget`` if the run ended first; empty otherwise."""


Ended = ProbeOutcome | NotRun

Take = Callable[[PlannedProbe, Ended | Doubt], Sequence[PlannedProbe]]
"""Called with each ended probe, and with the doubt about it if its visit of a tour failed but the probe alone
did not; returns its follow-up probes."""

Item = PlannedProbe | PlannedTour


@dataclass(frozen=True, slots=True)
class _EarlyStart:
    """A probe or tour whose workers wait for ``turn``."""

    item: Item
    outcome: Future[Any]
    """That of the probe, or of the first visit."""
    turn: StartSignal
    tour: RunningTour | None = None


@dataclass
class Schedule:
    """Runs the planned probes. ``until``: end of the run's budget, as `time.monotonic()` seconds."""

    session: Session
    watcher: Watcher
    until: float
    tours: Tours = field(default_factory=partial(Tours, isolate=True))
    interrupted: bool = False
    _hangs: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Hangs by device and call."""
    _ahead: dict[int, _EarlyStart] = field(default_factory=dict)
    """Early starts by number of the probe, or of a tour's first."""

    def __post_init__(self) -> None:
        self._quiet = IdleDevices(self.session)
        self._budget_s = self.until - time.monotonic()

    def run(self, probes: Sequence[PlannedProbe], jobs: int, take: Take, *, spare_s: float = 0.0) -> None:
        """Run the probes and their follow-ups, several at once, except for the budget's last seconds."""
        self.watcher.planned([planned.check.id for planned in probes])
        for planned in probes:
            if planned.probe.imports:
                self.session.expect(imports(planned.probe))
        until = self.until - spare_s
        self._quiet.learn(probes, until)
        jobs = max(jobs, 1)
        waiting = sorted(self.tours.plan(probes, jobs), key=_priority)
        running: dict[Future[Any], PlannedProbe | RunningTour] = {}
        with ThreadPoolExecutor(jobs + MOST_AHEAD) as pool, self._nobody_left_ahead():
            while waiting or running:
                for item in _startable(self._in_line(waiting), list(map(_planned, running.values())), jobs):
                    waiting.remove(item)
                    able, more = self._fit(item, until, take)
                    waiting[:0] = more
                    if isinstance(able, PlannedTour):
                        tour = self._begin_tour(able, until, pool)
                        running[tour.outcome] = tour
                    elif able:
                        running[self._begin(able, until, pool)] = able
                self._get_ready(_next_in_line(self._in_line(waiting)), until, pool)
                for future in wait(running, return_when=FIRST_COMPLETED).done if running else ():
                    ended = running.pop(future)
                    if isinstance(ended, RunningTour):
                        waiting[:0] = self._after_visit(ended, future, take)
                        if ended.goes_on:
                            running[ended.outcome] = ended
                            self._tell_started(ended.visit)
                    else:
                        self.watcher.finished(_key(ended))
                        waiting[:0] = self._settle(ended, _result_of(future), take)
                if self.tours.isolate or self.tours.ranks_apart:
                    waiting = [each for item in waiting for each in self.tours.separate(item)]

    def _fit(self, item: Item, until: float, take: Take) -> tuple[Item | None, list[Item]]:
        """The part of an item that may run now, and what follows from the probes that may not."""
        if isinstance(item, PlannedTour) and item.confirms:
            last = item.visits[-1]
            is_too_late = self._reason_not_to_run(last, until)
            return (None, self._take_doubtful(last, is_too_late.finding, take)) if is_too_late else (item, [])
        able, more, why = list[PlannedProbe](), list[Item](), None
        for planned in separated(item):
            assert isinstance(planned, PlannedProbe)
            doubt = self.tours.doubts.get(planned.number)
            if doubt and self.tours.passes(planned, doubt.outcome):  # a SKIP that is believed meanwhile
                more += take(planned, doubt.outcome)
            elif reason := self._reason_not_to_run(planned, until):
                more += self._settle(planned, self._given_up(planned) or reason, take)
                why = reason.finding
            else:
                able.append(planned)
        left = combined(able) if able else None
        if why and isinstance(item, PlannedTour) and not isinstance(left, PlannedTour):
            self.tours.note_unrepeated(item, why)
        return left, more

    # -- tours ------------------------------------------------------------------------------------------

    def _visit_all(self, tour: RunningTour, until: float, turn: StartSignal | None = None) -> None:
        """Make a tour's visits, in a thread, up to the first that does not pass. ``turn``: of an early
        start."""
        untold = iter(zip(tour.planned.visits, tour.outcomes, strict=True))
        visits = [(planned.check.id, planned.file, planned.probe) for planned in tour.planned.visits]
        if turn is None and self._quiet.waits_itself(tour.planned):
            turn = StartSignal(self._quiet.at_rest(tour.planned))

        def tell(outcome: ProbeOutcome) -> None:
            planned, future = next(untold)
            self._quiet.after(planned, outcome)
            future.set_result(outcome)

        def goes_on(outcome: ProbeOutcome) -> bool:
            planned = tour.planned.visits[sum(future.done() for future in tour.outcomes)]
            if not (tour.planned.confirms or is_harmless(planned, outcome)):
                return False
            tell(outcome)
            return True

        try:
            if turn is None:
                self._quiet.before(tour.planned, until)
            tell(self.session.tour(visits, until=until, goes_on=goes_on, turn=turn))
        except BaseException as error:
            _, future = next(untold)
            future.set_exception(error)
        for _, future in untold:
            future.set_result(None)

    def _after_visit(self, tour: RunningTour, future: Future[ProbeOutcome | None], take: Take) -> list[Item]:
        """Handle the outcome of a tour's visit; returns what is to run next."""
        planned = tour.visit
        self.watcher.finished(_key(planned))
        if isinstance(apart := future.exception(), NotTogether) and not apart.outcome.stopped:
            tour.made = len(tour.outcomes)
            if tour.planned.confirms:
                return self._take_doubtful(tour.planned.visits[-1], blame.conclude(apart.outcome), take)
            return [*self.tours.start_apart(tour.planned, apart.outcome)]
        ended = apart.outcome if isinstance(apart, NotTogether) else _result_of(future)
        if not (tour.made or tour.planned.confirms):
            self._note_launch(tour.planned, ended, is_together=not isinstance(apart, NotTogether))
        tour.made += 1
        if tour.planned.confirms:
            return self._after_repeated_visit(tour, ended, take)
        if ended is None or isinstance(ended, NotRun):
            rest, tour.made = (planned, *tour.rest), len(tour.outcomes)
            if isinstance(ended, NotRun):  # perhaps a limit that fewer processes do not reach
                return [*rest]
            return [combined(rest)]
        if self.tours.passes(planned, ended) or is_unkillable(ended):
            return [*take(planned, ended)]
        before = tour.planned.visits[: tour.made - 1]
        if not is_harmless(planned, ended):
            self.tours.count_failure(planned, ended)
        if not before and set(planned.probe.devices) == set(tour.planned.probe.devices):
            return self._settle(
                planned, ended, take
            )  # as if alone: fresh processes, which see its devices only
        self.tours.doubts[planned.number] = Doubt(ended, before)
        return [planned]

    def _after_repeated_visit(self, tour: RunningTour, ended: Ended, take: Take) -> list[Item]:
        """Handle a visit of a tour that confirms: the last one counts, if those before it complete."""
        last = tour.planned.visits[-1]
        if isinstance(ended, NotRun) or (tour.goes_on and not ended.completed):
            tour.made = len(tour.outcomes)
            why = ended.finding if isinstance(ended, NotRun) else blame.conclude(ended)
            return self._take_doubtful(last, why, take)
        return [] if tour.goes_on else self._take_doubtful(last, ended, take)

    def _note_launch(self, tour: PlannedTour, ended: Ended, *, is_together: bool) -> None:
        """Note what became of a tour's launch, at the end of its first visit."""
        if isinstance(ended, NotRun):
            self.tours.note_unrepeated(tour, ended.finding)
        elif is_together:
            self.tours.note_start(tour)
        else:
            self.tours.note_unrepeated(tour, blame.conclude(ended))

    def _settle(self, planned: PlannedProbe, ended: Ended, take: Take) -> list[Item]:
        """Handle the end of a probe that ran alone; returns what is to run next."""
        doubt = self.tours.doubts.get(planned.number)
        if isinstance(ended, NotRun):
            if doubt and not _is_given_up_for(doubt.outcome, ended.finding):
                return self._take_doubtful(planned, ended.finding, take)
        elif doubt and self.tours.passes(planned, ended) and self.tours.needs_confirmation(planned):
            self.tours.doubts[planned.number] = replace(doubt, alone=ended)
            return [combined((*doubt.before, planned), confirms=True)]
        elif doubt:
            self.tours.believe(planned, ended)
        more = take(planned, ended)
        if not more:  # a check that continues after a hang has its own limit
            self._remember_hang(ended)
            if doubt and isinstance(ended, ProbeOutcome) and not ended.completed:
                self._remember_hang(doubt.outcome)
        return [*more]

    def _take_doubtful(self, planned: PlannedProbe, again: ProbeOutcome | Finding, take: Take) -> list[Item]:
        """Handle a probe whose visit did not pass and that passed alone, or could not be repeated.

        ``again``: the outcome of the same visits, made again, or why they could not be.
        """
        doubt = self.tours.doubts[planned.number]
        if isinstance(again, ProbeOutcome) and again.stopped:
            again = blame.conclude(again)
        if isinstance(again, Finding):
            doubt = replace(doubt, confirmation=Confirmation.NOT_REPEATED, why=again)
        elif not self.tours.passes(planned, again):
            doubt = replace(doubt, outcome=again, confirmation=Confirmation.CAME_AGAIN)
        else:
            doubt = replace(doubt, confirmation=Confirmation.CAME_ONCE)
        return [*take(planned, doubt)]

    # -- order ------------------------------------------------------------------------------------------

    def _in_line(self, waiting: Iterable[Item]) -> list[Item]:
        """The probes in order of execution.

        Probes that failed in a tour come first. Then come those that share devices, and exclusive ones that
        were started early, because no other probe can start early before they have run. Probes whose
        libraries are still being imported come last.
        """

        def place(item: Item) -> tuple[bool, ...]:
            is_early = item.number in self._ahead or item.check.tier is Tier.PROLOG
            comes_later = bool(_turn(item)) and not is_early
            return not self.tours.is_in_doubt(item), self._still_imports(item), comes_later

        return sorted(waiting, key=place)

    def _still_imports(self, item: Item) -> bool:
        """Whether an array library that the item needs is still being imported, which takes seconds."""
        probes = [planned.probe for planned in item.visits] if isinstance(item, PlannedTour) else [item.probe]
        return any(probe.imports and not self.session.has_imported(imports(probe)) for probe in probes)

    def run_one(self, planned: PlannedProbe) -> Ended:
        """Run a probe alone, with the whole budget."""
        if reason := self._reason_not_to_run(planned, self.until):
            return reason
        self._tell_started(planned)
        try:
            return self._supervise(planned, self.until)
        except OSError as error:
            return _not_started(error)
        finally:
            self.watcher.finished(_key(planned))

    def _begin(self, planned: PlannedProbe, until: float, pool: ThreadPoolExecutor) -> Future[ProbeOutcome]:
        """Start a probe, or continue an early start.

        If an early start has failed, the probe is restarted. Another probe may have caused the failure; if
        the probe itself did, it will fail again.
        """
        self._tell_started(planned)
        ahead = self._take_ahead(planned)
        return ahead.outcome if ahead else pool.submit(self._supervise, planned, until)

    def _begin_tour(self, planned: PlannedTour, until: float, pool: ThreadPoolExecutor) -> RunningTour:
        """Start a tour, or continue an early start."""
        ahead = self._take_ahead(planned)
        if ahead and ahead.tour:
            tour = ahead.tour
        else:
            tour = RunningTour.of(planned)
            pool.submit(self._visit_all, tour, until)
        self._tell_started(tour.visit)
        return tour

    def _take_ahead(self, item: Item) -> _EarlyStart | None:
        """The early start of this item, with its start signal given. Others with its number must not run."""
        ahead = self._ahead.pop(item.number, None)
        if ahead is None or ahead.outcome.done():
            return None
        if ahead.item != item:  # meanwhile some of the tour's probes run alone, or not at all
            ahead.turn.given_up = True
            return None
        ahead.turn.at_rest = self._quiet.at_rest(item)
        return ahead

    def _get_ready(self, line: Iterable[Item], until: float, pool: ThreadPoolExecutor) -> None:
        """Start probes and tours early: their workers initialise the driver and then wait."""
        for planned in line:
            if planned.number in self._ahead or len(self._ahead) >= MOST_AHEAD:
                continue
            if not self._quiet.waits_itself(planned) or self._still_imports(planned):
                continue
            if self._reason_not_to_run(planned, until):
                continue
            turn = StartSignal()
            if isinstance(planned, PlannedTour):
                tour = RunningTour.of(planned)
                pool.submit(self._visit_all, tour, until, turn)
                early = _EarlyStart(planned, tour.outcome, turn, tour)
            else:
                early = _EarlyStart(planned, pool.submit(self._supervise, planned, until, turn), turn)
            self._ahead[planned.number] = early

    @contextlib.contextmanager
    def _nobody_left_ahead(self) -> Iterator[None]:
        try:
            yield
        finally:
            for ahead in self._ahead.values():
                ahead.turn.given_up = True
            self._ahead.clear()

    def _given_up(self, planned: PlannedProbe) -> ProbeOutcome | None:
        """End an early start that must not run; reports a process that cannot be killed."""
        ahead = self._ahead.pop(planned.number, None)
        if ahead is None:
            return None
        ahead.turn.given_up = True
        ended = _result_of(ahead.outcome)
        if isinstance(ended, ProbeOutcome) and any(
            role.ending is Ending.UNKILLABLE for role in ended.roles.values()
        ):
            return ended
        return None

    def _supervise(
        self, planned: PlannedProbe, until: float, turn: StartSignal | None = None
    ) -> ProbeOutcome:
        if turn is None and self._quiet.waits_itself(planned):
            turn = StartSignal(self._quiet.at_rest(planned))
        if turn is None:
            self._quiet.before(planned, until)
        outcome = self.session.run(planned.check.id, planned.file, planned.probe, until=until, turn=turn)
        self._quiet.after(planned, outcome)
        return outcome

    def _tell_started(self, planned: PlannedProbe) -> None:
        probe = planned.probe
        self.watcher.started(_key(planned), f"{planned.check.id} on {probe.subject}", probe.deadline_s)

    def _remember_hang(self, ended: Ended) -> None:
        if isinstance(ended, NotRun):
            return
        role = ended.roles.get(ended.blamed or "")
        if role and role.operation and role.ending in (Ending.HUNG, Ending.UNKILLABLE):
            self._hangs.update((device.label, role.operation) for device in ended.devices)

    def _reason_not_to_run(self, planned: Item, until: float) -> NotRun | None:
        if self.interrupted:
            says = "interrupted before this probe ran"
            return NotRun(Finding.skip("interrupted", says), "interrupted")
        if time.monotonic() > until:
            says = "time budget exhausted; run `gpuipc-doctor check {check} --budget {seconds}`"
            more_s = max(1, math.ceil(2 * self._budget_s))
            return NotRun(Finding.skip("budget", says, check=planned.check.id, seconds=more_s), "budget")
        if self.session.unkillable:
            says = "a process that cannot be killed is still running: {process}"
            return NotRun(Finding.skip("beside-unkillable", says, process=self.session.unkillable))
        for device in planned.probe.devices:
            for (label, call), count in self._hangs.items():
                if label == device.label and count >= HANGS_BEFORE_GIVING_UP:
                    says = "{call} already hung {count} times on {device}"
                    return NotRun(Finding.skip(GIVEN_UP, says, call=call, count=count, device=label))
        return None

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let Ctrl-C, SIGTERM and a lost terminal end the running probes but keep the results."""

        def interrupt() -> None:
            self.interrupted = True
            self.session.stop()

        with interruptible(interrupt):
            yield


def _is_given_up_for(outcome: ProbeOutcome, finding: Finding) -> bool:
    """Whether the outcome is the hang for which a device's other probes are skipped."""
    role = outcome.roles.get(outcome.blamed or "")
    if role is None or role.ending is not Ending.HUNG or finding.key != GIVEN_UP:
        return False
    return bool(role.operation == finding.values["call"])


def _planned(item: PlannedProbe | RunningTour) -> Item:
    return item.planned if isinstance(item, RunningTour) else item


def _key(planned: PlannedProbe) -> str:
    return f"{planned.check.id} {planned.probe.subject} {planned.probe.name}"


def _priority(planned: Item) -> tuple[Tier, int, int]:
    """Sort key: checks of the prolog first, then other shared probes, which run beside these. Then come
    exclusive probes, those with most devices first. MPI jobs run in the gaps."""
    probe = planned.probe
    return planned.check.tier, _turn(planned), -len(probe.devices) if probe.exclusive else 0


def _turn(planned: Item) -> int:
    """0 for a probe that shares its devices, 1 for an exclusive one, 2 for an MPI job."""
    return 1 if planned.probe.exclusive else 2 if planned.probe.launch else 0


def _next_in_line(waiting: Iterable[Item]) -> Iterator[Item]:
    """The first exclusive probe or tour of each device. A tour that confirms comes too seldom to start
    early."""
    spoken_for: set[Device] = set()
    for planned in waiting:
        if planned.probe.exclusive:
            confirms = isinstance(planned, PlannedTour) and planned.confirms
            if not confirms and spoken_for.isdisjoint(planned.probe.devices):
                yield planned
            spoken_for.update(planned.probe.devices)


def _result_of(future: Future[Any]) -> Any:
    try:
        return future.result()
    except OSError as error:
        return _not_started(error)


def _not_started(error: OSError) -> NotRun:
    """The ERROR for a probe that the system could not start (disk full, process limit): not a GPU fault."""
    remedy = "raise the limit of this user's processes (ulimit -u)" if error.errno == errno.EAGAIN else ""
    says = "the probe could not be run: {error}"
    return NotRun(Finding.error("not-run", says, remedy=remedy, error=error.strerror or str(error)))


def _startable(waiting: Sequence[Item], running: Sequence[Item], jobs: int) -> list[Item]:
    """Probes that may start now, in order: an exclusive probe needs unused devices.

    At most half are MPI jobs, since two busy-waiting ranks use two processors.
    """
    used = {device for planned in running for device in planned.probe.devices}
    closed = {device for planned in running if planned.probe.exclusive for device in planned.probe.devices}
    chosen: list[Item] = []
    for planned in waiting:
        if len(running) + len(chosen) >= jobs:
            break
        launched = sum(item.probe.launch is not None for item in (*running, *chosen))
        if planned.probe.launch and launched >= max(jobs // 2, 1):
            continue
        devices = set(planned.probe.devices)
        if planned.probe.exclusive and devices & used:
            closed |= devices  # the probe is earlier than those that share its devices
            continue
        if not planned.probe.exclusive and devices & closed:
            continue
        chosen.append(planned)
        used |= devices
        if planned.probe.exclusive:
            closed |= devices
    return chosen
