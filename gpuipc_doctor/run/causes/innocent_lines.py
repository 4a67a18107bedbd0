"""Lines of a failed role's log that are no evidence: what passing processes also print, and what launchers
print of the ranks that they ended themselves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from gpuipc_doctor.log_lines import OF_KILLED, shape
from gpuipc_doctor.probe_types import Ending, ProbeOutcome
from gpuipc_doctor.run.causes.failed_probe import was_killed
from gpuipc_doctor.run.results import Entry
from gpuipc_doctor.supervise import evidence
from gpuipc_doctor.supervise.assignment import RoleFiles

_LINES = 1000
"""Lines read of a log's end."""


def leave_out(outcomes: Iterable[ProbeOutcome | None], failed: Iterable[Entry]) -> None:
    """Remove from the failed roles' logs what a role that completed in one of these outcomes printed as well;
    and, if the blamed role was not killed, a launcher's lines about ranks that were."""
    printed = {
        shape(line)
        for outcome in outcomes
        if outcome and outcome.logs
        for role in outcome.roles.values()
        if role.ending is Ending.COMPLETED
        for line in evidence.log_tail(RoleFiles(Path(outcome.logs), role.role).log, lines=_LINES)
    }
    for entry in failed:
        if entry.outcome:
            keeps = was_killed(entry)
            roles = {
                name: replace(
                    role,
                    log_tail=tuple(
                        line
                        for line in role.log_tail
                        if shape(line) not in printed and (keeps or not OF_KILLED.search(line))
                    ),
                )
                for name, role in entry.outcome.roles.items()
            }
            entry.outcome = replace(entry.outcome, roles=roles)
