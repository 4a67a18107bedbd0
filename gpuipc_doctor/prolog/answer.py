"""The prolog from its command line to its answer: look up or test, decide, answer through the guard, log.

A call that the budget cut short is no evidence against a node, because a slow driver looks like a hanging
one. So the start of each test is stored. If a test did not finish, the next test of these GPUs has each GPU
in processes of its own, and enough time to find out whether the driver is slow or hangs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from gpuipc_doctor import __version__, node_name
from gpuipc_doctor.files.private import NotOurs
from gpuipc_doctor.prolog import decision, guard, log, node_identity, state
from gpuipc_doctor.prolog.decision import Decision, Kind
from gpuipc_doctor.prolog.guard import Channel
from gpuipc_doctor.prolog.partial_result import KnownSoFar
from gpuipc_doctor.prolog.state import Lookup, State
from gpuipc_doctor.site.policy import BUDGET_S, Action, PrologConfig
from gpuipc_doctor.site.policy import budget_s as default_budget_s
from gpuipc_doctor.supervise import process_limits

if TYPE_CHECKING:  # importing it takes longer than a prolog with a stored result may
    from gpuipc_doctor.model import Json
    from gpuipc_doctor.report_types import Report


class Invocation(NamedTuple):
    """A prolog's request, from its command line and the batch system."""

    started_at: float
    """Start of the process, in `time.monotonic()` seconds."""
    config: Path | None = None
    budget_s: float | None = None
    """The budget in seconds; None: the config's."""
    gpus: str = ""
    """The job's GPUs in the form of ``SLURM_JOB_GPUS``; empty for all."""
    job: str = ""
    """The job's id, for the log."""


def run(config: Path | None, budget_s: float | None = None) -> NoReturn:
    """Test this node for the job in the batch system's environment, and exit."""
    asked = Invocation(
        guard.started_at(),
        config,
        budget_s,
        gpus=os.environ.get("SLURM_JOB_GPUS", ""),
        job=os.environ.get("SLURM_JOB_ID", ""),
    )
    ends_at = asked.started_at + (budget_s or BUDGET_S)
    guard.run(partial(answer, asked), partial(answer_for_lost, asked), ends_at=ends_at)


def answer(asked: Invocation, channel: Channel) -> None:
    """Answer from a stored pass, or test the node. Runs in the guard's child, because any step may hang."""
    channel.doing(f"the prolog read {asked.config or 'its own files'}")
    lookup = state.look_up(asked.config, asked.gpus)
    if lookup.complaint:
        channel.say(f"gpuipc-doctor: {lookup.complaint}")
    if lookup.why_not:
        _test(asked, lookup, channel)
        return
    text = f"PASS {lookup.age_s:.0f} s ago; boot, driver, GPUs and config unchanged"
    conclude(asked, lookup.policy, decision.decide([], lookup.policy, text), channel)


def answer_for_lost(asked: Invocation, kind: str, what: str, kept: Json, channel: Channel) -> None:
    """The answer for a lost child (see `guard.AnswerFor`), from its partial results."""
    known = KnownSoFar.read(kept) if kept else KnownSoFar()
    conclude(asked, known.policy, known.decide(Kind(kind), what), channel, known.results)


