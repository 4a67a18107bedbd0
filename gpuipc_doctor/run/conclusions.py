"""What an outcome means: a completed probe by its check, any other by the one rule for all."""

from __future__ import annotations

from gpuipc_doctor.model import Finding, ProbeOutcome, Series
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
        findings = list(planned.check.judge(outcome))
        if strangers := [one for one in findings if not isinstance(one, Finding)]:
            raise TypeError(f"{strangers[0]!r} is no Finding")
    except (Exception, SystemExit) as error:
        return [planned.mistake("judging failed", error)]
    return findings or [Finding.error("says-nothing", "the check concluded nothing", str(planned.file))]


def recorded(planned: PlannedProbe, outcome: ProbeOutcome) -> tuple[tuple[Series, ...], list[Finding]]:
    """What the check says was recorded over time; an ERROR where it fails to say."""
    try:
        return tuple(planned.check.series(outcome)) if outcome.completed else (), []
    except (Exception, SystemExit) as error:
        return (), [planned.mistake("reading its series failed", error)]


def left_out(many: TooManyFollowUps) -> Finding:
    """That a check asked for more probes than it is given."""
    says = "{asked} probes have followed others: {more} more left out"
    return Finding.skip("left-out", says, asked=many.asked, more=many.more)
