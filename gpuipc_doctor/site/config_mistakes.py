"""Mistakes in a site's config: those that a schema cannot see, and contradictions in the merged content."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import date
from pathlib import Path

from gpuipc_doctor.files import reading
from gpuipc_doctor.files.near_miss import did_you_mean
from gpuipc_doctor.files.trust import untrusted
from gpuipc_doctor.files.yamlfile import BadFile, Document, Key, Mistake, read, violations
from gpuipc_doctor.model import Json, Subject
from gpuipc_doctor.site import hosts, launcher, layers
from gpuipc_doctor.site.layers import Find, Layers
from gpuipc_doctor.site.policy import SITE_DIRECTORIES
from gpuipc_doctor.versions import BEGINNING, ORDERS, Range

_SCHEMA = Path(__file__).with_name("config.schema.json")

OF_FABRIC = ("fabric", "fabric-info", "fabric-small-message")
"""Checks that a site without a fabric (``fabric: none``) skips."""

SUBJECTS = frozenset(subject.value for subject in Subject)
"""Words of ``required`` that are no checks."""


def examine(
    path: Path | None = None, match: Find = lambda: None, known: Iterable[Document] = ()
) -> tuple[Layers, list[Mistake]]:
    """The valid part of a site config and of the files that it extends, and all mistakes in them."""
    mistakes: list[Mistake] = []
    documents: list[Document] = []
    by_path = {document.path: document for document in known}

    def examined(file: Path) -> Document:
        document, wrong = _examine(file, by_path.get(file))
        mistakes.extend(wrong)
        if document is None:
            raise BadFile(())
        return document

    try:
        documents.extend(layers.lineage(path, examined, match))
    except BadFile as bad:
        mistakes.extend(bad.mistakes)
    found = Layers(tuple(documents))
    return found, [*mistakes, *_contradictions(found)]


def schema() -> dict[str, Json]:
    """The JSON Schema of a site file."""
    content: dict[str, Json] = json.loads(_SCHEMA.read_text(encoding="utf-8"))
    return content


def _examine(path: Path, known: Document | None) -> tuple[Document | None, list[Mistake]]:
    """The valid part of one file (None if there is none) and all mistakes in it. ``known``: see `load`."""
    if wrong_name := layers.nameless(path):
        return None, [Mistake(path, 0, wrong_name)]
    if os.path.isdir(path):  # noqa: PTH112 - it raises nothing, whoever may not look
        return None, [Mistake(path, 0, reading.DIRECTORY)]
    # A user who can write a shipped file can also write the program that reads it.
    if path.parent != layers.shipped() and (reason := untrusted(path)):
        return None, [Mistake(path, 0, reason)]
    form = schema()
    try:
        document = known if known and not violations(known, form) else read(path, form)
        wrong: tuple[Mistake, ...] = ()
    except BadFile as bad:
        if bad.sound is None:
            return None, list(bad.mistakes)
        document, wrong = bad.sound, bad.mistakes
    in_directories = (mistake for key in SITE_DIRECTORIES for mistake in of_directories(document, key))
    return document, [*wrong, *_mistakes(document), *in_directories]


def accepted_versions(component: str, said: Json) -> Range:
    """The versions that a config states: one, or a range with ``from``, ``to`` or ``before``."""
    if isinstance(said, str):
        return Range(component, said, last_affected=said)
    first, last = said.get("from", BEGINNING), said.get("to", "")
    return Range(component, first, fixed=said.get("before", ""), last_affected=last)


def unknown_checks(document: Document, check_ids: Collection[str]) -> tuple[Mistake, ...]:
    """Unknown checks in a site config, and wrong settings of known ones."""
    named: list[tuple[tuple[Key, ...], str]] = [
        ((section, name), name.partition(".")[0])
        for section in ("disabled", "options", "suppressed")
        for name in document.written(section)
        if isinstance(name, str)
    ]
    named += [(("prolog", "checks", key), id_) for key, id_ in document.written("prolog", "checks").items()]
    named += [
        (("required", key), id_) for key, id_ in document.written("required").items() if id_ not in SUBJECTS
    ]
    pattern: str = schema()["$defs"]["check"]["pattern"]
    ambiguous = (
        document.mistake(
            f"required: {word!r} is a subject and also the id of a check; rename that check", "required", key
        )
        for key, word in document.written("required").items()
        if word in SUBJECTS and word in check_ids
    )
    return (
        *ambiguous,
        *(
            document.mistake(
                f"{'.'.join(map(str, keys[:-1]))}: no check {id_!r}{did_you_mean(id_, check_ids)}", *keys
            )
            for keys, id_ in named
            if id_ not in check_ids and re.fullmatch(pattern, id_)  # otherwise the schema refuses it
        ),
    )


def bad_options(document: Document, options: Mapping[str, Mapping[str, Json]]) -> list[Mistake]:
    """Options that a check does not have or cannot use. ``options``: JSON Schemas by check and name."""
    known = {
        check: {"additionalProperties": False, "properties": dict(schemas)}
        for check, schemas in options.items()
    }
    return violations(document, {"properties": {"options": {"properties": known}}})


def unknown_keys(document: Document, keys: Mapping[str, Collection[str]]) -> Iterator[Mistake]:
    """Keys of suppressed findings that their checks never report. ``keys``: finding keys by check."""
    for name in document.written("suppressed"):
        check, _, key = str(name).partition(".")
        if check in keys and key not in keys[check]:
            text = f"suppressed: {check} has no finding {key!r}{did_you_mean(key, keys[check])}"
            yield document.mistake(text, "suppressed", name)


def directories(document: Document, key: str) -> tuple[Path, ...]:
    here = document.path.absolute().parent
    return tuple(here / name for name in document.data.get(key, ()))


def _mistakes(document: Document) -> Iterator[Mistake]:
    """Mistakes that a schema cannot describe."""
    data = document.data
    yield from _of_nodes(document, data)
    for name, said in data.get("node_types", {}).items():
        yield from _of_nodes(document, said, "node_types", name)
    for name, said in data.get("versions", {}).items():
        yield from _of_version(document, name, said)
    for section in ("disabled", "suppressed"):
        for name, said in data.get(section, {}).items():
            try:
                if isinstance(said, dict):
                    date.fromisoformat(said["until"])
            except ValueError:
                wrong = f"{section}.{name}: no such date: {said['until']}"
                yield document.mistake(wrong, section, name, "until")


def _of_nodes(document: Document, data: Json, *within: Key) -> Iterator[Mistake]:
    name = "".join(f"{key}." for key in within)
    for wrong in launcher.mistakes(data.get("mpi", {}).get("launcher", "{ranks}")):
        yield document.mistake(f"{name}mpi.launcher: {wrong}", *within, "mpi", "launcher")
    said = data.get("hosts")
    for number, text in enumerate(hosts.listed(said)):
        place: Iterable[Key] = () if isinstance(said, str) else (number,)
        try:
            hosts.expand(text)
        except hosts.BadNodes as bad:
            yield document.mistake(f"{name}hosts: {bad}; see `nodeset --help`", *within, "hosts", *place)


def _of_version(document: Document, name: str, said: Json) -> Iterator[Mistake]:
    if isinstance(said, dict) and "before" in said and "to" in said:
        yield document.mistake(f"versions.{name}: remove either 'before' or 'to'", "versions", name, "to")
    if name not in ORDERS:
        text = f"versions: no component {name!r}{did_you_mean(name, ORDERS)}"
        yield document.mistake(text, "versions", name)
    else:
        begin = str(said).removesuffix(".x").removesuffix(".*")
        meant = "" if begin == str(said) else f'; for all of {begin}: {{from: "{begin}", to: "{begin}"}}'
        for wrong in accepted_versions(name, said).contradictions():
            yield document.mistake(f"versions.{name}: {wrong}{meant}", "versions", name)


def _contradictions(found: Layers) -> Iterator[Mistake]:
    """Demands that no node can meet, in the merged content."""
    data = found.data
    for section, within in ((data, ()), *((kind, ("node_types", name)) for name, kind in _types(data))):
        yield from _of_node_contradictions(found, {**data, **section}, within)
    for number, check in enumerate(data.get("required", ())):
        by = ""
        if check in data.get("disabled", {}):
            by = f"is disabled at {found.where('disabled', check)}"
        elif check in OF_FABRIC and data.get("fabric") == "none" and not data.get("node_types"):
            by = f"needs a fabric, and {found.where('fabric')} says that there is none"
        if by:
            yield found.mistake(f"required: {check} {by}; remove one of the two", "required", number)


def _types(data: Json) -> Iterable[tuple[str, Json]]:
    return ((name, kind) for name, kind in data.get("node_types", {}).items() if isinstance(kind, dict))


def _of_node_contradictions(found: Layers, data: Json, within: tuple[str, ...]) -> Iterator[Mistake]:
    def mistake(text: str, *keys: str) -> Mistake:
        path = (*within, *keys) if within and keys[0] in found.data["node_types"][within[1]] else keys
        return found.mistake(f"{'.'.join(path[:-1])}: {text}", *path)

    gpus, fabric = data.get("gpus", {}), data.get("fabric")
    count, peers = gpus.get("count"), gpus.get("peers")
    if isinstance(peers, int) and count and peers >= count:
        yield mistake(f"each of {count} GPUs has at most {count - 1} peers, not {peers}", "gpus", "peers")
    if count == 1 and peers == "all":
        yield mistake("a single GPU has no peers; remove 'peers', or correct 'count'", "gpus", "peers")
    for name in data.get("adapters", {}):
        if name != "else" and fabric in ("none", "tcp") and len(within) == 0:
            text = f"{name} contradicts `fabric: {fabric}` at {found.where('fabric')}; remove one of the two"
            yield mistake(text, "adapters", name)


def of_directories(document: Document, key: str) -> Iterator[Mistake]:
    """Mistakes for directories that cannot be read, or that root must not trust."""
    for number, directory in enumerate(directories(document, key)):
        try:
            files = [path for path in directory.iterdir() if path.suffix in SITE_DIRECTORIES[key]]
        except OSError as error:
            yield document.mistake(f"{key}: {directory}: {error.strerror}", key, number)
            continue
        cached = sorted((directory / "__pycache__").glob("*"))  # Python prefers these to the source files
        for path in (directory, *sorted(files), directory / "__pycache__", *cached):
            if reason := untrusted(path):
                yield document.mistake(f"{key}: {path} {reason}", key, number)
