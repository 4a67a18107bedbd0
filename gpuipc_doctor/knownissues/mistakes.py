"""Find in the files of known issues what their schema cannot see."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import date

from gpuipc_doctor.knownissues.conditions import Need
from gpuipc_doctor.knownissues.reading import Placed, suppressions
from gpuipc_doctor.knownissues.regexes import objections
from gpuipc_doctor.knownissues.versions import Range
from gpuipc_doctor.yamlfile import Document, Key, Mistake, did_you_mean


def of_entry(
    one: Placed, check_ids: Collection[str] | None, changing: Mapping[str, Collection[str]]
) -> Iterator[Mistake]:
    """The mistakes of one entry. What the parameters are for, `database.lint` says."""
    yield from _of_ranges(one)
    yield from _of_workarounds(one, changing)
    yield from _of_conditions(one)
    yield from _of_signatures(one)
    for number, id_ in enumerate(one.issue.detected_by if check_ids is not None else ()):
        if id_ not in (check_ids or ()):
            near = did_you_mean(id_, check_ids or ())
            yield one.mistake(f"there is no check {id_!r}{near}", "detected_by", number)
    says = one.issue.affected or one.issue.needs or one.issue.signatures
    if not says and one.issue.kind != "limitation":  # of which it is enough to know
        yield one.mistake("says of no version, no condition and no signature that it is this issue")


def of_suppressions(document: Document, today: date) -> Iterator[Mistake]:
    for number, (id_, suppression) in enumerate(suppressions(document)):
        if not suppression.holds(today):
            text = f"the suppression of {id_!r} expired on {suppression.until}; renew or remove it"
            yield document.mistake(text, "suppress", number, "until")


def _needs(one: Placed) -> Iterator[tuple[Need, tuple[Key, ...]]]:
    for number, need in enumerate(one.issue.needs):
        yield need, ("needs", number)
    for outer, signature in enumerate(one.issue.signatures):
        for number, need in enumerate(signature.needs):
            yield need, ("signatures", outer, "needs", number)


def _of_ranges(one: Placed) -> Iterator[Mistake]:
    issue = one.issue
    ranges: list[tuple[Range | None, tuple[Key, ...]]] = [
        *((affected, ("affected", n)) for n, affected in enumerate(issue.affected)),
        *((need.range, (*keys, "range")) for need, keys in _needs(one)),
        *((workaround.when, ("workarounds", n, "when")) for n, workaround in enumerate(issue.workarounds)),
    ]
    for range_, keys in ranges:
        if range_ is None:
            continue
        if range_.fixed and range_.last_affected:
            yield one.mistake("give 'fixed' or 'last_affected', not both", *keys)
        for text in range_.contradictions():
            yield one.mistake(text, *keys)
    for number, affected in enumerate(issue.affected):
        if not affected.fixed and not affected.last_affected:
            text = "give 'fixed' or 'last_affected': a version, or unknown when nobody has said"
            yield one.mistake(text, "affected", number)


def _of_workarounds(one: Placed, changing: Mapping[str, Collection[str]]) -> Iterator[Mistake]:
    for number, workaround in enumerate(one.issue.workarounds):
        for name in workaround.env:
            if one.issue.component in changing.get(name, ()) and workaround.when is None:
                text = f"{name} is not the same in every {one.issue.component}: say 'when' this is right"
                yield one.mistake(text, "workarounds", number, "env", name)


def _of_conditions(one: Placed) -> Iterator[Mistake]:
    for need, keys in _needs(one):
        if need.matches:
            # An environment variable that is not set is empty text, and may be what is asked for.
            for objection in objections(need.matches, may_be_empty=need.is_env):
                yield one.mistake(f"{need.matches!r} {objection}", *keys, "matches")


def _of_signatures(one: Placed) -> Iterator[Mistake]:
    for number, signature in enumerate(one.issue.signatures):
        keys = ("signatures", number)
        found = [
            f"{text!r} {objection}"
            for text, pattern in zip(signature.match, signature.patterns, strict=True)
            for objection in objections(pattern)
        ]
        for text in found:
            yield one.mistake(text, *keys, "match")
        if not found and signature.sample and not signature.found_in(signature.sample):
            yield one.mistake("the signature does not find its own sample", *keys, "sample")
