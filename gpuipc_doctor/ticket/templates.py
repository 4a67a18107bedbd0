"""Fields that vendors ask for in a bug report, from ``templates.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path

from gpuipc_doctor.tables import table

SHIPPED = Path(__file__).with_name("templates.yaml")


@dataclass(frozen=True, slots=True)
class Ask:
    """One thing that a field asks for, and its source."""

    what: str
    command: str = ""
    """A command that prints the value on the node, for documents that lack the value."""
    answer: str = ""
    """A key of `answers.ANSWERS`."""
    facts: tuple[str, ...] = ()
    """Names of inventory facts, any of which fills the field."""
    file: str = ""
    """A file name pattern: an added file with such a name fills the field."""
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Field:
    label: str
    asks: tuple[Ask, ...]


@dataclass(frozen=True, slots=True)
class Template:
    id: str
    name: str
    file_at: str
    """URL at which to file the ticket."""
    source: str
    """The page that says what to report."""
    read: date
    """The day on which the source was read."""
    fields: tuple[Field, ...]
    note: str = ""


@cache
def load() -> Mapping[str, Template]:
    """The templates by vendor."""
    import msgspec

    return {each.id: each for each in msgspec.convert(table(SHIPPED), tuple[Template, ...])}
