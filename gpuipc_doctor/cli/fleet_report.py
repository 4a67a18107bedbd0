"""``gpuipc-doctor fleet report`` and ``fleet compare``: what the node reports of a directory say together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuipc_doctor.cli import formats, options
from gpuipc_doctor.present.text import counted, sanitise

if TYPE_CHECKING:
    from gpuipc_doctor.fleet.summary import NodeReport

SHOWN_FOREIGN = 8
"""Files that only look like node reports."""

_DIRECTORY = options.FilePath(exists=True, file_okay=False)


@click.command()
@click.argument("directory", type=_DIRECTORY, metavar="DIR")
@formats.options(
    ("screen", "nodeset", "html", "junit", "markdown", "prometheus"),
    "For a terminal; as pass, fail and unknown sets for `--exclude` and `scontrol`; for a browser, CI, "
    "a ticket, or the textfile collector of Prometheus' node_exporter.",
    json="Print JSON, with every node.",
)
@click.option(
    "--history",
    "earlier",
    type=_DIRECTORY,
    multiple=True,
    metavar="EARLIER",
    help="Show what became of each node since these runs (as often as need be), and the run in DIR.",
)
@click.pass_context
def report(ctx: click.Context, *, directory: Path, form: str, earlier: tuple[Path, ...]) -> None:
    """Say what the node reports in DIR say together.

    With --history: when each node last passed, how often it failed, which nodes flap, and what changed. The
    exit code is that of a node: 12 where one fails, 11 where one has no report or could not tell.
    """
    if earlier:
        if form != "screen":
            raise click.UsageError("--history is for the screen alone")
        ctx.exit(_tell_history(earlier, directory))
    ctx.exit(tell(directory, (), form=form))


@click.command()
@click.argument("before", type=_DIRECTORY, metavar="DIR1")
@click.argument("after", type=_DIRECTORY, metavar="DIR2")
@formats.options(
    ("screen", "markdown", "nodeset"),
    "For a terminal, for a ticket, or as sets of nodes by what became of them.",
)
@click.pass_context
def compare(ctx: click.Context, *, before: Path, after: Path, form: str) -> None:
    """Say what has changed on the nodes from DIR1 to DIR2, such as before and after an upgrade.

    The exit code is 0 when nothing is worse, 10 when something is slower or newly a WARN, 11 when a node, or
    something on a node, is no longer tested, 12 when something newly fails.
    """
    from gpuipc_doctor.fleet import changes, changes_content

    found = changes.compare(_reports(before), _reports(after))
    click.echo(formats.text(found, form, changes_content), nl=False)
    ctx.exit(found.exit_code)


def _tell_history(earlier: Sequence[Path], directory: Path) -> int:
    """Print the history of the nodes; returns the exit code of the run in ``directory``."""
    from gpuipc_doctor.fleet import fold, history

    runs = [(place, _reports(place)) for place in (*dict.fromkeys(earlier), directory)]
    runs.sort(key=lambda run: min((one.started for one in run[1] if one.started), default=""))
    text = history.screen(
        [{one.node: one for one in reports} for _, reports in runs], [str(place) for place, _ in runs]
    )
    click.echo(text, nl=False)
    return next(fold.fold(reports).exit_code for place, reports in runs if place == directory)


def tell(
    into: Path,
    wanted: Sequence[str],
    *,
    form: str = "screen",
    reason: str = "",
    unsaved: Sequence[NodeReport] = (),
) -> int:
    """Print the fleet of a directory and of ``unsaved``; returns the exit code.

    Nodes of ``wanted`` that are in neither have given no report, for this reason.
    """
    from gpuipc_doctor.fleet import fleet_content, fleet_exports, fold
    from gpuipc_doctor.fleet.summary import State, silent

    there = {one.node: one for one in (*_reports(into, or_none=bool(wanted)), *unsaved)}
    asked = [silent(node, State.NO_ANSWER, reason) for node in wanted if node not in there]
    reports = [*there.values(), *asked]
    fleet = fold.fold(reports)
    click.echo(formats.text(fleet, form, fleet_content, fleet_exports), nl=False)
    return fleet.exit_code


def _reports(directory: Path, *, or_none: bool = False) -> list[NodeReport]:
    """The node reports there; of what is none, a line each on standard error. Raises `click.UsageError`."""
    from gpuipc_doctor.fleet import directory as place

    try:
        reports, foreign = place.read(directory)
    except OSError as error:
        raise click.UsageError(f"{directory}: {error.strerror}") from None
    for one in foreign[:SHOWN_FOREIGN]:
        click.echo(f"gpuipc-doctor: {sanitise(f'{one.path.name}: {one.reason}')}", err=True)
    if (more := len(foreign) - SHOWN_FOREIGN) > 0:
        click.echo(f"gpuipc-doctor: and {counted(more, 'more file')} of that kind", err=True)
    if not reports and not or_none:
        raise click.UsageError(
            f"{directory} has no node reports; `fleet check` and `check --output` write them"
        )
    return reports
