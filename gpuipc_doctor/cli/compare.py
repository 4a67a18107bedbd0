"""``gpuipc-doctor compare``: compare two reports, for people and by exit code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from gpuipc_doctor.cli import formats, options, saved
from gpuipc_doctor.model import Subject
from gpuipc_doctor.report import comparison_content
from gpuipc_doctor.report.comparison import TOLERANCE, compare

WRITERS: Mapping[str, formats.Writer] = {
    "table": comparison_content.screen,
    "markdown": comparison_content.ticket,
    "json": comparison_content.dumps,
}


@click.command()
@click.argument("before", type=options.FilePath())
@click.argument("after", type=options.FilePath())
@formats.options(
    ("table", "markdown"),
    "Format for a terminal or a ticket.",
    json="Print JSON, with every compared quantity.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 1000),
    default=100 * TOLERANCE,
    show_default=True,
    metavar="PERCENT",
    help="Ignore changes of speed up to this percentage.",
)
@click.option(
    "--accept",
    is_flag=True,
    help="Also judge the node itself: a FAIL rejects it, even if it failed before.",
)
@options.require
@click.pass_context
def command(
    ctx: click.Context,
    *,
    before: Path,
    after: Path,
    form: str,
    tolerance: float,
    accept: bool,
    required: frozenset[Subject],
) -> None:
    """Compare report BEFORE with report AFTER.

    `gpuipc-doctor check --output FILE` writes reports. Slowdowns are found only with --repeat.

    \b
    Exit codes:
      0   nothing is worse
      3   one of the reports has no probe that ran on a GPU
      10  something is slower or has become a WARN
      11  something is no longer tested
      12  something newly fails; with --accept: anything fails
    """
    if required and not accept:
        raise click.UsageError("--require is about the verdict on the node: add --accept")
    comparison = compare(
        saved.report(before), saved.report(after), tolerance / 100, accept=accept, required=required
    )
    click.echo(formats.text(comparison, form, WRITERS), nl=False)
    ctx.exit(comparison.exit_code)
