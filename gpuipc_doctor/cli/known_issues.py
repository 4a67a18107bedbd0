"""``gpuipc-doctor known-issues``: show the database of known issues, or find mistakes in its files."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import click

from gpuipc_doctor import knownissues
from gpuipc_doctor.api.loader import LoadedCheck
from gpuipc_doctor.cli import options
from gpuipc_doctor.cli.progress import progress
from gpuipc_doctor.cli.stdio import say
from gpuipc_doctor.files.yamlfile import Mistake
from gpuipc_doctor.knownissues import KnownIssue, Message
from gpuipc_doctor.knownissues.issue_content import listing, markdown, message_page, near_entries, page
from gpuipc_doctor.knownissues.questions import Answer, Entry, Question, ask
from gpuipc_doctor.node import variables
from gpuipc_doctor.node.inventory import NAMES
from gpuipc_doctor.present.text import counted
from gpuipc_doctor.run import check_files
from gpuipc_doctor.run.request import Request, UnknownName
from gpuipc_doctor.site.config import SiteConfig
from gpuipc_doctor.versions import parse

HERE = "here"
"""Stands for the version of this node."""

SITE = "site"
"""The word for the entries that the site config adds or changes."""

_with_config = options.config("Add a site's own known issues.")


@click.group("known-issues")
def command() -> None:
    """Query the database of known issues: affected versions, workarounds, sources."""


@command.command("list")
@click.argument("words", nargs=-1, metavar="[WORD]...")
@click.option("--component", metavar="NAME", default="", help="Only those of this component: nvidia-driver.")
@click.option(
    "--check",
    metavar="ID",
    default="",
    help="Only those that this check shows.",
    shell_complete=options.complete("checks"),
)
@click.option("--version", metavar="VERSION", default="", help="Only issues that this version may have.")
@click.option(
    "--upgrade-from",
    "before",
    metavar="VERSION",
    default="",
    help="Say which are new with --version; `here` asks this node.",
)
@_with_config
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print a document with a table by component.")
def list_(
    *,
    words: tuple[str, ...],
    component: str,
    check: str,
    version: str,
    before: str,
    config_file: Path | None,
    as_json: bool,
    as_markdown: bool,
) -> None:
    """List known issues and messages: all, or those with these words, or those of a version.

    `site` lists those that the site config adds or changes.

    \b
    What would an upgrade of the driver bring?
      known-issues list --component nvidia-driver --version 580.95.05 --upgrade-from here
    """
    site = options.site_config(config_file)
    _refuse_contradictions(component, version, before)
    again = options.config_again(config_file)
    if check and check not in (ids := _check_ids(site)):
        raise UnknownName("check", check, sorted(ids), f"gpuipc-doctor list{again}")
    if before == HERE:
        before = _version_here(component, site)
    words = tuple(" ".join(words).split())
    question = Question(words, component, check, version, before)
    dirs = site.known_issues_dirs
    entries: tuple[Entry, ...] = (*knownissues.load(dirs), *knownissues.load_messages(dirs))
    if words == (SITE,) and not component:
        shipped: list[Entry] = [*knownissues.load(), *knownissues.load_messages()]
        entries = tuple(entry for entry in entries if entry not in shipped)
        question = replace(question, words=())
    if component and component not in (names := {*NAMES, *(entry.component for entry in entries)}):
        raise UnknownName("component", component, sorted(names), f"gpuipc-doctor known-issues list{again}")
    answers = list(ask(question, entries))
    if as_json:
        click.echo(_json([_answer(answer) for answer in answers]))
    elif as_markdown:
        found = [answer.entry for answer in answers]
        issues = [entry for entry in found if isinstance(entry, KnownIssue)]
        click.echo(markdown(issues, [entry for entry in found if isinstance(entry, Message)]), nl=False)
    else:
        click.echo(listing(answers, question))
        if words == (SITE,) and not entries:
            click.echo("The site config adds none; name it with --config.")
        elif words and not answers:
            click.echo(near_entries(words, entries))


def _refuse_contradictions(component: str, version: str, before: str) -> None:
    if version and not component:
        raise click.UsageError("--version also needs --component: whose version is it?")
    if before and not version:
        raise click.UsageError("--upgrade-from also needs --version: to which version?")
    for option, value in (("--version", version), ("--upgrade-from", before if before != HERE else "")):
        if value and parse(component, value) is None:
            raise click.UsageError(f"{option}: {value!r} is no version of {component} that can be compared")


def _version_here(component: str, site: SiteConfig) -> str:
    """The component's version on this node."""
    from gpuipc_doctor.run import engine  # only this question starts processes

    with options.node(None) as node, progress() as watcher:
        stock = engine.collect_inventory(Request(), site, node, watcher)
    found = {fact.value for fact in stock.told if fact.name == component and fact.value}
    if len(found) == 1:
        return found.pop()
    what = f"has {component} {' and '.join(sorted(found))}" if found else f"has no {component} that was found"
    raise click.UsageError(f"this node {what}; name the version: --upgrade-from VERSION")


@command.command()
@click.argument("id_", metavar="ID", shell_complete=options.complete("issues"))
@_with_config
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(id_: str, config_file: Path | None, as_json: bool) -> None:
    """Show all details of one known issue or message."""
    dirs, again = options.site_config(config_file).known_issues_dirs, options.config_again(config_file)
    issues = {issue.id: issue for issue in knownissues.load(dirs)}
    messages = {message.id: message for message in knownissues.load_messages(dirs)}
    if id_ in issues:
        click.echo(_json(_entry(issues[id_])) if as_json else page(issues[id_], again=again))
    elif id_ in messages:
        click.echo(_json(_entry(messages[id_])) if as_json else message_page(messages[id_]))
    else:
        raise UnknownName("known issue", id_, [*issues, *messages], f"gpuipc-doctor known-issues list{again}")


@command.command()
@click.argument("files", type=options.FilePath(), nargs=-1, metavar="[FILE]...")
@_with_config
def lint(files: tuple[Path, ...], config_file: Path | None) -> None:
    """List every mistake in these files, by default in the package's and the site's."""
    site = options.site_config(config_file)
    paths = files or tuple(knownissues.files(site.known_issues_dirs))
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


def _entry(entry: Entry) -> dict[str, object]:
    """A known issue, or a message with an issue's names for its title and class, so that a list has both."""
    shown = asdict(entry)
    for signature in shown["signatures"]:
        signature["confidence"] = signature["confidence"].label
    if isinstance(entry, KnownIssue):
        return {"class" if name == "kind" else name: value for name, value in shown.items()}
    shown["title"], shown["class"] = shown.pop("says"), shown.pop("severity").value
    return {"message": True, **shown}


def _answer(answer: Answer) -> dict[str, object]:
    entry = answer.entry
    shown = _entry(entry)
    if answer.verdict:
        shown |= {"verdict": answer.verdict.value, "why": answer.why}
    if answer.change:
        shown["upgrade"] = answer.change.value
    return shown


def _json(data: object) -> str:
    return json.dumps(data, indent=2, default=str)
