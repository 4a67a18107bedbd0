"""``gpuipc-doctor fleet``: run one command on many nodes; ``fleet pairs``: tell bad nodes from bad links."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from gpuipc_doctor.cli import fleet_check, fleet_collectives, fleet_reach, fleet_report
from gpuipc_doctor.cli.stdio import redraw
from gpuipc_doctor.model import Exit


@click.group(
    commands={
        "check": fleet_check.command,
        "collectives": fleet_collectives.command,
        "compare": fleet_report.compare,
        "report": fleet_report.report,
        "take-part": fleet_collectives.take_part,
    }
)
def command() -> None:
    """Run checks on many nodes, and find those that fail, differ or do not answer."""


@command.command(context_settings={"ignore_unknown_options": True})
@fleet_reach.options_of
@click.option(
    "--across",
    is_flag=True,
    help="Pair nodes from different halves of the list first, so that messages cross switches.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("check_options", nargs=-1, type=click.UNPROCESSED, metavar="[-- CHECK OPTIONS]...")
@click.pass_context
def pairs(
    ctx: click.Context, /, *, across: bool, as_json: bool, check_options: tuple[str, ...], **reaching: Any
) -> None:
    """Send messages between pairs of nodes, and find bad nodes and bad links.

    \b
      bad node    fails five times, with two or more partners that pass with others
      bad pair    fails five times, while both nodes pass with others
      bad switch  no message leaves it; its nodes are then not bad

    Neighbours are tried first, in the order of Slurm's topology, else of the site config's topology, else of
    the node set. Arguments after `--` go to `check mpi-small-message`. With `fabric-small-message`
    among them, each pair is also tried without MPI, and only without MPI on nodes that have none.
    """
    from gpuipc_doctor.fleet import pairs_content, slurm
    from gpuipc_doctor.fleet.ask import Via
    from gpuipc_doctor.fleet.pairs import arguments, try_all

    reach = fleet_reach.Reach(**reaching)
    way = reach.way(*check_options, adds=arguments("its-partner"))
    if way.via is Via.FLUX:
        raise click.UsageError("ranks on two nodes cannot be started by Flux here; try --via ssh")
    if way.via is Via.SLURM and not way.job:
        raise click.UsageError("ranks on two nodes need an allocation of both nodes: run salloc first")
    wanted = reach.wanted()
    if len(wanted) < 2:
        raise click.UsageError("name at least two nodes")
    printed = slurm.topology() if way.via is Via.SLURM else ""
    site = reach.site(*check_options)
    topology = slurm.leaves(wanted, printed) or fleet_reach.switches_of_site(site, wanted)
    wanted = slurm.ordered(wanted, printed) if printed else _by_switch(wanted, topology)
    found, told = try_all(wanted, way, _say_progress, topology, across=across)
    shown = pairs_content.as_json if as_json else pairs_content.as_text
    click.echo(shown(wanted, found, told, pairs_content.untried(found, across=across)))
    if found.nodes or found.pairs or found.cut or found.links:
        ctx.exit(Exit.FAIL)
    ctx.exit(Exit.ERROR if found.unclear or found.silent or found.suspected else Exit.OK)


def _by_switch(nodes: Sequence[str], topology: Mapping[str, str]) -> list[str]:
    """Nodes grouped by switch, in the given order; nodes without a switch at the end."""
    places = {switch: place for place, switch in enumerate(dict.fromkeys(topology.values()))}
    return sorted(nodes, key=lambda node: places.get(topology.get(node, ""), len(places)))


def _say_progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        redraw(f"{done}/{total} pairs of this round", last=done == total)
