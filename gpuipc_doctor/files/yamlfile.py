"""Read a user's YAML file, and report all mistakes with file and line.

The file is read as YAML's events, so that every value has its line and no Python object is constructed.
(`yaml.compose` loses tags and the places of aliases, and its C version overflows the stack on a file of a
million brackets.) A document consists of mappings with text keys, lists, text, numbers, true, false and null.
Tags and aliases are refused, so a file can neither name a Python object nor grow beyond its own size. Plain
words are read as in YAML 1.2: ``yes``, ``off``, ``12:30`` and ``2026-11-20`` are text.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gpuipc_doctor.files import reading
from gpuipc_doctor.files.near_miss import did_you_mean

if TYPE_CHECKING:  # importing it takes longer than a prolog with a stored result may
    from gpuipc_doctor.model import Json

MAX_BYTES = 4 << 20
"""Maximum bytes: far more than any hand-written file; longer files would only use the node's memory."""

MAX_DEPTH = 32
"""Maximum nesting, so that neither this reader nor the schema runs out of stack."""

_TOO_DEEP = f"is nested deeper than {MAX_DEPTH} levels"

_UNSHOWABLE = r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
"""Pattern for characters that YAML forbids in a file. Their escapes are also refused, since values are
printed on terminals."""

_SHOWABLE_ASCII = b"\t\n\r" + bytes(range(0x20, 0x7F))

Key = str | int
"""A step into a document: the key of a mapping or the index of a list."""


@dataclass(frozen=True, slots=True, order=True)
class Mistake:
    """A mistake in a file; ``str()`` gives ``file:line: text``. Line 0 means the whole file."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}" if self.line else f"{self.path}: {self.text}"


class BadFile(Exception):
    """An unusable file. ``mistakes`` lists all its mistakes in order of lines.

    ``sound`` is the part that is valid for the schema; None if there is none.
    """

    def __init__(self, mistakes: Iterable[Mistake], sound: Document | None = None) -> None:
        self.mistakes = tuple(sorted(set(mistakes)))
        self.sound = sound
        super().__init__("\n".join(str(mistake).replace("\n", " ") for mistake in self.mistakes))


@dataclass(frozen=True, slots=True)
class _Mark:
    """A value's line and, for a scalar, its text, since ``12.10`` becomes the number 12.1."""

    line: int
    written: str


@dataclass(frozen=True)
class Document:
    """A file's content, with the line of each value."""

    path: Path
    data: Json
    _marks: Mapping[tuple[Key, ...], _Mark] = field(repr=False)

    @classmethod
    def with_lines(cls, path: Path, data: Json, name: str, lines: Sequence[int]) -> Document:
        """A document in which only the elements of the list ``name`` have line numbers."""
        marks: dict[tuple[Key, ...], _Mark] = {(): _Mark(1, "")}
        marks |= {(name, number): _Mark(line, "") for number, line in enumerate(lines)}
        return cls(path, data, marks)

    def line(self, *keys: Key) -> int:
        """Line number, from 1, of the value at this key path, or of the innermost existing value around
        it."""
        while keys and keys not in self._marks:
            keys = keys[:-1]
        return self._marks[keys].line

    def lines(self, name: str) -> list[int]:
        """Line numbers, from 1, of the elements of the list with this name."""
        return [self.line(name, number) for number in range(len(self.data.get(name, ())))]

    def written(self, *keys: Key) -> dict[Key, str]:
        """Each key of the mapping at this key path → its value as written, even if invalid."""
        return {path[-1]: mark.written for path, mark in self._marks.items() if path and path[:-1] == keys}

    def mistake(self, text: str, *keys: Key) -> Mistake:
        """A mistake found by the document's reader, at the line of this key path."""
        return Mistake(self.path, self.line(*keys), text)


def read(path: Path, schema: Mapping[str, Json] | None) -> Document:
    """Read ``path`` and validate it with a JSON Schema (draft 2020-12), if given.

    A schema's ``description`` is the message for a value that violates its ``pattern``. Raises only
    `BadFile`, with all mistakes.
    """
    return parse(path, content(path), schema)


