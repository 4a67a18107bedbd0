"""Documented behaviour of each vendor where vendors may differ: the table behind ``Gpu.expects``.

The table is ``rules.yaml``. A value is one of `VALUES`. ``unspecified`` means that no source states the
behaviour: a check then records its observation without a conclusion. Measured values of one driver do not
bind others: a check that observes the opposite of a *measured* value warns instead of failing, unless data
was wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpuipc_doctor.tables import table

UNSPECIFIED = "unspecified"

VALUES = frozenset(
    {"succeeds", "refused", "crashes", "counted", "separate", "base", "interior"}
    | {"same", "differs", "ends", "stays"}
)
"""``counted``: success, the same address, one close per open. ``separate``: success, another address for each
open, each closed by itself. ``base`` and ``interior``: the address to which an interior pointer's handle
opens. ``same`` and ``differs``: comparison of two handles. ``ends`` and ``stays``: whether an open mapping
survives."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One vendor's behaviour in one case: a word of `VALUES` or `UNSPECIFIED`, with its source."""

    value: str
    source: str


@cache
def cases() -> Mapping[str, Mapping[str, Rule]]:
    """Case → (backend, or generation of its runtime → rule)."""
    data = table(Path(__file__).with_name("rules.yaml"))
    return {
        case: {on: Rule(value, source.format_map(data["sources"])) for on, (value, source) in said.items()}
        for case, said in data["cases"].items()
    }


def rule(backend: str, case: str, generation: int = 0) -> Rule:
    """The rule of ``case`` for ``backend``, or the rule of its runtime's ``generation`` if the table has one.

    Raises `KeyError` if the table lacks the case.
    """
    rules = cases()[case]
    return rules.get(f"{backend}-{generation}", rules[backend])


def expects(backend: str, case: str, generation: int = 0) -> str:
    """The value of the rule for ``case``."""
    return rule(backend, case, generation).value
