"""``gpuipc-doctor job``: which rank of a running job waits for which. Nothing is stopped."""

from __future__ import annotations

from pathlib import Path

import click

from gpuipc_doctor.cli import formats, options
from gpuipc_doctor.model import Exit


@click.command()
@click.option("--pid", "pids", type=click.IntRange(min=1), multiple=True, metavar="PID",
              help="A rank, or the launcher above it; may be repeated.")  # fmt: skip
@click.option(
    "--slurm", metavar="JOBID[.STEP]", default="", help="The processes of a Slurm job on this node."
)
@click.option("--user", metavar="NAME", default="", help="The ranks and GPU programs of this user.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--save", type=options.FilePath(), metavar="FILE", help="Also write the JSON to FILE.")
@click.pass_context
def command(
    ctx: click.Context, *, pids: tuple[int, ...], slurm: str, user: str, as_json: bool, save: Path | None
) -> None:
    """Find out which rank of a running job waits for which.

    Reads /proc, samples stacks and reads Python frames, several times within five seconds. No process is
    stopped, traced or signalled. Without an option, every rank on this node and every process that has a GPU
    open is looked at. Root sees all processes, a user his own.

    \b
    Exit codes:
      0   nothing is stuck
      2   usage
      3   no such job on this node
      11  it cannot be told
      12  something is stuck
    """
    from gpuipc_doctor.inventory import variables
    from gpuipc_doctor.job import document, job_content
    from gpuipc_doctor.job.document import Cause
    from gpuipc_doctor.job.examination import examine
    from gpuipc_doctor.job.looking import Watcher, look_repeatedly
    from gpuipc_doctor.job.selection import NoSuchJob, Request, select
    from gpuipc_doctor.present.terminal import screen
    from gpuipc_doctor.present.text import sanitise
    from gpuipc_doctor.supervise import scratch

    if sum(map(bool, (pids, slurm, user))) > 1:
        raise click.UsageError("--pid, --slurm and --user exclude each other", ctx)
    if slurm and not all(part.isdecimal() for part in slurm.split(".", 1)):
        raise click.BadParameter(f"{slurm!r} is no JOBID or JOBID.STEP", ctx, param_hint="--slurm")
    try:
        chosen = select(Request(pids, slurm, user))
    except NoSuchJob as absent:
        click.echo(f"gpuipc-doctor: {sanitise(str(absent))}", err=True)
        ctx.exit(Exit.NOTHING)
    with scratch.directory(scratch.usual()) as place:
        watcher = Watcher(chosen, place, frozenset(variables.load()))
        report = examine(look_repeatedly(watcher), watcher.unable)
    text = document.dumps(report)
    if save:
        with options.blaming("--save", f"cannot write {save}"):
            save.write_text(text, encoding="utf-8")
    if as_json:
        click.echo(text, nl=False)
    else:
        click.echo(screen(job_content.blocks(report), **formats.page()), nl=False)
    ctx.exit({Cause.RUNS: Exit.OK, Cause.UNKNOWN: Exit.ERROR}.get(report.verdict.cause, Exit.FAIL))
