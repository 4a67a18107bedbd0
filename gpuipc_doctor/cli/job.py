"""``gpuipc-doctor job``: which rank of a running job waits for which. By default nothing is stopped."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuipc_doctor.cli import fleet_reach, formats, options
from gpuipc_doctor.model import Exit

if TYPE_CHECKING:
    from gpuipc_doctor.fleet.ask import LaunchOptions
    from gpuipc_doctor.job.document import JobReport
    from gpuipc_doctor.job.selection import Request

_MAX_BYTES = 64 << 20
"""Of an earlier report."""


class Duration(click.ParamType[float]):
    """Seconds, as ``90``, ``90s``, ``5m`` or ``1h``."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        stated = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", value)
        seconds = float(stated[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[stated[2]] if stated else 0.0
        if not SHORTEST_S <= seconds <= LONGEST_S:
            self.fail(f"{value!r} is no time from 5s to 24h", param, ctx)
        return seconds


SHORTEST_S, LONGEST_S = 5.0, 24 * 3600.0


@click.command()
@click.option("--pid", "pids", type=click.IntRange(min=1), multiple=True, metavar="PID",
              help="A rank, or the launcher above it; may be repeated.")  # fmt: skip
@click.option("--slurm", metavar="JOBID[.STEP]", default="", help="A Slurm job or step, on all of its nodes.")
@click.option("--user", metavar="NAME", default="", help="The ranks and GPU programs of this user.")
@click.option("--gpu", metavar="cuda:N", default="",
              help="The processes that use this GPU, in PCI order, and the jobs they belong to.")  # fmt: skip
@click.option("-w", "--nodes", metavar="NODES", default="", help="Look on these nodes, a node set.")
@click.option("--this-node", is_flag=True, help="With --slurm, look on this node only.")
@click.option("--via", type=click.Choice(["auto", "slurm", "ssh"]), default="auto", show_default=True,
              help="How to reach the nodes. auto: slurm if srun is found.")  # fmt: skip
@click.option("--tool", metavar="PATH", help="gpuipc-doctor on the nodes.  [default: this one]")
@click.option("--launch-option", "launch_options", multiple=True, metavar="OPTION",
              help="For srun or ssh, as it stands; may be repeated.")  # fmt: skip
@click.option("--stacks", is_flag=True,
              help="Stop each process for up to 2 s at each look, one at a time, for its stack.")  # fmt: skip
@click.option("--for", "seconds", type=Duration(), metavar="SECONDS", default=0.0,
              help="Then watch for so long (60s, 5m) what grows in each process.")  # fmt: skip
@click.option(
    "--ras", is_flag=True, help="Ask NCCL's RAS service whatever its version; old ones may crash the job."
)
@click.option("--arm", is_flag=False, flag_value="script", metavar="[script|taskprolog]",
              type=click.Choice(["script", "taskprolog"]),
              help="Print what the next job should have set, for the versions here, and end.")  # fmt: skip
@options.seconds("--deadline", "For each node.", default=180.0, show_default=True)
@click.option("--since", "since_file", type=options.FilePath(), metavar="FILE",
              help="Say what has moved since the JSON of an earlier call.")  # fmt: skip
@click.option("--save", type=options.FilePath(), metavar="FILE", help="Also write the JSON to FILE.")
@formats.options(["table", "markdown", "html", "json"], "For people, a ticket, a browser or programs.")
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
    via: str,
    tool: str | None,
    launch_options: tuple[str, ...],
    stacks: bool,
    seconds: float,
    ras: bool,
    arm: str | None,
    deadline: float,
    since_file: Path | None,
    save: Path | None,
    form: str,
) -> None:
    """Find out which rank of a running job waits for which.

    Reads /proc, samples stacks and reads Python frames, several times within five seconds. Without --stacks,
    no process is stopped, traced or signalled. Without --pid and its like, every rank on this node and every
    process that has a GPU open is looked at. Root sees all processes, a user his own.

    \b
    Exit codes:
      0   nothing is stuck or grows
      2   usage
      3   no such job
      11  it cannot be told
      12  something is stuck or grows
    """
    from gpuipc_doctor import knownissues
    from gpuipc_doctor.job import document, issues, job_content
    from gpuipc_doctor.job import nodes as job_nodes
    from gpuipc_doctor.job.document import Cause
    from gpuipc_doctor.job.progress import since
    from gpuipc_doctor.job.selection import NoSuchJob, Request, SeveralJobs
    from gpuipc_doctor.present.text import sanitise

    if sum(map(bool, (pids, slurm, user, gpu))) > 1:
        raise click.UsageError("--pid, --slurm, --user and --gpu exclude each other", ctx)
    if nodes and pids:
        raise click.UsageError("a pid is one of this node: leave out -w, or name --slurm or --user", ctx)
    if slurm and not all(part.isdecimal() for part in slurm.split(".", 1)):
        raise click.BadParameter(f"{slurm!r} is no JOBID or JOBID.STEP", ctx, param_hint="--slurm")
    if gpu and not re.fullmatch(r"(cuda|nvidia|hip|amd):\d+", gpu):
        raise click.BadParameter(f"{gpu!r} is no GPU such as cuda:0 or hip:1", ctx, param_hint="--gpu")
    if arm:
        click.echo("\n".join(_armed(arm)))
        return
    earlier = _earlier(since_file) if since_file else None
    request = Request(pids, slurm, user)
    asked = ["--slurm", slurm] * bool(slurm) + ["--user", user] * bool(user) + ["--gpu", gpu] * bool(gpu)
    asked += ["--stacks"] * stacks + ["--ras"] * ras + (["--for", str(seconds)] if seconds else [])
    means = Means(stacks, ras, seconds)
    try:
        where = _nodes(nodes, slurm, this_node=this_node)
        if where:
            way = _way(
                via, tool, launch_options, deadline + seconds, ["job", "--this-node", "--json", *asked]
            )
            if slurm:
                way = job_nodes.within_job(way, slurm)
            report = _of_nodes(where, way)
        else:
            report = _of_this_node(request, gpu, means)
        if where is None:
            alone = {"other nodes of the job": "squeue does not say which they are; name them with -w"}
            report = replace(report, unable={**report.unable, **alone})
    except NoSuchJob as absent:
        click.echo(f"gpuipc-doctor: {sanitise(str(absent))}", err=True)
        ctx.exit(Exit.NOTHING)
    except SeveralJobs as several:
        raise click.UsageError(sanitise(str(several)), ctx) from None
    found = tuple(issues.matching(report, knownissues.load(options.site_config(None).known_issues_dirs)))
    report = replace(report, issues=found, wrong_settings=issues.wrong_settings(report.ranks))
    if earlier:
        report = replace(report, since=since(earlier, report))
    text = document.dumps(report)
    if save:
        with options.naming_option("--save", f"cannot write {save}"):
            save.write_text(text, encoding="utf-8")
    click.echo(formats.text(report, form, job_content, document), nl=False)
    ctx.exit({Cause.RUNS: Exit.OK, Cause.UNKNOWN: Exit.ERROR}.get(report.verdict.cause, Exit.FAIL))


def _armed(how: str) -> list[str]:
    """The lines of ``--arm``, for the libraries on this node."""
    from gpuipc_doctor.inventory import facts_from_files
    from gpuipc_doctor.job import arming

    make = arming.script if how == "script" else arming.task_prolog
    return list(make(facts_from_files("/", os.environ)))


def _earlier(path: Path) -> JobReport:
    """The report in a file. Raises `BadFile`."""
    from gpuipc_doctor.job import document
    from gpuipc_doctor.report.documents import BadDocument
    from gpuipc_doctor.site import bounded
    from gpuipc_doctor.site.yamlfile import BadFile, Mistake

    try:
        return document.loads(bounded.read(path, _MAX_BYTES))
    except bounded.Unreadable as reason:
        raise BadFile([Mistake(path, 0, str(reason))]) from None
    except BadDocument as bad:
        raise BadFile([Mistake(path, 0, f"{bad}; write one with `gpuipc-doctor job --save FILE`")]) from None


def _nodes(named: str, slurm: str, *, this_node: bool) -> list[str] | None:
    """The nodes to ask: empty if only this one is to be looked at, None if Slurm does not say which.

    Raises `NoSuchJob`.
    """
    from gpuipc_doctor import node_name
    from gpuipc_doctor.fleet.nodeset import NAME
    from gpuipc_doctor.job import nodes
    from gpuipc_doctor.site import hosts

    if this_node:
        return []
    try:
        found = hosts.expand(named) if named else nodes.of_slurm_job(slurm) if slurm else []
    except hosts.BadNodes as error:
        raise click.BadParameter(str(error), param_hint="-w") from None
    for node in found:
        if not NAME.fullmatch(node):
            raise click.BadParameter(f"{node[:80]!r} is no name of a node", param_hint="-w")
    if slurm and not found:
        return None
    return found if named or found != [node_name.short()] else []


def _way(
    via: str, tool: str | None, options_: Sequence[str], deadline_s: float, command: Sequence[str]
) -> LaunchOptions:
    from gpuipc_doctor.fleet.ask import LaunchOptions, Via

    return LaunchOptions(
        via=Via(fleet_reach.via_of(via)),
        command=(*fleet_reach.tool_of(tool), *command),
        deadline_s=deadline_s,
        options=tuple(options_),
        job=os.environ.get("SLURM_JOB_ID", ""),
    )


def _of_nodes(nodes: Sequence[str], way: LaunchOptions) -> JobReport:
    """What the nodes report together. Raises `NoSuchJob`."""
    from gpuipc_doctor.job.merging import merge
    from gpuipc_doctor.job.nodes import ask
    from gpuipc_doctor.job.selection import NoSuchJob

    reports, silent = ask(nodes, way)
    if not reports:
        why = "; ".join(f"{node}: {reason}" for node, reason in list(silent.items())[:3])
        raise NoSuchJob(f"no process of the job on these {len(nodes)} nodes{': ' * bool(why)}{why}")
    return merge(reports, silent)


@dataclass(frozen=True)
class Means:
    """What is done beyond looking."""

    stops: bool
    asks_ras: bool
    watches_s: float


def _of_this_node(request: Request, gpu: str, means: Means) -> JobReport:
    """What is seen here. Raises `NoSuchJob` and `SeveralJobs`."""
    from gpuipc_doctor.inventory import variables
    from gpuipc_doctor.job import gpu_holders, growth, ras
    from gpuipc_doctor.job.examination import examine
    from gpuipc_doctor.job.looking import Watcher, by_rank, look_repeatedly
    from gpuipc_doctor.job.selection import Request, select
    from gpuipc_doctor.job.verdict import with_growth
    from gpuipc_doctor.supervise import scratch

    with options.node(None) as node:
        if gpu:
            request = Request(pids=gpu_holders.pids(gpu, node))
        chosen = select(request)
        with scratch.directory(scratch.usual()) as place:
            watcher = Watcher(chosen, place, frozenset(variables.load()), means.stops)
            looks = look_repeatedly(watcher)
        ranks = by_rank(looks[-1])
        report = replace(
            examine(looks, watcher.unable),
            stopped=means.stops,
            ras=ras.lines(ranks.values(), ask=means.asks_ras),
        )
        if not means.watches_s:
            return report
        grown = growth.watch(ranks, means.watches_s, lambda: gpu_holders.memory(node))
    verdict = with_growth(report.verdict, grown)
    return replace(report, watched_s=means.watches_s, growth=grown, verdict=verdict)
