"""The package's own tables: YAML files next to the module that reads them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any


@cache
def table(file: Path) -> Any:
    """Contents of one of the package's YAML files, read once and not validated."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with file.open(encoding="utf-8") as opened:
        return yaml.load(opened, loader)  # noqa: S506 - both are safe loaders


def frozen(data: Mapping[str, Any], *other: str) -> dict[str, Any]:
    """The values of known fields, except ``other`` names; lists become tuples."""
    return {
        name: tuple(said) if isinstance(said, list) else said
        for name, said in data.items()
        if name not in other
    }
