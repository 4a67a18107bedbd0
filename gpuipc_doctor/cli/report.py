"""``gpuipc-doctor report``: a saved report once more, for people or for the tools of a site."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from pathlib import Path

import click

from gpuipc_doctor.cli import reading
from gpuipc_doctor.model import Report

FORMATS = ("matrix", "junit", "prometheus")


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="matrix",
    show_default=True,
    help="For people, for CI, or for the textfile collector of Prometheus' node_exporter.",
)
def command(file: Path, form: str) -> None:
    """Print a saved report once more.

    FILE is what `gpuipc-doctor check --output FILE` wrote. The exit code says whether it could be read, not
    what is in it.
    """
    click.echo(_text(reading.report(file), form), nl=False)


def _text(report: Report, form: str) -> str:
    if form == "matrix":
        from gpuipc_doctor.report import matrix

        color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        return matrix.render(report, width=shutil.get_terminal_size().columns, color=color)
    text: str = importlib.import_module(f"gpuipc_doctor.report.{form}").render(report)
    return text
