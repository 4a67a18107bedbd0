"""``gpuipc-doctor explain``: print a check's documentation, a known issue or a message."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path

import click

from gpuipc_doctor import knownissues
from gpuipc_doctor.api import Check, loader
from gpuipc_doctor.api.loader import LoadedCheck
from gpuipc_doctor.cli import options
from gpuipc_doctor.knownissues import KnownIssue
from gpuipc_doctor.knownissues.issue_content import message_page, page
from gpuipc_doctor.present.terminal import COLUMNS
from gpuipc_doctor.present.text import wrap
from gpuipc_doctor.run import check_files
from gpuipc_doctor.run.request import UnknownName

_ITEM = r" *(?:[-*]|\d+\.) +"


@click.command()
@click.argument("id_", metavar="CHECK|ISSUE|MESSAGE")
@options.config("Add a site's own checks and known issues.")
def command(id_: str, config_file: Path | None) -> None:
    """Explain a check, a known issue or a message.

    A check: what it does, what it needs, which known issues it detects. A known issue: who is affected,
    symptoms, workarounds with their cost, sources. A message: what it means, where to look.
    """
    config = options.site_config(config_file)
    loaded = (item for item in check_files.load(config.checks_dirs) if isinstance(item, LoadedCheck))
    checks = {item.check.id: item for item in loaded}
    issues = {issue.id: issue for issue in knownissues.load(config.known_issues_dirs)}
    if id_ in checks:
        click.echo(_check_page(checks[id_], issues.values()))
    elif id_ in issues:
        click.echo(page(issues[id_]))
    elif id_ in (messages := {one.id: one for one in knownissues.load_messages(config.known_issues_dirs)}):
        click.echo(message_page(messages[id_]))
    else:
        near = get_close_matches(id_, [*issues, *messages])
        raise UnknownName("check, known issue or message", id_, [*checks, *near])


def _check_page(item: LoadedCheck, issues: Iterable[KnownIssue]) -> str:
    told = inspect.getdoc(loader.module(item.file)) or "(the check's file has no docstring)"
    return "\n".join(
        [
            *wrap(f"{item.check.id}: {item.check.title}", COLUMNS),
            "",
            *_reflowed(told),
            "",
            *(line for name, text in facts(item.check, issues) for line in wrap(text, COLUMNS, f"{name:10}")),
            f"file      {item.file}",
        ]
    )


def facts(check: Check, issues: Iterable[KnownIssue]) -> Iterator[tuple[str, str]]:
    """(name, text) of what a check's page has beside the docstring: its tier, needs and known issues."""
    yield "tier", check.tier.label
    needs = [*sorted(check.requires), *["an MPI library that accepts device pointers"] * check.needs_mpi]
    needs += ["CuPy or PyTorch"] * check.needs_allocators
    yield "requires", ", ".join(needs) or "nothing"
    found = ", ".join(issue.id for issue in issues if check.id in issue.checks) or "no known issue"
    yield "detects", "every known issue with versions" if check.id == loader.VERSIONS else found


def _reflowed(text: str) -> Iterator[str]:
    """Paragraphs and list items in lines of 80 columns; indented paragraphs stay as they are."""
    for number, paragraph in enumerate(re.split(r"\n(?: *\n)+", text)):
        if number:
            yield ""
        for part in re.split(rf"\n(?={_ITEM})", paragraph):
            mark = item.group() if (item := re.match(_ITEM, part)) else ""
            if part.startswith(" ") and not mark:
                yield part
            else:
                yield from wrap(part.removeprefix(mark), COLUMNS, mark)
