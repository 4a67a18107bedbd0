"""Which operations each vendor allows, with sources, from ``legality.yaml``.

`memory_model` asks before each operation: an ``illegal`` one is never generated, a ``legal`` one may be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpuipc_doctor.tables import table

LEGAL, ILLEGAL, DECLARED = "legal", "illegal", "declared"
"""Values of a ruling. ``declared``: applications perform the operation, although the vendor's documentation
does not allow it. Only operations in `generator.DECLARED` have this value."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """Whether a vendor allows an operation, and the source."""

    value: str
    source: str


@cache
def rules() -> Mapping[str, Mapping[str, Ruling]]:
    """Operation → backend → ruling."""
    data = table(Path(__file__).with_name("legality.yaml"))
    return {
        case: {on: Ruling(value, source.format_map(data["sources"])) for on, (value, source) in said.items()}
        for case, said in data["rules"].items()
    }


def value(backend: str, case: str) -> str:
    """`LEGAL`, `ILLEGAL` or `DECLARED`. Raises `KeyError` if the table lacks the case."""
    return rules()[case][backend].value
