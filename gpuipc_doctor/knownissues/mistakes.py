"""Find mistakes in files of known issues that a schema cannot find."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import date

from gpuipc_doctor.files.near_miss import did_you_mean
from gpuipc_doctor.files.yamlfile import Document, Key, Mistake
from gpuipc_doctor.knownissues.conditions import Need, in_words
from gpuipc_doctor.knownissues.message import LINES, LINES_OF_SIGNATURE
from gpuipc_doctor.knownissues.parse import (
    Placed,
    PlacedMessage,
    components,
    placed,
    placed_messages,
    suppressions,
)
from gpuipc_doctor.knownissues.patterns import Index
from gpuipc_doctor.knownissues.regexes import objections
from gpuipc_doctor.knownissues.scanner import Search
from gpuipc_doctor.node.fact_names import NAMES
from gpuipc_doctor.versions import Range

_MESSAGE = re.compile(
    r"\b(?:messages? (?:about|(?:that )?(?:says?|reads?))|assertion|warning|says that|prints"
    r"|reports? (?:that|an)|logs?)\b"
)
"""Pattern for words in a symptom that indicate a quoted message."""


def of_entry(
    one: Placed, check_ids: Collection[str] | None, changing: Mapping[str, Collection[str]]
) -> Iterator[Mistake]:
    """The mistakes of one entry; `database.lint` explains the parameters."""
    yield from _of_ranges(one)
    yield from _of_workarounds(one, changing)
    yield from _of_conditions(one)
    if check_ids is not None:
        yield from _of_words(one)
    yield from _of_signatures(one)
    yield from _of_messages(one)
    if bool(one.issue.harms) != (one.issue.kind == "probe-harms"):
        yield one.mistake(
            "class 'probe-harms' and the key 'harms' need each other", "harms" if one.issue.harms else "class"
        )
    for number, id_ in enumerate(one.issue.detected_by if check_ids is not None else ()):
        check = id_.partition(".")[0]  # the id in a finding's key
        if check not in (check_ids or ()):
            near = did_you_mean(check, check_ids or ())
            yield one.mistake(f"no check {check!r}{near}", "detected_by", number)
    says = one.issue.affected or one.issue.needs or one.issue.signatures
    if not says and one.issue.kind != "limitation":  # needs no detection
        yield one.mistake("has no affected version, no condition and no signature")


def of_message(one: PlacedMessage) -> Iterator[Mistake]:
    """The mistakes of one message."""
    yield from _of_signatures(one)
    if one.message.component not in components():
        text = f"no component {one.message.component!r}: name the file after one, or add 'component'"
        yield one.mistake(text)


def of_facts(one: Placed | PlacedMessage) -> Iterator[Mistake]:
    """Report conditions on facts that no inventory has; `_of_ranges` reports those with a range."""
    for need, keys in _needs(one):
        if (text := _no_fact(need)) and not need.range:
            yield one.mistake(text, *keys, "fact")


def _no_fact(need: Need) -> str:
    """The mistake in a need's fact; empty for a fact of the inventory or a variable."""
    if need.is_env or need.fact in NAMES:
        return ""
    near = did_you_mean(need.fact, NAMES) or "; `gpuipc-doctor inventory` lists the facts"
    return f"no fact {need.fact!r}{near}"


def of_ids(documents: Iterable[Document]) -> Iterator[Mistake]:
    """Report messages whose id another entry has."""
    places: dict[str, str] = {}
    for document in documents:
        places |= {
            entry.issue.id: entry.issue.where for entry in placed(document) if not entry.issue.overrides
        }
    for document in documents:
        for one in placed_messages(document):
            if first := places.get(one.message.id):
                yield one.mistake(f"id {one.message.id!r} is already used by {first}", "id")
            places[one.message.id] = one.message.where


def of_place(document: Document, kind: str) -> Iterator[Mistake]:
    """Report what the package's own files must not have: entries of the other kind, messages that are too
    long, signatures without the place in the source that prints the text."""
    for name in document.data:
        if name != kind:
            yield document.mistake(f"{name!r} does not belong into a file of {kind}", name)
    for entry in placed(document):
        if not entry.issue.is_bound and not entry.issue.withdrawn:
            text = "has no affected version, condition or check: it is a message and belongs into messages/"
            yield entry.mistake(text)
        for number, signature in enumerate(entry.signatures):
            if not signature.source and signature.patterns:
                text = (
                    "give in 'source' the file that prints the message, or 'none' if that file is not public"
                )
                yield entry.mistake(text, "signatures", number)
    yield from _of_length(document)


