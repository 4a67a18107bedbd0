"""``gpuipc-doctor known-issues``: what is known, one entry in full, and what is wrong with a file."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import asdict
from pathlib import Path
from textwrap import fill

import click

from gpuipc_doctor import knownissues, loader
from gpuipc_doctor.cli import options
from gpuipc_doctor.knownissues import Confidence, KnownIssue, Signature, Workaround
from gpuipc_doctor.loader import LoadedCheck
from gpuipc_doctor.plan import UnknownName

_COLUMNS = 80

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
def list_(config_file: Path | None, as_json: bool) -> None:
    """List the known issues."""
    issues = knownissues.load(options.site_config(config_file).known_issues_dirs)
    click.echo(_json([_entry(issue) for issue in issues]) if as_json else _table(issues))


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
    click.echo(_json(_entry(issues[id_])) if as_json else "\n".join(_page(issues[id_])))


@command.command()
@click.argument("files", type=click.Path(path_type=Path), nargs=-1, metavar="[FILE]...")
@_with_config
def lint(files: tuple[Path, ...], config_file: Path | None) -> None:
    """Name every mistake in these files, by default in those of the package and of the site."""
    site = options.site_config(config_file)
    paths = files or tuple(knownissues.files(site.known_issues_dirs))
    loaded = loader.load(site.checks_dirs)
    mistakes = knownissues.lint(paths, {item.check.id for item in loaded if isinstance(item, LoadedCheck)})
    for mistake in mistakes:
        click.echo(str(mistake), err=True)
    if mistakes:
        raise SystemExit(2)
    click.echo(f"{len(paths)} file{'s' * (len(paths) != 1)} without a mistake")


def _entry(issue: KnownIssue) -> dict[str, object]:
    """An issue under its file's names."""
    entry = asdict(issue)
    return {"class" if name == "kind" else name: value for name, value in entry.items()}


def _json(data: object) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False)


def _table(issues: tuple[KnownIssue, ...]) -> str:
    from tabulate import tabulate

    rows = [
        (issue.id, issue.component, issue.bad_versions, "withdrawn" if issue.withdrawn else issue.kind)
        for issue in issues
    ]
    return tabulate(rows, ("id", "component", "bad versions", "class"), "simple", disable_numparse=True)


def _page(issue: KnownIssue) -> Iterator[str]:
    """One issue in paragraphs of at most 80 columns."""
    yield fill(f"{issue.id}: {issue.title}", _COLUMNS)
    if issue.withdrawn:
        yield from _paragraph("Withdrawn", issue.withdrawn)
    yield from _paragraph("Component", ", ".join((issue.component, *issue.also)))
    yield from _paragraph("Class", f"{issue.kind}, {issue.status}")
    yield from _paragraph("Bad versions", issue.bad_versions)
    yield from _paragraph("Known good", ", ".join(v for one in issue.affected for v in one.known_good))
    yield from _paragraph("Only with", ", ".join(map(str, issue.needs)))
    yield from _paragraph("Symptom", issue.symptom)
    yield from _paragraph("Trigger", issue.trigger)
    yield from _paragraph("Found by", ", ".join(issue.detected_by))
    yield from _list("Signatures", list(map(_signature, issue.signatures)))
    yield from _list("Workarounds", [_workaround(issue, one) for one in issue.workarounds])
    yield from _list("Inferred", issue.inferred)
    yield from _paragraph("Notes", issue.notes)
    yield from _list("References", [f"{reference.type}: {reference.url}" for reference in issue.references])


def _paragraph(label: str, text: str) -> Iterator[str]:
    if text:
        yield _fill(text, f"{label + ':':<14}")


def _list(label: str, items: Collection[str]) -> Iterator[str]:
    for number, item in enumerate(items):
        yield _fill(item, f"{'' if number else label + ':':<14}- ")


def _fill(text: str, lead: str) -> str:
    """Lines of at most 80 columns, but what people copy (addresses, variables, expressions) stays whole."""
    hang = " " * len(lead)
    return fill(
        text,
        _COLUMNS,
        initial_indent=lead,
        subsequent_indent=hang,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _signature(one: Signature) -> str:
    """``a and b, with cxi-driver (medium confidence)``"""
    beside = ", with " + ", ".join(map(str, one.needs)) if one.needs else ""
    sure = "" if one.confidence is Confidence.HIGH else f" ({one.confidence.label} confidence)"
    return f"{' and '.join(one.match)}{beside}{sure}"


def _workaround(issue: KnownIssue, one: Workaround) -> str:
    where = f" ({issue.component} {one.when})" if one.when else ""
    cost = f"; cost: {one.cost}" if one.cost else ""
    conflicts = f"; brings about {', '.join(one.conflicts)}" if one.conflicts else ""
    return f"{one.do}{where}{cost}{conflicts}"
