"""``gpuipc-doctor known-issues``: what is known, one entry in full, and what is wrong with a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from gpuipc_doctor import environment, knownissues, loader
from gpuipc_doctor.cli import options
from gpuipc_doctor.cli.issue_page import page
from gpuipc_doctor.cli.issue_table import markdown
from gpuipc_doctor.cli.table import table
from gpuipc_doctor.config import SiteConfig
from gpuipc_doctor.knownissues import KnownIssue
from gpuipc_doctor.loader import LoadedCheck
from gpuipc_doctor.plan import UnknownName
from gpuipc_doctor.yamlfile import Mistake

_with_config = click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With a site's own known issues.",
)


@click.group("known-issues")
def command() -> None:
    """Look at the database: what is known to be broken, in which versions, and who says so."""


@command.command("list")
@_with_config
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print a document with a table by component.")
def list_(config_file: Path | None, as_json: bool, as_markdown: bool) -> None:
    """List the known issues."""
    issues = knownissues.load(options.site_config(config_file).known_issues_dirs)
    if as_json:
        click.echo(_json([_entry(issue) for issue in issues]))
    elif as_markdown:
        click.echo(markdown(issues), nl=False)
    else:
        click.echo(_table(issues))


@command.command()
@click.argument("id_", metavar="ID")
@_with_config
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(id_: str, config_file: Path | None, as_json: bool) -> None:
    """Show all that is known of one issue."""
    loaded = knownissues.load(options.site_config(config_file).known_issues_dirs)
    issues = {issue.id: issue for issue in loaded}
    if id_ not in issues:
        raise UnknownName("known issue", id_, issues)
    click.echo(_json(_entry(issues[id_])) if as_json else page(issues[id_]))


@command.command()
@click.argument("files", type=click.Path(path_type=Path), nargs=-1, metavar="[FILE]...")
@_with_config
def lint(files: tuple[Path, ...], config_file: Path | None) -> None:
    """Name every mistake in these files, by default in those of the package and of the site."""
    site = options.site_config(config_file)
    paths = files or tuple(knownissues.files(site.known_issues_dirs))
    mistakes = find_mistakes(paths, site)
    for mistake in mistakes:
        click.echo(f"gpuipc-doctor: {mistake}", err=True)
    if mistakes:
        raise SystemExit(2)
    click.echo(f"{len(paths)} file{'s' * (len(paths) != 1)} without a mistake")


def find_mistakes(paths: Sequence[Path], site: SiteConfig) -> tuple[Mistake, ...]:
    """Every mistake in these files of known issues, by all that is known here of checks and variables."""
    loaded = loader.load(site.checks_dirs)
    check_ids = {item.check.id for item in loaded if isinstance(item, LoadedCheck)}
    changing = {name: variable.changing for name, variable in environment.load().items()}
    return knownissues.lint(paths, check_ids, changing)


def _entry(issue: KnownIssue) -> dict[str, object]:
    """An issue under its file's names."""
    entry = asdict(issue)
    for signature in entry["signatures"]:
        signature["confidence"] = signature["confidence"].label
    return {"class" if name == "kind" else name: value for name, value in entry.items()}


def _json(data: object) -> str:
    """JSON; a day is written as text."""
    return json.dumps(data, indent=2, ensure_ascii=False, default=str)


def _table(issues: tuple[KnownIssue, ...]) -> str:
    rows = [
        (
            issue.id,
            f"{issue.component} {issue.bad_versions.removesuffix(', as far as is known')}",
            "withdrawn" if issue.withdrawn else issue.kind,
        )
        for issue in issues
    ]
    return table(rows, ("id", "bad versions", "class"), wrapped=1)
