"""``gpuipc-doctor job``: which rank of a running job waits for which. By default nothing is stopped."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.core import ParameterSource

from gpuipc_doctor.cli import fleet_reach, formats, options
from gpuipc_doctor.files import writing
from gpuipc_doctor.model import Exit
from gpuipc_doctor.present.text import sanitise
from gpuipc_doctor.supervise import scratch, tree

if TYPE_CHECKING:
    from gpuipc_doctor.fleet.ask import LaunchOptions
    from gpuipc_doctor.job.document import JobReport
    from gpuipc_doctor.job.selection import Request


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


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """The values of the options."""

    pids: tuple[int, ...]
    slurm: str
    user: str
    gpu: str
    nodes: str
    this_node: bool
    part: bool
    via: str
    tool: str | None
    launch_options: tuple[str, ...]
    stacks: bool
    seconds: float
    ras: bool
    arm: str | None
    watch: bool
    deadline: float
    since_file: Path | None
    save: Path | None
    sweep: bool
    config_file: Path | None
    form: str

    def refuse_contradictions(self) -> None:
        """Raise `click.UsageError` for values that contradict each other or are malformed."""
        from gpuipc_doctor.job.gpu_holders import LABEL

        ctx = click.get_current_context()
        if sum(map(bool, (self.pids, self.slurm or self.user, self.gpu))) > 1:
            raise click.UsageError("--pid, --gpu and --slurm or --user exclude each other; give one", ctx)
        if self.nodes and self.pids:
            raise click.UsageError("--pid is for this node only: omit -w, or use --slurm or --user", ctx)
        if self.slurm and not all(part.isdecimal() for part in self.slurm.split(".", 1)):
            raise click.BadParameter(
                f"{self.slurm!r} is not a JOBID or JOBID.STEP", ctx, param_hint="--slurm"
            )
        if self.gpu and not LABEL.fullmatch(self.gpu):
            raise click.BadParameter(
                f"{self.gpu!r} is not a GPU such as cuda:0 or hip:1", ctx, param_hint="--gpu"
            )

    @property
    def way(self) -> LaunchOptions:
        """How other nodes examine their part of the job."""
        from gpuipc_doctor.fleet.ask import LaunchOptions, Via

        asked = ["--slurm", self.slurm] * bool(self.slurm) + ["--user", self.user] * bool(self.user)
        asked += ["--gpu", self.gpu] * bool(self.gpu)
        asked += ["--stacks"] * self.stacks + ["--ras"] * self.ras
        asked += ["--for", str(self.seconds)] if self.seconds else []
        return LaunchOptions(
            via=Via(fleet_reach.via_of(self.via)),
            command=(*fleet_reach.tool_of(self.tool), "job", "--this-node", "--part", "--json", *asked),
            deadline_s=self.deadline + self.seconds,
            options=self.launch_options,
            job=self.slurm.partition(".")[0] or os.environ.get("SLURM_JOB_ID", ""),
        )


@click.command()
@click.option("--pid", "pids", type=click.IntRange(min=1), multiple=True, metavar="PID",
              help="Process id of a rank or of its launcher. May be repeated.")  # fmt: skip
@click.option("--slurm", metavar="JOBID[.STEP]", default="", help="A Slurm job or step, on all of its nodes.")
@click.option(
    "--user",
    metavar="NAME",
    default="",
    help="The ranks and GPU programs of this user; with --slurm, of that job.",
)
@click.option("--gpu", metavar="cuda:N", default="",
              help="The jobs that use this GPU (numbered in PCI order).")  # fmt: skip
@click.option("-w", "--nodes", metavar="NODES", default="", help="Examine these nodes (a node set).",
              shell_complete=options.complete_nodes)  # fmt: skip
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
@click.option("--sweep", is_flag=True,
              help="For a timer: examine jobs whose GPUs look stuck in several calls; one line.")  # fmt: skip
@options.config("Site config, or a shipped one's name; overrides /etc/gpuipc-doctor/site.yaml.")
@formats.options(["table", "markdown", "html", "json"], "Format for people, a ticket, a browser or programs.")
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
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
    if given["sweep"]:
        _sweep(ctx, given["config_file"])
    ctx.with_resource(tree.prioritised())  # before the imports: ranks that wait may take every processor
    from gpuipc_doctor.job.selection import NoSuchJob, SeveralJobs
    from gpuipc_doctor.site.hosts import BadNodes

    asked = JobOptions(**given)
    asked.refuse_contradictions()
    if asked.arm:
        click.echo("\n".join(_armed(asked.arm)))
        return
    found: list[JobReport] = []
    try:
        for found in _reports(asked):
            _print(asked, found)
    except BadNodes as bad:
        raise click.BadParameter(str(bad), param_hint="-w") from None
    except NoSuchJob as absent:
        click.echo(f"gpuipc-doctor: {sanitise(str(absent))}", err=True)
        ctx.exit(Exit.NOTHING)
    except SeveralJobs as several:
        raise click.UsageError(sanitise(str(several)), ctx) from None
    except KeyboardInterrupt:
        if not asked.watch:
            raise
    ctx.exit(max((_exit(report) for report in found), default=Exit.ERROR))


def _sweep(ctx: click.Context, config_file: Path | None) -> NoReturn:
    """Print the sweep's line. Without an examination, little is imported: a timer pays for it."""
    from gpuipc_doctor.job.sweep import Sweep

    named = {name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    if named - {"sweep", "config_file"}:
        raise click.UsageError("--sweep goes with --config only", ctx)
    config = options.site_config(config_file)

    def examine(pids: tuple[int, ...]) -> list[JobReport]:
        from gpuipc_doctor.job import here
        from gpuipc_doctor.job.selection import NoSuchJob, Request, SeveralJobs

        def examined(job: tuple[int, ...]) -> JobReport:
            try:
                with tree.prioritised(), scratch.directory(scratch.usual()) as place:
                    return here.report(Request(pids=job), "", place)
            except scratch.NoPlace as full:
                raise NoSuchJob(str(full)) from None

        try:
            return [examined(pids)]
        except SeveralJobs as several:  # that share the GPU by MPS
            return [examined(job) for job in several.jobs]

    code, line = Sweep(config.sweep, config.job.late_after_s, examine).run()
    click.echo(f"gpuipc-doctor: {sanitise(line)}")
    ctx.exit(code)


def _reports(asked: JobOptions) -> Iterator[list[JobReport]]:
    """The report, or one for each job on this node if a screen is asked for; again with --watch."""
    from gpuipc_doctor.job.selection import Request, SeveralJobs

    earlier = None
    if asked.since_file:
        from gpuipc_doctor.cli import saved

        earlier = saved.job(asked.since_file)
    while True:
        try:
            yield [_examined(asked, Request(asked.pids, asked.slurm, asked.user), earlier)]
        except SeveralJobs as several:
            is_screen = asked.form in ("table", "markdown") and not (asked.save or earlier or asked.part)
            if not several.jobs or not is_screen:
                raise
            yield [_examined(asked, Request(pids=job), None) for job in several.jobs]
        if not asked.watch:
            return
        time.sleep(WATCH_S)


def _examined(asked: JobOptions, request: Request, earlier: JobReport | None) -> JobReport:
    """The report of a job: of this node, or of all nodes that the options name."""
    from gpuipc_doctor.job import here
    from gpuipc_doctor.job.progress import with_second_look
    from gpuipc_doctor.stacks import code

    where: list[str] | None = []
    if (asked.nodes or asked.slurm) and not asked.this_node:
        from gpuipc_doctor.job import nodes as job_nodes

        where = job_nodes.wanted(asked.nodes, asked.slurm)
    if where:
        report = job_nodes.ask(where, asked.way)
    else:
        code.wait_at_most(asked.deadline / 4)
        with scratch.directory(scratch.usual()) as place:
            report = here.report(
                request, asked.gpu, place, stops=asked.stacks, asks_ras=asked.ras, watches_s=asked.seconds
            )
    if where is None:
        alone = {"other nodes of the job": "squeue does not list them; name them with -w"}
        report = replace(report, unable={**report.unable, **alone})
    if report.ranks and not asked.part:  # of a merged report, they are found in the whole
        report = _with_issues(report, asked.config_file)
    if earlier is None:
        return report
    return with_second_look(earlier, report, options.site_config(asked.config_file).job.late_after_s)


def _print(asked: JobOptions, found: list[JobReport]) -> None:
    from gpuipc_doctor.job import document, job_content

    if asked.save:
        with options.naming_option("--save", f"cannot write {asked.save}"):
            writing.write(asked.save, document.dumps(found[0]))
    writers: dict[str, formats.Writer] = {
        "table": job_content.screen,
        "markdown": job_content.ticket,
        "html": job_content.html,
        "json": document.dumps,
    }
    if asked.save and asked.form != "json":
        writers = {form: partial(writer, saved=str(asked.save)) for form, writer in writers.items()}
    page = "\n".join(formats.text(report, asked.form, writers) for report in found)
    if asked.watch:
        click.clear()
    click.echo(page, nl=False)


WATCH_S = 5.0
"""Seconds between two screens of ``--watch``."""


def _exit(report: JobReport) -> Exit:
    from gpuipc_doctor.job.document import Cause

    cause = report.verdict.cause
    return Exit.OK if cause is Cause.RUNS else Exit.ERROR if cause.is_open else Exit.FAIL


def _with_issues(report: JobReport, config_file: Path | None) -> JobReport:
    from gpuipc_doctor import knownissues
    from gpuipc_doctor.job import issues

    known = knownissues.load(options.site_config(config_file).known_issues_dirs)
    found = tuple(issues.matching(report, known))
    return replace(report, issues=found, wrong_settings=issues.wrong_settings(report.ranks))


def _armed(how: str) -> list[str]:
    from gpuipc_doctor.node import arming
    from gpuipc_doctor.node.inventory import facts_from_files, of_modules

    make = arming.script if how == "script" else arming.task_prolog
    return list(make((*of_modules("/"), *facts_from_files("/", os.environ))))
