"""Lines that passing processes also print are no evidence of a failure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from gpuipc_doctor.log_lines import shape
from gpuipc_doctor.model import Ending
from gpuipc_doctor.run.results import Entry
from gpuipc_doctor.supervise import evidence
from gpuipc_doctor.supervise.assignment import RoleFiles

_LINES = 1000
"""Lines read of a log's end."""


def leave_out(entries: Iterable[Entry], failed: Iterable[Entry]) -> None:
    """Remove from the failed roles' logs what a role that completed, in whichever probe, printed as well."""
    printed: set[str] = set()
    for entry in entries:
        done = entry.outcome if entry.outcome and entry.outcome.logs else None
        for role in done.roles.values() if done else ():
            if done and role.ending is Ending.COMPLETED:
                log = RoleFiles(Path(done.logs), role.role).log
                printed.update(map(shape, evidence.log_tail(log, lines=_LINES)))
    for entry in failed if printed else ():
        if entry.outcome:
            roles = {
                name: replace(role, log_tail=tuple(n for n in role.log_tail if shape(n) not in printed))
                for name, role in entry.outcome.roles.items()
            }
            entry.outcome = replace(entry.outcome, roles=roles)
