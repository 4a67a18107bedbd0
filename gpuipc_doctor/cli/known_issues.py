"""``gpuipc-doctor known-issues``: show the database of known issues, or find mistakes in its files."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from gpuipc_doctor import knownissues
from gpuipc_doctor.api.loader import LoadedCheck
from gpuipc_doctor.cli import options
from gpuipc_doctor.cli.issue_content import markdown, message_page, page
from gpuipc_doctor.cli.stdio import say
from gpuipc_doctor.inventory import variables
from gpuipc_doctor.knownissues import KnownIssue, Message
from gpuipc_doctor.present.terminal import table
from gpuipc_doctor.present.text import counted
from gpuipc_doctor.run import check_files
from gpuipc_doctor.run.request import UnknownName
from gpuipc_doctor.site.config import SiteConfig
from gpuipc_doctor.site.yamlfile import Mistake

_with_config = options.config("Add a site's own known issues.")


@click.group("known-issues")
def command() -> None:
    """Query the database of known issues: affected versions, workarounds, sources."""


@command.command("list")
@_with_config
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print a document with a table by component.")
def list_(config_file: Path | None, as_json: bool, as_markdown: bool) -> None:
    """List the known issues and the messages."""
    dirs = options.site_config(config_file).known_issues_dirs
    issues, messages = knownissues.load(dirs), knownissues.load_messages(dirs)
    if as_json:
        click.echo(_json([*map(_entry, issues), *map(_message, messages)]))
    elif as_markdown:
        click.echo(markdown(issues, messages), nl=False)
    else:
        click.echo(_table(issues, messages))


@command.command()
@click.argument("id_", metavar="ID")
@_with_config
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(id_: str, config_file: Path | None, as_json: bool) -> None:
    """Show all details of one known issue or message."""
    dirs = options.site_config(config_file).known_issues_dirs
    issues = {issue.id: issue for issue in knownissues.load(dirs)}
    messages = {message.id: message for message in knownissues.load_messages(dirs)}
    if id_ in issues:
        click.echo(_json(_entry(issues[id_])) if as_json else page(issues[id_]))
    elif id_ in messages:
        click.echo(_json(_message(messages[id_])) if as_json else message_page(messages[id_]))
    elif text := knownissues.retired().get(id_):
        click.echo(_json({"id": id_, "retired": text}) if as_json else text)
    else:
        raise UnknownName("known issue", id_, [*issues, *messages], "gpuipc-doctor known-issues list")


@command.command()
@click.argument("files", type=options.FilePath(), nargs=-1, metavar="[FILE]...")
@_with_config
def lint(files: tuple[Path, ...], config_file: Path | None) -> None:
    """List every mistake in these files, by default in the package's and the site's."""
    site = options.site_config(config_file)
    paths = files or tuple(knownissues.files(site.known_issues_dirs))
    for remark in knownissues.remarks(site.known_issues_dirs):
        say(remark)
    mistakes = find_mistakes(paths, _check_ids(site))
    for mistake in mistakes:
        say(str(mistake))
    if mistakes:
        raise SystemExit(2)
    click.echo(f"{counted(len(paths), 'file')} without mistakes")


def find_mistakes(paths: Sequence[Path], check_ids: Collection[str]) -> tuple[Mistake, ...]:
    """Every mistake in these files of known issues, including unknown checks and variables."""
    changing = {name: variable.changing for name, variable in variables.load().items()}
    return knownissues.lint(paths, check_ids, changing)


def _check_ids(site: SiteConfig) -> set[str]:
    loaded = check_files.load(site.checks_dirs)
    return {item.check.id for item in loaded if isinstance(item, LoadedCheck)}


def _entry(issue: KnownIssue) -> dict[str, object]:
    entry = asdict(issue)
    for signature in entry["signatures"]:
        signature["confidence"] = signature["confidence"].label
    return {"class" if name == "kind" else name: value for name, value in entry.items()}


def _message(message: Message) -> dict[str, object]:
    """A message with an issue's names for its title and class, so that a list has both."""
    entry = asdict(message)
    for signature in entry["signatures"]:
        signature["confidence"] = signature["confidence"].label
    entry["title"], entry["class"] = entry.pop("says"), entry.pop("severity").value
    return {"message": True, **entry}


def _json(data: object) -> str:
    return json.dumps(data, indent=2, default=str)


def _table(issues: Iterable[KnownIssue], messages: Iterable[Message]) -> str:
    rows = [
        (
            issue.id,
            f"{issue.component} {issue.bad_versions.removesuffix(', as far as is known')}",
            "withdrawn" if issue.withdrawn else issue.kind,
        )
        for issue in issues
    ]
    rows += [(message.id, message.component, "message") for message in messages]
    return table(rows, ("id", "bad versions", "class"), wrapped=1)
