"""``gpuipc-doctor explain``: what a check does, in the words of its own file; what a known issue is; how the
stacks of this node share device memory."""

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
from gpuipc_doctor.cli import explain_sharing, options
from gpuipc_doctor.cli.issue_content import page
from gpuipc_doctor.cli.progress import progress
from gpuipc_doctor.knownissues import KnownIssue
from gpuipc_doctor.present.terminal import COLUMNS
from gpuipc_doctor.present.text import wrap
from gpuipc_doctor.run import check_files, engine
from gpuipc_doctor.run.request import Request, UnknownName

SHARING = "sharing"

_ITEM = r" *(?:[-*]|\d+\.) +"
"""What an item of a list begins with."""


@click.command()
@click.argument("id_", metavar="CHECK|ISSUE|sharing")
@options.config("With a site's own checks and known issues.")
@click.option("--simulate", metavar="PROFILE", help="For sharing: the stacks of a simulated node.")
@click.option("--json", "as_json", is_flag=True, help="For sharing: print JSON.")
def command(id_: str, config_file: Path | None, simulate: str | None, as_json: bool) -> None:
    """Explain a check, a known issue, or how memory is shared.

    A check: what it does, what it needs, which known issues it detects. A known issue: who is affected, how
    it shows, what to do at what price, who says so. The word "sharing": how the stacks of this node (NCCL,
    UCX, PyTorch, MPI) pass device memory between processes, by version and setting, and which check tries it.
    """
    config = options.site_config(config_file)
    checks = {
        item.check.id: item for item in check_files.load(config.checks_dirs) if isinstance(item, LoadedCheck)
    }
    if id_ != SHARING and (as_json or simulate is not None):
        option = "--json" if as_json else "--simulate"
        raise click.UsageError(f"{option} is for `explain {SHARING}`; {id_} is the same on every node")
    issues = {issue.id: issue for issue in knownissues.load(config.known_issues_dirs)}
    if id_ == SHARING:
        with options.node(simulate) as node, progress() as watcher:
            stock = engine.take_stock(Request(), config, node, watcher)
        tell = explain_sharing.document if as_json else explain_sharing.page
        click.echo(tell(stock.facts, [item.check for item in checks.values()], node.simulated))
    elif id_ in checks:
        click.echo(_check_page(checks[id_], issues.values()))
    elif id_ in issues:
        click.echo(page(issues[id_]))
    else:
        known = [*checks, SHARING, *get_close_matches(id_, issues)]
        raise UnknownName("check or known issue", id_, known)


def _check_page(item: LoadedCheck, issues: Iterable[KnownIssue]) -> str:
    told = inspect.getdoc(loader.module(item.file)) or "(its file says nothing)"
    return "\n".join(
        [
            *wrap(f"{item.check.id}: {item.check.title}", COLUMNS),
            "",
            *_reflowed(told),
            "",
            f"tier      {item.check.tier.label}",
            *wrap(", ".join(_required(item.check)) or "nothing", COLUMNS, "requires  "),
            *wrap(_detected(item.check.id, issues), COLUMNS, "detects   "),
            f"file      {item.file}",
        ]
    )


def _required(check: Check) -> Iterator[str]:
    yield from sorted(check.requires)
    if check.needs_mpi:
        yield "an MPI library that takes device pointers"
    if check.needs_allocators:
        yield "CuPy or PyTorch"


def _detected(check: str, issues: Iterable[KnownIssue]) -> str:
    if check == "known-versions":
        return "every known issue with versions"
    return ", ".join(issue.id for issue in issues if check in issue.checks) or "no known issue"


def _reflowed(text: str) -> Iterator[str]:
    """Paragraphs and items of lists, in lines of 80 columns; a paragraph that is indented stays as it is."""
    for number, paragraph in enumerate(re.split(r"\n(?: *\n)+", text)):
        if number:
            yield ""
        for part in re.split(rf"\n(?={_ITEM})", paragraph):
            mark = item.group() if (item := re.match(_ITEM, part)) else ""
            if part.startswith(" ") and not mark:
                yield part
            else:
                yield from wrap(part.removeprefix(mark), COLUMNS, mark)
