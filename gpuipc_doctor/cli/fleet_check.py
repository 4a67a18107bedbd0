"""``gpuipc-doctor fleet check``: run checks on ten or ten thousand nodes."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuipc_doctor.cli import fleet_reach, fleet_report, options
from gpuipc_doctor.cli.stdio import redraw, say
from gpuipc_doctor.model import Exit, Status
from gpuipc_doctor.present.text import counted

if TYPE_CHECKING:
    from gpuipc_doctor.fleet.ask import LaunchOptions, Listener
    from gpuipc_doctor.fleet.summary import NodeReport

BLOCK = 128
"""Nodes per job. Azure's distributed health check loses all results above some 300 nodes and advises 110."""

ENDING_S = 10.0
"""Seconds reserved for the job's end before a partition's time limit."""


@click.command(context_settings={"ignore_unknown_options": True})
@fleet_reach.options_of
@click.option(
    "--into", type=options.FilePath(), required=True, metavar="DIR", help="Directory for the reports."
)
@click.option(
    "--ship",
    type=options.FilePath(exists=True, dir_okay=False, resolve_path=True),
    metavar="FILE",
    help="Copy this gpuipc-doctor.pyz (`make zipapp`) to each node and run it.",
)
@click.option(
    "--ship-to",
    default="/tmp",  # noqa: S108 - there a file is made that was none
    show_default=True,
    metavar="DIR",
    help="With --ship: directory for the copy on each node.",
)
@click.option(
    "--python", default="", metavar="PATH", help="With --ship: Python (with GPU bindings) on each node."
)
@click.option(
    "--full", is_flag=True, help="Also collect the full report of healthy nodes, not only their summary."
)
@click.option(
    "--block",
    type=click.IntRange(1, 4096),
    metavar="N",
    help="Maximum number of nodes per job.  [default: 128, or the partition's limit]",
)
@click.option("--resume", is_flag=True, help="Run only on nodes that have no report in DIR.")
@click.argument("check_options", nargs=-1, type=click.UNPROCESSED, metavar="[-- CHECK OPTIONS]...")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    into: Path,
    ship: Path | None,
    ship_to: str,
    python: str,
    full: bool,
    block: int | None,
    resume: bool,
    check_options: tuple[str, ...],
    **reaching: Any,
) -> None:
    """Run `gpuipc-doctor check` on every node, collect the reports in DIR, and print them merged.

    Arguments after `--` go to `check`, by default --all. Nodes: -w, or a Slurm partition, reservation or all
    idle nodes; by default those of the current allocation.
    """
    from gpuipc_doctor.fleet import directory
    from gpuipc_doctor.fleet.ask import Shipped, Via
    from gpuipc_doctor.fleet.ssh_gateways import BadTopology
    from gpuipc_doctor.fleet.summary import State

    reach = fleet_reach.Reach(**reaching)
    shipped = Shipped(ship, ship_to, python) if ship else None
    way = reach.way(*(check_options or ("--all",)), "--summary", *["--json"] * full, shipped=shipped)
    if shipped and way.via is Via.FLUX:
        raise click.UsageError("--ship does not work with Flux; give the tool's path with --tool")
    wanted = reach.wanted()
    way = within_limits(way, reach.partition, block)
    progress, interrupted, shown = _Progress(into, wanted), False, True
    try:
        with directory.ours(into):
            known, _ = directory.read(into)
            done = {report.node for report in known if report.state is State.REPORTED}
            if done and not resume:
                reports = counted(len(done), "report")
                raise click.UsageError(f"{into} has {reports} already; name a new directory, or add --resume")
            if not resume:
                directory.forget_silent(into, known)
            progress = _Progress(into, directory.lacking(wanted, done))
            ask_all(progress.nodes, way, progress)
    except KeyboardInterrupt:
        interrupted = True
    except (directory.InUse, BadTopology) as error:
        raise click.UsageError(str(error)) from None
    except FileExistsError:
        raise click.UsageError(f"--into: {into} is a file; name a directory") from None
    except OSError as error:
        raise click.UsageError(f"{error.filename or into}: {error.strerror or error}") from None
    reason = "the run was interrupted before the node answered" if interrupted else "the node was not reached"
    try:
        code = fleet_report.tell(into, wanted, reason=reason, unsaved=progress.unsaved)
    except KeyboardInterrupt:
        shown = False
    _end(into, interrupted, shown)
    if interrupted or not shown:
        ctx.exit(Exit.INTERRUPTED)
    ctx.exit(code)


