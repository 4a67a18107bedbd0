"""``gpuipc-doctor replay``: repeat a recorded history, or print it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from gpuipc_doctor.cli import formats, options, saved
from gpuipc_doctor.cli.progress import progress
from gpuipc_doctor.files import reading
from gpuipc_doctor.histories import c_drivers, documents, results
from gpuipc_doctor.model import Exit
from gpuipc_doctor.report import exits
from gpuipc_doctor.run import engine
from gpuipc_doctor.run.request import Request


@click.command()
@click.argument("file", type=options.FilePath())
@options.simulate("Replay on a simulated node: a profile's name or file.")
@options.config("Site config, or a shipped one's name; overrides /etc/gpuipc-doctor/site.yaml.")
@click.option("--device", "devices", multiple=True, metavar="NAME", help="Replay on this device only.")
@options.mpi_library("The MPI library, for a history of messages.")
@click.option(
    "--format",
    "print_as",
    type=options.Choice(["steps", "c"]),
    help="Print the history as numbered steps or a C program instead of replaying it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    file: Path,
    simulate: str | None,
    config_file: Path | None,
    devices: tuple[str, ...],
    mpi_lib: str | None,
    print_as: str | None,
    *,
    as_json: bool,
) -> None:
    """Perform a history of memory operations or messages in fresh processes and compare it with the model.

    FILE is a history file, or a JSON report in which ipc-histories or mpi-histories found something.

    \b
    Exit codes:
       0  every operation did what the model expects
       2  FILE cannot be used
      11  no answer: no device, or the replay did not complete
      12  the driver and the model disagree
    """
    options.require_mpi_library(mpi_lib)
    try:
        history = documents.parse(reading.read(file, saved.MAX_BYTES))
    except (reading.Unreadable, documents.BadHistory) as error:
        raise click.UsageError(f"{file}: {error}", ctx) from error
    if print_as == "steps":
        click.echo("\n".join(documents.sentences(history)))
        return
    if print_as == "c":
        try:
            click.echo(documents.program(history), nl=False)
        except c_drivers.NotInC as error:
            raise click.UsageError(f"{file}: {error}", ctx) from error
        return
    config = options.site_config(config_file)
    options_of_check = {"history": results.history_to_json(history)}
    config = replace(config, options={**config.options, history.check: options_of_check})
    request = Request(checks=(history.check,), backend=history.backend, devices=devices, mpi_lib=mpi_lib)
    with options.node(simulate) as node, progress() as watcher:
        report = engine.run(request, config, node, watcher)
    code = exits.code(report)
    code = Exit.ERROR if code == Exit.NOTHING else code
    if as_json:
        from gpuipc_doctor.report import report_json

        click.echo(report_json.dumps(report, exit_code=code), nl=False)
    else:
        from gpuipc_doctor.report import node_content

        click.echo(node_content.screen(report, exit_code=code, **formats.page()), nl=False)
    ctx.exit(code)
