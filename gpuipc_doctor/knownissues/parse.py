"""Parse the YAML files of known issues."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from pathlib import Path

from gpuipc_doctor.files.near_miss import did_you_mean
from gpuipc_doctor.files.tables import frozen
from gpuipc_doctor.files.yamlfile import BadFile, Document, Key, Mistake, read
from gpuipc_doctor.knownissues.conditions import ENV, Need
from gpuipc_doctor.knownissues.entry import KnownIssue, Lookalike, Reference, Suppression, Workaround
from gpuipc_doctor.knownissues.message import Message, Severity
from gpuipc_doctor.knownissues.signatures import NOT_PUBLIC, Call, Confidence, Signature, Source
from gpuipc_doctor.model import Json
from gpuipc_doctor.versions import Range

SCHEMA = Path(__file__).with_name("schema.json")


@cache
def components() -> frozenset[str]:
    """The components that an entry can have."""
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    return frozenset(schema["$defs"]["component"]["enum"])


@dataclass(frozen=True, slots=True)
class Placed:
    """An entry of a file, and its place in the file."""

    document: Document
    keys: tuple[Key, ...]
    issue: KnownIssue

    @property
    def signatures(self) -> tuple[Signature, ...]:
        return self.issue.signatures

    def mistake(self, text: str, *keys: Key) -> Mistake:
        return self.document.mistake(text, *self.keys, *keys)


@dataclass(frozen=True, slots=True)
class PlacedMessage:
    """A message of a file, and its place in the file."""

    document: Document
    keys: tuple[Key, ...]
    message: Message

    @property
    def signatures(self) -> tuple[Signature, ...]:
        return self.message.signatures

    def mistake(self, text: str, *keys: Key) -> Mistake:
        return self.document.mistake(text, *self.keys, *keys)


def read_all(
    paths: Iterable[Path], trusted: Callable[[Path], bool] = lambda _: False
) -> tuple[list[Document], list[Document], list[Mistake]]:
    """The valid files, the valid parts of the others, and their mistakes.

    ``trusted`` files are not validated here: a test validates the package's own. Validating would take ten
    times as long as reading (1.0 s and 0.1 s for 158 issues).
    """
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    documents: list[Document] = []
    parts: list[Document] = []
    mistakes: list[Mistake] = []
    for path in paths:
        try:
            document = read(path, None if trusted(path) else schema)
        except BadFile as bad:
            mistakes += bad.mistakes
            parts += [bad.sound] if bad.sound else []
            continue
        if wrong := list(_impossible_days(document)):
            mistakes += wrong
        else:
            documents.append(document)
    return documents, parts, mistakes


def _impossible_days(document: Document) -> Iterator[Mistake]:
    for number, data in enumerate(document.data.get("suppress", ())):
        try:
            date.fromisoformat(data["until"])
        except ValueError:
            yield document.mistake(f"no such date: {data['until']!r}", "suppress", number, "until")


def placed(document: Document) -> Iterator[Placed]:
    """The entries of a file, or of its valid part."""
    for number, data in enumerate(document.data.get("issues", ())):
        if data is None:
            continue
        keys = ("issues", number)
        yield Placed(document, keys, _issue(data, f"{document.path}:{document.line(*keys)}"))


def placed_messages(document: Document) -> Iterator[PlacedMessage]:
    """The messages of a file, or of its valid part."""
    for number, data in enumerate(document.data.get("messages", ())):
        if data is not None:
            keys = ("messages", number)
            yield PlacedMessage(document, keys, _message(data, document.path, document.line(*keys)))


def suppressions(document: Document) -> Iterator[tuple[str, Suppression]]:
    """The suppressions of a file, each with its issue's id."""
    for number, data in enumerate(document.data.get("suppress", ())):
        where = f"{document.path}:{document.line('suppress', number)}"
        yield data["id"], Suppression(data["reason"], date.fromisoformat(data["until"]), where)


