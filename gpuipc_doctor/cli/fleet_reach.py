"""The nodes and how to reach them: options shared by `fleet check` and `fleet pairs`."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from gpuipc_doctor.cli import options
from gpuipc_doctor.files import python

if TYPE_CHECKING:
    from gpuipc_doctor.fleet.ask import LaunchOptions, Shipped, Via
    from gpuipc_doctor.run.request import Request
    from gpuipc_doctor.site.config import SiteConfig


options_of = options.table(
    click.option(
        "-w",
        "--nodes",
        "nodes",
        metavar="NODES",
        help="A node set: nid[0001-0128], @gpu, x[1-3]c[0-7].",
        shell_complete=options.complete_nodes,
    ),
    click.option("-p", "--partition", metavar="NAME", help="The nodes of this Slurm partition."),
    click.option("--reservation", metavar="NAME", help="The nodes of this reservation."),
    click.option("--all-idle", is_flag=True, help="All nodes that are idle in Slurm."),
    click.option(
        "--via",
        type=click.Choice(["auto", "slurm", "flux", "ssh"]),
        default="auto",
        show_default=True,
        help="How to reach the nodes. auto uses flux inside a Flux instance, "
        "otherwise slurm if srun is found, otherwise ssh.",
    ),
    click.option(
        "--fanout",
        type=click.IntRange(1, 4096),
        default=64,
        show_default=True,
        help="Number of commands (ssh, srun) at a time.",
    ),
    options.seconds("--budget", "Time limit for the whole fleet.  [default: none]"),
    click.option(
        "--rate",
        type=click.FloatRange(0.01),
        default=10.0,
        show_default=True,
        help="Jobs and steps to start per second with Slurm or Flux.",
    ),
    options.seconds("--deadline", "Time limit for each node.", default=600.0, show_default=True),
    options.seconds(
        "--patience",
        "Seconds to wait for a node that is busy, drained or down.",
        default=30.0,
        show_default=True,
    ),
    click.option(
        "--launch-option",
        "launch_options",
        multiple=True,
        metavar="OPTION",
        help="Option for srun or ssh, added unchanged after the site config's options.",
    ),
    click.option(
        "--tool",
        metavar="PATH",
        help="Path of gpuipc-doctor on the nodes.  [default: same path as on this node]",
    ),
)
"""The options that select nodes and the way to reach them."""


@dataclass(frozen=True)
class Reach:
    """The values of the options that select nodes and the way to reach them."""

    nodes: str | None
    partition: str | None
    reservation: str | None
    all_idle: bool
    via: str
    fanout: int
    rate: float
    deadline: float
    budget: float | None
    patience: float
    launch_options: tuple[str, ...]
    tool: str | None

    def way(self, *command: str, adds: Sequence[str] = (), shipped: Shipped | None = None) -> LaunchOptions:
        """The way to run `check` on each node: with the installed tool, or with a copy sent to the node.

        ``adds``: arguments added for each target. Raises `click.UsageError` for options that each node would
        refuse, and `BadFile` for an invalid site config.
        """
        from gpuipc_doctor.cli import check_options
        from gpuipc_doctor.fleet import ask

        asked = check_options.parsed([*command, *adds])
        asked.refuse_contradictions()
        if asked.dry_run:
            raise click.UsageError("`fleet` has no --dry-run; use it with `check` on one node")
        site = options.site_config(asked.config_file)
        _look_up(asked.request(site), site)
        via = ask.Via(via_of(self.via))
        job = os.environ.get("SLURM_JOB_ID", "") if via is via.SLURM else ""
        return ask.LaunchOptions(
            via=via,
            command=(*([] if shipped else tool_of(self.tool)), "check", *command),
            fanout=self.fanout,
            rate=math.inf if via is via.SSH else self.rate,
            deadline_s=self.deadline,
            budget_s=self.budget or math.inf,
            patience_s=self.patience,
            options=(*self._of_site(site, via, in_job=bool(job)), *self.launch_options),
            job=job,
            shipped=shipped,
        )

    def site(self, *command: str) -> SiteConfig:
        """The site config of this host, or the one in the command's ``--config``."""
        from gpuipc_doctor.cli import check_options

        return options.site_config(check_options.parsed(command).config_file)

    def _of_site(self, site: SiteConfig, via: Via, *, in_job: bool) -> Iterator[str]:
        """Options for ssh, Flux or a job from the site config; for a job, also partition and reservation."""
        if via is not via.SLURM:
            yield from site.fleet.get(via.value, ())
        elif via is via.SLURM and not in_job:
            yield from site.fleet.get("srun", ())
            for name in ("partition", "reservation"):
                if value := getattr(self, name):
                    yield f"--{name}={value}"

    def wanted(self) -> list[str]:
        """The selected nodes. Raises `click.UsageError`."""
        from gpuipc_doctor.fleet import nodeset
        from gpuipc_doctor.site import hosts

        if via_of(self.via) == "flux":
            named = self.nodes or _fluxs_nodes(self.partition, self.reservation, self.all_idle)
        else:
            named = self.nodes or _slurms_nodes(self.partition, self.reservation, self.all_idle)
        try:
            return nodeset.expand(named)
        except hosts.BadNodes as error:
            raise click.UsageError(str(error)) from None