def _end(into: Path, interrupted: bool, shown: bool) -> None:
    """Say how to go on after an interruption."""
    if interrupted:
        words = sys.argv[1:]
        again = shlex.join(
            ["gpuipc-doctor", *words[:2], *["--resume"] * ("--resume" not in words), *words[2:]]
        )
        say(f"interrupted; for the nodes without a report, run: {again}")
    elif not shown:
        say(f"interrupted; to see the reports, run: gpuipc-doctor fleet report {shlex.quote(str(into))}")


class _Progress:
    """Saves each report as it arrives, and shows progress on a terminal."""

    def __init__(self, into: Path, nodes: Sequence[str]) -> None:
        self._into = into
        self.nodes = nodes
        self._total = len(nodes)
        self.unsaved: list[NodeReport] = []
        """Reports that did not fit into the directory."""
        self._running: dict[str, float] = {}
        self._done = self._bad = self._silent = 0
        self._shows = sys.stderr.isatty()

    def started(self, node: str) -> None:
        import time

        self._running[node] = time.monotonic()
        self._show()

    def finished(self, report: NodeReport, full: bytes) -> None:
        from gpuipc_doctor.fleet import directory
        from gpuipc_doctor.fleet.summary import State

        try:
            directory.save(self._into, report, full)
        except OSError as error:
            if not self.unsaved:
                say(f"{self._into}: {error.strerror or error}: further reports are shown but not saved")
            self.unsaved.append(report)
        self._running.pop(report.node, None)
        self._done += 1
        if report.state is not State.REPORTED:
            self._silent += 1
        elif report.status in (Status.FAIL, Status.ERROR):
            self._bad += 1
        self._show()

    def _show(self) -> None:
        import time

        if not self._shows:
            return
        longest = min(self._running, key=lambda node: self._running[node], default="")
        waits = f", {longest} for {time.monotonic() - self._running[longest]:.0f} s" if longest else ""
        line = (
            f"{self._done}/{self._total} done, {len(self._running)} running{waits}; "
            f"{self._bad} bad, {self._silent} without a report"
        )
        redraw(line, last=self._done == self._total)


def within_limits(
    way: LaunchOptions, partition: str | None, block: int | None, option: str = "--deadline"
) -> LaunchOptions:
    """The options within the partition's limits on jobs; a shortened deadline is reported."""
    from dataclasses import replace

    from gpuipc_doctor.fleet import slurm
    from gpuipc_doctor.fleet.ask import Via

    way = replace(way, block=block or BLOCK)
    if way.via is not Via.SLURM or way.job:
        return way
    limits = slurm.limits(partition)
    way = replace(way, block=int(min(way.block, limits.nodes)), job_limit_s=limits.seconds)
    if way.deadline_s > limits.seconds - ENDING_S:
        shorter = max(limits.seconds - ENDING_S, limits.seconds / 2)
        say(f"partition {limits.partition} ends jobs after {limits.seconds:g} s: using {option} {shorter:g}")
        way = replace(way, deadline_s=shorter)
    return way


def ask_all(nodes: Sequence[str], way: LaunchOptions, progress: Listener) -> None:
    """Run the command on each node, in the way that suits its launcher."""
    from gpuipc_doctor.fleet import ask, node_blocks, slurm, ssh_gateways
    from gpuipc_doctor.fleet.slurm import Readiness
    from gpuipc_doctor.fleet.summary import State, silent

    if not nodes:
        return
    if way.via is ask.Via.SSH and not way.shipped and ssh_gateways.is_laid_out():
        ssh_gateways.ask(nodes, way, progress)
    elif way.via is ask.Via.SSH or (way.shipped and way.job):
        ask.ask([ask.Target.of_node(node) for node in nodes], way, progress)
    elif way.via is ask.Via.FLUX or way.job:
        node_blocks.ask(nodes, way, progress)
    else:
        states = slurm.states()
        by_readiness: dict[Readiness, list[str]] = {each: [] for each in Readiness}
        for node in nodes:
            by_readiness[states[node][0] if node in states else Readiness.BUSY].append(node)
        for node in by_readiness[Readiness.GONE]:
            progress.finished(silent(node, State.NOT_LAUNCHED, states[node][1]), b"")
        node_blocks.ask(by_readiness[Readiness.READY], way, progress, apart=by_readiness[Readiness.BUSY])
