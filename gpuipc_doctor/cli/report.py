"""``gpuipc-doctor report``: print a saved report for people or for a site's tools."""

from __future__ import annotations

from pathlib import Path

import click

from gpuipc_doctor.cli import formats, options, saved


@click.command()
@click.argument("file", type=options.FilePath())
@formats.options(
    ("matrix", "html", "junit", "prometheus", "c"),
    "Format for a terminal, a browser, CI or Prometheus' node_exporter (textfile); or c, a program for the "
    "vendor that reproduces the failure.",
    json="",
)
def command(file: Path, form: str) -> None:
    """Print a saved report.

    FILE is written by `gpuipc-doctor check --output FILE`. The exit code tells whether the report could be
    read, not its result.
    """
    from gpuipc_doctor.report import node_content, node_exports

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