def parse(path: Path, content: bytes, schema: Mapping[str, Json] | None) -> Document:
    """Parse and validate content as `read` does, for a file that was read already."""
    builder = _Builder(path)
    document, mistakes = builder.build(_text(path, content))
    if schema is not None:
        _refuse_what_was_written(document)
        from jsonschema import Draft202012Validator

        validator = Draft202012Validator(schema)
        for error in validator.iter_errors(document.data):
            if tuple(error.absolute_path) not in builder.unread:
                mistakes += _explain(document, error)
        if mistakes:
            raise BadFile(mistakes, _sound(document, validator))
    if mistakes:
        raise BadFile(mistakes)
    return document


def violations(document: Document, schema: Mapping[str, Json]) -> list[Mistake]:
    """Schema mistakes in a document that has been read already."""
    from jsonschema import Draft202012Validator

    errors = Draft202012Validator(schema).iter_errors(document.data)
    return [mistake for error in errors for mistake in _explain(document, error)]


def _refuse_what_was_written(document: Document) -> None:
    """Raise `BadFile` for a report or another document that this tool has written."""
    data = document.data
    written = data.get("schema") if isinstance(data, dict) else None
    if isinstance(written, str) and written.startswith("gpuipc-doctor/"):
        text = f"is output of gpuipc-doctor ({written}), not a file written by hand"
        raise BadFile([Mistake(document.path, 0, text)])


def _sound(document: Document, validator: Any) -> Document | None:
    """The document without invalid values; None if nothing is left.

    Invalid mappings in a list become None. A mapping without a required value is invalid as a whole.
    """
    if not isinstance(document.data, dict):
        return None
    data, marks = copy.deepcopy(document.data), dict(document._marks)

    def is_left_out(error: Any) -> bool:
        listed = _at(document.data, [*error.absolute_path][:-1])
        has_mappings = isinstance(listed, list) and any(isinstance(item, dict) for item in listed)
        return error.instance is None and has_mappings

    while errors := [error for error in validator.iter_errors(data) if not is_left_out(error)]:
        left_out = set[tuple[Key, ...]]()
        for error in reversed(errors):  # last items of a list first, so that the others keep their numbers
            path = list(error.absolute_path)
            if error.validator == "additionalProperties":
                inner = _at(data, path)
                known = error.schema.get("properties", {})
                patterns = error.schema.get("patternProperties", {})
                for key in list(inner or ()):
                    if key not in known and not any(re.search(pattern, key) for pattern in patterns):
                        del inner[key]
            elif "propertyNames" in error.absolute_schema_path:
                (_at(data, path) or {}).pop(error.instance, None)
            elif not path:
                return None
            elif tuple(path) not in left_out:
                left_out.add(tuple(path))
                marks = _leave_out(data, path, marks)
    return Document(document.path, data, marks)


def _at(data: Json, path: Iterable[Key]) -> Json:
    """The value at a key path; None if an earlier mistake removed it."""
    try:
        for key in path:
            data = data[key]
    except (KeyError, TypeError):
        return None
    return data


def _leave_out(
    data: Json, path: list[Key], marks: dict[tuple[Key, ...], _Mark]
) -> dict[tuple[Key, ...], _Mark]:
    """Remove the value at a key path, or the list item that contains it; returns the `_Mark` of each
    remaining value."""
    for place, key in enumerate(path):
        listed = _at(data, path[:place])
        if isinstance(key, int) and isinstance(listed, list):
            if key >= len(listed) or (listed[key] is None and path[place + 1 :]):
                return marks  # an earlier mistake removed it
            if any(isinstance(item, dict) for item in listed):
                listed[key] = None
                return marks
            del listed[key]
            return _renumbered(marks, tuple(path[:place]), key)
    if isinstance(inner := _at(data, path[:-1]), dict):
        inner.pop(path[-1], None)
    return marks


def _renumbered(
    marks: Mapping[tuple[Key, ...], _Mark], listed: tuple[Key, ...], gone: int
) -> dict[tuple[Key, ...], _Mark]:
    """The `_Mark` of each value after the removal of one item of a list."""
    place, renumbered = len(listed), dict[tuple[Key, ...], _Mark]()
    for path, mark in marks.items():
        number = path[place] if path[:place] == listed and len(path) > place else None
        if not isinstance(number, int) or number < gone:
            renumbered[path] = mark
        elif number > gone:
            here = (*listed, number - 1, *path[place + 1 :])
            renumbered[here] = mark
    return renumbered


