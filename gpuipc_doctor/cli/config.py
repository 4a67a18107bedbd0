"""``gpuipc-doctor config``: is this site config right, and how does it get in front of every job?"""

from __future__ import annotations

from pathlib import Path

import click

from gpuipc_doctor import config, knownissues, loader
from gpuipc_doctor.cli import hooks
from gpuipc_doctor.cli.known_issues import find_mistakes
from gpuipc_doctor.loader import BrokenCheck, LoadedCheck
from gpuipc_doctor.yamlfile import BadFile


@click.group("config")
def command() -> None:
    """Look at site configs, and put them to use."""


command.add_command(hooks.command)


@command.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
def validate(files: tuple[Path, ...]) -> None:
    """Name every mistake in these site configs, and in the checks and known issues that they add."""
    mistakes = [mistake for file in files for mistake in _mistakes(file)]
    for mistake in mistakes:
        click.echo(f"gpuipc-doctor: {mistake}", err=True)
    if mistakes:
        raise SystemExit(2)
    for file in files:
        click.echo(f"{file}: fine")


def _mistakes(file: Path) -> list[str]:
    try:
        site = config.load(file)
    except BadFile as bad:
        return [str(mistake) for mistake in bad.mistakes]
    loaded = loader.load(site.checks_dirs)
    ids = {item.check.id for item in loaded if isinstance(item, LoadedCheck)}
    broken = [item.reason for item in loaded if isinstance(item, BrokenCheck)]
    mistakes = config.unknown_checks(file, ids)
    if site.known_issues_dirs:
        mistakes += find_mistakes(knownissues.files(site.known_issues_dirs), site)
    return [*map(str, mistakes), *broken]
