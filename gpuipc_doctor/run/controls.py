"""Add to each failure the result of its control: another check, or a probe with other settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import permutations

from gpuipc_doctor.api import Check
from gpuipc_doctor.model import Evidence, EvidenceKind, Status
from gpuipc_doctor.run.results import Entry, ResultLog


def attach(log: ResultLog, checks: Iterable[Check]) -> None:
    """Attach the control's result to each failure of a check that has a control.

    A control within a node is for failures within a node; a control between nodes is for failures between
    nodes.
    """
    for check in checks:
        control = check.control
        if control is None:
            continue
        told = log.of(check.id)
        for failure in log.of(control.of):
            found = {
                finding.status
                for entry in told
                if _reach(entry) == _reach(failure)
                for finding in entry.findings
            }
            if failure.failed and found & {Status.PASS, Status.FAIL}:
                says = control.wrong if Status.FAIL in found else control.right
                failure.attach(Evidence(EvidenceKind.CONTROL, says, {"check": check.id}))


def attach_settings(log: ResultLog) -> None:
    """If a probe with additional settings, such as IPC off, has the same finding as a probe without them,
    attach evidence to both."""
    found = [entry for entry in log.to_cure() if entry.planned.probe.launch]
    for plain, control in permutations(found, 2):
        if plain.planned.place == control.planned.place and _identities(plain) & _identities(control):
            settings = dict(_environment(control).items() - _environment(plain).items())
            if settings and _environment(plain).items() <= _environment(control).items():
                values = {"env": settings, "failed": True, "probe": control.planned.probe.name}
                for entry in (plain, control):
                    says = "same finding with {env:env} ({probe})"
                    entry.attach(Evidence(EvidenceKind.CONTROL, says, values))


def _identities(entry: Entry) -> set[tuple[str, Status]]:
    return {(finding.key, finding.status) for finding in entry.to_cure}


def _environment(entry: Entry) -> Mapping[str, str]:
    launch = entry.planned.probe.launch
    return launch.env if launch else {}


def _reach(entry: Entry) -> int:
    launch = entry.planned.probe.launch
    return launch.nodes if launch else 1
