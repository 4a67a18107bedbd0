"""Release dates of the versions that fix known issues, and up to which versions the sources were read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from pathlib import Path

from gpuipc_doctor.files.tables import table
from gpuipc_doctor.model import Fact
from gpuipc_doctor.versions import parse

LONG = timedelta(days=2 * 365)
"""A log without a version is assumed to come from software with all fixes that are at least this old."""


def released() -> Mapping[str, Mapping[str, date]]:
    """(component, version) → release date."""
    found: Mapping[str, Mapping[str, date]] = table(Path(__file__).with_name("releases.yaml"))
    return found


def read_until() -> Mapping[str, str]:
    """Component → the newest version of which notes, reports or sources were read; ``date``: when."""
    found: Mapping[str, str] = table(Path(__file__).with_name("read_until.yaml"))
    return found


def newer_than_read(facts: Iterable[Fact]) -> tuple[Fact, ...]:
    """The facts with a newer version than the database knows of; their source says so.

    A bound ``620`` stands for all versions that start with it.
    """
    until = read_until()
    newer = []
    for fact in facts:
        version, bound = parse(fact.name, fact.value or ""), parse(fact.name, until.get(fact.name, ""))
        if version and bound and version.release[: len(bound.release)] > bound.release:
            says = f"newer than our data of {until['date']}, read until {until[fact.name]}"
            newer.append(Fact(fact.name, fact.value, says))
    return tuple(dict.fromkeys(newer))