def content(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Bytes of a file of a plausible size. Raises `BadFile`."""
    try:
        return reading.read(path, max_bytes)
    except reading.Unreadable as reason:
        raise BadFile([Mistake(path, 0, str(reason))]) from None


def _text(path: Path, content: bytes) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadFile([Mistake(path, line, "is not UTF-8 text; save the file as UTF-8")]) from None
    if bad := _unshowable(text):
        line = text.count("\n", 0, bad.start()) + 1
        raise BadFile([Mistake(path, line, f"holds the control character {bad[0]!r}")])
    return text


def _unshowable(text: str) -> re.Match[str] | None:
    if text.isascii() and not text.encode().translate(None, _SHOWABLE_ASCII):
        return None  # the usual case; compiling the expression takes milliseconds
    return re.search(_UNSHOWABLE, text)


class _Builder:
    """Builds a document from YAML's events; collects the mistakes that do not prevent building."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._marks: dict[tuple[Key, ...], _Mark] = {}
        self._mistakes: list[Mistake] = []
        self._events: Iterator[Any] = iter(())
        self.unread: set[tuple[Key, ...]] = set()
        """Places of unsupported values, which are None in the document."""

    def build(self, text: str) -> tuple[Document, list[Mistake]]:
        import yaml

        # The C parser is much faster and part of PyYAML's wheels; its events are the same.
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            self._events = yaml.parse(text, Loader=loader)
            next(self._events)  # the stream's start
            if isinstance(next(self._events), yaml.StreamEndEvent):
                self._refuse(0, "is empty")
            data = self._value(next(self._events), ())
            next(self._events)  # the document's end
            after: Any = next(self._events)
            if not isinstance(after, yaml.StreamEndEvent):
                says = "a second document begins; write one document per file"
                self._refuse(after.start_mark.line + 1, says)
        except yaml.MarkedYAMLError as error:
            self._refuse(*_syntax(error, text))
        except yaml.YAMLError as error:
            self._refuse(0, f"is not YAML: {' '.join(str(error).split())}")
        return Document(self._path, data, self._marks), self._mistakes

    def _value(self, event: Any, path: tuple[Key, ...], line: int = 0) -> Json:
        """The value that starts with ``event``. ``line``: line of its key, for messages."""
        import yaml

        line = line or event.start_mark.line + 1
        if len(path) > MAX_DEPTH:
            self._refuse(line, _TOO_DEEP)
        self._marks[path] = _Mark(line, getattr(event, "value", ""))
        if not self._vet(event, line):
            self.unread.add(path)
            return None
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(path)
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Json] = []
            while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
                items.append(self._value(event, (*path, len(items))))
            return items
        quoted = event.style not in (None, "")
        return event.value if quoted else _plain(event.value)

    def _mapping(self, path: tuple[Key, ...]) -> dict[str, Json]:
        import yaml

        data: dict[str, Json] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            line = event.start_mark.line + 1
            if not isinstance(event, yaml.ScalarEvent):
                self._refuse(line, "a key must be plain text")
            self._vet(event, line)
            key: str = event.value
            here = (*path, key)
            if key in data:
                self._note(line, f"key {key!r} was given before, on line {self._marks[here].line}")
            data[key] = self._value(next(self._events), here, line)
        return data

    def _vet(self, event: Any, line: int) -> bool:
        """Whether a value or key is supported; records unsupported ones."""
        import yaml

        if isinstance(event, yaml.AliasEvent):
            self._note(line, f"alias *{event.anchor} is not supported; write the value out")
            return False
        if event.tag is not None:
            self._note(line, f"unsupported tag {event.tag!r}: remove it")
        # The file's characters were checked; only escapes in double quotes can add others.
        quoted = isinstance(event, yaml.ScalarEvent) and event.style == '"'
        if quoted and (bad := _unshowable(event.value)):
            self._note(line, f"holds the control character {bad[0]!r}")
            return False
        return True

    def _note(self, line: int, text: str) -> None:
        self._mistakes.append(Mistake(self._path, line, text))

    def _refuse(self, line: int, text: str) -> NoReturn:
        raise BadFile([*self._mistakes, Mistake(self._path, line, text)])


