"""A comparison as JSON; ``comparison.schema.json`` beside this file describes it."""

from __future__ import annotations

import json

from gpuipc_doctor.comparison.comparison import Comparison
from gpuipc_doctor.report.report_json import encode

SCHEMA = "gpuipc-doctor/comparison/3"
"""Any change of what may stand in the document raises the number."""


def dumps(comparison: Comparison) -> str:
    """A JSON document in ASCII, ending in a newline."""
    head = {"schema": SCHEMA, "exit_code": comparison.exit_code.value}
    return json.dumps({**head, **encode(comparison)}, indent=2, allow_nan=False) + "\n"
