"""``gpuipc-doctor report``: print a saved report for people, for a site's tools, or as a bug report."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from gpuipc_doctor.cli import formats, options, saved
from gpuipc_doctor.files.writing import OutputFile

COMPONENTS = ["nvidia", "amd", "ucx", "openmpi", "mpich", "libfabric", "nccl", "hpe", "hardware"]
_of_ticket = options.table(
    click.option("--for", "component", type=options.Choice(COMPONENTS),
                 help="Component whose maintainers get it.  [default: from the failed call and stacks]"),
    click.option("--check", "checks", multiple=True, metavar="CHECK",
                 help="Only findings of this check; may be repeated.  [default: all failures]"),
    click.option("--also", type=options.FilePath(), multiple=True, metavar="FILE",
                 help="An additional report, job or inventory, for example the other node's."),
    click.option("--before", type=options.FilePath(), metavar="FILE",
                 help="An earlier report, without the failure."),
    click.option("--add", type=options.FilePath(), multiple=True, metavar="FILE",
                 help="A file to attach, such as nvidia-bug-report.log.gz."),
    click.option("--logs", type=options.FilePath(), metavar="DIR",
                 help="The directory given to check --keep-logs."),
    click.option("--bundle", type=options.FilePath(), metavar="FILE",
                 help="Also write a .tar.zst or .tar.gz with ticket, documents, stacks and logs."),
    click.option("--anonymise", is_flag=True, help="Replace hosts, users, addresses and paths, everywhere."),
    click.option("--hide", "words", multiple=True, metavar="WORD",
                 help="With --anonymise, also replace this word."),
)  # fmt: skip


@click.command()
@click.argument("file", type=options.FilePath())
@formats.options(
    ("matrix", "html", "markdown", "junit", "prometheus", "nvsentinel", "device-taint", "ticket", "c"),
    "Format for a terminal, a browser, a ticket system, CI, Prometheus' node_exporter (textfile), NVSentinel "
    "(HealthEvents) or Kubernetes (DeviceTaintRule); ticket, a bug report; or c, a program that reproduces "
    "the failure. The options below are for a ticket.",
    json="",
)
@click.option(
    "--verbose", "-v", is_flag=True, help="In the matrix, show each check, also passed and skipped."
)
@click.option(
    "--output",
    type=options.FilePath(),
    metavar="FILE",
    help="Write to FILE instead of printing, completely or not at all.",
)
@_of_ticket
@click.pass_context
def command(
    ctx: click.Context, /, *, file: Path, form: str, verbose: bool, output: Path | None, **asked: Any
) -> None:
    """Print a saved report.

    FILE is written by `gpuipc-doctor check --output FILE`; for a ticket also by `gpuipc-doctor job --save
    FILE`. The exit code tells whether the report could be read, not its result.
    """
    from gpuipc_doctor.report import kubernetes_exports, node_content, node_exports

    if form == "ticket":
        if output is not None:
            raise click.UsageError("--output does not go with --format ticket; use --bundle, or > FILE", ctx)
        from gpuipc_doctor.cli import ticket

        ticket.write(ctx, file, **asked)
        return
    if given := [each for each in ctx.command.params if asked.get(each.name or "")]:
        raise click.UsageError(f"{given[0].opts[0]} needs --format ticket", ctx)
    if form == "c":
        text = _program(file)
    else:
        writers: dict[str, formats.Writer] = {
            "matrix": partial(node_content.screen, verbose=verbose, file=str(file)),
            "markdown": node_content.ticket,
            "html": node_exports.html,
            "junit": node_exports.junit,
            "prometheus": node_exports.prometheus,
            "nvsentinel": kubernetes_exports.health_events,
            "device-taint": kubernetes_exports.device_taint,
        }
        text = formats.text(saved.report(file), form, writers)
    if output is None:
        click.echo(text, nl=False)
        return
    with options.naming_option("--output", f"cannot write {output}"):
        # The textfile collector's directory is often below one of prometheus's.
        OutputFile(output, is_foreign=True).write(text)


def _program(file: Path) -> str:
    """A C program that reproduces the failure. Raises `click.UsageError`."""
    from gpuipc_doctor.histories import c_drivers, documents

    try:
        return documents.program(documents.reproducer(saved.report(file)))
    except (documents.BadHistory, c_drivers.NotInC) as error:
        raise click.UsageError(f"{file}: {error}") from error
