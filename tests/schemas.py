"""The JSON Schemas of the documents' types, and whether the shipped ones equal them."""

from __future__ import annotations

import json
from importlib.resources import files
from inspect import cleandoc
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_type_hints

import msgspec

from gpuipc_doctor.fleet import summary
from gpuipc_doctor.model import Json
from gpuipc_doctor.report.json_documents import _SENTENCES, _UNREPORTED
from tests import golden


def beside(module: ModuleType, name: str) -> Json:
    """The schema in the file of this name, in the module's package."""
    return json.loads((files(module.__package__ or "") / f"{name}.schema.json").read_text(encoding="utf-8"))


def check(module: ModuleType, name: str) -> None:
    """Fail unless the shipped schema equals the generated one; handled like a golden file."""
    path = Path(str(files(module.__package__ or "") / f"{name}.schema.json"))
    golden.check(str(path), json.dumps(of(module), indent=2) + "\n")


def of(module: ModuleType) -> Json:
    """The JSON Schema of a module's documents."""
    if module is summary:
        return _of_summaries()
    kind = module.KIND
    return _schema(kind.name, kind.content, kind.about, **kind.head)


def _schema(name: str, kind: type, about: str, **head: Any) -> Json:
    """The JSON Schema (draft 2020-12) of a document: ``schema``, ``head`` and the fields of ``kind``."""
    own: dict[str, Any] = {"schema": Literal[name], **head}
    fields = {**own, **get_type_hints(kind), **own}
    document = msgspec.defstruct("Document", list(fields.items()))
    _, definitions = msgspec.json.schema_components([document], ref_template="#/$defs/{name}")
    for title, described in definitions.items():
        if "description" in described:
            described["description"] = cleandoc(described["description"])
        if properties := described.get("properties"):
            for finding, sentence in _SENTENCES.items():
                if title == finding.__name__:
                    properties[sentence] = {"type": "string"}
            for unreported in _UNREPORTED & {(title, name) for name in properties}:
                del properties[unreported[1]]
            for each in properties.values():
                each.pop("default", None)
                each.pop("propertyNames", None)  # of msgspec 0.23 and newer
            if properties.get("nodes", {}).get("type") == "array":
                properties |= {"nodes": {"type": "string"}, "count": {"type": "integer", "minimum": 1}}
            described |= {"required": list(properties), "additionalProperties": False}
    top = definitions.pop("Document")
    used = json.dumps([top, definitions])
    definitions = {title: each for title, each in definitions.items() if f'#/$defs/{title}"' in used}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{name.replace('/', ':')}",
        **{**top, "title": name, "description": about},
        "$defs": definitions,
    }


def _of_summaries() -> Json:
    """The schema of node summaries; `summary.dumps` leaves out fields that have their default."""
    whole = _schema(summary.SCHEMA, summary.NodeReport, "The answer of one node of a fleet.")
    kinds = (summary.FindingSummary, summary.Figure, summary.MatchedIssue)
    for described, kind in [
        (whole, summary.NodeReport),
        *((whole["$defs"][kind.__name__], kind) for kind in kinds),
    ]:
        optional = {
            field.name
            for field in msgspec.structs.fields(kind)
            if field.default is not msgspec.NODEFAULT or field.default_factory is dict
        }
        described["required"] = [name for name in described["required"] if name not in optional]
    return whole
