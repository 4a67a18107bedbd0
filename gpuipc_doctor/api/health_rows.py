"""What check gpu-health calls a fault: the table ``health_rows.yaml``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from gpuipc_doctor.files.tables import table

_TABLE = table(Path(__file__).with_suffix(".yaml"))

FAULTS: Mapping[str, Mapping[str, str]] = _TABLE["fail"]
"""Key of a FAIL → ``says``, ``do`` and ``source``."""

WARNINGS: Mapping[str, Mapping[str, str]] = _TABLE["warn"]
"""Key of a WARN → the same."""

ENDING_XIDS: Collection[int] = frozenset(_TABLE["xids"])
"""Numbers of the Xids after which a GPU must be reset."""

LINKS: Mapping[str, int] = _TABLE["links"]
"""Name of a GPU of which all NVLinks are connected → their number."""

LINK_RATES: Mapping[str, float] = {name: row["rate"] for name, row in _TABLE["link-rates"].items()}
"""Name of a GPU → GB/s of all its NVLinks in one direction."""
