"""``gpuipc-doctor compare``: what has changed from one report to another, for people and in the exit code."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from gpuipc_doctor.cli import options, saved
from gpuipc_doctor.cli.stdio import has_color
from gpuipc_doctor.comparison import Comparison, compare
from gpuipc_doctor.comparison.compare import TOLERANCE


@click.command()
@click.argument("before", type=options.FilePath())
@click.argument("after", type=options.FilePath())
@click.option(
    "--format",
    "form",
    type=options.Choice(["table", "markdown"]),
    default="table",
    show_default=True,
    help="For a terminal, or for a ticket.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with every quantity that was compared.")
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 1000),
    default=100 * TOLERANCE,
    show_default=True,
    metavar="PERCENT",
    help="A change of speed up to this counts as none.",
)
@click.pass_context
def command(
    ctx: click.Context, *, before: Path, after: Path, form: str, as_json: bool, tolerance: float
) -> None:
    """Say what has changed from report BEFORE to report AFTER.

    Reports are what `gpuipc-doctor check --output FILE` writes. What became slower is told only where both
    were made with --repeat. The exit code is 0 when nothing is worse, 3 when one of them asked about GPUs
    and no probe ran, 10 when something is slower or newly a WARN, 11 when something is no longer tested, 12
    when something newly fails.
    """
    comparison = compare(saved.report(before), saved.report(after), tolerance / 100)
    click.echo(_text(comparison, "json" if as_json else form), nl=False)
    ctx.exit(comparison.exit_code)


def _text(comparison: Comparison, form: str) -> str:
    from gpuipc_doctor.comparison import comparison_content

    if form == "json":
        return comparison_content.dumps(comparison)
    if form == "markdown":
        return comparison_content.ticket(comparison)
    width = shutil.get_terminal_size().columns
    return comparison_content.screen(comparison, width=width, color=has_color())
