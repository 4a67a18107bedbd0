"""The findings of an outcome. Checks judge their completed probes; one rule for all checks judges incomplete
probes."""

from __future__ import annotations

import enum
import errno
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from gpuipc_doctor.api import Check
from gpuipc_doctor.api.process_leaks import judge_processes
from gpuipc_doctor.model import Evidence, Finding, Status
from gpuipc_doctor.probe_types import Ending, ProbeOutcome
from gpuipc_doctor.report import sentences
from gpuipc_doctor.report_types import Series
from gpuipc_doctor.run.planner import PlannedProbe, TooManyFollowUps
from gpuipc_doctor.supervise import blame, process_limits
from gpuipc_doctor.supervise.journal import MPI_PREFIX, PROCESS_EXIT
from gpuipc_doctor.supervise.launched_tour import NotTogether

SAYS_NOTHING = "says-nothing"

IN_COMPANY = "failed-in-company"
"""Key of the WARN for a visit that failed in its tour only, and not when that was repeated."""


def conclude(planned: PlannedProbe, outcome: ProbeOutcome) -> list[Finding]:
    """The findings of an outcome, at least one.

    If a process only failed to exit, the check judges the work that the roles did before.
    """
    if _only_exit_failed(outcome):
        found = [finding for finding in judge(planned, outcome) if finding.status is not Status.PASS]
        return [*found, blame.conclude(outcome)]
    if not outcome.completed:
        found = judge(planned, outcome) if planned.check.searches else []
        return [finding for finding in found if finding.key != SAYS_NOTHING] or [blame.conclude(outcome)]
    return [*judge(planned, outcome), *blame.of_launcher(outcome)]


def _only_exit_failed(outcome: ProbeOutcome) -> bool:
    """Whether every role's function had returned, and a process then failed to exit."""
    at_the_end = all(
        role.ending is Ending.COMPLETED or role.operation == PROCESS_EXIT for role in outcome.roles.values()
    )
    return bool(outcome.blamed) and not outcome.stopped and at_the_end


def worst(planned: PlannedProbe, outcome: ProbeOutcome) -> Status:
    """The worst status of an outcome's findings."""
    found = (finding.status for finding in conclude(planned, outcome))
    return max(found, key=lambda status: status.severity)


class Confirmation(enum.Enum):
    """What became of a visit that did not pass, if its probe passed alone or could not be repeated; and of a
    launch whose ranks did not all start."""

    CAME_AGAIN = "came again"
    """The visit did not pass after the same visits either."""
    CAME_ONCE = "came once"
    NOT_REPEATED = "not repeated"


@dataclass(frozen=True, slots=True)
class NotRun:
    """Why a probe was not run."""

    finding: Finding
    stopped: str = ""
    """``interrupted`` or ``budget`` if the run ended first; empty otherwise."""


Ended = ProbeOutcome | NotRun


@dataclass(frozen=True, slots=True)
class Doubt:
    """A visit of a tour that did not pass, and the outcome of its probe alone.

    ``confirmation`` is None while the probe is to be repeated; ``why`` it could not be.
    """

    outcome: ProbeOutcome
    visits: tuple[PlannedProbe, ...]
    """Those of the tour."""
    place: int
    """Of the visit that failed."""
    of_start: bool = False
    """Whether the processes failed while they initialised the driver: that may be due to any of the GPUs."""
    alone: Ended | None = None
    """How the probe ended alone; None before that."""
    confirmation: Confirmation | None = None
    why: Finding | None = None

    @property
    def company(self) -> list[Evidence]:
        """What ran in the same processes before, or else which GPUs they saw beside the probe's own."""
        if before := self.visits[: self.place]:
            said = [f"{each.check.id} on {each.probe.subject}" for each in before]
            return [Evidence.seen("in the same processes before: {before}", before=said)]
        seen = dict.fromkeys(device.label for each in self.visits for device in each.probe.devices)
        return [Evidence.seen("in processes that see {devices}", devices=list(seen))]


def undecided(planned: PlannedProbe, first: ProbeOutcome, again: Ended) -> Finding | None:
    """Why a repetition tells no more than what was seen first; None if it completed, or failed by itself."""
    if isinstance(again, NotRun):
        return again.finding
    tells = not again.stopped and (
        worst(planned, again) is not Status.ERROR or worst(planned, first) is not Status.FAIL
    )
    return None if again.completed or tells else blame.conclude(again)


