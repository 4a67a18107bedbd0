"""Say of what failed whether its control failed, too: a check may leave out what another one tests."""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import Check
from gpuipc_doctor.model import Evidence, EvidenceKind, Status
from gpuipc_doctor.run.results import Entry, ResultLog


def attach(log: ResultLog, checks: Iterable[Check]) -> None:
    """Attach to each failure of a check that has a control what that one has found.

    Within a node and between nodes are different ways: a failure is told of the control that went the same.
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


def _reach(entry: Entry) -> int:
    """On how many nodes its probe ran."""
    launch = entry.planned.probe.launch
    return launch.nodes if launch else 1
