"""``gpuipc-doctor job``: which rank of a running job waits for which. By default nothing is stopped."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuipc_doctor.cli import fleet_reach, formats, options
from gpuipc_doctor.files import writing
from gpuipc_doctor.model import Exit
from gpuipc_doctor.supervise import scratch, tree

if TYPE_CHECKING:
    from gpuipc_doctor.job.document import JobReport


class Duration(click.ParamType[float]):
    """Seconds, given as ``90``, ``90s``, ``5m`` or ``1h``."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        stated = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", value)
        seconds = float(stated[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[stated[2]] if stated else 0.0
        if not SHORTEST_S <= seconds <= LONGEST_S:
            self.fail(f"{value!r} is not a time from 5s to 24h", param, ctx)
        return seconds


SHORTEST_S, LONGEST_S = 5.0, 24 * 3600.0


@click.command()
@click.option("--pid", "pids", type=click.IntRange(min=1), multiple=True, metavar="PID",
              help="Process id of a rank or of its launcher. May be repeated.")  # fmt: skip
@click.option("--slurm", metavar="JOBID[.STEP]", default="", help="A Slurm job or step, on all of its nodes.")
@click.option("--user", metavar="NAME", default="", help="The ranks and GPU programs of this user.")
@click.option("--gpu", metavar="cuda:N", default="",
              help="The jobs that use this GPU (numbered in PCI order).")  # fmt: skip
@click.option("-w", "--nodes", metavar="NODES", default="", help="Examine these nodes (a node set).")
@click.option("--this-node", is_flag=True, help="With --slurm, examine only this node.")
@click.option("--part", is_flag=True, hidden=True)
@click.option("--via", type=click.Choice(["auto", "slurm", "flux", "ssh"]), default="auto", show_default=True,
              help="How to reach the nodes. auto uses flux inside a Flux instance, "
                  "otherwise slurm if srun is found, otherwise ssh.")  # fmt: skip
@click.option(
    "--tool", metavar="PATH", help="Path of gpuipc-doctor on the nodes.  [default: same path as on this node]"
)
@click.option("--launch-option", "launch_options", multiple=True, metavar="OPTION",
              help="Option for srun or ssh, passed unchanged. May be repeated.")  # fmt: skip
@click.option("--stacks", is_flag=True,
              help="Read native stacks: stops one process at a time, up to 2 s per snapshot.")  # fmt: skip
@click.option("--for", "seconds", type=Duration(), metavar="SECONDS", default=0.0,
              help="After the snapshots, watch each process for growth for this time (60s, 5m).")  # fmt: skip
@click.option(
    "--ras",
    is_flag=True,
    help="Also query NCCL's RAS service: in some versions this can crash the job.",
)
@click.option("--arm", is_flag=False, flag_value="script", metavar="[script|taskprolog]",
              type=click.Choice(["script", "taskprolog"]),
              help="Print variables that make a hang of a later job easier to "
                  "diagnose, for the libraries found here, and exit.")  # fmt: skip
@click.option("--watch", is_flag=True, help="Renew the screen until Ctrl-C.")
@options.seconds("--deadline", "Time limit for each node.", default=180.0, show_default=True)
@click.option("--since", "since_file", type=options.FilePath(), metavar="FILE",
              help="Show changes since an earlier run's JSON (--save).")  # fmt: skip
@click.option("--save", type=options.FilePath(), metavar="FILE", help="Also write the JSON to FILE.")
@formats.options(["table", "markdown", "html", "json"], "Format for people, a ticket, a browser or programs.")
@click.pass_context
def command(
    ctx: click.Context,
    *,
    pids: tuple[int, ...],
    slurm: str,
    user: str,
    gpu: str,
    nodes: str,
    this_node: bool,
    part: bool,
    via: str,
    tool: str | None,
    launch_options: tuple[str, ...],
    stacks: bool,
    seconds: float,
    ras: bool,
    arm: str | None,
    watch: bool,
    deadline: float,
    since_file: Path | None,
    save: Path | None,
    form: str,
) -> None:
    """Find out which rank of a running job waits for which.

    Reads /proc, samples stacks and reads Python frames, several times within five seconds. Without --stacks,
    no process is stopped, traced or signalled. By default it examines every rank on this node and every
    process with an open GPU. Root sees all processes, a user only their own.

    \b
    Exit codes:
      0   nothing is stuck or grows
      2   usage
      3   no such job
      11  cannot tell
      12  something is stuck or grows
    """
    ctx.with_resource(tree.prioritised())  # before the imports: ranks that wait may take every processor
    from gpuipc_doctor.job import document, here, job_content
    from gpuipc_doctor.job.gpu_holders import LABEL
    from gpuipc_doctor.job.progress import since
    from gpuipc_doctor.job.selection import NoSuchJob, Request, SeveralJobs
    from gpuipc_doctor.present.text import sanitise
    from gpuipc_doctor.site.hosts import BadNodes
    from gpuipc_doctor.stacks import code

    if sum(map(bool, (pids, slurm, user, gpu))) > 1:
        raise click.UsageError("--pid, --slurm, --user and --gpu exclude each other: give only one", ctx)
    if nodes and pids:
        raise click.UsageError("--pid is for this node only: omit -w, or use --slurm or --user", ctx)
    if slurm and not all(part.isdecimal() for part in slurm.split(".", 1)):
        raise click.BadParameter(f"{slurm!r} is not a JOBID or JOBID.STEP", ctx, param_hint="--slurm")
    if gpu and not LABEL.fullmatch(gpu):
        raise click.BadParameter(f"{gpu!r} is not a GPU such as cuda:0 or hip:1", ctx, param_hint="--gpu")
    if arm:
        click.echo("\n".join(_armed(arm)))
        return
    earlier = _saved(since_file) if since_file else None
    asked = ["--slurm", slurm] * bool(slurm) + ["--user", user] * bool(user) + ["--gpu", gpu] * bool(gpu)
    asked += ["--stacks"] * stacks + ["--ras"] * ras + (["--for", str(seconds)] if seconds else [])

    def examined(request: Request) -> JobReport:
        where: list[str] | None = []
        if (nodes or slurm) and not this_node:
            from gpuipc_doctor.fleet.ask import LaunchOptions, Via
            from gpuipc_doctor.job import nodes as job_nodes

            where = job_nodes.wanted(nodes, slurm)
        if where:
            way = LaunchOptions(
                via=Via(fleet_reach.via_of(via)),
                command=(*fleet_reach.tool_of(tool), "job", "--this-node", "--part", "--json", *asked),
                deadline_s=deadline + seconds,
                options=launch_options,
                job=slurm.partition(".")[0] or os.environ.get("SLURM_JOB_ID", ""),
            )
            report = job_nodes.ask(where, way)
        else:
            code.wait_at_most(deadline / 4)
            with scratch.directory(scratch.usual()) as place:
                report = here.report(request, gpu, place, stops=stacks, asks_ras=ras, watches_s=seconds)
        if where is None:
            alone = {"other nodes of the job": "squeue does not list them; name them with -w"}
            report = replace(report, unable={**report.unable, **alone})
        if report.ranks and not part:  # of a merged report, they are found in the whole
            report = _with_issues(report)
        return replace(report, since=since(earlier, report)) if earlier else report

    def reports() -> list[JobReport]:
        """One report, or one for each job on this node, if a screen is asked for."""
        try:
            return [examined(Request(pids, slurm, user))]
        except SeveralJobs as several:
            if not several.jobs or save or earlier or part or form not in ("table", "markdown"):
                raise
            return [examined(Request(pids=job)) for job in several.jobs]

    found: list[JobReport] = []
    try:
        while True:
            found = reports()
            if save:
                with options.naming_option("--save", f"cannot write {save}"):
                    writing.write(save, document.dumps(found[0]))
            page = "\n".join(formats.text(report, form, job_content, document) for report in found)
            if watch:
                click.clear()
            click.echo(page, nl=False)
            if not watch:
                break
            time.sleep(WATCH_S)
    except BadNodes as bad:
        raise click.BadParameter(str(bad), param_hint="-w") from None
    except NoSuchJob as absent:
        click.echo(f"gpuipc-doctor: {sanitise(str(absent))}", err=True)
        ctx.exit(Exit.NOTHING)
    except SeveralJobs as several:
        raise click.UsageError(sanitise(str(several)), ctx) from None
    except KeyboardInterrupt:
        if not watch:
            raise
    ctx.exit(max((_exit(report) for report in found), default=Exit.ERROR))


WATCH_S = 5.0
"""Seconds between two screens of ``--watch``."""


def _exit(report: JobReport) -> Exit:
    from gpuipc_doctor.job.document import Cause

    cause = report.verdict.cause
    return Exit.OK if cause is Cause.RUNS else Exit.ERROR if cause.is_open else Exit.FAIL


def _saved(file: Path) -> JobReport:
    from gpuipc_doctor.cli import saved

    return saved.job(file)


def _with_issues(report: JobReport) -> JobReport:
    from gpuipc_doctor import knownissues
    from gpuipc_doctor.job import issues

    known = knownissues.load(options.site_config(None).known_issues_dirs)
    found = tuple(issues.matching(report, known))
    return replace(report, issues=found, wrong_settings=issues.wrong_settings(report.ranks))


def _armed(how: str) -> list[str]:
    from gpuipc_doctor.node import arming
    from gpuipc_doctor.node.inventory import facts_from_files, of_modules

    make = arming.script if how == "script" else arming.task_prolog
    return list(make((*of_modules("/"), *facts_from_files("/", os.environ))))