def of_doubt(planned: PlannedProbe, doubt: Doubt) -> list[Finding]:
    """The findings about a visit in doubt."""
    found = conclude(planned, doubt.outcome)
    match doubt.confirmation:
        case Confirmation.CAME_ONCE:
            said = [Evidence.seen("{found}", found=sentences.summary(finding)) for finding in found]
            says = "failed once after other probes in the same processes; passed alone and when repeated"
            return [Finding.warn("failed-in-company", says, *said, *doubt.company)]
        case Confirmation.CAME_AGAIN:
            note = Evidence.control("the probe passes alone; after these probes it failed twice")
        case _ if doubt.why and not doubt.outcome.stopped:
            says = "not confirmed: the probe was not repeated alone: {why}"
            if isinstance(doubt.alone, ProbeOutcome) and doubt.alone.completed:
                says = (
                    "not confirmed: the probe passes alone; it could not be repeated after the same probes: "
                    "{why}"
                )
            note = Evidence.seen(says, why=sentences.summary(doubt.why))
        case _:
            return found
    return [replace(finding, evidence=(*finding.evidence, note, *doubt.company)) for finding in found]


def is_of_mpi(outcome: ProbeOutcome) -> bool:
    """Whether a call of MPI failed."""
    operation = outcome.roles[outcome.blamed].operation if outcome.blamed else None
    is_failure = blame.conclude(outcome).status is Status.FAIL
    return is_failure and (operation or "").startswith(MPI_PREFIX)


def of_apart(
    outcome: ProbeOutcome, launched: Confirmation | None = None, why: Finding | None = None
) -> Finding:
    """The finding about a launch whose ranks did not all start; ``launched``: None if it was not to be
    repeated. ``why`` it could not be."""
    found = blame.conclude(outcome)
    ranks, twice = len(outcome.roles), launched is Confirmation.CAME_AGAIN
    if why:
        says = "not confirmed: the launch of {ranks} ranks was not repeated: {why}"
        note = Evidence.seen(says, ranks=ranks, why=sentences.summary(why))
        return replace(found, evidence=(*found.evidence, note))
    if twice and is_of_mpi(outcome):
        note = Evidence.seen(
            "{ranks} ranks failed to start together, twice; pairs were started alone", ranks=ranks
        )
        return replace(found, evidence=(*found.evidence, note))
    says = "{ranks} ranks cannot be started together; pairs were tested in launches of their own"
    if launched is Confirmation.CAME_ONCE:
        says = "{ranks} ranks did not start together at first; when repeated they did"
    seen = Evidence.seen("{found}", found=sentences.summary(found))
    return Finding.warn("not-together", says, seen, *found.evidence, remedy=found.remedy, ranks=ranks)


def judge(planned: PlannedProbe, outcome: ProbeOutcome) -> list[Finding]:
    """The check's conclusions. If its code fails, the result is an ERROR."""
    try:
        findings = found_by(planned.check, outcome)
    except (Exception, SystemExit) as error:
        return [planned.mistake("judging failed", error)]
    return findings or [Finding.error(SAYS_NOTHING, "the check returned no result", str(planned.file))]


def found_by(check: Check, done: ProbeOutcome) -> list[Finding]:
    """The check's findings, and findings about memory that its processes lost per repetition. If there is
    such a loss, PASS is dropped."""
    findings = list(check.judge(done))
    if strangers := [finding for finding in findings if not isinstance(finding, Finding)]:
        raise TypeError(f"{strangers[0]!r} is not a Finding")
    if check.explains_losses & {finding.key for finding in findings}:
        return findings
    lost = list(judge_processes(done))
    return [finding for finding in findings if not lost or finding.status is not Status.PASS] + lost


def recorded(planned: PlannedProbe, outcome: ProbeOutcome) -> tuple[tuple[Series, ...], list[Finding]]:
    """The check's time series; an ERROR if its code fails."""
    try:
        return tuple(planned.check.series(outcome)) if outcome.completed else (), []
    except (Exception, SystemExit) as error:
        return (), [planned.mistake("the check's time series of measurements could not be read", error)]


def left_out(many: TooManyFollowUps) -> Finding:
    """The SKIP for follow-up probes that exceed the limit."""
    says = "{more} follow-up probes were not run, because {asked} had already run"
    return Finding.skip("left-out", says, asked=many.asked, more=many.more)


def result_of(future: Future[Any]) -> Any:
    try:
        return future.result()
    except NotTogether as apart:
        return apart.outcome
    except OSError as error:
        return not_started(error)


def not_started(error: OSError) -> NotRun:
    """The ERROR for a probe that the system could not start (disk full, process limit): not a GPU fault."""
    remedy = "raise the limit of this user's processes (ulimit -u)" if error.errno == errno.EAGAIN else ""
    says = "the probe could not be run: {error}{limits}"
    told = {"error": error.strerror or str(error), "limits": process_limits.in_words()}
    return NotRun(Finding.error("not-run", says, remedy=remedy, **told))
