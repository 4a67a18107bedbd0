"""``gpuipc-doctor compare``: what has changed from one report to another, for people and in the exit code."""

from __future__ import annotations

from pathlib import Path

import click

from gpuipc_doctor.cli import formats, options, saved
from gpuipc_doctor.comparison import compare, comparison_content
from gpuipc_doctor.comparison.comparison import TOLERANCE


@click.command()
@click.argument("before", type=options.FilePath())
@click.argument("after", type=options.FilePath())
@formats.options(
    ("table", "markdown"),
    "For a terminal, or for a ticket.",
    json="Print JSON, with every quantity that was compared.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 1000),
    default=100 * TOLERANCE,
    show_default=True,
    metavar="PERCENT",
    help="A change of speed up to this counts as none.",
)
@click.pass_context
def command(ctx: click.Context, *, before: Path, after: Path, form: str, tolerance: float) -> None:
    """Say what has changed from report BEFORE to report AFTER.

    Reports are what `gpuipc-doctor check --output FILE` writes. What became slower is told only where both
    were made with --repeat. The exit code is 0 when nothing is worse, 3 when one of them asked about GPUs
    and no probe ran, 10 when something is slower or newly a WARN, 11 when something is no longer tested, 12
    when something newly fails.
    """
    comparison = compare(saved.report(before), saved.report(after), tolerance / 100)
    click.echo(formats.text(comparison, form, comparison_content), nl=False)
    ctx.exit(comparison.exit_code)
