"""The shipped JSON Schemas equal the ones generated from the documents' types."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from types import ModuleType

from gpuipc_doctor.model import Json
from tests import golden


def beside(module: ModuleType, name: str) -> Json:
    """The schema in the file of this name, in the module's package."""
    return json.loads((files(module.__package__ or "") / f"{name}.schema.json").read_text(encoding="utf-8"))


def check(module: ModuleType, name: str) -> None:
    """Fail unless the shipped schema equals the one that the module generates; handled like a golden file."""
    path = Path(str(files(module.__package__ or "") / f"{name}.schema.json"))
    golden.check(str(path), json.dumps(module.schema(), indent=2) + "\n")
