"""Rerun failures with workarounds that may help, and report their effect and cost.

MPI probes are rerun with any settings, other probes with those that the driver reads. A check with
`Check.replay` is also rerun without the operations that a workaround avoids.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from gpuipc_doctor.api.fabrics import UCX_DEFAULTS
from gpuipc_doctor.collective.transport_switches import PEER_DEFAULTS
from gpuipc_doctor.knownissues import KnownIssue, affected, cures
from gpuipc_doctor.model import Evidence, EvidenceKind, Fact, Finding, Json, Status, Trial
from gpuipc_doctor.probe_types import Probe, ProbeOutcome, Workaround
from gpuipc_doctor.report import merged_results, sentences
from gpuipc_doctor.report_types import Join, Relation
from gpuipc_doctor.run import conclusions
from gpuipc_doctor.run.conclusions import Ended, NotRun
from gpuipc_doctor.run.planner import Planner
from gpuipc_doctor.run.results import Entry, ResultLog
from gpuipc_doctor.run.schedule import Schedule
from gpuipc_doctor.versions import Verdict

MPI_INIT = "MPI_Init_thread"
"""The operation that initialises MPI in a rank."""

_TAKES_NO_DEVICE_POINTERS = (
    {"MPICH_GPU_SUPPORT_ENABLED": "0"},
    {"MPIR_CVAR_ENABLE_GPU": "0"},
    {"I_MPI_OFFLOAD": "0"},
)
"""Settings with which MPI crashes if a program passes a GPU buffer to it."""

_OF_DRIVERS = ("AMD_", "CUDA_", "DEBUG_HIP_", "HIP_", "HSA_", "ROCR_")
"""Prefixes of variables that a GPU driver's library reads; no others affect a probe without ranks."""

Candidates = Callable[[Entry], Sequence[Workaround]]
"""Candidate workarounds for a failure, in the order of trials."""


def worth_trying(log: ResultLog) -> list[Entry]:
    """The first failed probe of each check and kind of finding.

    A workaround that helps this probe also helps the others, on any device. Follow-up probes are excluded,
    because they report the failure of another probe.
    """
    first: dict[object, Entry] = {}
    for entry in log.to_cure():
        if entry.planned.follows is None:
            keys = frozenset(finding.identity for finding in entry.to_cure)
            first.setdefault((entry.planned.check.id, keys), entry)
    return list(first.values())


def candidates(
    issues: Iterable[KnownIssue], joins: Iterable[Join], facts: Sequence[Fact], built_in: Sequence[Workaround]
) -> Candidates:
    """Settings from known issues that the failure matches, confirmed ones first, then those by which these
    versions are affected; then the MPI's ``built_in`` ones, and those of the check.

    Built-in settings change how device memory is sent, so they are not tried if the probe failed before any
    message.
    """
    by_id = {issue.id: issue for issue in issues}
    shown = [join for join in joins if join.relation is not Relation.LATENT]
    shown.sort(
        key=lambda join: (
            join.relation is not Relation.CONFIRMED,
            affected.judge(by_id[join.issue], facts)[0] is not Verdict.BAD,
        )
    )

    def of(failure: Entry) -> list[Workaround]:
        concerned = [by_id[join.issue] for join in shown if merged_results.showing(join, failure.results())]
        known = [
            Workaround(setting.env, setting.cost)
            for issue in concerned
            for setting in cures.settings(issue, facts)
            if failure.planned.probe.launch or all(name.startswith(_OF_DRIVERS) for name in setting.env)
        ]
        omitted = [
            Workaround({}, omission.cost, omission.without, omission.do)
            for issue in concerned
            for omission in cures.omissions(issue, facts)
            if failure.planned.probe.launch is None
        ]
        found: dict[object, Workaround] = {}
        of_check = failure.planned.check.workarounds
        is_slow = all(finding.key == "through-host" for finding in failure.to_cure)  # not for lack of IPC
        of_mpi = built_in if _failed_in_messages(failure) and not is_slow else ()
        for workaround in (*known, *omitted, *of_mpi, *of_check):
            if workaround.env not in _TAKES_NO_DEVICE_POINTERS and not _is_set(
                workaround.env, failure.planned.probe.env
            ):
                found.setdefault((frozenset(workaround.env.items()), workaround.without), workaround)
        return list(found.values())

    return of


