"""Which vendor's GPUs an entry, a fact or a variable is about. Adapters and MPI libraries are no vendor's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from gpuipc_doctor.knownissues.conditions import Need
from gpuipc_doctor.model import Fact
from gpuipc_doctor.vendors import VENDORS


class Entry(Protocol):
    """A known issue or a message."""

    @property
    def component(self) -> str: ...
    @property
    def also(self) -> tuple[str, ...]: ...
    @property
    def needs(self) -> tuple[Need, ...]: ...


def foreign_to(backend: str) -> frozenset[str]:
    """Names of facts that concern only other vendors' GPUs."""
    return frozenset().union(*(vendor.facts for vendor in VENDORS if vendor.backend != backend))


def concerns(entry: Entry, backend: str) -> bool:
    """Whether an entry may be about this backend's GPUs: its component, or one that it also concerns, and all
    that it needs."""
    foreign = foreign_to(backend)
    about = {
        entry.component,
        *(name for name in entry.also if entry.component in foreign and _is_bound(name)),
    }
    return not about <= foreign and foreign.isdisjoint(need.fact for need in entry.needs if not need.absent)


def here(facts: Iterable[Fact]) -> set[str]:
    """The backends of which a fact was found."""
    there = {fact.name for fact in facts if fact.value is not None}
    return {vendor.backend for vendor in VENDORS if there & vendor.facts}


def may_concern(entry: Entry, facts: Iterable[Fact]) -> bool:
    """Whether a node with these facts may have the issue; true if they show no vendor."""
    backends = here(facts)
    return not backends or any(concerns(entry, backend) for backend in backends)


def with_driver(facts: Iterable[Fact]) -> set[str]:
    """The backends whose driver was found."""
    found = {fact.name for fact in facts if fact.value}
    return {vendor.backend for vendor in VENDORS if found & vendor.drivers}


def is_for_another(env: Mapping[str, str], facts: Iterable[Fact]) -> bool:
    """Whether all variables are for a vendor without a driver here, while another vendor has one."""
    drivers = with_driver(facts)
    others = [vendor.word for vendor in VENDORS if vendor.backend not in drivers]
    return bool(env and drivers) and all(any(word in name for word in others) for name in env)


def _is_bound(name: str) -> bool:
    return any(name in vendor.facts for vendor in VENDORS)