def _look_up(request: Request, site: SiteConfig) -> None:
    """Check a request as each node would. Raises `click.UsageError`.

    A check that only the nodes' own site config adds is unknown here and also refused.
    """
    from gpuipc_doctor.run.planner import Planner
    from gpuipc_doctor.run.request import NothingToSend, UnknownName
    from gpuipc_doctor.site.layers import SITE_FILE

    try:
        Planner(request, site)
    except UnknownName as error:
        own = f"for a site's check, set checks_dirs in {SITE_FILE}, or in FILE and add `-- --config FILE`"
        raise click.UsageError(f"{error} ({own})") from None
    except NothingToSend as error:
        raise click.UsageError(str(error)) from None


def switches_of_site(site: SiteConfig, nodes: Sequence[str]) -> dict[str, str]:
    """Node → switch, according to the site config. Raises `click.UsageError`."""
    from gpuipc_doctor.site import hosts

    found: dict[str, str] = {}
    for switch, named in site.topology.items():
        try:
            found |= dict.fromkeys(hosts.expand(named), switch)
        except hosts.BadNodes as error:
            raise click.UsageError(f"topology.{switch} of the site config: {error}") from None
    return {node: found[node] for node in nodes if node in found}


def via_of(asked: str) -> str:
    if asked != "auto":
        return asked
    if "FLUX_URI" in os.environ and shutil.which("flux"):
        return "flux"
    return "slurm" if shutil.which("srun") else "ssh"


def tool_of(path: str | None) -> tuple[str, ...]:
    """Command that starts this tool on the nodes: the one used here, or the path in ``--tool``."""
    return (path,) if path else tuple(python.module("gpuipc_doctor"))


def _slurms_nodes(partition: str | None, reservation: str | None, all_idle: bool) -> str:
    from gpuipc_doctor.fleet import slurm

    if not (partition or reservation or all_idle):
        if around := os.environ.get("SLURM_JOB_NODELIST"):
            return around
        raise click.UsageError("name the nodes: -w NODES, --partition, --reservation or --all-idle")
    try:
        found = slurm.nodes_of(partition=partition, reservation=reservation, all_idle=all_idle)
    except slurm.Refused as error:
        raise click.UsageError(f"{error}; or name the nodes with -w") from None
    if not found:
        what = [("partition", partition), ("reservation", reservation)]
        named = " and ".join(f"{kind} {name}" for kind, name in what if name)
        idle = "idle nodes" if all_idle else "nodes"
        raise click.UsageError(f"Slurm has no {idle}{f' in {named}' if named else ''}; see `sinfo`")
    return found


def _fluxs_nodes(queue: str | None, reservation: str | None, all_idle: bool) -> str:
    """Nodes selected by Flux: those of a queue, by default of the instance. Raises `click.UsageError`."""
    from gpuipc_doctor.fleet import flux, slurm

    if reservation:
        raise click.UsageError(
            "Flux has no reservations; name a queue with --partition, or the nodes with -w"
        )
    try:
        found = flux.nodes_of(queue=queue, all_idle=all_idle)
    except slurm.Refused as error:
        raise click.UsageError(f"{error}; or name the nodes with -w") from None
    if not found:
        raise click.UsageError("Flux has no such nodes; see `flux resource list`")
    return found
