"""Run planned probes, several at once, each when its devices are free, while time is left."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial

from gpuipc_doctor.model import Device, Finding, Status, Tier
from gpuipc_doctor.probe_types import Ending, ProbeOutcome
from gpuipc_doctor.report.merged_results import NOT_BEGUN
from gpuipc_doctor.run import conclusions, order
from gpuipc_doctor.run.conclusions import Confirmation, Doubt, Ended, NotRun
from gpuipc_doctor.run.idle_wait import IdleDevices
from gpuipc_doctor.run.planner import PlannedProbe
from gpuipc_doctor.run.request import Watcher
from gpuipc_doctor.run.tours import (
    LIKE_FAILURES,
    Tour,
    Tours,
    first_of_each_gpu,
    has_hung,
    is_beside,
    is_harmless,
    is_of_start,
    is_unkillable,
    must_be_alone,
    singles,
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

CLEARING_S = 2.0
"""Least seconds for a GPU's start to show that it only waited for another's."""


Take = Callable[[PlannedProbe, Ended | Doubt], Sequence[PlannedProbe]]
"""Called with each ended probe, and with the doubt about it if its visit of a tour failed but the probe alone
did not; returns its follow-up probes. Called again for a probe that hung alone only because another hung."""


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
    _full: set[str] = field(default_factory=set)
    """Labels of devices without room for tests, as a call that failed showed."""
    _stuck: list[PlannedProbe] = field(default_factory=list)
    """Probes of one GPU whose start hung alone."""
    lost: dict[Device, tuple[int | str, Sequence[PlannedProbe]]] = field(default_factory=dict)
    """Bytes that nobody holds since probes ran beside each other, or why that is unknown; and these probes,
    which ran again alone if there were such bytes."""
    _beside: set[int] = field(default_factory=set)
    """Numbers of the probes that ran beside others on their devices."""
    _failed_beside: int = 0
    _witness: PlannedProbe | None = None
    """A probe of one GPU that passed alone."""

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
        self._jobs = max(jobs, 1)
        several = len({planned.check.id for planned in probes}) > 1 and not self.tours.isolate
        probes = [self._beside_others(each) if several or each.probe.launch else each for each in probes]
        self._run_all(probes, until, take)
        self._clear_those_behind(until, take)
        watched = [planned for planned in probes if planned.number in self._beside]
        devices = dict.fromkeys(device for planned in watched for device in planned.probe.devices)
        lost = self._quiet.lost(devices, until) if devices else {}
        for device, found in lost.items():
            self.lost[device] = found, [each for each in watched if device in each.probe.devices]
        blamed = {device for device, found in lost.items() if isinstance(found, int)}
        again = [each for each in watched if not blamed.isdisjoint(each.probe.devices)]
        self._run_all([self._alone([each]).visits[0] for each in again], until, take)

    def _beside_others(self, planned: PlannedProbe) -> PlannedProbe:
        """The probe, beside others on its devices if it may."""
        probe = planned.probe
        is_here = probe.launch is None or probe.launch.nodes == 1
        if not (probe.by_process and is_here and self._quiet.tells_by_process(planned)):
            return planned
        self._beside.add(planned.number)
        return replace(planned, probe=replace(probe, exclusive=False))

    def _alone(self, visits: Iterable[PlannedProbe]) -> Tour:
        """These visits, with their devices to themselves."""
        alone = tuple(replace(each, probe=replace(each.probe, exclusive=True)) for each in visits)
        self._beside.difference_update(each.number for each in alone)
        return Tour(alone)

    def _run_all(self, probes: Sequence[PlannedProbe], until: float, take: Take) -> None:
        waiting = sorted(self.tours.plan(probes, jobs := self._jobs), key=order.priority)
        running: dict[Future[ProbeOutcome | None], Tour] = {}
        with ThreadPoolExecutor(jobs) as pool:
            while waiting or running:
                for tour in order.startable(self._in_line(waiting), list(running.values()), jobs):
                    waiting.remove(tour)
                    able, more = self._fit(tour, until, take)
                    waiting[:0] = more
                    if able:
                        self._tell_started(able.visit)
                        pool.submit(self._make_visits, able, until)
                        running[able.outcome] = able
                shared = {tour.shared: tour for tour in running.values() if tour.will_share}
                ended = wait([*running, *shared], return_when=FIRST_COMPLETED).done if running else set()
                for future in shared.keys() & ended:
                    shared[future].shares = True
                for future in running.keys() & ended:
                    tour = running.pop(future)
                    waiting[:0] = self._after_visit(tour, future, take)
                    if tour.goes_on:
                        running[tour.outcome] = tour
                        self._tell_started(tour.visit)
                if self._failed_beside >= LIKE_FAILURES:  # in a container, NVML may hide our processes
                    waiting = [self._alone(t.visits) if is_beside(t.visits[0]) else t for t in waiting]
                if self.tours.isolate or self.tours.ranks_apart:
                    waiting = [each for tour in waiting for each in self.tours.separate(tour)]

    def _fit(self, tour: Tour, until: float, take: Take) -> tuple[Tour | None, list[Tour]]:
        """The part of a tour that may run now, and what follows from the probes that may not."""
        if tour.confirms:
            reason = self._reason_not_to_run(tour.visits[tour.confirms - 1], until)
            return (None, self._confirmed(tour, reason, take)) if reason else (tour, [])
        able, more = list[PlannedProbe](), list[Tour]()
        for planned in tour.visits:
            doubt = self.tours.doubts.get(planned.number)
            if doubt and self.tours.passes(planned, doubt.outcome):  # a SKIP that is believed meanwhile
                more += singles(take(planned, doubt.outcome))
            elif reason := self._reason_not_to_run(planned, until):
                more += self._settle(planned, reason, take)
            else:
                able.append(planned)
        return (Tour(tuple(able)) if able else None), more

    # -- one tour ---------------------------------------------------------------------------------------

    def _make_visits(self, tour: Tour, until: float) -> None:
        """Make a tour's visits, in a thread, up to the first that does not pass, or the one to confirm."""
        untold = iter(zip(tour.visits, tour.outcomes, strict=True))

        def tell(outcome: ProbeOutcome) -> None:
            planned, future = next(untold)
            self._quiet.after(planned, outcome)
            future.set_result(outcome)

        def goes_on(outcome: ProbeOutcome) -> bool:
            number = sum(future.done() for future in tour.outcomes) + 1
            if number == tour.confirms or not (
                tour.confirms or is_harmless(tour.visits[number - 1], outcome)
            ):
                return False
            tell(outcome)
            return True

        try:
            waits_itself = self._quiet.waits_itself(tour)
            share = partial(tour.shared.set_result, None)
            turn = StartSignal(self._quiet.baselines(tour), share=share) if waits_itself else None
            if turn is None:
                self._quiet.before(tour, until)
            tell(self._supervise(tour, until, goes_on, turn))
        except BaseException as error:
            _, future = next(untold)
            future.set_exception(error)
        for _, future in untold:
            future.set_result(None)

    def _supervise(
        self, tour: Tour, until: float, goes_on: Callable[[ProbeOutcome], bool], turn: StartSignal | None
    ) -> ProbeOutcome:
        """The outcome of the last visit made. A launch in which MPI fails to start is repeated once."""
        if len(tour.visits) == 1:
            (planned,) = tour.visits
            return self.session.run(planned.check.id, planned.file, planned.probe, until=until, turn=turn)
        visits = [(planned.check.id, planned.file, planned.probe) for planned in tour.visits]
        start = partial(self.session.tour, visits, until=until, goes_on=goes_on, turn=turn)
        try:
            return start()
        except NotTogether as apart:
            first = apart.outcome
            if tour.confirms or first.stopped:
                raise
            reason = self._reason_to_end(tour.check.id, until)
            if reason or not conclusions.is_of_mpi(first):
                self.tours.note_apart(first, None, reason.finding if reason else None)
                raise
        try:
            outcome = start()
        except NotTogether as apart:
            why = blame.conclude(apart.outcome) if apart.outcome.stopped else None
            self.tours.note_apart(first, Confirmation.CAME_AGAIN, why)
            raise
        except OSError as error:
            self.tours.note_apart(first, None, conclusions.not_started(error).finding)
            raise
        self.tours.note_apart(first, Confirmation.CAME_ONCE)
        return outcome

    def _after_visit(self, tour: Tour, future: Future[ProbeOutcome | None], take: Take) -> list[Tour]:
        """Handle the outcome of a tour's visit; returns what is to run next."""
        planned = tour.visit
        self.watcher.finished(planned.key)
        ended, are_apart = conclusions.result_of(future), isinstance(future.exception(), NotTogether)
        if tour.confirms:
            is_last = tour.made == tour.confirms - 1
            if isinstance(ended, ProbeOutcome) and (are_apart or not (is_last or ended.completed)):
                ended = NotRun(blame.conclude(ended))  # it did not come to the visit in question
            if is_last or isinstance(ended, NotRun):
                tour.end()
                return self._confirmed(tour, ended, take)
            tour.made += 1
            return []
        if are_apart and not ended.stopped:
            return singles(tour.end())
        if isinstance(ended, ProbeOutcome) and must_be_alone(tour, ended):
            self._failed_beside += 1
            first, *rest = tour.end()
            return [self._alone([first]), *([Tour(tuple(rest))] if rest else [])]
        if len(tour.visits) == 1:
            tour.end()
            return self._settle(planned, ended, take)
        if ended is None:  # the visit before it did not pass
            return [Tour(tour.end())]
        if isinstance(ended, NotRun):  # perhaps a limit that fewer processes do not reach
            return singles(tour.end())
        tour.made += 1
        if self.tours.passes(planned, ended):
            if len(tour.probe.devices) == 1:
                self._witness = self._witness or planned
            return singles(take(planned, ended))
        if not is_harmless(planned, ended):
            self.tours.count_failure(planned, ended)
        is_alone = tour.made == 1 and set(planned.probe.devices) == set(tour.probe.devices)
        if is_alone:  # fresh processes, which see its devices only
            return self._settle(planned, ended, take)
        doubt = Doubt(ended, tour.visits, tour.made - 1, is_of_start(ended) and tour.made == 1)
        if not doubt.of_start and is_unkillable(ended):
            return singles(take(planned, ended))
        if doubt.of_start:
            tour.end()
        firsts = first_of_each_gpu(tour.visits) if doubt.of_start else [planned]
        self.tours.doubts.update(dict.fromkeys((each.number for each in firsts), doubt))
        return singles(firsts)

    # -- what failed in company -------------------------------------------------------------------------

    def _settle(self, planned: PlannedProbe, ended: Ended, take: Take) -> list[Tour]:
        """Handle the end of a probe that ran alone; returns what is to run next."""
        doubt = self.tours.doubts.get(planned.number)
        if doubt is None or doubt.alone:
            return self._take_alone(planned, ended, take)
        doubt = self.tours.doubts[planned.number] = replace(doubt, alone=ended)
        if doubt.of_start:
            return self._after_starts(doubt.visits, take)
        if isinstance(ended, NotRun) or conclusions.undecided(planned, doubt.outcome, ended):
            return self._take_doubtful(planned, ended, take)
        was_seen = conclusions.worst(planned, doubt.outcome).severity > Status.SKIP.severity
        if was_seen and not doubt.outcome.stopped and self.tours.passes(planned, ended):
            return [Tour(doubt.visits, doubt.place + 1)]
        self.tours.believe(planned, ended)
        return self._take_alone(planned, ended, take)

    def _take_alone(self, planned: PlannedProbe, ended: Ended, take: Take) -> list[Tour]:
        """Take the outcome of a probe alone, and remember if it hung."""
        more = take(planned, ended)
        if not isinstance(ended, NotRun):
            self._full.update(device.label for device in blame.without_room(ended))
        if isinstance(ended, NotRun) or more:  # a check that continues after a hang has its own limit
            return singles(more)
        self._remember_hang(planned, ended)
        if (doubt := self.tours.doubts.get(planned.number)) and not ended.completed:
            self._remember_hang(planned, doubt.outcome)
        if len(planned.probe.devices) == 1 and ended.completed:
            self._witness = self._witness or planned
        elif len(planned.probe.devices) == 1 and is_of_start(ended) and has_hung(ended):
            self._stuck.append(planned)
        return []

    def _after_starts(self, visits: tuple[PlannedProbe, ...], take: Take) -> list[Tour]:
        """Once each GPU of a failed start was started alone: those that fail are to blame. If there are none,
        those are of which this is not known; and if all started, the start is repeated in company."""
        doubts = [(planned, self.tours.doubts[planned.number]) for planned in self.tours.doubted(visits)]
        ended = [(planned, doubt.alone) for planned, doubt in doubts if doubt.alone]
        if len(ended) < len(doubts):
            return []
        first = doubts[0][1].outcome
        told = {
            planned.number: isinstance(alone, ProbeOutcome) and alone.completed
            for planned, alone in ended
            if not conclusions.undecided(planned, first, alone)
        }
        firsts = [planned.number for planned, _ in doubts]
        more = self.tours.plan([each for each in visits if each.number not in firsts], self._jobs)
        if len(told) == len(firsts) and all(told.values()):
            return [Tour(visits, 1), *more]
        for planned, alone in ended:
            is_settled = planned.number in told or not all(told.values())
            more += (self._take_alone if is_settled else self._take_doubtful)(planned, alone, take)
        return more

    def _confirmed(self, tour: Tour, again: Ended, take: Take) -> list[Tour]:
        """Handle the repetition in company for each visit that it is to confirm."""
        visits = self.tours.doubted(tour.visits)
        return [each for planned in visits for each in self._take_doubtful(planned, again, take)]

    def _take_doubtful(self, planned: PlannedProbe, again: Ended, take: Take) -> list[Tour]:
        """Handle a probe whose visit did not pass and that passed alone, or could not be repeated.

        ``again``: how the same visits ended, made again, or why they, or the probe alone, could not be.
        """
        doubt = self.tours.doubts[planned.number]
        if why := conclusions.undecided(planned, doubt.outcome, again):
            doubt = replace(doubt, confirmation=Confirmation.NOT_REPEATED, why=why)
        elif isinstance(again, ProbeOutcome) and not self.tours.passes(planned, again):
            doubt = replace(doubt, outcome=again, confirmation=Confirmation.CAME_AGAIN)
        else:
            doubt = replace(doubt, confirmation=Confirmation.CAME_ONCE)
        return singles(take(planned, doubt))

    def _clear_those_behind(self, until: float, take: Take) -> None:
        """Restart each GPU whose start hung alone, beside others that did, just after one that answers: it
        may only have waited for another. What was seen first stands unless it passes."""
        stuck, witness = self._stuck, self._witness
        self._stuck = []
        if len(stuck) < 2 or witness is None:
            return
        for planned in stuck:
            # The process that was killed before may still keep the first of these waiting.
            answers = (self._run_alone(witness, until) for _ in range(2))
            seen = next((each for each in answers if isinstance(each, ProbeOutcome) and each.completed), None)
            if seen is None:
                continue
            deadline_s = min(planned.probe.deadline_s, max(CLEARING_S, 3 * seen.elapsed_s))
            probe = replace(planned.probe, deadline_s=deadline_s)
            again = self._run_alone(replace(planned, probe=probe), until)
            if isinstance(again, ProbeOutcome) and self.tours.passes(planned, again):
                take(planned, again)

    def run_one(self, planned: PlannedProbe, most_s: float = math.inf) -> Ended:
        """Run a probe alone, with the whole budget; or for ``most_s`` seconds, also where others hung."""
        until = min(self.until, time.monotonic() + most_s)
        reason = self._reason_not_to_run(planned, until) if most_s == math.inf else None
        return reason or self._run_alone(planned, until)

    def _run_alone(self, planned: PlannedProbe, until: float) -> Ended:
        if reason := self._reason_to_end(planned.check.id, until):
            return reason
        tour = Tour((planned,))
        self._tell_started(planned)
        self._make_visits(tour, until)
        self.watcher.finished(planned.key)
        ended: Ended = conclusions.result_of(tour.outcome)
        return ended

    # -- order ------------------------------------------------------------------------------------------

    def _in_line(self, waiting: Iterable[Tour]) -> list[Tour]:
        """The tours in order of execution.

        Probes that failed in a tour come first, then those that share devices. Probes whose libraries are
        still being imported come last.
        """

        def place(tour: Tour) -> tuple[bool, ...]:
            comes_later = bool(order.turn(tour)) and tour.check.tier is not Tier.PROLOG
            return not self.tours.is_in_doubt(tour), self._still_imports(tour), comes_later

        return sorted(waiting, key=place)

    def _still_imports(self, tour: Tour) -> bool:
        """Whether an array library that the tour needs is still being imported, which takes seconds."""
        probes = [planned.probe for planned in tour.visits]
        return any(probe.imports and not self.session.has_imported(imports(probe)) for probe in probes)

    def _tell_started(self, planned: PlannedProbe) -> None:
        probe = planned.probe
        self.watcher.started(planned.key, f"{planned.check.id} on {probe.subject}", probe.deadline_s)

    def _remember_hang(self, planned: PlannedProbe, ended: ProbeOutcome) -> None:
        role = ended.roles.get(ended.blamed or "")
        if role and role.operation and role.ending in (Ending.HUNG, Ending.UNKILLABLE):
            self._hangs.update((device.label, role.operation) for device in planned.probe.devices)

    def _reason_to_end(self, check: str, until: float) -> NotRun | None:
        """Why no probe may run any more."""
        if self.interrupted:
            says = "interrupted before this probe ran"
            return NotRun(Finding.skip("interrupted", says), "interrupted")
        if time.monotonic() > until:
            says = "time budget exhausted; run `gpuipc-doctor check {check} --budget {seconds}`"
            more_s = max(1, math.ceil(2 * self._budget_s))
            return NotRun(Finding.skip("budget", says, check=check, seconds=more_s), "budget")
        if self.session.unkillable:
            says = "a process that cannot be killed is still running: {process}"
            return NotRun(Finding.skip("beside-unkillable", says, process=self.session.unkillable))
        return None

    def _reason_not_to_run(self, planned: PlannedProbe | Tour, until: float) -> NotRun | None:
        for device in planned.probe.devices:
            if device.label in self._full:
                says = "not begun, because {device} has too little free memory"
                return NotRun(Finding.skip(NOT_BEGUN, says, device=device.label))
            for (label, call), count in self._hangs.items():
                if label == device.label and count >= HANGS_BEFORE_GIVING_UP:
                    says = "{call} already hung {count} times on {device}"
                    return NotRun(Finding.skip(GIVEN_UP, says, call=call, count=count, device=label))
        return self._reason_to_end(planned.check.id, until)

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let Ctrl-C, SIGTERM and a lost terminal end the running probes but keep the results."""

        def interrupt() -> None:
            self.interrupted = True
            self.session.stop()

        with interruptible(interrupt):
            yield
