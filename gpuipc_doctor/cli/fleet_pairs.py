"""``gpuipc-doctor fleet pairs``: tell bad nodes from bad links."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from gpuipc_doctor.cli import fleet_reach
from gpuipc_doctor.cli.stdio import redraw
from gpuipc_doctor.model import Exit, Status
from gpuipc_doctor.present.text import counted, sanitise
from gpuipc_doctor.report import sentences

if TYPE_CHECKING:
    from gpuipc_doctor.fleet.pairs import Rounds
    from gpuipc_doctor.fleet.partners import Blame
    from gpuipc_doctor.site.config import SiteConfig

UNTRIED = "most links between switches were not tested, since neighbours are paired first; add --across"
"""Note on a PASS without ``--across``."""

SHOWN_PAIRS = 8
"""Maximum lines for failed pairs, and for pairs without an answer."""


@click.command(context_settings={"ignore_unknown_options": True})
@fleet_reach.options_of
@click.option(
    "--across",
    is_flag=True,
    help="Pair nodes from different halves of the list first, so that messages cross switches.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("check_options", nargs=-1, type=click.UNPROCESSED, metavar="[-- CHECK OPTIONS]...")
@click.pass_context
def command(
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
    from gpuipc_doctor.fleet import slurm
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
    topology = slurm.leaves(wanted, printed) or _of_site(reach.site(*check_options), wanted)
    wanted = slurm.ordered(wanted, printed) if printed else _by_switch(wanted, topology)
    found, told = try_all(wanted, way, _say_progress, topology, across=across)
    untried = _untried(found, across=across)
    shown = _pairs_as_json if as_json else _pairs_as_text
    click.echo(shown(wanted, found, told, untried))
    if found.nodes or found.pairs or found.cut or found.links:
        ctx.exit(Exit.FAIL)
    ctx.exit(Exit.ERROR if found.unclear or found.silent or found.suspected else Exit.OK)


def _untried(found: Blame, *, across: bool) -> str:
    """What a PASS did not test; empty if it tested everything."""
    from gpuipc_doctor.fleet.nodeset import NodeSetFormatter

    parts = [] if across else [UNTRIED]
    if found.uncrossed:
        parts.append(f"no link out of {NodeSetFormatter(found.uncrossed).fold(found.uncrossed)} was tested")
    return "; ".join(parts)


def _verdict(wanted: Sequence[str], found: Blame) -> dict[str, str]:
    from gpuipc_doctor.fleet.nodeset import NodeSetFormatter

    folder = NodeSetFormatter(wanted)
    certain = [each for each in found.cut if each.is_certain]

    def joined(pairs: Sequence[tuple[str, str]]) -> str:
        return ", ".join(f"{one} - {other}" for one, other in pairs)

    return {
        "bad switches": folder.fold(each.switch for each in certain),
        "nodes behind bad switches": folder.fold(node for each in certain for node in each.nodes),
        "switches cut off, or with only bad nodes": ", ".join(
            f"{each.switch} ({folder.fold(each.nodes)})" for each in found.cut if not each.is_certain
        ),
        "perhaps cut off": folder.fold(found.suspected),
        "bad links between switches": _sides(found.links),
        "bad nodes": folder.fold(found.nodes),
        "bad pairs": joined(found.pairs),
        "unstable nodes": folder.fold(found.unstable),
        "flaky pairs": joined(found.flaky),
        "cannot tell": folder.fold(found.unclear),
        "no answer": folder.fold(found.silent),
    }


def _sides(links: Sequence[tuple[str, str]]) -> str:
    """All links in one line, grouped by the switches at their ends: ``s[1-4] - t1``."""
    from gpuipc_doctor.fleet.nodeset import NodeSetFormatter

    folder = NodeSetFormatter(sorted({switch for link in links for switch in link}))
    others: dict[str, set[str]] = {}
    for one, other in links:
        others.setdefault(one, set()).add(other)
    sides: dict[tuple[str, ...], list[str]] = {}
    if links and not set(others) & {other for _, other in links}:
        sides[tuple(sorted({other for _, other in links}))] = sorted(others)
    else:
        for one, those in others.items():
            sides.setdefault(tuple(sorted(those)), []).append(one)
    return "; ".join(f"{folder.fold(ones)} - {folder.fold(those)}" for those, ones in sides.items())


def _of_site(site: SiteConfig, nodes: Sequence[str]) -> dict[str, str]:
    """Node → switch, according to the site config. Raises `click.UsageError`."""
    from gpuipc_doctor.site import hosts

    found: dict[str, str] = {}
    for switch, named in site.topology.items():
        try:
            found |= dict.fromkeys(hosts.expand(named), switch)
        except hosts.BadNodes as error:
            raise click.UsageError(f"topology.{switch} of the site config: {error}") from None
    return {node: found[node] for node in nodes if node in found}


def _by_switch(nodes: Sequence[str], topology: Mapping[str, str]) -> list[str]:
    """Nodes grouped by switch, in the given order; nodes without a switch at the end."""
    places = {switch: place for place, switch in enumerate(dict.fromkeys(topology.values()))}
    return sorted(nodes, key=lambda node: places.get(topology.get(node, ""), len(places)))


def _pairs_as_json(wanted: Sequence[str], found: Blame, told: Rounds, untried: str) -> str:
    counts = {"nodes": len(wanted), "rounds": len(told.runs), "runs": sum(map(len, told.runs))}
    return json.dumps({**counts, **_verdict(wanted, found), "not tried": untried}, indent=2)


def _pairs_as_text(wanted: Sequence[str], found: Blame, told: Rounds, untried: str) -> str:
    runs = sum(map(len, told.runs))
    lines = [f"{len(wanted)} nodes, {counted(runs, 'pair')} tested in {counted(len(told.runs), 'round')}"]
    verdict = {what: which for what, which in _verdict(wanted, found).items() if which}
    lines += [f"{what}: {which}" for what, which in verdict.items()] or ["all pairs pass"]
    for (one, other), report in list(told.failed.items())[:SHOWN_PAIRS]:
        worst = next(r.finding for r in report.results if r.finding.status is Status.FAIL)
        lines.append(f"{one} - {other}: {sentences.summary(worst)}")
    lines += [
        f"{one} - {other}: no answer: {why}" for (one, other), why in list(told.silent.items())[:SHOWN_PAIRS]
    ]
    if untried:
        lines.append(untried)
    return "\n".join(map(sanitise, lines))


def _say_progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        redraw(f"{done}/{total} pairs of this round", last=done == total)
