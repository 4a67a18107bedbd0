"""JSON documents: written from, parsed into and described by their dataclasses."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal, TypeVar, get_type_hints

from gpuipc_doctor.model import Evidence, EvidenceKind, Exit, Finding, Json
from gpuipc_doctor.probe_types import RoleOutcome
from gpuipc_doctor.report import sentences

T = TypeVar("T")

_SENTENCES = {Finding: "summary", Evidence: "line"}
"""Type → the document field that holds its sentence, filled in from ``says`` and ``values``."""

_UNREPORTED = {
    (RoleOutcome.__name__, field.name)
    for field in dataclasses.fields(RoleOutcome)
    if not field.metadata.get("reported", True)
}
"""Fields that no document has, by type."""

Fold = Callable[[Collection[str]], str]
"""Writes a list of node names as a folded set."""


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """The format of documents called ``name``: header fields and the fields of ``content``.

    Any change to the format raises the number at the end of the name.
    """

    name: str
    content: type
    about: str
    head: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def dumps(self, value: Any, fold: Fold | None = None, **given: Any) -> str:
        """The JSON document of a value. A field in ``given`` overrides the value's own."""
        fields = get_type_hints(self.content)
        names = (*(name for name in self.head if name not in fields), *fields)
        told = {name: given[name] if name in given else getattr(value, name) for name in names}
        return dumps({"schema": self.name, **{name: encode(item, fold) for name, item in told.items()}})


class BadDocument(ValueError):
    """The text is not a document of this kind and version; the message is one line with place and reason."""


class NotJson(BadDocument):
    """The text is not JSON."""


class ForeignDocument(BadDocument):
    """The text is a document of another kind."""


def dumps(document: Any, fold: Fold | None = None) -> str:
    """A JSON value as an ASCII document that ends in a newline."""
    return json.dumps(encode(document, fold), indent=2, allow_nan=False) + "\n"


def encode(value: Any, fold: Fold | None = None) -> Json:
    """A value as JSON: dataclasses by field, enumerations by value, text as strict UTF-8.

    With ``fold``, a field ``nodes`` with names becomes a folded set, followed by their ``count``.
    """
    if dataclasses.is_dataclass(value):
        encoded: dict[str, Json] = {}
        for field in dataclasses.fields(value):
            if (type(value).__name__, field.name) in _UNREPORTED:
                continue
            item = getattr(value, field.name)
            if fold and field.name == "nodes" and isinstance(item, tuple):
                encoded |= {"nodes": _text(fold(item)), "count": len(item)}
            else:
                encoded[field.name] = encode(item, fold)
        if sentence := _SENTENCES.get(type(value)):  # keys in the encoder's form, as readers expect
            encoded[sentence] = "; ".join(
                [*_causes(encoded), sentences.fill(encoded["says"], encoded["values"])]
            )
        return encoded
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {_text(str(encode(key))): encode(item, fold) for key, item in value.items()}
    if isinstance(value, frozenset):
        return sorted(map(encode, value))
    if isinstance(value, (tuple, list)):
        return [encode(item, fold) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no NaN
    return _text(value) if isinstance(value, str) else value


def _causes(encoded: Mapping[str, Json]) -> Iterable[str]:
    """The causes in a finding's evidence, with which its summary begins as on the screen."""
    items = (item for item in encoded.get("evidence", ()) if item["kind"] == EvidenceKind.CAUSE.value)
    return (sentences.fill(item["says"], item["values"]) for item in items)


def _text(text: str) -> str:
    """``text`` with a question mark for each undecodable byte: strict JSON parsers refuse lone surrogates."""
    return text.encode("utf-8", "replace").decode("utf-8")


def parse(text: str | bytes) -> Json:
    """The JSON value. Raises `NotJson`."""
    import msgspec

    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise NotJson(f"this is not JSON: {error}") from None


def load(kind: type[T], document: Mapping[str, Json], known: Collection[str] = ()) -> T:
    """Parse a document; fields with a default may be missing. Raises `BadDocument`.

    ``known``: further fields of the document.
    """
    import msgspec

    fields = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if strange := sorted(document.keys() - fields - set(known)):
        raise BadDocument(f"$: unknown key {strange[0][:80]!r}")
    try:
        return msgspec.convert(document, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        says, _, place = str(error).rpartition(" - at `")
        raise BadDocument(f"{place.removesuffix('`') or '$'}: {says or error}"[:300]) from None


def codes(meanings: Iterable[Exit]) -> Any:
    """A type for a document's field: one of the exit codes of a command."""
    return Literal[tuple(code.value for code in meanings if code not in (Exit.INTERNAL, Exit.USAGE))]
