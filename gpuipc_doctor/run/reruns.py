"""Rerun an MPI probe that hung or crashed, with the libraries' debug logs; and a probe that was slow.

The first run has no debug logs because writing them changes the timing and thus the fault.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from gpuipc_doctor.log_lines import CHATTER, OF_KILLED, by_shape, how_telling, shape
from gpuipc_doctor.model import Evidence, EvidenceKind, Finding, Status
from gpuipc_doctor.probe_types import Ending, ProbeOutcome
from gpuipc_doctor.report import sentences
from gpuipc_doctor.run import conclusions
from gpuipc_doctor.run.conclusions import NotRun
from gpuipc_doctor.run.planner import PlannedProbe, Planner
from gpuipc_doctor.run.results import Entry, ResultLog
from gpuipc_doctor.run.schedule import Schedule

LINES = 4
"""Maximum log lines quoted in a finding; the kept logs have them all."""

OVERLOAD = 1.5
"""Load per processor from which a hang that does not recur is attributed to load."""

Kind = tuple[str, str, Ending, str]
"""(check, call, how the probe ended, signal or empty text)."""


def rerun_with_logs(log: ResultLog, schedule: Schedule, planner: Planner, louder: Mapping[str, str]) -> None:
    """Rerun once for each kind of failure, within the budget; attaches evidence to the original failures."""
    heard: set[Kind] = set()
    # In report order: of several identical failures, the rerun is of the first.
    for entry in log.failures():
        assert entry.outcome is not None
        kind = kind_of(entry.planned, entry.outcome)
        if louder and kind and entry.planned.probe.launch and kind not in heard:
            heard.add(kind)
            second = schedule.run_one(planner.rerun(entry.planned, louder))
            for item in _told(entry.planned, entry.outcome, second, louder):
                entry.trials.append(item)
            if entry.outcome.blamed and isinstance(second, ProbeOutcome) and second.completed:
                _blame_load(entry)


MOST_MEASURED = 8
"""Maximum measurements that are made again in a run."""


def measure_again(log: ResultLog, schedule: Schedule, planner: Planner) -> None:
    """Make measurements again whose findings are in `Check.disturbed`; a finding that does not come again is
    replaced by the second measurement's."""
    doubtful = (
        (entry, finding)
        for entry in log.entries
        if entry.outcome and entry.outcome.completed
        for finding in entry.findings
        if finding.key in entry.planned.check.disturbed
    )
    for entry, first in list(doubtful)[:MOST_MEASURED]:
        others = tuple(each for each in entry.standing if each is not first)
        again = schedule.run_one(planner.rerun(entry.planned, {}))
        if isinstance(again, NotRun) or not again.completed:
            told = (
                again.finding if isinstance(again, NotRun) else conclusions.conclude(entry.planned, again)[0]
            )
            note = Evidence.seen("not measured again: {why}", why=sentences.summary(told))
            entry.decided = (*others, _noted(first, note))
            continue
        second = conclusions.conclude(entry.planned, again)
        if same := next((each for each in second if each.key == first.key), None):
            places = [{*each.values.get("slow", ())} for each in (first, same)]
            is_disturbed = bool(_overload()) or (any(places) and not places[0] & places[1])
            remedy = f"rerun on an idle node; if it stays slow, {first.remedy}"
            is_disturbed &= (
                entry.planned.check.subject is not None
            )  # else a state, which load does not change
            kept = replace(first, remedy=remedy) if is_disturbed and first.remedy else first
            found = sentences.summary(same)
            is_equal = found == sentences.summary(first)
            note = Evidence.seen("measured again: {found}", found="the same result" if is_equal else found)
            entry.decided = (*others, _noted(kept, note))
        else:
            note = Evidence.seen("measured before: {found}", found=sentences.summary(first))
            entry.decided = others or tuple(_noted(each, note) for each in second)


def _noted(finding: Finding, *notes: Evidence) -> Finding:
    return replace(finding, evidence=(*finding.evidence, *notes))


def _overload() -> tuple[float, int] | None:
    """The node's load and its processors, if it is overloaded."""
    processors = os.cpu_count() or 1  # of the node, as its load is; this process may have few of them
    load = os.getloadavg()[0]
    return (load, processors) if load > OVERLOAD * processors else None


