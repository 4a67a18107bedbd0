"""``gpuipc-doctor explain``: what a check does, in the words of its own file."""

from __future__ import annotations

import inspect
from pathlib import Path

import click

from gpuipc_doctor import knownissues, loader
from gpuipc_doctor.cli import options
from gpuipc_doctor.loader import LoadedCheck
from gpuipc_doctor.plan import UnknownName


@click.command()
@click.argument("check")
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With a site's own checks.",
)
def command(check: str, config_file: Path | None) -> None:
    """Explain a check: what it does, what it needs, which known issues it detects."""
    config = options.site_config(config_file)
    known = {item.check.id: item for item in loader.load(config.checks_dirs) if isinstance(item, LoadedCheck)}
    if check not in known:
        raise UnknownName("check", check, known)
    item = known[check]
    click.echo(f"{item.check.id}: {item.check.title}\n")
    click.echo(inspect.getdoc(loader.module(item.file)) or "(its file says nothing)")
    click.echo(f"\ntier      {item.check.tier.label}")
    click.echo(f"requires  {', '.join(sorted(item.check.requires)) or 'nothing'}")
    detected = [
        issue for issue in knownissues.load(config.known_issues_dirs) if item.check.id in issue.detected_by
    ]
    click.echo(f"detects   {', '.join(issue.id for issue in detected) or 'no known issue'}")
    click.echo(f"file      {item.file}")
