"""``gpuipc-doctor report``: a saved report once more, for people or for the tools of a site."""

from __future__ import annotations

from pathlib import Path

import click

from gpuipc_doctor.cli import formats, options, saved


@click.command()
@click.argument("file", type=options.FilePath())
@formats.options(
    ("matrix", "html", "junit", "prometheus", "c"),
    "For a terminal, a ticket or a browser, CI, the textfile collector of Prometheus' node_exporter, or"
    " the vendor: a C program that does what failed.",
    json="",
)
def command(file: Path, form: str) -> None:
    """Print a saved report once more.

    FILE is what `gpuipc-doctor check --output FILE` wrote. The exit code says whether it could be read, not
    what is in it.
    """
    from gpuipc_doctor.report import node_content, node_exports

    if form == "c":
        click.echo(_program(file), nl=False)
        return
    click.echo(formats.text(saved.report(file), form, node_content, node_exports), nl=False)


def _program(file: Path) -> str:
    """A C program that does what failed. Raises `click.UsageError`."""
    from gpuipc_doctor.histories import c_program, documents

    try:
        return c_program.source(documents.reproducer(saved.report(file)))
    except (documents.BadHistory, c_program.NotInC) as error:
        raise click.UsageError(f"{file}: {error}") from error
