"""``gpuipc-doctor report``: a saved report once more, for people or for the tools of a site."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import click

from gpuipc_doctor.cli import options, saved
from gpuipc_doctor.cli.stdio import has_color
from gpuipc_doctor.model import Report

FORMATS = ("matrix", "html", "junit", "prometheus")


@click.command()
@click.argument("file", type=options.FilePath())
@click.option(
    "--format",
    "form",
    type=options.Choice(FORMATS),
    default="matrix",
    show_default=True,
    help="For a terminal, a ticket or a browser, CI, or the textfile collector of Prometheus' node_exporter.",
)
def command(file: Path, form: str) -> None:
    """Print a saved report once more.

    FILE is what `gpuipc-doctor check --output FILE` wrote. The exit code says whether it could be read, not
    what is in it.
    """
    click.echo(_text(saved.report(file), form), nl=False)


def _text(report: Report, form: str) -> str:
    if form == "matrix":
        from gpuipc_doctor.report import node_content

        return node_content.screen(report, width=shutil.get_terminal_size().columns, color=has_color())
    if form == "html" and find_spec("jinja2") is None:
        raise click.UsageError("--format html needs jinja2: pip install 'gpuipc-doctor[html]'")
    from gpuipc_doctor.report import node_exports

    text: str = getattr(node_exports, form)(report)
    return text