def _blame_load(entry: Entry) -> None:
    """Decide that a hang which did not recur in the rerun is a warning, if the node was overloaded."""
    if not (overload := _overload()):
        return
    load, processors = overload
    says = "hung once on an overloaded node, and passed when rerun (load {load}, {processors} processors)"
    hung = {number for number, each in enumerate(entry.findings) if each.key == "hung"}
    entry.decided = tuple(
        Finding.warn(
            "hung-under-load",
            says,
            Evidence.seen("{found}", found=sentences.summary(finding)),
            *reported.evidence,
            remedy="rerun on an idle node",
            load=round(load, 1),
            processors=processors,
        )
        if finding.status is Status.FAIL and number in hung
        else finding
        for number, (finding, reported) in enumerate(zip(entry.findings, entry.reported, strict=True))
    )


def kind_of(planned: PlannedProbe, outcome: ProbeOutcome) -> Kind | None:
    """The kind of failure; None if every role finished, because the check itself then judges the probe."""
    role = outcome.roles.get(outcome.blamed or "")
    if role is None:
        return None
    signal = role.signal if role.ending is Ending.CRASHED else ""  # any working signal may end a hung role
    return planned.check.id, role.operation, role.ending, signal


def _told(
    planned: PlannedProbe, first: ProbeOutcome, second: ProbeOutcome | NotRun, louder: Mapping[str, str]
) -> Iterator[Evidence]:
    def rerun(outcome: str, says: str, **values: Any) -> Evidence:
        values |= {"env": dict(louder), "outcome": outcome}
        return Evidence(EvidenceKind.RERUN, says, values)

    if isinstance(second, NotRun):
        why = sentences.summary(second.finding)
        yield rerun("not-run", "Not rerun with {env:env}: {why}", why=why)
        return
    if second.completed:
        yield rerun("went-through", "Rerun with {env:env}: passed this time")
        return
    news = list(_news(first, second))
    if second.stopped or kind_of(planned, second) != kind_of(planned, first):
        found = sentences.summary(conclusions.conclude(planned, second)[0])
        yield rerun("otherwise", "Rerun with {env:env}: {found}", found=found)
    elif news:
        yield rerun("same", "Rerun with {env:env}: same failure, new log lines:")
    else:
        what = "log" if _is_hang(second) else "error"
        yield rerun("same", f"Rerun with {{env:env}}: same failure, no new {what} lines")
    yield from news


def _news(first: ProbeOutcome, second: ProbeOutcome) -> Iterator[Evidence]:
    """The new error lines in the second run's logs; of a hang without any, the last lines.

    Only the last `LINES` are reported, so the most relevant lines and the failed role's lines come last.
    """
    said = {shape(line) for role in first.roles.values() for line in role.log_tail}
    by_role = sorted(second.roles.values(), key=lambda role: role.role == second.blamed)
    signal = second.roles[second.blamed].signal if second.blamed and not _is_hang(second) else ""
    by_line = {
        line: role.role
        for role in reversed(by_role)
        for line in role.log_tail
        if line.strip() and (signal == "SIGKILL" or not OF_KILLED.search(line))
    }
    times = by_shape(line for role in by_role for line in role.log_tail if line in by_line)
    if signal:  # of one rank: what all print says nothing of it
        of_all = set.intersection(*({shape(line) for line in role.log_tail} for role in by_role))
        said |= {shape(line) for line in times if shape(line) in of_all and CHATTER.search(line)}
    new = [(by_line[line], line) for line in times if shape(line) not in said]
    telling = [(role, line) for role, line in new if how_telling(line)]
    telling.sort(key=lambda told: how_telling(told[1]))
    only_errors = telling or any(map(how_telling, said)) or not _is_hang(second)
    for role, line in (telling if only_errors else new)[-LINES:]:
        says = "{role}: {line} ×{times}" if times[line] > 1 else "{role}: {line}"
        yield Evidence(EvidenceKind.RERUN, says, {"role": role, "line": line, "times": times[line]})


def _is_hang(outcome: ProbeOutcome) -> bool:
    return any(role.ending is Ending.HUNG for role in outcome.roles.values())
