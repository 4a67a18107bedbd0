"""``gpuipc-doctor explain``: what a check does, in the words of its own file; what a known issue is."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from textwrap import fill

import click

from gpuipc_doctor import knownissues, loader
from gpuipc_doctor.cli import options
from gpuipc_doctor.cli.issue_page import page
from gpuipc_doctor.knownissues import KnownIssue
from gpuipc_doctor.loader import LoadedCheck
from gpuipc_doctor.plan import UnknownName


@click.command()
@click.argument("id_", metavar="CHECK|ISSUE")
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With a site's own checks and known issues.",
)
def command(id_: str, config_file: Path | None) -> None:
    """Explain a check: what it does, what it needs, which known issues it detects.

    Or a known issue: who is affected, how it shows, what to do at what price, who says so.
    """
    config = options.site_config(config_file)
    checks = {
        item.check.id: item for item in loader.load(config.checks_dirs) if isinstance(item, LoadedCheck)
    }
    issues = {issue.id: issue for issue in knownissues.load(config.known_issues_dirs)}
    if id_ in checks:
        click.echo(_check_page(checks[id_], issues.values()))
    elif id_ in issues:
        click.echo(page(issues[id_]))
    else:
        raise UnknownName("check or known issue", id_, [*checks, *get_close_matches(id_, issues)])


def _check_page(item: LoadedCheck, issues: Iterable[KnownIssue]) -> str:
    detected = [issue.id for issue in issues if item.check.id in issue.detected_by]
    return "\n".join(
        [
            f"{item.check.id}: {item.check.title}\n",
            inspect.getdoc(loader.module(item.file)) or "(its file says nothing)",
            f"\ntier      {item.check.tier.label}",
            f"requires  {', '.join(sorted(item.check.requires)) or 'nothing'}",
            fill(f"detects   {', '.join(detected) or 'no known issue'}", 80, subsequent_indent=" " * 10),
            f"file      {item.file}",
        ]
    )
