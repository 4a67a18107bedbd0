"""``gpuipc-doctor config new``: a first site config from the facts of this node."""

from __future__ import annotations

from pathlib import Path

import click

from gpuipc_doctor import surveys
from gpuipc_doctor.cli import options
from gpuipc_doctor.cli.progress import Silent
from gpuipc_doctor.files.writing import OutputFile
from gpuipc_doctor.node import first_config
from gpuipc_doctor.run import engine
from gpuipc_doctor.run.request import Request
from gpuipc_doctor.site.show import shown


@click.command("new")
@options.node_options
@options.mpi_library("The jobs' MPI library.")
@click.option(
    "--to", type=options.FilePath(), metavar="FILE", help="Write the config to FILE instead of printing it."
)
def command(
    *, simulate: str | None, config_file: Path | None, backend: str, mpi_lib: str | None, to: Path | None
) -> None:
    """Write a first site config from the facts of this node, with comments.

    Run the command on one of the nodes to check, with the jobs' modules loaded.
    """
    options.require_mpi_library(mpi_lib)
    if to is not None and to.exists():
        raise click.UsageError(f"{to} exists; name another file, or move it away")
    config = options.site_config(config_file)
    base = options.matching() if config_file is None else config_file
    request = Request(checks=(surveys.MPI_LIBRARY,), backend=backend, mpi_lib=mpi_lib)
    with options.node(simulate) as node:
        devices, inventory, mpi = engine.survey_node(request, config, node, Silent())
        text = shown("\n".join(first_config.lines(node, base, devices, inventory.facts, mpi)))
    if to is None:
        click.echo(text, nl=False)
        return
    try:
        OutputFile(to, 0o644).write(text)
    except OSError as error:
        raise click.UsageError(f"cannot write {to}: {error.strerror}") from None
    click.echo(f"{to}: written; read it, then: gpuipc-doctor config validate {to}")
