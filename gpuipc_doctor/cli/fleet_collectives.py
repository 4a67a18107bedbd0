"""``gpuipc-doctor fleet collectives``: collectives over many nodes, every element compared."""

from __future__ import annotations

import os
import secrets
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gpuipc_doctor.cli import check_options, fleet_check, fleet_reach, options, run_as
from gpuipc_doctor.cli.check_options import CheckOptions
from gpuipc_doctor.cli.stdio import say
from gpuipc_doctor.model import Exit

if TYPE_CHECKING:
    from gpuipc_doctor.fleet.collective_head import Head
    from gpuipc_doctor.fleet.collective_types import RoundResult
    from gpuipc_doctor.fleet.summary import NodeReport

CHECK = "collective-data"
"""The check whose options and libraries the nodes use."""

JOIN_S = 120.0
"""Seconds, after those of --patience, until nodes have started, found their GPUs and reached this host."""

ROUND_S = 120.0

LONGEST_S = 3600.0
"""Seconds for the whole run, without --budget."""

SSH_PER_S = 50.0

ROOT = (
    "as root, name a user for the ranks: -- --user NAME. NCCL's ranks believe whoever reaches their ports "
    "while they start (SECURITY.md)"
)


@click.command(context_settings={"ignore_unknown_options": True})
@fleet_reach.options_of
@click.option(
    "--into", type=options.FilePath(), required=True, metavar="DIR", help="Directory for the results."
)
@click.option(
    "--address",
    default="",
    metavar="ADDRESS",
    help="This host's address for the nodes.  [default: those by which it reaches the nodes]",
)
@click.option(
    "--largest",
    type=click.IntRange(8, 4 << 30),
    default=256 << 20,
    show_default=True,
    metavar="BYTES",
    help="Largest buffer.",
)
@click.argument("check_options_", nargs=-1, type=click.UNPROCESSED, metavar="[-- CHECK OPTIONS]...")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    into: Path,
    address: str,
    largest: int,
    check_options_: tuple[str, ...],
    **reaching: Any,
) -> None:
    """Run NCCL's or RCCL's collectives over many nodes, and compare every element on every rank.

    One process a node runs a rank on each GPU; ranks meet over NCCL's unique id, which this host hands out.
    --deadline is that of a round, by default 120 s. Arguments after `--` are those of `check
    collective-data`: --nccl-lib, --device, --user.
    """
    from gpuipc_doctor.files import writing
    from gpuipc_doctor.supervise import process_limits, scratch

    reach = fleet_reach.Reach(**reaching)
    words = _without_user(check_options_)
    way = replace(reach.way(CHECK, *words), deadline_s=reach.budget or LONGEST_S)
    refuse_root(words == list(check_options_) and "--simulate" not in words)
    wanted = reach.wanted()
    if ctx.get_parameter_source("deadline") is ParameterSource.DEFAULT:
        reach = replace(reach, deadline=ROUND_S)
    if len(wanted) < 2:
        raise click.UsageError("name at least two nodes; one alone: gpuipc-doctor check collective-data")
    with options.naming_option("--into", str(into)):
        writing.make_directory(into)
    process_limits.raise_soft()  # a descriptor for each node
    found = _Gathered(wanted)
    with scratch.directory(scratch.usual(), 1 << 16) as private:
        secret = secrets.token_bytes(32)
        given = private / "secret"
        given.touch(mode=0o600)
        given.write_bytes(secret)
        from gpuipc_doctor.fleet import collective_head

        try:
            head = collective_head.Head(wanted, secret, address)
        except OSError as error:
            raise click.UsageError(f"--address {address}: {error.strerror or error}") from None
        at = [f"[{one}]" if ":" in one else one for one in collective_head.addresses(wanted, address)]
        heads = ",".join(f"{one}:{head.port}" for one in at)
        node = [*fleet_reach.tool_of(reach.tool), "fleet", "take-part", "--head", heads, CHECK]
        way = replace(
            fleet_check.within_limits(way, reach.partition, None, "--budget"),
            command=(*node, *check_options_),
            fanout=max(reach.fanout, len(wanted)),  # all of them run at the same time
            rate=min(way.rate, SSH_PER_S),
            given=given,
            names="--called",
            at_interruption=head.close,
        )
        work = threading.Thread(target=_run, args=(head, found, reach, largest), daemon=True)
        work.start()
        interrupted = False
        try:
            fleet_check.ask_all(wanted, way, found)
        except KeyboardInterrupt:
            interrupted = True
            head.close()
        found.all_told.set()
        work.join()
    # A process that has ended by itself has said why; its connection only shows that it has.
    found.lacking |= {node: found.absent.get(node, why) for node, why in found.lost.items()}
    found.save(into)
    click.echo(found.text())
    ctx.exit(Exit.INTERRUPTED if interrupted else found.exit_code)


def refuse_root(may: bool) -> None:
    """Raises `click.UsageError` as root, unless another user was named."""
    if may and os.geteuid() == 0:
        raise click.UsageError(ROOT)


