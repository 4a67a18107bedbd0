"""A known issue that somebody is asked for question by question, written as a file that can be linted."""

from __future__ import annotations

import re

import click
import yaml

from gpuipc_doctor.inventory import NAMES

CLASSES = ("leak", "hang", "crash", "corruption", "error", "perf", "limitation", "config")

_VARIES = re.compile(r"(?P<address>0x[0-9a-fA-F]+)|(?P<directory>/\S*/)|(?P<number>[0-9]+)|(?P<space>\s+)")
_STANDS_FOR = {"address": "0x[0-9a-fA-F]+", "directory": r"\S*/", "number": r"\d+", "space": " "}


def expression(line: str) -> str:
    """What finds this line of a log, and others that differ in numbers, addresses and directories alone."""
    said, at, line = "", 0, line.strip()
    for varies in _VARIES.finditer(line):
        said += _literal(line[at : varies.start()]) + _STANDS_FOR[varies.lastgroup or ""]
        at = varies.end()
    return said + _literal(line[at:])


def _literal(text: str) -> str:
    return re.escape(text).replace(r"\-", "-")


def ask() -> dict[str, object]:
    """An entry for the database, from a person."""
    entry: dict[str, object] = {
        "id": click.prompt("Id, words joined by hyphens"),
        "title": click.prompt("Title, one line"),
        "component": click.prompt("Component", type=click.Choice(tuple(NAMES)), show_choices=False),
        "class": click.prompt("What it is", type=click.Choice(CLASSES)),
        "status": "open",
        "symptom": click.prompt("What a user sees"),
        "affected": _versions(),
    }
    if line := click.prompt("A line of a log that shows it (empty: none)", default="", show_default=False):
        entry["signatures"] = [{"match": expression(line), "confidence": "medium", "sample": line}]
    if help_ := click.prompt("What helps (empty: nothing known)", default="", show_default=False):
        entry["workarounds"] = [{"do": help_}]
    entry["references"] = [{"type": "report", "url": click.prompt("Address of the report")}]
    entry["evidence"] = "read"
    return entry


def _versions() -> list[dict[str, object]]:
    bad = click.prompt("Versions seen to be bad, with commas (empty: any)", default="", show_default=False)
    if not bad:
        return []
    first = click.prompt("First bad version", default="unknown")
    fixed = click.prompt("First version without the fault", default="unknown")
    return [{"introduced": first, "fixed": fixed, "known_bad": [one.strip() for one in bad.split(",")]}]


def dump(entry: dict[str, object]) -> str:
    """A file with this entry alone."""
    return yaml.safe_dump({"issues": [entry]}, sort_keys=False, allow_unicode=True, width=110)
