"""``gpuipc-doctor fleet collectives``: collectives over many nodes, every element compared."""

from __future__ import annotations

import math
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gpuipc_doctor.cli import check_options, fleet_check, fleet_reach, formats, options, run_as
from gpuipc_doctor.cli.check_options import CheckOptions
from gpuipc_doctor.cli.stdio import redraw, say
from gpuipc_doctor.files import writing
from gpuipc_doctor.model import Exit
from gpuipc_doctor.present.text import counted

if TYPE_CHECKING:
    from gpuipc_doctor.fleet.ask import LaunchOptions
    from gpuipc_doctor.fleet.collective_head import Head
    from gpuipc_doctor.fleet.collective_report import Log
    from gpuipc_doctor.fleet.collective_types import Joined, RoundResult
    from gpuipc_doctor.fleet.summary import NodeReport
    from gpuipc_doctor.model import Finding

CHECK = "collective-data"
"""The check whose options and libraries the nodes use."""

JOIN_S = 120.0
"""Seconds, after those of --patience, until nodes have started, found their GPUs and reached this host."""

ROUND_S = 120.0

LONGEST_S = 3600.0
"""Seconds for the whole run, without --budget."""

ENDING_S = 30.0
"""Seconds of them for the end of the last round; also until the nodes' processes have ended after it."""

SIMULATED_LARGEST = 1 << 20
"""Of simulated nodes, whose CPU copies all: 256 MiB over three nodes of two GPUs took two cores minutes."""

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
    metavar="BYTES",
    help="Largest buffer.  [default: 256 MiB; of simulated nodes 1 MiB]",
)
@click.option("--resume", is_flag=True, help="Do not repeat the rounds that DIR has.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.argument("check_options_", nargs=-1, type=click.UNPROCESSED, metavar="[-- CHECK OPTIONS]...")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    into: Path,
    address: str,
    largest: int,
    resume: bool,
    as_json: bool,
    check_options_: tuple[str, ...],
    **reaching: Any,
) -> None:
    """Run NCCL's or RCCL's collectives over many nodes, compare every element, and name what fails.

    If all nodes together fail, hang or are slow, halves and suspects are tried until a node, a pair or a
    switch stands alone. `gpuipc-doctor report DIR/collectives.json` shows the result again, --format html
    as a page.

    One process a node runs a rank on each GPU; ranks meet over NCCL's unique id, which this host hands out.
    --deadline is that of a round, by default 120 s. Arguments after `--` are those of `check
    collective-data`: --nccl-lib, --device, --user.
    """
    from gpuipc_doctor.supervise import process_limits

    reach = fleet_reach.Reach(**reaching)
    words = _without_user(check_options_)
    way = replace(reach.way(CHECK, *words), deadline_s=reach.budget or LONGEST_S)
    simulated = check_options.parsed(words).simulate or ""
    refuse_root(words == list(check_options_) and not simulated)
    nodes = reach.wanted()
    if len(nodes) < 2:
        raise click.UsageError("name at least two nodes; one alone: gpuipc-doctor check collective-data")
    if _is_default(ctx, "deadline"):
        reach = replace(reach, deadline=ROUND_S)
    if simulated and _is_default(ctx, "largest"):
        largest = SIMULATED_LARGEST
    with options.naming_option("--into", str(into)):
        writing.make_directory(into)
    process_limits.raise_soft()  # a descriptor for each node
    found = _Gathered(nodes, _switches(nodes, reach, way, words), _log_of(into, resume=resume))
    with _meeting(nodes, address) as (head, secret):
        way = _taking_part(way, reach, nodes, address, check_options_, head, secret)
        interrupted = _examine(nodes, found, way, head, reach, largest)
    if found.mistake:
        raise found.mistake
    ctx.exit(found.tell(into, simulated, interrupted, as_json=as_json))


