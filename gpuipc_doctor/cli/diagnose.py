"""``gpuipc-doctor diagnose``: find known issues in logs and stacks, with workarounds."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gpuipc_doctor import knownissues
from gpuipc_doctor.cli import formats, options, saved
from gpuipc_doctor.cli.stdio import say
from gpuipc_doctor.diagnose import diagnosis_content
from gpuipc_doctor.diagnose.diagnosis import Recognised
from gpuipc_doctor.diagnose.examination import Entry, Examination
from gpuipc_doctor.diagnose.exits import MEANINGS, code
from gpuipc_doctor.diagnose.readers import diagnose
from gpuipc_doctor.diagnose.sources import STDIN
from gpuipc_doctor.present import terminal

_EPILOG = "\b\nExit codes:\n" + "\n".join(
    f"  {code_.value:<4} {meaning}" for code_, meaning in MEANINGS.items()
)


@click.command(epilog=_EPILOG)
@click.argument("files", nargs=-1, metavar="[FILE | -]...", type=click.Path(allow_dash=True))
@click.option("--follow", "-f", is_flag=True, help="Continue with appended lines until Ctrl-C, like tail -F.")
@formats.options(
    ("screen", "markdown", "html"), "Format for a terminal, a ticket or a browser.", json="Print JSON."
)
@click.option("--verbose", "-v", is_flag=True, help="Show every kind of line, all hosts and all ranks.")
@click.option(
    "--inventory",
    type=options.FilePath(),
    metavar="FILE",
    help="Inventory (`gpuipc-doctor inventory --json`) or report of the node that wrote the logs.",
)
@click.option("--strict", is_flag=True, help="Exit with 10 if there are only hints or unexplained errors.")
@options.config("Add a site's own known issues.")
def command(
    files: tuple[str, ...],
    follow: bool,
    form: str,
    verbose: bool,
    inventory: Path | None,
    strict: bool,
    config_file: Path | None,
) -> None:
    """Find known issues in logs and stacks, with workarounds.

    Reads messages of MPI libraries, libfabric, UCX, NCCL, Slurm and the kernel, stacks of gdb, and dumps of
    PyTorch's Flight Recorder and debug server. Also reads compressed files (gzip, xz, bzip2, zstd), archives
    (tar, zip), UTF-16, and JSON of systemd's journal and of containers. Compares dumps with each other.
    Compares logs with each other if their names differ only in numbers. In a directory, reads the logs below
    it, newest first. Without FILE, and for -, reads standard input.
    """
    formats.require(form)
    if not files and sys.stdin.isatty():
        raise click.UsageError("name a log, or pipe one in")
    dirs = options.site_config(config_file).known_issues_dirs
    entries: list[Entry] = [*knownissues.load(dirs), *knownissues.load_messages(dirs)]
    known = saved.inventory(inventory) if inventory else ()
    examination = Examination(entries)
    for skipped in examination.skipped:
        say(f"known issue not searched for: {skipped}")
    page = formats.page()
    again = options.config_again(config_file)
    brief, full = (
        each._replace(config=again) for each in (diagnosis_content.BRIEF, diagnosis_content.VERBOSE)
    )

    def news(one: Recognised) -> None:
        if follow and form == "screen":
            click.echo(terminal.screen([diagnosis_content.entry(one, brief)], **page))

    diagnosis = diagnose(files or (STDIN,), examination, known=known, follow=follow, say=say, news=news)
    if all(not log.bytes and not log.trouble for log in diagnosis.logs):
        where = ", ".join(files) or "standard input"
        say(f"{where}: no text to search, because nothing in it is a log; name a log or its directory")
    exit_code = code(diagnosis, strict=strict)
    limits = full if verbose else brief
    if form == "json":
        text = diagnosis_content.dumps(diagnosis, exit_code=exit_code, edition=knownissues.edition(dirs))
    elif form == "html":
        text = diagnosis_content.html(diagnosis, exit_code=exit_code, limits=full)
    elif form == "markdown":
        text = diagnosis_content.ticket(diagnosis, exit_code=exit_code, limits=limits)
    elif all(log.trouble and not log.bytes for log in diagnosis.logs):
        text = ""  # standard error has it
    else:
        text = diagnosis_content.screen(diagnosis, exit_code=exit_code, limits=limits, **page)
    click.echo(text, nl=False)
    raise SystemExit(exit_code)
