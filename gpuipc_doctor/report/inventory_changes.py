"""Changes between two inventories."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpuipc_doctor.grouping import by_key
from gpuipc_doctor.model import Fact


@dataclass(frozen=True, slots=True)
class Change:
    """A fact whose values differ; a value is None if the fact was not found."""

    name: str
    before: str | None
    after: str | None


def changes(before: Iterable[Fact], after: Iterable[Fact]) -> Iterator[Change]:
    """Facts whose values differ, regardless of their source. A fact may have several values."""
    old, new = _values(before), _values(after)
    for name in dict.fromkeys((*new, *old)):
        was, now = ("; ".join(values.get(name, ())) or None for values in (old, new))
        if was != now:
            yield Change(name, was, now)


def _values(facts: Iterable[Fact]) -> dict[str, list[str]]:
    return by_key((fact.name, fact.value) for fact in facts if fact.value is not None)
