"""Run a failing MPI probe again under each setting that may help; say whether it did, and at what price."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpuipc_doctor.model import Json, ProbeOutcome, Status, Workaround
from gpuipc_doctor.plan import PlannedProbe
from gpuipc_doctor.runner import Runner, conclusions

GOOD = {Status.PASS, Status.WARN}


@dataclass(frozen=True, slots=True)
class Failure:
    """A probe that was launched as ranks and failed, and how it ended."""

    planned: PlannedProbe
    outcome: ProbeOutcome


def first_failures(runner: Runner) -> list[Failure]:
    """The first failing launched probe of each check on each subject: the later ones follow from it."""
    first: dict[tuple[str, str], Failure] = {}
    for planned, outcome in runner.failed:
        if planned.probe.launch:
            first.setdefault((planned.check.id, planned.probe.subject), Failure(planned, outcome))
    return list(first.values())


def try_all(runner: Runner, workarounds: Sequence[Workaround]) -> None:
    """Try each workaround on each failure, within the budget; adds lines to the findings' evidence."""
    for failure in first_failures(runner):
        for line in _try(runner, failure, workarounds):
            runner.add_evidence(failure.planned, line)


def _try(runner: Runner, failure: Failure, workarounds: Sequence[Workaround]) -> Iterator[str]:
    probe = failure.planned.probe
    assert probe.launch is not None
    for workaround in workarounds:
        settings = " ".join(f"{name}={value}" for name, value in workaround.env.items())
        launch = replace(probe.launch, env={**probe.launch.env, **workaround.env})
        outcome = runner.rehearse(replace(failure.planned, probe=replace(probe, launch=launch)))
        if isinstance(outcome, str):
            yield f"Not tried: {settings} ({outcome})"
            continue
        yield f"Tried {settings}: {_what_became(failure, outcome)} ({workaround.cost})"


def _what_became(failure: Failure, outcome: ProbeOutcome) -> str:
    findings = conclusions(failure.planned, outcome)
    if outcome.stopped:
        return f"not known to help: {findings[0].summary}"
    if all(finding.status in GOOD for finding in findings):
        return f"helps{_price(failure.outcome, outcome)}"
    if failure.outcome.completed and not outcome.completed:
        return f"makes it worse: {findings[0].summary}"
    if not any(finding.status is Status.FAIL for finding in findings):
        return f"not known to help: {findings[0].summary}"
    return "does not help"


def _price(before: ProbeOutcome, after: ProbeOutcome) -> str:
    """What a role recorded as ``price`` (a figure and its unit), before and under the workaround."""
    was, now = (_recorded_price(outcome) for outcome in (before, after))
    if now is None:
        return ""
    figure, unit = now
    return f", {was[0]:.1f} to {figure:.1f} {unit}" if was else f", at {figure:.1f} {unit}"


def _recorded_price(outcome: ProbeOutcome) -> Json:
    return next((record["price"] for record in outcome.records.values() if "price" in record), None)
