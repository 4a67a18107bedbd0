"""``gpuipc-doctor fleet report`` and ``fleet compare``: merge or compare a directory's node reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuipc_doctor.cli import formats, options
from gpuipc_doctor.present.text import counted, sanitise

if TYPE_CHECKING:
    from gpuipc_doctor.fleet.summary import NodeReport

SHOWN_FOREIGN = 8
"""Maximum foreign files listed."""

_DIRECTORY = options.FilePath(exists=True, file_okay=False)


@click.command()
@click.argument("directory", type=_DIRECTORY, metavar="DIR")
@formats.options(
    ("screen", "nodeset", "html", "junit", "markdown", "prometheus"),
    "Format for a terminal, Slurm (sets of nodes that pass, fail or are unknown), a browser, CI, a ticket or "
    "Prometheus' node_exporter (textfile).",
    json="Print JSON, with every node.",
)
@click.option(
    "--history",
    "earlier",
    type=_DIRECTORY,
    multiple=True,
    metavar="EARLIER",
    help="Show each node's results in this earlier run beside those in DIR. May be repeated.",
)
@click.pass_context
def report(ctx: click.Context, *, directory: Path, form: str, earlier: tuple[Path, ...]) -> None:
    """Merge the node reports in DIR.

    With --history: when each node last passed, how often it failed, which nodes flap, what changed, and
    which error counters of GPUs rose.

    \b
    Exit codes:
      0   no node is worse than WARN
      11  a node has no report, or its result is ERROR
      12  a node fails
    """
    if earlier:
        if form != "screen":
            raise click.UsageError("--history works only with screen output: omit --format and --json")
        ctx.exit(_tell_history(earlier, directory))
    ctx.exit(tell(directory, (), form=form))


@click.command()
@click.argument("before", type=_DIRECTORY, metavar="DIR1")
@click.argument("after", type=_DIRECTORY, metavar="DIR2")
@formats.options(
    ("screen", "markdown", "nodeset"),
    "Format for a terminal, a ticket, or sets of nodes by result.",
)
@click.pass_context
def compare(ctx: click.Context, *, before: Path, after: Path, form: str) -> None:
    """Compare the nodes in DIR1 with those in DIR2, such as before and after an upgrade.

    \b
    Exit codes:
      0   nothing is worse
      10  something is slower or has become a WARN
      11  a node or check is no longer tested
      12  something newly fails
    """
    from gpuipc_doctor.fleet import changes, changes_content

    found = changes.compare(_reports(before), _reports(after))
    writers = {
        "screen": changes_content.screen,
        "markdown": changes_content.ticket,
        "nodeset": changes_content.nodeset,
        "json": changes_content.dumps,
    }
    click.echo(formats.text(found, form, writers), nl=False)
    ctx.exit(found.exit_code)


def _tell_history(earlier: Sequence[Path], directory: Path) -> int:
    """Print the nodes' history; returns the exit code of the run in ``directory``."""
    from gpuipc_doctor.fleet import fold, history

    runs = [(place, _reports(place)) for place in (*dict.fromkeys(earlier), directory)]
    runs.sort(key=lambda run: min((report.started for report in run[1] if report.started), default=""))
    text = history.screen(
        [{report.node: report for report in reports} for _, reports in runs],
        [str(place) for place, _ in runs],
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
    """Print the fleet: the reports in a directory, and ``unsaved`` ones; returns the exit code.

    Nodes of ``wanted`` without a report are listed with the reason.
    """
    from gpuipc_doctor.fleet import directory, fleet_content, fleet_exports, fold
    from gpuipc_doctor.fleet.summary import State, silent

    there = {report.node: report for report in (*_reports(into, or_none=bool(wanted)), *unsaved)}
    asked = [silent(node, State.NO_ANSWER, reason) for node in directory.lacking(wanted, there)]
    reports = [*there.values(), *asked]
    fleet = replace(fold.fold(reports), is_unsaved=bool(unsaved))
    writers = {
        "screen": fleet_content.screen,
        "markdown": fleet_content.ticket,
        "html": fleet_exports.html,
        "json": fleet_exports.dumps,
        "junit": fleet_exports.junit,
        "nodeset": fleet_exports.nodeset,
        "prometheus": fleet_exports.prometheus,
    }
    click.echo(formats.text(fleet, form, writers), nl=False)
    return fleet.exit_code


def _reports(directory: Path, *, or_none: bool = False) -> list[NodeReport]:
    """The node reports in a directory; lists other files on standard error. Raises `click.UsageError`."""
    from gpuipc_doctor.fleet import directory as place

    try:
        reports, foreign = place.read(directory)
    except OSError as error:
        raise click.UsageError(f"{directory}: {error.strerror}") from None
    for name, reason in foreign[:SHOWN_FOREIGN]:
        click.echo(f"gpuipc-doctor: {sanitise(f'{name}: {reason}')}", err=True)
    if (more := len(foreign) - SHOWN_FOREIGN) > 0:
        click.echo(f"gpuipc-doctor: and {counted(more, 'more file')} that cannot be used", err=True)
    if not reports and not or_none:
        raise click.UsageError(
            f"{directory} has no node reports; `fleet check` and `check --output` write them"
        )
    return reports