def _of_length(document: Document) -> Iterator[Mistake]:
    messages = list(placed_messages(document))
    if not messages:
        return
    rows = document.path.read_text(encoding="utf-8").splitlines()
    starts = [document.line(*one.keys) - 1 for one in messages]
    for one, start, end in zip(messages, starts, [*starts[1:], len(rows)], strict=True):
        length = sum(bool(row.strip()) for row in rows[start:end])
        most = LINES + LINES_OF_SIGNATURE * len(one.signatures)
        if length > most:
            yield one.mistake(f"has {length} lines; a message with so many signatures has at most {most}")


def of_suppressions(document: Document, today: date) -> Iterator[Mistake]:
    for number, (id_, suppression) in enumerate(suppressions(document)):
        if not suppression.holds(today):
            text = f"the suppression of {id_!r} expired on {suppression.until}; renew or remove it"
            yield document.mistake(text, "suppress", number, "until")


def _needs(one: Placed | PlacedMessage) -> Iterator[tuple[Need, tuple[Key, ...]]]:
    for number, need in enumerate(one.issue.needs if isinstance(one, Placed) else ()):
        yield need, ("needs", number)
    for outer, signature in enumerate(one.signatures):
        for number, need in enumerate(signature.needs):
            yield need, ("signatures", outer, "needs", number)


def _of_ranges(one: Placed) -> Iterator[Mistake]:
    issue = one.issue
    ranges: list[tuple[Range | None, tuple[Key, ...]]] = [
        *((affected, ("affected", n)) for n, affected in enumerate(issue.affected)),
        *((need.range, (*keys, "range")) for need, keys in _needs(one) if not _no_fact(need)),
        *((workaround.when, ("workarounds", n, "when")) for n, workaround in enumerate(issue.workarounds)),
    ]
    for range_, keys in ranges:
        if range_ is None:
            continue
        if range_.fixed and range_.last_affected:
            yield one.mistake("give 'fixed' or 'last_affected', not both", *keys)
        for text in range_.contradictions():
            yield one.mistake(text, *keys)
    for need, keys in _needs(one):
        if need.range and (text := _no_fact(need)):
            yield one.mistake(text, *keys, "fact")
    for number, affected in enumerate(issue.affected):
        if not affected.fixed and not affected.last_affected:
            text = "give 'fixed' or 'last_affected': a version, or unknown"
            yield one.mistake(text, "affected", number)


def _of_workarounds(one: Placed, changing: Mapping[str, Collection[str]]) -> Iterator[Mistake]:
    for number, workaround in enumerate(one.issue.workarounds):
        for name in workaround.env:
            if one.issue.component in changing.get(name, ()) and workaround.when is None:
                text = f"{name} differs between versions of {one.issue.component}: add 'when'"
                yield one.mistake(text, "workarounds", number, "env", name)


def _of_conditions(one: Placed) -> Iterator[Mistake]:
    for need, keys in _needs(one):
        if need.lacks and not need.says:
            yield one.mistake(f"explain {need.lacks!r} in 'says'", *keys, "lacks")
        for key, pattern in (("matches", need.matches), ("lacks", need.lacks)):
            # An unset environment variable is empty text, which a condition may require.
            for objection in objections(pattern, may_be_empty=need.is_env) if pattern else ():
                yield one.mistake(f"{pattern!r} {objection}", *keys, key)


def _of_words(one: Placed) -> Iterator[Mistake]:
    """Report conditions whose pattern is not explained in words."""
    for need, keys in _needs(one):
        if need.matches and not need.says and not in_words(need.matches):
            yield one.mistake(f"explain {need.matches!r} in 'says'", *keys, "matches")


def _of_messages(one: Placed) -> Iterator[Mistake]:
    issue = one.issue
    told = _MESSAGE.search(issue.symptom) if not issue.withdrawn else None
    if told and not issue.signatures and not issue.silent:
        give = "give a signature, a reason in 'silent', or other words"
        yield one.mistake(f"the symptom seems to quote a log ({told[0]}): {give}", "symptom")


def _of_signatures(one: Placed | PlacedMessage) -> Iterator[Mistake]:
    for number, signature in enumerate(one.signatures):
        keys = ("signatures", number)
        found = [
            f"{text!r} {objection}"
            for text, pattern in zip(
                (*(signature.match or signature.stack), *[signature.unless] * bool(signature.unless)),
                (*signature.patterns, *[signature.unless] * bool(signature.unless)),
                strict=True,
            )
            for objection in objections(pattern)
        ]
        for text in found:
            yield one.mistake(text, *keys, "match")
        if found or not signature.patterns:
            continue
        index = Index([signature])
        for reason in index.skipped.values():
            yield one.mistake(f"cannot be searched for: {reason}", *keys)
        if signature.sample and not index.skipped and not Search([signature]).shown(signature.sample):
            text = "the signature does not find its own sample; give each line of it an expression"
            yield one.mistake(text, *keys, "sample")
