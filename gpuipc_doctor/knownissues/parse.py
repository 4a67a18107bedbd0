"""Turn the YAML files of known issues into known issues."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from gpuipc_doctor.knownissues.conditions import ENV, Need
from gpuipc_doctor.knownissues.entry import KnownIssue, Lookalike, Reference, Suppression, Workaround
from gpuipc_doctor.knownissues.signatures import NOT_PUBLIC, Confidence, Signature, Source
from gpuipc_doctor.model import Json
from gpuipc_doctor.near_miss import did_you_mean
from gpuipc_doctor.site.yamlfile import BadFile, Document, Key, Mistake, read
from gpuipc_doctor.versions import Range

SCHEMA = Path(__file__).with_name("schema.json")


@dataclass(frozen=True, slots=True)
class Placed:
    """An entry of a file, and where in the file it stands."""

    document: Document
    keys: tuple[Key, ...]
    issue: KnownIssue

    def mistake(self, text: str, *keys: Key) -> Mistake:
        return self.document.mistake(text, *self.keys, *keys)


def read_all(
    paths: Iterable[Path], trusted: Callable[[Path], bool] = lambda _: False
) -> tuple[list[Document], list[Document], list[Mistake]]:
    """The files that fit the schema, what fits it of the others, and the mistakes in those.

    ``trusted`` files are not checked. Those of the package were, when it was tested; to check them again, for
    every run of `check`, takes ten times as long as to read them (1.0 s to 0.1 s for 158 issues).
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
            yield document.mistake(f"there is no day {data['until']!r}", "suppress", number, "until")


def placed(document: Document) -> Iterator[Placed]:
    """The entries of a file, or of its sound part."""
    for number, data in enumerate(document.data.get("issues", ())):
        if data is None:
            continue
        keys = ("issues", number)
        yield Placed(document, keys, _issue(data, f"{document.path}:{document.line(*keys)}"))


def suppressions(document: Document) -> Iterator[tuple[str, Suppression]]:
    """The suppressions of a file, each with the id of its issue."""
    for number, data in enumerate(document.data.get("suppress", ())):
        where = f"{document.path}:{document.line('suppress', number)}"
        yield data["id"], Suppression(data["reason"], date.fromisoformat(data["until"]), where)


def merge(documents: Sequence[Document]) -> tuple[tuple[KnownIssue, ...], list[Mistake]]:
    """The entries of all files by id, later files overriding and suppressing what earlier ones say."""
    issues: dict[str, KnownIssue] = {}
    mistakes: list[Mistake] = []
    entries = [one for document in documents for one in placed(document)]
    for one in entries:
        first = issues.get(one.issue.id)
        if first and not one.issue.overrides:
            text = f"id {first.id!r} is taken by {first.where}; to replace that, say why in 'overrides'"
            mistakes.append(one.mistake(text, "id"))
        elif one.issue.overrides and not first:
            text = f"nothing to override: there is no known issue {one.issue.id!r}"
            mistakes.append(one.mistake(text + did_you_mean(one.issue.id, issues), "id"))
        issues[one.issue.id] = one.issue
    for document in documents:
        for number, (id_, suppression) in enumerate(suppressions(document)):
            if id_ in issues:
                issues[id_] = replace(issues[id_], suppression=suppression)
            else:
                text = f"there is no known issue {id_!r}{did_you_mean(id_, issues)}"
                mistakes.append(document.mistake(text, "suppress", number, "id"))
    for one in entries:
        named: list[tuple[str, tuple[Key, ...]]] = [
            *((lookalike.id, ("resembles", n, "id")) for n, lookalike in enumerate(one.issue.resembles)),
            *(
                (id_, ("workarounds", n, "conflicts"))
                for n, workaround in enumerate(one.issue.workarounds)
                for id_ in workaround.conflicts
            ),
        ]
        for id_, keys in named:
            if id_ not in issues:
                text = f"there is no known issue {id_!r}{did_you_mean(id_, issues)}"
                mistakes.append(one.mistake(text, *keys))
    return tuple(issues.values()), mistakes


def _issue(data: Json, where: str) -> KnownIssue:
    component = data["component"]
    return KnownIssue(
        id=data["id"],
        title=data["title"],
        component=component,
        kind=data["class"],
        status=data["status"],
        symptom=data["symptom"],
        trigger=data.get("trigger", ""),
        also=tuple(data.get("also", ())),
        affected=tuple(_range(component, entry) for entry in data["affected"]),
        needs=tuple(map(_need, data.get("needs", ()))),
        signatures=tuple(map(_signature, data.get("signatures", ()))),
        silent=data.get("silent", ""),
        harms=tuple(data.get("harms", ())),
        detected_by=tuple(data.get("detected_by", ())),
        history=tuple(data.get("history", ())),
        workarounds=tuple(_workaround(component, entry) for entry in data.get("workarounds", ())),
        resembles=tuple(Lookalike(**entry) for entry in data.get("resembles", ())),
        references=tuple(Reference(**entry) for entry in data["references"]),
        evidence=data.get("evidence", ""),
        inferred=tuple(data.get("inferred", ())),
        notes=data.get("notes", ""),
        withdrawn=data.get("withdrawn", ""),
        overrides=data.get("overrides", ""),
        where=where,
    )


def _need(data: Json) -> Need:
    fact = data["fact"] if "fact" in data else f"{ENV}{data['env']}"
    within = _range(fact, data["range"]) if "range" in data else None
    return Need(fact, data.get("matches", ""), within, data.get("absent", False), data.get("says", ""))


def _signature(data: Json) -> Signature:
    if isinstance(data, str):
        return Signature((data,))
    match = data.get("match", ())
    return Signature(
        stack=tuple(data.get("stack", ())),
        match=(match,) if isinstance(match, str) else tuple(match),
        confidence=Confidence[data.get("confidence", "high").upper()],
        needs=tuple(map(_need, data.get("needs", ()))),
        sample=data.get("sample", ""),
        unless=data.get("unless", ""),
        source=_source(data.get("source")),
    )


def _source(data: Json) -> Source | None:
    if data == "none":
        return NOT_PUBLIC
    return Source(**data) if data else None


def _range(component: str, data: Json) -> Range:
    lists: dict[str, Any] = {key: tuple(data.get(key, ())) for key in ("known_bad", "known_good")}
    return Range(component, **{**data, **lists})


def _workaround(component: str, data: Json) -> Workaround:
    env = data.get("env", {})
    return Workaround(
        do=data.get("do") or "set " + " ".join(f"{name}={value}" for name, value in env.items()),
        env=env,
        when=_range(component, data["when"]) if "when" in data else None,
        cost=data.get("cost", ""),
        risk=data.get("risk", ""),
        risk_source=data.get("risk_source", ""),
        conflicts=tuple(data.get("conflicts", ())),
        without=tuple(data.get("without", ())),
    )