def _test(asked: Invocation, lookup: Lookup, channel: Channel) -> None:
    from gpuipc_doctor.files.yamlfile import BadFile
    from gpuipc_doctor.model import Tier
    from gpuipc_doctor.node import gpus
    from gpuipc_doctor.prolog import concerns, partial_result, run_checks
    from gpuipc_doctor.run.discovery import gpus_of
    from gpuipc_doctor.run.request import UnknownName
    from gpuipc_doctor.site.config import load

    try:
        site = load(asked.config, known=lookup.documents)
        policy = site.prolog
        budget_s = asked.budget_s or site.budget_s[Tier.PROLOG]
        channel.ends_at(asked.started_at + budget_s)
        with run_checks.node(policy.simulate) as node:
            job = gpus.of_job(node.root, asked.gpus)
            if asked.budget_s is None and not site.states_budget(Tier.PROLOG):
                budget_s = default_budget_s(len(job.listed))
            deadline_s = policy.deadline_s or run_checks.usual_deadline_s(len(job.listed))
            limits = run_checks.TimeLimits(asked.started_at, budget_s, deadline_s)
            is_unfinished = lookup.state.is_unfinished(asked.gpus)
            is_patient = is_unfinished and asked.budget_s is None
            if is_patient:
                limits = limits.patient
            channel.ends_at(limits.ends_at)
            here = site.of_node(node_name.short(), gpus_of(job.of_node, node.root))
            missing = tuple(concerns.missing(job, here.gpus_before_job))
            known = partial_result.PartialResult(
                channel, KnownSoFar(policy, is_patient, missing), job.devices
            )
            tested = state.named(asked.gpus) if asked.gpus else [state.ALL, *job.ids]
            _remember(lookup, channel, lambda before: before.begun(tested))
            report = run_checks.run_checks(site, node, asked.gpus, limits, known, apart=is_unfinished)
    except (BadFile, UnknownName) as mistake:
        if process_limits.is_scarcity(mistake):
            raise
        _refuse(str(mistake), channel)
        return
    found = [*missing, *concerns.concerns(report)]
    decided = decision.decide(found, policy, concerns.passed(report))
    rows = tuple(map(log.row, report.results))
    devices = {device.label: device.uuid for device in report.devices}
    conclude(asked, policy, decided, channel, rows, devices, memory=lookup.why_not)
    if asked.job:
        channel.doing("the error counters were stored")
        _keep_counters(asked, policy, report, channel)
    if concerns.came_to_an_end(report):
        channel.doing("the result was stored")
        has_passed = not decided.weighed

        def after(before: State) -> State:
            ended = before.finished(tested)
            return ended.passed(tested, node_identity.now()) if has_passed else ended

        _remember(lookup, channel, after)


def _remember(lookup: Lookup, channel: Channel, change: Callable[[State], State]) -> None:
    try:
        state.update(Path(lookup.policy.state_dir), lambda before: change(before.of(lookup.identity)))
    except state.Unusable as reason:
        channel.say(f"gpuipc-doctor: {reason}")


def _keep_counters(asked: Invocation, policy: PrologConfig, report: Report, channel: Channel) -> None:
    """For the job's epilog: the error counters that check `surveys.HEALTH` read."""
    from gpuipc_doctor.prolog import job_counters
    from gpuipc_doctor.report import error_counters
    from gpuipc_doctor.surveys import HEALTH

    roles = (role for result in report.results if result.check == HEALTH for role in result.roles)
    addresses = {device.label: device.pci for device in report.devices}
    look = error_counters.counted((role.records for role in roles), addresses, node_identity.now())
    if look.gpus:
        try:
            job_counters.begin(Path(policy.state_dir), node_identity.boot(), asked.job, look)
        except (NotOurs, OSError) as reason:
            channel.say(f"gpuipc-doctor: the error counters were not stored: {reason}")


def _refuse(mistakes: str, channel: Channel) -> None:
    """Let the job start with an invalid config, because one typo must not drain a cluster."""
    lines = mistakes.splitlines()
    line = decision.one_line("ERROR invalid config; nothing tested, the job starts:", lines[0])
    for mistake in lines:
        if mistake not in line:  # which holds the first one, unless that is too long
            channel.say(f"gpuipc-doctor: {mistake}")
    channel.answer(0, line)
    log.tell_syslog(line, drains=False)


# -- what others see of a decision ----------------------------------------------------------------------


def conclude(
    asked: Invocation,
    policy: PrologConfig,
    decided: Decision,
    channel: Channel,
    results: Iterable[Json] = (),
    devices: Mapping[str, str] | None = None,
    memory: str = "",
    more: Mapping[str, Json] | None = None,
    *,
    is_told: bool = False,
) -> None:
    """Answer, then log the answer; errors in logging change nothing.

    ``memory``: why no stored pass was used. ``more``: further entries of the log. ``is_told``: whether syslog
    gets the line without a concern.
    """
    channel.answer(decided.exit_code, decided.line)
    channel.doing("the log was written")
    if policy.log:
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "host": node_name.full(),
            "job": asked.job,
            "gpus": asked.gpus,
            "memory": memory,
            **decided.written(),
            "results": list(results),
            "devices": dict(devices or {}),
            "elapsed_s": round(time.monotonic() - asked.started_at, 3),
            "tool": __version__,
            **(more or {}),
        }
        try:
            log.append(Path(policy.log), entry, policy.log_max_bytes)
        except log.NotLogged as reason:
            channel.say(f"gpuipc-doctor: {reason}")
    if policy.syslog and (is_told or decided.action in (Action.DRAIN, Action.LOG)):
        log.tell_syslog(decided.line, drains=bool(decided.exit_code))
