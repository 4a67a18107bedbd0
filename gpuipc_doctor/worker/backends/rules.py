"""Documented behaviour of each vendor where vendors may differ: the table behind ``Gpu.expects``.

The table is ``rules.yaml``. A value is one of `VALUES`. ``unspecified`` means that no source states the
behaviour: a check then records its observation without a conclusion. Measured values of one driver do not
bind others: a check that observes the opposite of a *measured* value warns instead of failing, unless data
was wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpuipc_doctor.files.tables import Ruling, rulings

UNSPECIFIED = "unspecified"

VALUES = frozenset(
    {"succeeds", "refused", "crashes", "counted", "separate", "base", "interior"}
    | {"same", "differs", "ends", "stays"}
)
"""``counted``: success, the same address, one close per open. ``separate``: success, another address for each
open, each closed by itself. ``base`` and ``interior``: the address to which an interior pointer's handle
opens. ``same`` and ``differs``: comparison of two handles. ``ends`` and ``stays``: whether an open mapping
survives."""


def cases() -> Mapping[str, Mapping[str, Ruling]]:
    """Case → (backend, or generation of its runtime → rule)."""
    return rulings(Path(__file__).with_name("rules.yaml"), "cases")


def rule(backend: str, case: str, generation: int = 0) -> Ruling:
    """The rule of ``case`` for ``backend``, or the rule of its runtime's ``generation`` if the table has one.
    A backend without a rule is `UNSPECIFIED`.

    Raises `KeyError` if the table lacks the case.
    """
    rules = cases()[case]
    unread = Ruling(UNSPECIFIED, "no source was read")
    return rules.get(f"{backend}-{generation}", rules.get(backend, unread))


def expects(backend: str, case: str, generation: int = 0) -> str:
    """The value of the rule for ``case``."""
    return rule(backend, case, generation).value
