"""``gpuipc-doctor fleet``: many nodes under one question."""

from __future__ import annotations

import click

from gpuipc_doctor.cli import fleet_check, fleet_pairs, fleet_report


@click.group(
    commands={
        "check": fleet_check.command,
        "compare": fleet_report.compare,
        "pairs": fleet_pairs.command,
        "report": fleet_report.report,
    }
)
def command() -> None:
    """Run checks on many nodes, and say which are bad, which differ and which did not answer."""
