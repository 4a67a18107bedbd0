"""Which operations each vendor allows, with sources, from ``legality.yaml``.

`memory_model` asks before each operation: an ``illegal`` one is never generated, a ``legal`` one may be.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpuipc_doctor.files.tables import Ruling, rulings

LEGAL, ILLEGAL, DECLARED = "legal", "illegal", "declared"
"""Values of a ruling. ``declared``: applications perform the operation, although the vendor's documentation
does not allow it. Only operations in `memory_operations.DECLARED` have this value."""


def rules() -> Mapping[str, Mapping[str, Ruling]]:
    """Operation → backend → whether the vendor allows it."""
    return rulings(Path(__file__).with_name("legality.yaml"), "rules")


def value(backend: str, case: str) -> str:
    """`LEGAL`, `ILLEGAL` or `DECLARED`; for a backend that the table leaves out, `ILLEGAL`.

    Raises `KeyError` if the table lacks the case.
    """
    ruling = rules()[case].get(backend)
    return ruling.value if ruling else ILLEGAL
