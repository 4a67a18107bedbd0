"""Explainers: what a control showed, be it another check, or the probe with other settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import permutations

from gpuipc_doctor.model import Evidence, EvidenceKind, Status, Trial
from gpuipc_doctor.run.causes.explaining import NodeFacts, Trials
from gpuipc_doctor.run.results import Entry, Explanation, ResultLog


def other_check(failed: Entry, facts: NodeFacts, _: Trials) -> Iterator[Explanation]:
    """The result of the check that is the failed check's control.

    A control within a node is for failures within a node; a control between nodes is for failures between
    nodes.
    """
    for check in facts.checks if failed.failed else ():
        control = check.control
        if control is None or control.of != failed.planned.check.id:
            continue
        found = {
            finding.status
            for entry in facts.entries
            if entry.planned.check.id == check.id and _reach(entry) == _reach(failed)
            for finding in entry.standing
        }
        if found & {Status.PASS, Status.FAIL}:
            says = control.wrong if Status.FAIL in found else control.right
            yield Explanation(evidence=(Evidence(EvidenceKind.CONTROL, says, {"check": check.id}),))


def part_at_fault(failed: Entry, _: NodeFacts, trials: Trials) -> Iterator[Explanation]:
    """Which part of the check's `Check.workarounds` is at fault, from their trials. The first one that helps
    counts, because later ones switch off more."""
    parts = [workaround for workaround in failed.planned.check.workarounds if workaround.part]
    tried = [item.values for item in trials if item.kind is EvidenceKind.TRIAL]
    outcomes = [
        next((trial["outcome"] for trial in tried if trial["env"] == dict(workaround.env)), None)
        for workaround in parts
    ]
    values = {"parts": [workaround.part for workaround in parts]}
    if Trial.HELPS.value in outcomes:
        guilty = parts[outcomes.index(Trial.HELPS.value)]
        says = "it fails with {part} and works {instead}"
        shown = Evidence.control(says, part=guilty.part, instead=guilty.cost, **values)
        yield Explanation(evidence=(shown,))
    elif parts and set(outcomes) <= {Trial.DOES_NOT_HELP.value, Trial.WORSE.value}:
        says = "it fails without each of {parts}: suspect the library or a GPU"
        yield Explanation(evidence=(Evidence.control(says, **values),))


def compare_settings(log: ResultLog) -> None:
    """If a probe with additional settings, such as IPC off, has the same finding as a probe without them,
    both have a control that failed."""
    found = [entry for entry in log.to_cure() if entry.planned.probe.launch]
    for plain, control in permutations(found, 2):
        if plain.planned.place == control.planned.place and _identities(plain) & _identities(control):
            settings = dict(_environment(control).items() - _environment(plain).items())
            if settings and _environment(plain).items() <= _environment(control).items():
                values = {"env": settings, "failed": True, "probe": control.planned.probe.name}
                for entry in (plain, control):
                    says = "same finding with {env:env} ({probe})"
                    entry.trials.append(Evidence(EvidenceKind.CONTROL, says, values))


def _identities(entry: Entry) -> set[tuple[str, Status]]:
    return {(finding.key, finding.status) for finding in entry.to_cure}


def _environment(entry: Entry) -> Mapping[str, str]:
    launch = entry.planned.probe.launch
    return launch.env if launch else {}


def _reach(entry: Entry) -> int:
    launch = entry.planned.probe.launch
    return launch.nodes if launch else 1
