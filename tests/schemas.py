"""The JSON Schemas that our documents are held to."""

from __future__ import annotations

import json
from importlib.resources import files
from types import ModuleType

from gpuipc_doctor.model import Json


def beside(module: ModuleType, name: str) -> Json:
    """The schema in the file of this name in the module's package."""
    return json.loads((files(module.__package__ or "") / f"{name}.schema.json").read_text(encoding="utf-8"))
