"""``gpuipc-doctor fleet``: run one command on many nodes."""

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
    """Run checks on many nodes, and find those that fail, differ or do not answer."""