def _failed_in_messages(failure: Entry) -> bool:
    """Whether an MPI probe failed after MPI was initialised, so that messages may be the cause."""
    outcome = failure.outcome
    if outcome is None or not failure.planned.check.needs_mpi or failure.planned.probe.launch is None:
        return False
    blamed = outcome.roles.get(outcome.blamed or "")
    return blamed is None or any(calls.operation == MPI_INIT for calls in blamed.calls)


_DEFAULTS = {name: value for each in (*UCX_DEFAULTS, *PEER_DEFAULTS) for name, value in each.env.items()}
"""Values of variables that are not set."""


def _is_set(env: Mapping[str, str], of_probe: Mapping[str, str]) -> bool:
    """Whether these settings hold already, so that setting them cannot help."""
    now = {**_DEFAULTS, **os.environ, **of_probe}
    return bool(env) and all(now.get(name) == value for name, value in env.items())


def try_all(log: ResultLog, schedule: Schedule, planner: Planner, candidates: Candidates) -> None:
    """Try each candidate on each kind of failure, within the budget; attach evidence to the failures.

    Likely candidates are tried on every failure before less likely ones; none is tried twice.
    """
    failures = worth_trying(log)
    for failure, workaround in _in_turn(failures, candidates):
        if [workaround.env, list(workaround.without)] in failure.tried:
            continue
        shorter = _replay(failure, workaround.without)
        if workaround.without and shorter is None:
            continue
        ended = schedule.run_one(planner.rerun(failure.planned, workaround.env, shorter))
        failure.trials.append(_told(failure, workaround, ended))


def _replay(failure: Entry, without: Collection[str]) -> Probe | None:
    """The check's replay of the failure without these operations, if the check can replay failures."""
    outcome = failure.outcome
    return failure.planned.check.replay(outcome, without) if outcome and outcome.completed else None


def _in_turn(failures: Sequence[Entry], candidates: Candidates) -> Iterator[tuple[Entry, Workaround]]:
    offered = [(failure, candidates(failure)) for failure in failures]
    for place in range(max((len(found) for _, found in offered), default=0)):
        yield from ((failure, found[place]) for failure, found in offered if place < len(found))


def _told(failure: Entry, workaround: Workaround, ended: Ended) -> Evidence:
    """Evidence: the result of a failed probe when rerun with a workaround."""
    values: dict[str, Json] = {"env": dict(workaround.env), "cost": workaround.cost}
    tried = "Tried {env:env}"
    if workaround.without:
        values |= {"without": list(workaround.without), "do": workaround.do}
        tried = "Tried the same operations without {without}"

    def trial(outcome: Trial, says: str, **more: Json) -> Evidence:
        return Evidence(EvidenceKind.TRIAL, says, {**values, **more, "outcome": outcome.value})

    def found(one: Finding) -> str:
        return sentences.summary(one)

    if isinstance(ended, NotRun):
        return trial(
            Trial.NOT_TRIED, f"{tried.replace('Tried', 'Not tried:')} ({{why}})", why=found(ended.finding)
        )
    assert failure.outcome is not None
    findings = conclusions.conclude(failure.planned, ended)
    bad = {Status.FAIL} if failure.failed else {Status.FAIL, Status.WARN}
    if not ended.stopped and all(finding.status in {Status.PASS, Status.WARN} - bad for finding in findings):
        price, says = _price(failure.outcome, ended)
        return trial(Trial.HELPS, f"{tried}: helps{says}{{cost:aside}}", **price)
    if failure.outcome.completed and not ended.completed and not ended.stopped:
        says = f"{tried}: makes it worse: {{found}}{{cost:aside}}"
        return trial(Trial.WORSE, says, found=found(findings[0]))
    if ended.stopped or not any(finding.status in bad for finding in findings):
        says = f"{tried}: cannot tell whether this helps: {{found}}{{cost:aside}}"
        return trial(Trial.UNKNOWN, says, found=found(findings[0]))
    return trial(Trial.DOES_NOT_HELP, f"{tried}: does not help{{cost:aside}}")


def _price(before: ProbeOutcome, after: ProbeOutcome) -> tuple[dict[str, Json], str]:
    """Change of a role's price with the workaround, in words."""
    was, now = (_recorded_price(outcome) for outcome in (before, after))
    if now is None:
        return {}, ""
    values = {"after": now[0], "unit": now[1]}
    if was is None:
        return values, ", at {after:times} {unit}"
    return {"before": was[0], **values}, ", {before:times} to {after:times} {unit}"


def _recorded_price(outcome: ProbeOutcome) -> tuple[float, str] | None:
    return next((role.price for role in outcome.roles.values() if role.price), None)