def _plain(written: str) -> Json:
    """A plain (unquoted) scalar as YAML 1.2's core schema reads it, with numbers that JSON can represent."""
    if written in ("", "~", "null"):
        return None
    if written in ("true", "false"):
        return written == "true"
    if written[0] not in "+-.0123456789":
        return written
    if re.fullmatch(r"[-+]?[0-9]{1,18}", written):
        return int(written)
    if re.fullmatch(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?", written):
        number = float(written)
        return number if math.isfinite(number) else written
    return written


def _syntax(error: Any, text: str) -> tuple[int, str]:
    """Line and text of a syntax error from one of YAML's two parsers."""
    line: int = (error.problem_mark or error.context_mark).line
    written = text.splitlines()[line : line + 1]
    if written and re.match(r" *\t", written[0]):
        return line + 1, "is indented with a tab; YAML requires spaces"
    if error.problem == "exceeded maximum nesting depth":  # libyaml 0.2.6 has its own limit, and reads ahead
        return line + 1, _TOO_DEEP
    said = " ".join(f"{error.problem or ''} {error.context or ''}".split())
    return line + 1, f"is not YAML: {said}"


_KINDS = {
    "string": "text",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "object": "a mapping (key: value)",
    "array": "a list",
    "null": "empty",
}


def _list_of(key: str, schema: Any) -> str:
    """The list to whose entries a key belongs that stands beside the lists; empty if there is none."""
    for name, kind in schema.get("properties", {}).items():
        entry = str(kind.get("items", {}).get("$ref", "")).removeprefix("#/$defs/")
        if key in schema.get("$defs", {}).get(entry, {}).get("properties", {}):
            return f"; put it into a list: a line `{name}:`, and below it `  - {key}: …`"
    return ""


def _explain(document: Document, error: Any) -> Iterator[Mistake]:  # noqa: C901 - a branch a mistake
    """A schema error as text with the key, its value, and a suggestion."""
    keys = tuple(error.absolute_path)
    name = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).lstrip(".")
    what = f"{name}: " if name else ""
    shown = _shown(error.instance)
    limit = error.validator_value
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = error.schema.get("properties", {})
        patterns = "|".join(error.schema.get("patternProperties", {})) or "(?!)"
        for key in error.instance:
            if key not in known and not re.search(patterns, key):
                near = did_you_mean(key, known) or _list_of(key, error.schema)
                yield document.mistake(f"{what}unknown key {key!r}{near}", *keys, key)
        return
    if "propertyNames" in error.absolute_schema_path:
        keys = (*keys, error.instance)
        what = f"{what}key "
    if error.validator == "required":
        for key in limit:
            if key not in error.instance:
                yield document.mistake(f"{what}key {key!r} is missing", *keys)
        return
    if error.validator == "dependentRequired":
        for key in limit.keys() & error.instance.keys():
            for other in limit[key]:
                if other not in error.instance:
                    yield document.mistake(f"{what}{key} needs {other}", *keys, key)
        return
    if error.validator == "type":
        wanted = [limit] if isinstance(limit, str) else limit
        text = f"must be {' or '.join(_KINDS[kind] for kind in wanted)}, not {shown}"
        if keys and wanted == ["object"] and (parts := error.schema.get("properties")):
            text = text.replace("(key: value)", f"of {', '.join(parts)}")
        if "string" in wanted and isinstance(error.instance, bool | int | float):
            written = document._marks[keys].written
            text = f"must be text; quote it: '{written}'"
        text = f"{name or 'the file'} {text}"
    elif error.validator == "enum":
        near = did_you_mean(str(error.instance), [word for word in limit if isinstance(word, str)])
        text = f"{what}{shown} is not known{near or '; it must be one of ' + ', '.join(map(str, limit))}"
    elif error.validator in ("minItems", "minLength", "minProperties") and not error.instance:
        text = f"{name or 'the file'} must not be empty"
    elif error.validator in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
        bound = {"minimum": "at least", "exclusiveMinimum": "more than", "maximum": "at most"}
        text = f"{name} must be {bound.get(error.validator, 'less than')} {limit}, not {shown}"
    elif error.validator == "uniqueItems":
        text = f"{name} lists something twice"
    elif "description" in error.schema:
        text = f"{what}{shown} is not {error.schema['description']}"
    else:
        text = f"{what}{' '.join(error.message.split())[:200]}"
    yield document.mistake(text, *keys)


def _shown(value: Json) -> str:
    """A value in a message: never a whole mapping, never a raw control character."""
    if value is None:
        return "empty"
    if isinstance(value, dict | list):
        return _KINDS["object" if isinstance(value, dict) else "array"]
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
