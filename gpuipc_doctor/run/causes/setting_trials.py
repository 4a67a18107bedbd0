"""Rerun failed probes without a setting that they may be due to: a cause is tried before it is reported."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Protocol

from gpuipc_doctor.model import EvidenceKind, Status, Trial
from gpuipc_doctor.probe_types import Ending, ProbeOutcome
from gpuipc_doctor.run import conclusions
from gpuipc_doctor.run.causes.chosen_settings import candidates
from gpuipc_doctor.run.causes.explaining import NodeFacts
from gpuipc_doctor.run.conclusions import Ended
from gpuipc_doctor.run.planner import PlannedProbe, Planner
from gpuipc_doctor.run.results import Entry
from gpuipc_doctor.run.schedule import Schedule

MOST = 2
"""Settings tried for a finding."""

TRIAL_S, TRIALS_S = 30.0, 90.0
"""Seconds for a trial, and for all trials of a run."""


class Rerun(Protocol):
    def __call__(
        self, planned: PlannedProbe, env: Mapping[str, str], unset: frozenset[str], most_s: float
    ) -> Ended: ...


def rerunning(schedule: Schedule, planner: Planner) -> Rerun:
    return lambda planned, env, unset, most_s: schedule.run_one(
        planner.rerun(planned, env, unset=unset), most_s
    )


def try_without(failed: Iterable[Entry], facts: NodeFacts, rerun: Rerun) -> list[ProbeOutcome]:
    """Note in each failed entry what trials without its likeliest settings showed; returns the reruns that
    passed. What is shown of one device also holds for the others with the same findings."""
    passed: list[ProbeOutcome] = []
    until = time.monotonic() + TRIALS_S

    def outcome_of(entry: Entry, env: Mapping[str, str], unset: frozenset[str]) -> Trial:
        left_s = min(TRIAL_S, until - time.monotonic())
        if left_s <= 0:
            return Trial.UNKNOWN
        ended = rerun(entry.planned, env, unset, left_s)
        outcome = _judge(entry, ended)
        if outcome is Trial.HELPS and isinstance(ended, ProbeOutcome):
            passed.append(ended)
        return outcome

    kinds: dict[object, list[Entry]] = {}
    for entry in failed:
        identities = frozenset(finding.identity for finding in entry.standing)
        kinds.setdefault((entry.planned.check.id, identities), []).append(entry)
    for first, *others in kinds.values():
        if first.in_company or _passed_once(first):
            continue
        able = [candidate for candidate in candidates(first, facts) if candidate.can_be_tried]
        for candidate in able[:MOST]:
            outcome = outcome_of(first, candidate.env, candidate.unset)
            if outcome is Trial.HELPS and not _failed_twice(first):
                is_shown = outcome_of(first, {}, frozenset()) is Trial.DOES_NOT_HELP
                outcome = Trial.HELPS if is_shown else Trial.UNKNOWN
            for entry in (first, *others):
                entry.without[candidate.name] = outcome
            if outcome is Trial.HELPS:
                break
    return passed


def _judge(failed: Entry, ended: Ended) -> Trial:
    """What a rerun shows. One that hangs where the probe did not, or was not finished, shows nothing."""
    if not isinstance(ended, ProbeOutcome) or ended.stopped:
        return Trial.UNKNOWN
    found = {finding.status for finding in conclusions.conclude(failed.planned, ended)}
    if ended.completed and not found & {Status.FAIL, Status.ERROR}:
        return Trial.HELPS
    hung, hangs = (
        any(role.ending is Ending.HUNG for role in outcome.roles.values()) if outcome else False
        for outcome in (failed.outcome, ended)
    )
    return Trial.UNKNOWN if hangs and not hung else Trial.DOES_NOT_HELP


def _reruns(entry: Entry) -> set[object]:
    return {item.values.get("outcome") for item in entry.trials if item.kind is EvidenceKind.RERUN}


def _passed_once(entry: Entry) -> bool:
    """Whether the probe passed when it was rerun as it was: a trial would pass as well."""
    return "went-through" in _reruns(entry)


def _failed_twice(entry: Entry) -> bool:
    return "same" in _reruns(entry)