def merge(
    documents: Sequence[Document], spare: Collection[str] = ()
) -> tuple[tuple[KnownIssue, ...], list[Mistake]]:
    """The known issues of all files by id; later files override and suppress earlier ones.

    ``spare``: ids of messages, which may be named although they are no known issues.
    """
    issues: dict[str, KnownIssue] = {}
    mistakes: list[Mistake] = []
    entries = [entry for document in documents for entry in placed(document)]
    for entry in entries:
        first = issues.get(entry.issue.id)
        if first and not entry.issue.overrides:
            text = f"id {first.id!r} is already used by {first.where}; to replace it, add 'overrides'"
            mistakes.append(entry.mistake(text, "id"))
        elif entry.issue.overrides and not first and entry.issue.id not in spare:
            text = f"nothing to override: no known issue {entry.issue.id!r}"
            mistakes.append(entry.mistake(text + did_you_mean(entry.issue.id, issues), "id"))
        issues[entry.issue.id] = entry.issue
    for document in documents:
        for number, (id_, suppression) in enumerate(suppressions(document)):
            if id_ in issues:
                issues[id_] = replace(issues[id_], suppression=suppression)
            elif id_ not in spare:
                text = f"no known issue {id_!r}{did_you_mean(id_, issues)}"
                mistakes.append(document.mistake(text, "suppress", number, "id"))
    for entry in entries:
        named: list[tuple[str, tuple[Key, ...]]] = [
            *((lookalike.id, ("resembles", n, "id")) for n, lookalike in enumerate(entry.issue.resembles)),
            *(
                (id_, ("workarounds", n, "conflicts"))
                for n, workaround in enumerate(entry.issue.workarounds)
                for id_ in workaround.conflicts
            ),
        ]
        for id_, keys in named:
            if id_ not in issues and id_ not in spare:
                text = f"no known issue {id_!r}{did_you_mean(id_, issues)}"
                mistakes.append(entry.mistake(text, *keys))
    return tuple(issues.values()), mistakes


def _issue(data: Json, where: str) -> KnownIssue:
    component = data["component"]
    parts = {
        "kind": data["class"],
        "affected": tuple(_range(component, entry) for entry in data["affected"]),
        "needs": tuple(map(_need, data.get("needs", ()))),
        "signatures": tuple(map(_signature, data.get("signatures", ()))),
        "workarounds": tuple(_workaround(component, entry) for entry in data.get("workarounds", ())),
        "resembles": tuple(Lookalike(**entry) for entry in data.get("resembles", ())),
        "references": tuple(Reference(**entry) for entry in data["references"]),
    }
    return KnownIssue(**{**frozen(data, "class"), **parts}, where=where)


def _message(data: Json, path: Path, line: int) -> Message:
    look = data["look"]
    parts = {
        "severity": Severity(data["severity"]),
        "component": data.get("component", path.stem),
        "look": (look,) if isinstance(look, str) else tuple(look),
        "signatures": tuple(_signature(one, "medium") for one in data["signatures"]),
    }
    return Message(**{**frozen(data), **parts}, where=f"{path}:{line}")


def _need(data: Json) -> Need:
    fact = data["fact"] if "fact" in data else f"{ENV}{data['env']}"
    within = _range(fact, data["range"]) if "range" in data else None
    texts = {key: data.get(key, "") for key in ("matches", "says", "switch", "lacks", "at_most")}
    return Need(fact, range=within, absent=data.get("absent", False), **texts)


def _signature(data: Json, confidence: str = "high") -> Signature:
    """A signature from its YAML. ``confidence``: the default."""
    if isinstance(data, str):
        data = {"match": data}
    match = data.get("match", ())
    parts = {
        "match": (match,) if isinstance(match, str) else tuple(match),
        "confidence": Confidence[data.get("confidence", confidence).upper()],
        "needs": tuple(map(_need, data.get("needs", ()))),
        "source": _source(data.get("source", data.get("file"))),
        "call": Call(**data["call"]) if "call" in data else None,
    }
    return Signature(**{**frozen(data, "file"), **parts})


def _source(data: Json) -> Source | None:
    if data == "none":
        return NOT_PUBLIC
    return Source(prints="", file=data) if isinstance(data, str) else Source(**data) if data else None


def _range(component: str, data: Json) -> Range:
    return Range(component, **frozen(data))


def _workaround(component: str, data: Json) -> Workaround:
    settings = " ".join(f"{name}={value}" for name, value in data.get("env", {}).items())
    parts = {
        "do": data.get("do") or f"set {settings}",
        "when": _range(component, data["when"]) if "when" in data else None,
    }
    return Workaround(**{**frozen(data), **parts})