def _is_default(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.DEFAULT


def _switches(
    nodes: Sequence[str], reach: fleet_reach.Reach, way: LaunchOptions, words: Sequence[str]
) -> Mapping[str, str]:
    """Node → its switch, by Slurm or by the site config."""
    from gpuipc_doctor.fleet import slurm

    printed = slurm.topology() if way.via is way.via.SLURM else ""
    return slurm.leaves(nodes, printed) or fleet_reach.switches_of_site(reach.site(*words), nodes)


@contextmanager
def _meeting(nodes: Sequence[str], address: str) -> Iterator[tuple[Head, Path]]:
    """The head to which the nodes come, and a file with the run's secret. Raises `click.UsageError`."""
    from gpuipc_doctor.fleet import collective_head
    from gpuipc_doctor.supervise import scratch

    with scratch.directory(scratch.usual(), 1 << 16) as private:
        secret, file = secrets.token_bytes(32), private / "secret"
        file.touch(mode=0o600)
        file.write_bytes(secret)
        try:
            head = collective_head.Head(nodes, secret, address)
        except OSError as error:
            reason = (error.strerror or str(error)).partition(" (")[0]
            raise click.UsageError(f"--address {address}: {reason}") from None
        yield head, file


def _taking_part(
    way: LaunchOptions,
    reach: fleet_reach.Reach,
    nodes: Sequence[str],
    address: str,
    given: Sequence[str],
    head: Head,
    secret: Path,
) -> LaunchOptions:
    """The way to run `take-part` on all nodes at the same time."""
    from gpuipc_doctor.fleet import collective_head

    at = [f"[{one}]" if ":" in one else one for one in collective_head.addresses(nodes, address)]
    heads = ",".join(f"{one}:{head.port}" for one in at)
    command = [*fleet_reach.tool_of(reach.tool), "fleet", "take-part", "--head", heads, CHECK, *given]
    return replace(
        fleet_check.within_limits(way, reach.partition, None, "--budget"),
        command=tuple(command),
        fanout=max(reach.fanout, len(nodes)),
        rate=min(way.rate, SSH_PER_S),
        given=secret,
        names="--called",
        at_interruption=head.close,
    )


def _examine(
    nodes: Sequence[str],
    found: _Gathered,
    way: LaunchOptions,
    head: Head,
    reach: fleet_reach.Reach,
    largest: int,
) -> bool:
    """Start the nodes' processes, and examine the nodes in a thread; whether Ctrl-C ended it."""
    from gpuipc_doctor.supervise import tree

    found.until = time.monotonic() + way.deadline_s - ENDING_S
    work = threading.Thread(target=_run, args=(head, found, reach, largest), daemon=True)
    interrupted = False
    with tree.interruptible(_interrupt):
        work.start()
        try:
            fleet_check.ask_all(nodes, way, found)
            found.all_told.set()
            work.join()
        except KeyboardInterrupt:
            interrupted = not found.is_over
            head.close()
            found.all_told.set()
            work.join()
    return interrupted


def _interrupt() -> None:
    raise KeyboardInterrupt


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


def _log_of(into: Path, *, resume: bool) -> Log:
    """The log of the rounds in ``into``. Raises `click.UsageError`."""
    from gpuipc_doctor.fleet.collective_report import ROUNDS, Log

    if (into / ROUNDS).exists() and not resume:
        raise click.UsageError(f"{into} has rounds already; name a new directory, or add --resume")
    with options.naming_option("--into", str(into)):
        return Log(into)


class _Gathered:
    """What nodes' launchers have told, and the findings so far."""

    def __init__(self, nodes: Sequence[str], topology: Mapping[str, str], log: Log) -> None:
        self.nodes, self.topology, self.log = nodes, topology, log
        self.began, self.until = datetime.now().astimezone(), math.inf
        self.absent: dict[str, str] = {}
        """Node whose process has ended → its last words."""
        self.joined: dict[str, Joined] = {}
        self.findings: list[Finding] = []
        self.rounds: list[RoundResult] = []
        self.all_told, self.is_over = threading.Event(), False
        """Whether all launchers have ended, and whether the rest of them was ended after the last round."""
        self.mistake: Exception | None = None
        """Of the thread that examines the nodes."""

    def started(self, name: str) -> None: ...

    def finished(self, report: NodeReport, full: bytes) -> None:
        self.absent[report.node] = report.reason.removeprefix("gpuipc-doctor: ")

    def tell(self, into: Path, simulated: str, interrupted: bool, *, as_json: bool) -> int:
        """Write and print the report; returns the exit code."""
        from gpuipc_doctor.fleet import collective_report
        from gpuipc_doctor.report import exits, report_json

        given = self.nodes, self.joined, self.findings, self.rounds, self.began
        found = collective_report.report(*given, simulated=simulated, interrupted=interrupted)
        code = exits.code(found)
        text = report_json.dumps(found, exit_code=code)
        try:
            writing.OutputFile(into / collective_report.REPORT).write(text)
        except OSError as error:
            say(f"{into / collective_report.REPORT} was not written: {error.strerror or error}")
            code = code or Exit.INTERNAL
        shown = text if as_json else collective_report.screen(found, code, **formats.page())
        click.echo(shown, nl=False)
        if interrupted:
            say("interrupted; to go on after the last round, add --resume")
        return code


def _run(head: Head, found: _Gathered, reach: fleet_reach.Reach, largest: int) -> None:
    """Gather the nodes, examine them, let them go."""
    from gpuipc_doctor.fleet import collectives
    from gpuipc_doctor.fleet.collective_head import Closed
    from gpuipc_doctor.fleet.collective_types import SIZES, Round

    def meet(asked: Round) -> RoundResult:
        if sys.stderr.isatty():
            redraw(f"{asked.name} ({counted(len(asked.groups), 'group')})", last=False)
        return head.meet(asked)

    try:
        seconds = min(reach.patience + JOIN_S, (reach.budget or LONGEST_S) / 2)
        joined = head.gather(lambda: found.absent, seconds)
        found.joined = dict(joined)
        sizes = tuple(size for size in SIZES if size <= largest) or (8,)
        base = Round("", (), sizes=sizes, deadline_s=reach.deadline)
        saved, save = found.log.earlier, found.log.add
        rounds = collectives.Rounds(meet, head.joined, base, found.until, saved, save, found.rounds)
        gone = [node for node in found.nodes if node not in joined]
        silent = f"no answer within {seconds:g} s"
        absent = {node: head.lost.get(node) or found.absent.get(node, silent) for node in gone}
        for finding in collectives.examine(rounds, found.nodes, absent, found.topology):
            found.findings.append(finding)
    except Closed:
        return
    except Exception as error:
        found.mistake = error
    finally:
        head.dismiss()
    if not found.all_told.wait(ENDING_S):  # the command for a node that never came may last for an hour
        found.is_over = True
        os.kill(os.getpid(), signal.SIGTERM)


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
