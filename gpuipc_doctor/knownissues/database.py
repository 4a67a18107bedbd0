"""Read the known issues from their YAML files, and say what is wrong with a file by file and line."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from gpuipc_doctor.knownissues.entry import KnownIssue, Need, Reference, Workaround
from gpuipc_doctor.knownissues.versions import Range
from gpuipc_doctor.model import Json
from gpuipc_doctor.yamlfile import BadFile, Document, Key, Mistake, did_you_mean, read

SHIPPED = Path(__file__).with_name("db")
SCHEMA = Path(__file__).with_name("schema.json")


def load(extra_dirs: Iterable[Path] = ()) -> tuple[KnownIssue, ...]:
    """All known issues: those that come with the package, then a site's own.

    Raises `BadFile` with every mistake of every file.
    """
    issues, mistakes = _read_all(files(extra_dirs))
    if mistakes:
        raise BadFile(mistakes)
    return tuple(issues)


def files(extra_dirs: Iterable[Path] = ()) -> list[Path]:
    """The database's files, in the order in which they are read. Raises `BadFile`."""
    found: list[Path] = []
    for directory in (SHIPPED, *extra_dirs):
        try:
            found += sorted(path for path in directory.iterdir() if path.suffix in (".yaml", ".yml"))
        except OSError as error:
            raise BadFile([Mistake(directory, 0, f"cannot be read: {error.strerror}")]) from None
    return found


def lint(paths: Iterable[Path], check_ids: Collection[str] | None = None) -> tuple[Mistake, ...]:
    """Every mistake in these files; with ``check_ids``, also each check that ``detected_by`` invents."""
    _, mistakes = _read_all(paths, check_ids)
    return tuple(sorted(mistakes))


def _read_all(
    paths: Iterable[Path], check_ids: Collection[str] | None = None
) -> tuple[list[KnownIssue], list[Mistake]]:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    issues: dict[str, KnownIssue] = {}
    mistakes: list[Mistake] = []
    for path in paths:
        try:
            document = read(path, schema)
        except BadFile as bad:
            mistakes += bad.mistakes
            continue
        for number, data in enumerate(document.data["issues"]):
            here: tuple[Key, ...] = ("issues", number)
            issue = _issue(data, f"{path}:{document.line(*here)}")
            mistakes += _mistakes(document, here, data, issue, check_ids)
            if first := issues.get(issue.id):
                text = f"id {issue.id!r} is taken by {first.where}"
                mistakes.append(document.mistake(text, *here, "id"))
            issues.setdefault(issue.id, issue)
    return list(issues.values()), mistakes


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
        needs=tuple(
            Need(
                need["fact"],
                need.get("matches", ""),
                _range(need["fact"], need["range"]) if "range" in need else None,
            )
            for need in data.get("needs", ())
        ),
        signatures=tuple(data.get("signatures", ())),
        detected_by=tuple(data.get("detected_by", ())),
        workarounds=tuple(_workaround(component, entry) for entry in data.get("workarounds", ())),
        references=tuple(Reference(**entry) for entry in data["references"]),
        evidence=data.get("evidence", ""),
        inferred=tuple(data.get("inferred", ())),
        notes=data.get("notes", ""),
        withdrawn=data.get("withdrawn", ""),
        where=where,
    )


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
        conflicts=tuple(data.get("conflicts", ())),
    )


def _mistakes(
    document: Document,
    here: tuple[Key, ...],
    data: Json,
    issue: KnownIssue,
    check_ids: Collection[str] | None,
) -> Iterator[Mistake]:
    """What the schema cannot see."""
    ranges: list[tuple[Range | None, tuple[Key, ...]]] = [
        *((one, (*here, "affected", n)) for n, one in enumerate(issue.affected)),
        *((need.range, (*here, "needs", n, "range")) for n, need in enumerate(issue.needs)),
        *((one.when, (*here, "workarounds", n, "when")) for n, one in enumerate(issue.workarounds)),
    ]
    for one, keys in ranges:
        if one is None:
            continue
        if one.fixed and one.last_affected:
            yield document.mistake("give 'fixed' or 'last_affected', not both", *keys)
        for text in one.contradictions():
            yield document.mistake(text, *keys)
    for number, one in enumerate(issue.affected):
        if not one.fixed and not one.last_affected:
            text = "give 'fixed' or 'last_affected': a version, or unknown when nobody has said"
            yield document.mistake(text, *here, "affected", number)
    patterns: list[tuple[str, tuple[Key, ...]]] = [
        *((text, (*here, "signatures", n)) for n, text in enumerate(issue.signatures)),
        *(
            (need.matches, (*here, "needs", n, "matches"))
            for n, need in enumerate(issue.needs)
            if need.matches
        ),
    ]
    for text, keys in patterns:
        try:
            found = re.search(text, "")
        except (re.error, RecursionError, OverflowError) as error:
            yield document.mistake(f"{text!r} is not a regular expression: {error}", *keys)
        else:
            if found:
                yield document.mistake(
                    f"{text!r} matches the empty string, so it would match everything", *keys
                )
    for number, id_ in enumerate(issue.detected_by if check_ids is not None else ()):
        if id_ not in (check_ids or ()):
            near = did_you_mean(id_, check_ids or ())
            yield document.mistake(f"there is no check {id_!r}{near}", *here, "detected_by", number)
