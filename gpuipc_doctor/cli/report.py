"""``gpuipc-doctor report``: print a saved report for people, for a site's tools, or as a bug report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gpuipc_doctor.cli import formats, options, saved, ticket


@click.command()
@click.argument("file", type=options.FilePath())
@formats.options(
    ("matrix", "html", "junit", "prometheus", "ticket", "c"),
    "Format for a terminal, a browser, CI or Prometheus' node_exporter (textfile); ticket, a bug report; or "
    "c, a program that reproduces the failure. The options below are for a ticket.",
    json="",
)
@ticket.with_options
@click.pass_context
def command(ctx: click.Context, /, *, file: Path, form: str, **asked: Any) -> None:
    """Print a saved report.

    FILE is written by `gpuipc-doctor check --output FILE`; for a ticket also by `gpuipc-doctor job --save
    FILE`. The exit code tells whether the report could be read, not its result.
    """
    from gpuipc_doctor.report import node_content, node_exports

    if form == "ticket":
        ticket.write(ctx, file, **asked)
        return
    if given := [each for each in ctx.command.params if asked.get(each.name or "")]:
        raise click.UsageError(f"{given[0].opts[0]} needs --format ticket", ctx)
    if form == "c":
        click.echo(_program(file), nl=False)
        return
    click.echo(formats.text(saved.report(file), form, node_content, node_exports), nl=False)


def _program(file: Path) -> str:
    """A C program that reproduces the failure. Raises `click.UsageError`."""
    from gpuipc_doctor.histories import c_program, documents

    try:
        return documents.program(documents.reproducer(saved.report(file)))
    except (documents.BadHistory, c_program.NotInC) as error:
        raise click.UsageError(f"{file}: {error}") from error
