"""The report as JSON for programs, and back.

``report.schema.json`` describes the document (JSON Schema, draft 2020-12). A field may be added to it, and a
report from before is read with that field's default, so that two can be compared across an upgrade of ours;
any other change raises the number at the end of `SCHEMA`. Beside what `model.Report` holds, the document
says what follows from it (exit code, totals, worst status of each check on each subject), so that a script
need not work that out again; reading a document ignores those.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import types
import typing
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from gpuipc_doctor import model
from gpuipc_doctor.model import Json, Report, Result, Status, Tier
from gpuipc_doctor.report import digest, exits, sentences

SCHEMA = "gpuipc-doctor/report/2"
EARLIER = "gpuipc-doctor/report/1"
"""Findings were sentences then, without keys and values."""

KINDS: dict[str, type] = {
    "device": model.Device,
    "fact": model.Fact,
    "check": model.CheckInfo,
    "result": model.Result,
    "finding": model.Finding,
    "evidence": model.Evidence,
    "measurement": model.Measurement,
    "series": model.Series,
    "line": model.Line,
    "mark": model.Mark,
    "role": model.RoleOutcome,
    "calls": model.Calls,
    "fault": model.DriverFault,
    "join": model.Join,
}
"""The schema's definition of each class that the document holds."""


class BadDocument(ValueError):
    """A text is not a report of this version; ``str()`` is one line that says where and why."""


def _schema_of_earlier() -> dict[str, Json]:
    """The schema of the document, without asking for what has a default."""
    text = files(__package__).joinpath("report.schema.json").read_text(encoding="utf-8")
    relaxed: dict[str, Json] = json.loads(text)
    definitions = [(relaxed, Report), *((relaxed["$defs"][name], kind) for name, kind in KINDS.items())]
    for definition, kind in definitions:
        has_default = {
            field.name
            for field in dataclasses.fields(kind)
            if (field.default, field.default_factory) != (dataclasses.MISSING, dataclasses.MISSING)
        }
        definition["required"] = [field for field in definition["required"] if field not in has_default]
    return relaxed


def dumps(report: Report, *, exit_code: int | None = None) -> str:
    """``report`` as a JSON document in ASCII, ending in a newline.

    ``exit_code`` is what the run will exit with, by default the code of the default style.
    """
    totals = digest.totals(report)
    document = {
        "schema": SCHEMA,
        "exit_code": exits.code(report) if exit_code is None else exit_code,
        "totals": {status.value: totals[status] for status in Status},
        "matrix": {check: _row(results) for check, results in digest.by_check(report).items()},
        **encode(report),
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def loads(text: str) -> Report:
    """The report that `dumps` wrote. Raises `BadDocument` for anything else."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    try:
        document = json.loads(text, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError) as error:
        raise BadDocument(f"this is not JSON: {error}") from None
    found = document.get("schema") if isinstance(document, dict) else None
    if found == EARLIER:
        found, document = SCHEMA, _with_data(document)
    if found != SCHEMA:
        raise BadDocument(f'{_what_instead(found)}: "schema" is {json.dumps(found)[:80]}, not "{SCHEMA}"')
    mistake = best_match(Draft202012Validator(_schema_of_earlier()).iter_errors(document))
    if mistake is not None:
        raise BadDocument(f"{mistake.json_path}: {mistake.message[:200]}")
    return typing.cast(Report, _decode(Report, document))


def _with_data(document: dict[str, Json]) -> dict[str, Json]:
    """A report of `EARLIER` as one of this version, as far as it has the right shape; a later look tells."""

    def of(finding: Json) -> Json:
        if not isinstance(finding, dict) or not isinstance(finding.get("evidence"), list):
            return finding
        items = [{"kind": "seen", "line": one, "says": one, "values": {}} for one in finding["evidence"]]
        return {**finding, "key": "", "says": finding.get("summary"), "values": {}, "evidence": items}

    results = document.get("results")
    if isinstance(results, list):
        results = [
            {**one, "finding": of(one.get("finding"))} if isinstance(one, dict) else one for one in results
        ]
    return {**document, "schema": SCHEMA, "results": results}


def _finite(literal: str) -> float:
    """JSON has neither infinities nor NaN, and no number of ours is too large for a `float`."""
    number = float(literal)
    if not math.isfinite(number):
        raise ValueError(f"{literal[:20]} is no number")
    return number


def _what_instead(schema: Json) -> str:
    if isinstance(schema, str) and schema.startswith(SCHEMA.rpartition("/")[0]):
        return "this report is of another version of gpuipc-doctor"
    return "this is not a report"


def _row(results: list[Result]) -> dict[str, str]:
    subjects: dict[str, list[Result]] = {}
    for result in results:
        subjects.setdefault(result.subject, []).append(result)
    return {subject: status.value for subject, of in subjects.items() if (status := digest.worst(of))}


def encode(value: Any) -> Json:
    """A value of the model as JSON: dataclasses by field, enumerations by value, text as strict UTF-8."""
    if dataclasses.is_dataclass(value):
        encoded = {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
        if isinstance(value, model.Finding):  # in words of what was encoded, as who reads it would put it
            encoded["summary"] = sentences.fill(encoded["says"], encoded["values"])
        if isinstance(value, model.Evidence):
            encoded["line"] = sentences.fill(encoded["says"], encoded["values"])
        return encoded
    if isinstance(value, Tier):
        return value.label
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {_text(str(key)): encode(item) for key, item in value.items()}
    if isinstance(value, frozenset):
        return sorted(map(encode, value))
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no NaN
    return _text(value) if isinstance(value, str) else value


def _text(text: str) -> str:
    """``text`` with a question mark for each undecodable byte: strict JSON parsers refuse lone surrogates."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _decode(kind: Any, value: Json) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if hasattr(kind, "__dataclass_fields__"):
        hints = _hints(kind)
        return kind(**{name: _decode(hints[name], value[name]) for name in hints if name in value})
    if origin is types.UnionType:  # the only unions are of one type and None
        return None if value is None else _decode(arguments[0], value)
    if origin is tuple:
        return tuple(_decode(arguments[0], item) for item in value)
    if origin is frozenset:
        return frozenset(value)
    if kind is Tier:
        return Tier[value.upper()]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(value)
    return kind(value) if kind in (int, float) else value  # to JSON, 1 and 1.0 are the same


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)