def _without_user(words: Sequence[str]) -> list[str]:
    """The words without ``--user NAME``, which `check` has beside the options that `check_options` knows."""
    left, skip = [], False
    for word in words:
        if skip or word.startswith("--user="):
            skip = False
        elif word == "--user":
            skip = True
        else:
            left.append(word)
    return left


class _Gathered:
    """What nodes' launchers and rounds have told."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self.nodes = nodes
        self.absent: dict[str, str] = {}
        """Node whose process has ended → its last words."""
        self.rounds: list[RoundResult] = []
        self.lacking: dict[str, str] = {}
        """Node that takes no part → why."""
        self.lost: dict[str, str] = {}
        self.all_told = threading.Event()

    def started(self, name: str) -> None: ...

    def finished(self, report: NodeReport, full: bytes) -> None:
        self.absent[report.node] = report.reason

    def save(self, into: Path) -> None:
        import msgspec

        from gpuipc_doctor.files import writing

        text = msgspec.json.format(msgspec.json.encode({"rounds": self.rounds, "absent": self.lacking}))
        writing.write(into / "collectives.json", text + b"\n")

    def text(self) -> str:
        lines = []
        for done in self.rounds:
            for group in done.groups:
                what = "passed" if group.passed else "not passed"
                rate = f", {group.bus / 1e9:.3g} GB/s bus bandwidth" if group.bus else ""
                lines.append(f"{done.round.name}: {','.join(group.group.nodes)}: {what}{rate}")
                for rank in group.ranks:
                    for wrong in rank.wrong[:1]:
                        lines.append(f"  {rank.node} rank {rank.rank}: {wrong.operation}: {wrong.says}")
                    if rank.operation:
                        said = f": {rank.failure}" if rank.failure else ""
                        lines.append(
                            f"  {rank.node} rank {rank.rank}: {rank.ending.value} in {rank.operation}{said}"
                        )
        lines += [f"{node}: {why}" for node, why in self.lacking.items()]
        return "\n".join(lines)

    @property
    def exit_code(self) -> Exit:
        if not all(group.passed for done in self.rounds for group in done.groups):
            return Exit.FAIL
        return Exit.ERROR if self.lacking or not self.rounds else Exit.OK


def _run(head: Head, found: _Gathered, reach: fleet_reach.Reach, largest: int) -> None:
    """Gather the nodes, run rounds, let the nodes go."""
    from gpuipc_doctor.fleet.collective_head import Closed
    from gpuipc_doctor.fleet.collective_types import SIZES, Group, Round

    try:
        joined = head.gather(lambda: found.absent, reach.patience + JOIN_S)
        able = [node for node in found.nodes if node in joined and not joined[node].lacks]
        found.lacking |= {node: one.lacks for node, one in joined.items() if one.lacks}
        sizes = tuple(size for size in SIZES if size <= largest) or (8,)
        if len(able) > 1:
            each = tuple(Group((node,)) for node in able)
            limits: Mapping[str, Any] = {"sizes": sizes, "deadline_s": reach.deadline}
            found.rounds.append(head.meet(Round("each node alone", each, **limits)))
            found.rounds.append(head.meet(Round("all together", (Group(tuple(able)),), **limits)))
    except Closed:
        pass
    finally:
        found.lost = dict.fromkeys(set(found.nodes) - set(head.joined), "no answer") | head.lost
        head.dismiss()


@click.command("take-part", hidden=True)
@click.option("--head", "heads", required=True, metavar="ADDRESS:PORT,…")
@click.option("--called", default="", metavar="NODE")
@click.option("--user", is_eager=True, expose_value=False, callback=run_as.user)
@check_options.add
def take_part(heads: str, called: str, **given: Any) -> None:
    """A node's process: `fleet collectives` starts it and writes the run's secret to its standard input."""
    from gpuipc_doctor import node_name
    from gpuipc_doctor.cli.progress import Silent
    from gpuipc_doctor.fleet import collective_node, secret_line
    from gpuipc_doctor.run.standing import standing
    from gpuipc_doctor.supervise import tree

    secret = sys.stdin.buffer.read(secret_line.SECRET_BYTES)
    asked = CheckOptions(**given)
    refuse_root(not asked.simulate)
    config = asked.site_config()
    stop = threading.Event()
    name = called or node_name.full()
    try:
        line = collective_node.reach(heads.split(","), secret, name)
        with (
            options.node(asked.simulate) as node,
            tree.interruptible(stop.set),
            standing(asked.request(config), config, node, Silent()) as ready,
        ):
            collective_node.serve(line, ready, name, stop)
    except (collective_node.NoHead, secret_line.NotOurs) as error:
        say(str(error))
        sys.exit(Exit.ERROR)
    except OSError as error:
        say(f"the head of this run was lost: {error.strerror or error}")
        sys.exit(Exit.ERROR)
