"""``gpuipc-doctor diagnose``: which known issues logs and stacks show, and what to do about them."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click

from gpuipc_doctor import knownissues
from gpuipc_doctor.cli import options, reading
from gpuipc_doctor.diagnose import text
from gpuipc_doctor.diagnose.diagnosis import Recognised
from gpuipc_doctor.diagnose.examination import Examination
from gpuipc_doctor.diagnose.exits import Exit, code
from gpuipc_doctor.diagnose.reading import diagnose
from gpuipc_doctor.diagnose.sources import STDIN
from gpuipc_doctor.report.page import MAX_WIDTH, MIN_WIDTH, Page

_SLOW_BYTES = 50_000_000
"""More than this without a fast search is worth a word."""

_EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {exit_.value:<4} {exit_.meaning}" for exit_ in Exit)


@click.command(epilog=_EPILOG)
@click.argument("files", nargs=-1, metavar="[FILE | -]...", type=click.Path(allow_dash=True))
@click.option(
    "--follow", "-f", is_flag=True, help="Go on reading what is added, until Ctrl-C, as tail -F does."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--inventory",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="What `gpuipc-doctor inventory --json` said of the node that wrote the logs.",
)
@click.option("--strict", is_flag=True, help="Exit with 10 when there are only hints.")
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With a site's own known issues.",
)
def command(
    files: tuple[str, ...],
    follow: bool,
    as_json: bool,
    inventory: Path | None,
    strict: bool,
    config_file: Path | None,
) -> None:
    """Find known issues in logs and stacks, and say what to do about them.

    Reads what MPI libraries, libfabric, UCX, NCCL, Slurm and the kernel print, and what gdb says of a
    process; also compressed with gzip, xz, bzip2 or zstd. Without FILE, and for -, reads standard input.
    """
    if not files and sys.stdin.isatty():
        raise click.UsageError("name a log, or pipe one in")
    issues = knownissues.load(options.site_config(config_file).known_issues_dirs)
    known = reading.inventory(inventory) if inventory else ()
    examination = Examination(issues)
    for skipped in examination.index.skipped:
        _say(f"not looked for: {skipped}")
    width = min(max(shutil.get_terminal_size().columns, MIN_WIDTH), MAX_WIDTH)
    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def news(one: Recognised) -> None:
        if follow and not as_json:
            click.echo("\n".join([*text.paragraph(one, Page(width, color)), ""]))

    diagnosis = diagnose(files or (STDIN,), examination, known=known, follow=follow, say=_say, news=news)
    if (
        examination.index.patterns.search().engine == "re"
        and sum(log.bytes for log in diagnosis.logs) > _SLOW_BYTES
    ):
        _say("this is many times faster after pip install 'gpuipc-doctor[logs]'")
    exit_code = code(diagnosis, strict=strict)
    if as_json:
        from gpuipc_doctor.diagnose import document

        click.echo(document.dumps(diagnosis, exit_code=exit_code), nl=False)
    else:
        click.echo(text.render(diagnosis, width=width, color=color, exit_code=exit_code), nl=False)
    raise SystemExit(exit_code)


def _say(line: str) -> None:
    from gpuipc_doctor.report.text import sanitise

    click.echo(f"gpuipc-doctor: {sanitise(line)}", err=True)
