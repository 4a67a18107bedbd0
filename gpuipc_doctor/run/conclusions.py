"""What an outcome means: a completed probe by its check, any other by the one rule for all."""

from __future__ import annotations

from gpuipc_doctor.api import Check
from gpuipc_doctor.api.process_ledger import judge_processes
from gpuipc_doctor.model import Finding, ProbeOutcome, Series, Status
from gpuipc_doctor.run.planner import PlannedProbe, TooManyFollowUps
from gpuipc_doctor.supervise import blame


def conclude(planned: PlannedProbe, outcome: ProbeOutcome) -> list[Finding]:
    """At least one finding."""
    if not outcome.completed:
        return [blame.conclude(outcome)]
    return [*judge(planned, outcome), *blame.of_launcher(outcome)]


def judge(planned: PlannedProbe, outcome: ProbeOutcome) -> list[Finding]:
    """The check's own conclusions. A check that fails to conclude is an ERROR, never silence."""
    try:
        findings = found_by(planned.check, outcome)
    except (Exception, SystemExit) as error:
        return [planned.mistake("judging failed", error)]
    return findings or [Finding.error("says-nothing", "the check concluded nothing", str(planned.file))]


def found_by(check: Check, done: ProbeOutcome) -> list[Finding]:
    """What a check finds, and what processes lost with each repetition: beside a loss nothing is a PASS."""
    findings = list(check.judge(done))
    if strangers := [one for one in findings if not isinstance(one, Finding)]:
        raise TypeError(f"{strangers[0]!r} is no Finding")
    if check.explains_losses & {finding.key for finding in findings}:
        return findings
    lost = list(judge_processes(done))
    return [finding for finding in findings if not lost or finding.status is not Status.PASS] + lost


def recorded(planned: PlannedProbe, outcome: ProbeOutcome) -> tuple[tuple[Series, ...], list[Finding]]:
    """What the check says was recorded over time; an ERROR where it fails to say."""
    try:
        return tuple(planned.check.series(outcome)) if outcome.completed else (), []
    except (Exception, SystemExit) as error:
        return (), [planned.mistake("reading its series failed", error)]


def left_out(many: TooManyFollowUps) -> Finding:
    """The SKIP for follow-up probes beyond the limit."""
    says = "{more} more follow-up probes not run, after {asked}"
    return Finding.skip("left-out", says, asked=many.asked, more=many.more)
