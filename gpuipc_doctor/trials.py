"""Run a failing MPI probe again under each setting that may help; say whether it did, and at what price."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuipc_doctor.knownissues import KnownIssue
from gpuipc_doctor.model import Fact, Join, Json, ProbeOutcome, Relation, Status, Workaround
from gpuipc_doctor.plan import PlannedProbe
from gpuipc_doctor.runner import Runner, conclusions

GOOD = {Status.PASS, Status.WARN}

_TAKES_NO_DEVICE_POINTERS = (
    {"MPICH_GPU_SUPPORT_ENABLED": "0"},
    {"MPIR_CVAR_ENABLE_GPU": "0"},
    {"I_MPI_OFFLOAD": "0"},
)
"""Settings that help somebody who can do without GPUs in MPI; with them, a device pointer is a crash."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A probe that was launched as ranks and failed, and how it ended."""

    planned: PlannedProbe
    outcome: ProbeOutcome

    @property
    def place(self) -> tuple[str, str]:
        return self.planned.check.id, self.planned.probe.subject


Candidates = Callable[[Failure], Sequence[Workaround]]
"""What may help against a failure, in the order in which it is to be tried."""


def first_failures(runner: Runner) -> list[Failure]:
    """The first failing launched probe of each check on each subject: the later ones follow from it."""
    first: dict[tuple[str, str], Failure] = {}
    for planned, outcome in runner.failed:
        if planned.probe.launch:
            failure = Failure(planned, outcome)
            first.setdefault(failure.place, failure)
    return list(first.values())


def candidates(
    issues: Iterable[KnownIssue], joins: Iterable[Join], facts: Sequence[Fact], built_in: Sequence[Workaround]
) -> Candidates:
    """The settings of known issues that a failure shows, then those that are ``built_in`` for this MPI.

    What is confirmed comes before what only looks like it.
    """
    by_id = {issue.id: issue for issue in issues}
    shown = [join for join in joins if join.relation is not Relation.LATENT]
    shown.sort(key=lambda join: join.relation is not Relation.CONFIRMED)

    def of(failure: Failure) -> list[Workaround]:
        check, subject = failure.place
        known = [
            Workaround(setting.env, setting.cost)
            for join in shown
            if check in join.checks and subject in join.subjects
            for setting in by_id[join.issue].settings(facts)
        ]
        found: dict[frozenset[tuple[str, str]], Workaround] = {}
        for workaround in (*known, *built_in):
            if workaround.env not in _TAKES_NO_DEVICE_POINTERS and not _is_set(workaround.env):
                found.setdefault(frozenset(workaround.env.items()), workaround)
        return list(found.values())

    return of


def _is_set(env: Mapping[str, str]) -> bool:
    """Whether the probe has failed under these settings already, because the user has made them."""
    return all(os.environ.get(name) == value for name, value in env.items())


def try_all(runner: Runner, candidates: Candidates) -> None:
    """Try each candidate on each failure, within the budget; adds lines to the findings' evidence."""
    for failure in first_failures(runner):
        for line in _try(runner, failure, candidates(failure)):
            runner.add_evidence(failure.planned.check.id, failure.outcome, line)


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
        cost = f" ({workaround.cost})" if workaround.cost else ""
        yield f"Tried {settings}: {_what_became(failure, outcome)}{cost}"


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
